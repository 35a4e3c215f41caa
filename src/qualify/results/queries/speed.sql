-- Tokens a second, time to first token and start-up time of each row (medians).
SELECT t.site, c.row, t.engine_kind AS engine, t.machine_cpu_model AS cpu,
       t.machine_gpu_model AS gpu,
       count(*) AS trials,
       round(median(t.timings_completion_tokens_per_s_milli) / 1000, 1) AS completion_tokens_per_s,
       round(median(t.timings_prompt_tokens_per_s_milli) / 1000, 1) AS prompt_tokens_per_s,
       median(t.timings_first_token_ms_median) AS first_token_ms,
       median(t.timings_engine_start_ms) AS engine_start_ms,
       median(t.timings_worker_start_ms) AS worker_start_ms,
       median(t.timings_wall_ms) AS wall_ms
FROM finished t JOIN cases c USING (case_id)
GROUP BY ALL
ORDER BY t.site, c.row, engine, cpu, gpu;
