-- Time to first token of each row and machine, in ms; trials that cannot tell are counted apart.
-- :row name * only this row
SELECT t.site, c.row, t.engine_kind AS engine, t.machine_cpu_model AS cpu,
       t.machine_gpu_model AS gpu,
       count(*) AS trials, count(*) - count(t.timings_first_token_ms_median) AS unknown,
       min(t.timings_first_token_ms_median) AS least,
       quantile_disc(t.timings_first_token_ms_median, 0.5) AS median,
       quantile_disc(t.timings_first_token_ms_median, 0.9) AS p90,
       quantile_disc(t.timings_first_token_ms_median, 0.99) AS p99,
       max(t.timings_first_token_ms_median) AS most
FROM finished t JOIN cases c USING (case_id)
WHERE $row IN ('*', c.row)
GROUP BY ALL
ORDER BY t.site, c.row, engine, cpu, gpu;
