-- Budgets that were exceeded, or whose use cannot be told.
SELECT t.row, t.scenario, b.budget, b."limit", b.used, substr(t.trial, 8, 12) AS trial, t.ended
FROM budgets_exceeded b JOIN trials t USING (trial)
ORDER BY t.seq DESC, b.budget;
