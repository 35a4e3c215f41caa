-- Cases that both pass and do not pass under one configuration, among their newest ended trials.
-- :trials count 20 how many of the newest trials of each case to look at
-- :row name * only this row
-- :now time now the moment to look from: what lies over 5 minutes ahead of it is unknown
WITH recent AS (
    SELECT t.site, t.case_id, arg_max(coalesce(j.grade, t.outcome) = 'passed'
               AND greatest(t.reserved, t.ended) <= $now + INTERVAL 5 MINUTE, t.seq, $trials)
               AS passes,
           max(t.ended) AS newest
    FROM finished t LEFT JOIN judgements j USING (judgement)
    GROUP BY ALL
)
SELECT r.site, c.row, c.suite, c.scenario, c.evidence_class,
       substr(c.configuration, 8, 12) AS configuration,
       len(list_filter(r.passes, lambda passed: passed)) AS passed, len(r.passes) AS trials,
       len(list_filter(range(2, len(r.passes) + 1),
                       lambda i: r.passes[i] <> r.passes[i - 1])) AS changes, r.newest
FROM recent r JOIN cases c USING (case_id)
WHERE NOT c.experimental AND $row IN ('*', c.row)
    AND list_contains(r.passes, true) AND list_contains(r.passes, false)
ORDER BY r.site, changes DESC, c.row, c.suite, c.scenario, configuration;
