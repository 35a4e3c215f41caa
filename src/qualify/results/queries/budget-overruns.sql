-- Budgets that were exceeded, or whose use cannot be told; newest first.
-- :row name * only trials of this row
-- :limit rows 1000 the most lines to answer (0: all)
SELECT t.site, c.row, c.scenario, b.budget, b."limit", b.used, substr(t.trial, 8, 12) AS trial,
       t.ended
FROM (SELECT site, seq, trial, case_id, ended, unnest(budgets_exceeded) AS b
      FROM finished WHERE len(budgets_exceeded) > 0) t
JOIN cases c USING (case_id)
WHERE $row IN ('*', c.row)
ORDER BY t.site, t.seq DESC, b.budget
LIMIT $limit;
