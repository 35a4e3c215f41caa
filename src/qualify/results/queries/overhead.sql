-- How much of a trial's time was the model's, the tools' and ours (judging included).
SELECT row, scenario, count(*) AS trials, sum(timings_wall_ms) AS wall_ms,
       sum(timings_judging_ms) AS judging_ms, sum(timings_model_ms) AS model_ms,
       sum(timings_tool_ms) AS tool_ms,
       round(100 * (sum(timings_wall_ms) + sum(timings_judging_ms) - sum(timings_model_ms)
                    - sum(timings_tool_ms)) / (sum(timings_wall_ms) + sum(timings_judging_ms)), 1)
           AS ours_percent
FROM trials
WHERE timings_wall_ms > 0 AND timings_judging_ms IS NOT NULL AND timings_model_ms IS NOT NULL
    AND timings_tool_ms IS NOT NULL
GROUP BY ALL
ORDER BY row, scenario;
