-- Which required checks did not pass, how often, and in which trial last.
SELECT t.row, t.suite, t.scenario, c.check_id, coalesce(c.outcome, 'missing') AS outcome, c.reason,
       count(*) AS trials, max(t.ended) AS last, substr(arg_max(t.trial, t.seq), 8, 12) AS last_trial
FROM checks c JOIN trials t USING (trial)
WHERE c.required AND c.outcome IS DISTINCT FROM 'passed'
GROUP BY ALL
ORDER BY t.row, t.suite, t.scenario, trials DESC, c.check_id;
