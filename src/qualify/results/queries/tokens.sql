-- Model calls and tokens of each row; a trial that cannot tell its use is counted as unknown.
WITH sums AS (
    SELECT site, case_id, count(*) AS trials, sum(usage_model_calls)::BIGINT AS model_calls,
           sum(usage_failed_calls)::BIGINT AS failed_calls,
           sum(usage_prompt_tokens)::BIGINT AS prompt_tokens,
           sum(usage_cached_prompt_tokens)::BIGINT AS cached_prompt_tokens,
           sum(usage_completion_tokens)::BIGINT AS completion_tokens,
           count(*) FILTER (usage_completion_tokens IS NULL) AS trials_with_unknown_use
    FROM finished
    GROUP BY site, case_id
)
SELECT s.site, c.row, c.suite, c.scenario, sum(s.trials)::BIGINT AS trials,
       sum(s.model_calls)::BIGINT AS model_calls, sum(s.failed_calls)::BIGINT AS failed_calls,
       sum(s.prompt_tokens)::BIGINT AS prompt_tokens,
       sum(s.cached_prompt_tokens)::BIGINT AS cached_prompt_tokens,
       sum(s.completion_tokens)::BIGINT AS completion_tokens,
       sum(s.trials_with_unknown_use)::BIGINT AS trials_with_unknown_use
FROM sums s JOIN cases c USING (case_id)
GROUP BY s.site, c.row, c.suite, c.scenario
ORDER BY s.site, c.row, c.suite, c.scenario;
