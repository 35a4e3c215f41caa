-- Which required checks did not pass, how often, and in which trial last.
-- :row name * only this row
WITH bad AS (
    SELECT site, seq, trial, case_id, ended, unnest(list_filter(recorded_checks,
           lambda c: c.required AND c.outcome IS DISTINCT FROM 'passed')) AS c
    FROM finished
    WHERE list_contains(list_transform(recorded_checks,
          lambda c: c.required AND c.outcome IS DISTINCT FROM 'passed'), true)
)
SELECT b.site, k.row, k.suite, k.scenario, b.c.check_id AS check_id,
       coalesce(b.c.outcome, 'missing') AS outcome, b.c.reason AS reason, count(*) AS trials,
       max(b.ended) AS last, substr(arg_max(b.trial, b.seq), 8, 12) AS last_trial
FROM bad b JOIN cases k USING (case_id)
WHERE $row IN ('*', k.row)
GROUP BY ALL
ORDER BY b.site, k.row, k.suite, k.scenario, trials DESC, check_id, outcome, reason;
