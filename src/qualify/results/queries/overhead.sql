-- How much of a trial's time was the model's, the tools' and ours (judging included).
WITH sums AS (
    SELECT site, case_id, count(*) AS trials, sum(timings_wall_ms)::BIGINT AS wall_ms,
           sum(timings_judging_ms)::BIGINT AS judging_ms, sum(timings_model_ms)::BIGINT AS model_ms,
           sum(timings_tool_ms)::BIGINT AS tool_ms
    FROM finished
    WHERE timings_wall_ms > 0 AND timings_judging_ms IS NOT NULL AND timings_model_ms IS NOT NULL
        AND timings_tool_ms IS NOT NULL
    GROUP BY site, case_id
)
SELECT s.site, c.row, c.scenario, sum(s.trials)::BIGINT AS trials,
       sum(s.wall_ms)::BIGINT AS wall_ms,
       sum(s.judging_ms)::BIGINT AS judging_ms, sum(s.model_ms)::BIGINT AS model_ms,
       sum(s.tool_ms)::BIGINT AS tool_ms,
       round(100 * (sum(s.wall_ms) + sum(s.judging_ms) - sum(s.model_ms) - sum(s.tool_ms))
             / (sum(s.wall_ms) + sum(s.judging_ms)), 1) AS ours_percent
FROM sums s JOIN cases c USING (case_id)
GROUP BY s.site, c.row, c.scenario
ORDER BY s.site, c.row, c.scenario;
