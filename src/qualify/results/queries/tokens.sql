-- Model calls and tokens of each row; a trial that cannot tell its use is counted as unknown.
SELECT row, suite, scenario, count(*) AS trials, sum(usage_model_calls) AS model_calls,
       sum(usage_failed_calls) AS failed_calls, sum(usage_prompt_tokens) AS prompt_tokens,
       sum(usage_cached_prompt_tokens) AS cached_prompt_tokens,
       sum(usage_completion_tokens) AS completion_tokens,
       count(*) FILTER (usage_completion_tokens IS NULL) AS trials_with_unknown_use
FROM trials
WHERE state <> 'incomplete'
GROUP BY ALL
ORDER BY row, suite, scenario;
