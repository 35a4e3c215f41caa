-- Trials, newest first: state, tokens, time and speed.
SELECT substr(trial, 8, 12) AS trial, reserved, row, suite, scenario, ordinal, evidence_class,
       experimental, state, stop_reason, usage_model_calls AS model_calls,
       usage_completion_tokens AS completion_tokens, timings_wall_ms AS wall_ms
FROM trials
ORDER BY seq DESC;
