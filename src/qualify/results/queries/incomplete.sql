-- Trials that were reserved and have no end: crashed, killed, or running now; newest first.
-- :limit rows 1000 the most lines to answer (0: all)
SELECT t.site, substr(t.trial, 8, 12) AS trial, t.reserved, c.row, c.suite, c.scenario, t.ordinal,
       c.evidence_class
FROM unfinished t JOIN cases c USING (case_id)
ORDER BY t.site, t.seq DESC
LIMIT $limit;
