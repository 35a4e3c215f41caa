-- The three newest counted trials of each case: what a verdict stands on.
-- :trials count 3 how many of each case
-- :now time now the moment to look from: what lies over 5 minutes ahead of it is unknown
WITH newest AS (
    SELECT site, unnest(max(seq, $trials)) AS seq
    FROM (SELECT site, case_id, seq FROM finished
          UNION ALL SELECT site, case_id, seq FROM unfinished)
    GROUP BY site, case_id
)
SELECT j.site, j.row, j.suite, j.scenario, substr(j.trial, 8, 12) AS trial, j.ended,
       CASE WHEN greatest(j.reserved, j.ended) > $now + INTERVAL 5 MINUTE
           THEN 'unknown' ELSE j.grade END AS grade,
       j.evidence_class, substr(j.configuration, 8, 12) AS configuration
FROM judged j SEMI JOIN newest n ON n.site = j.site AND n.seq = j.seq
WHERE NOT j.experimental
ORDER BY j.site, j.row, j.suite, j.scenario, configuration, j.seq DESC;
