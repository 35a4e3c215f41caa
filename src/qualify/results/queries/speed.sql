-- Tokens a second, time to first token and start-up time of each row (medians).
SELECT row, engine_kind AS engine, machine_cpu_model AS cpu, machine_gpu_model AS gpu,
       count(*) AS trials,
       round(median(timings_completion_tokens_per_s_milli) / 1000, 1) AS completion_tokens_per_s,
       round(median(timings_prompt_tokens_per_s_milli) / 1000, 1) AS prompt_tokens_per_s,
       median(timings_first_token_ms_median) AS first_token_ms,
       median(timings_engine_start_ms) AS engine_start_ms,
       median(timings_worker_start_ms) AS worker_start_ms,
       median(timings_wall_ms) AS wall_ms
FROM trials
WHERE engine_kind IS NOT NULL
GROUP BY ALL
ORDER BY row, engine, cpu, gpu;
