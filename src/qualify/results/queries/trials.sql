-- Trials, newest first: state, tokens, time and speed.
-- :row name * only this row
-- :limit rows 1000 the most lines to answer (0: all)
SELECT site, substr(trial, 8, 12) AS trial, reserved, row, suite, scenario, ordinal, evidence_class,
       experimental, state, stop_reason, usage_model_calls AS model_calls,
       usage_completion_tokens AS completion_tokens, timings_wall_ms AS wall_ms
FROM trials
WHERE $row IN ('*', row)
ORDER BY site, seq DESC
LIMIT $limit;
