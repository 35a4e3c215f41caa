-- What each pass rate is divided by: every trial reserved, how it counts, and what is left out.
-- :row name * only this row
-- :now time now the moment to look from: what lies over 5 minutes ahead of it is unknown
WITH counted AS (
    SELECT site, case_id, grade, count(*) AS trials
    FROM (SELECT t.site, t.case_id,
                 CASE WHEN greatest(t.reserved, t.ended) > $now + INTERVAL 5 MINUTE
                     THEN 'unknown' ELSE coalesce(j.grade, t.outcome) END AS grade
          FROM finished t LEFT JOIN judgements j USING (judgement)
          UNION ALL SELECT site, case_id, 'incomplete' FROM unfinished
          UNION ALL SELECT site, case_id, 'conflict' FROM conflicts)
    GROUP BY ALL
)
SELECT k.site, c.row, c.suite, c.scenario, c.evidence_class,
       substr(c.configuration, 8, 12) AS configuration,
       substr(c.suite_digest, 8, 12) AS suite_digest,
       sum(k.trials)::BIGINT AS reserved,
       coalesce(sum(k.trials) FILTER (c.experimental), 0)::BIGINT AS experimental,
       coalesce(sum(k.trials) FILTER (k.grade = 'conflict' AND NOT c.experimental), 0)::BIGINT
           AS conflicting,
       coalesce(sum(k.trials) FILTER (k.grade <> 'conflict' AND NOT c.experimental), 0)::BIGINT
           AS denominator,
       coalesce(sum(k.trials) FILTER (k.grade = 'passed' AND NOT c.experimental), 0)::BIGINT
           AS passed,
       coalesce(sum(k.trials) FILTER (k.grade = 'failed' AND NOT c.experimental), 0)::BIGINT
           AS failed,
       coalesce(sum(k.trials) FILTER (k.grade = 'unknown' AND NOT c.experimental), 0)::BIGINT
           AS unknown,
       coalesce(sum(k.trials) FILTER (k.grade = 'incomplete' AND NOT c.experimental), 0)::BIGINT
           AS incomplete
FROM counted k JOIN cases c USING (case_id)
WHERE $row IN ('*', c.row)
GROUP BY k.site, c.row, c.suite, c.scenario, c.evidence_class, c.configuration, c.suite_digest
ORDER BY k.site, c.row, c.suite, c.scenario, c.evidence_class, configuration, suite_digest;
