-- Passed of all trials for each row, suite and scenario; errors and unfinished trials stay in.
-- :now time now the moment to look from: what lies over 5 minutes ahead of it is unknown
WITH counted AS (
    SELECT t.site, t.case_id,
           CASE WHEN greatest(t.reserved, t.ended) > $now + INTERVAL 5 MINUTE
               THEN 'unknown' ELSE coalesce(j.grade, t.outcome) END AS grade,
           count(*) AS trials, max(t.ended) AS newest
    FROM finished t LEFT JOIN judgements j USING (judgement) GROUP BY ALL
    UNION ALL
    SELECT site, case_id, 'incomplete', count(*), max(reserved) FROM unfinished GROUP BY ALL
)
SELECT k.site, c.row, c.configuration, c.suite, c.suite_digest, c.scenario, c.evidence_class,
       coalesce(sum(k.trials) FILTER (k.grade = 'passed'), 0)::BIGINT AS passed,
       sum(k.trials)::BIGINT AS total,
       coalesce(sum(k.trials) FILTER (k.grade = 'failed'), 0)::BIGINT AS failed,
       coalesce(sum(k.trials) FILTER (k.grade = 'unknown'), 0)::BIGINT AS unknown,
       coalesce(sum(k.trials) FILTER (k.grade = 'incomplete'), 0)::BIGINT AS incomplete,
       max(k.newest) AS newest
FROM counted k JOIN cases c USING (case_id)
WHERE NOT c.experimental
GROUP BY k.site, c.row, c.configuration, c.suite, c.suite_digest, c.scenario, c.evidence_class
ORDER BY k.site, c.row, c.suite, c.scenario, newest DESC;
