-- Trials of which two ledgers of one site tell different ends; they count nowhere.
SELECT k.site, c.row, c.suite, c.scenario, substr(k.trial, 8, 12) AS trial, k.reserved, k.ended,
       k.outcome, k.other_ended, k.other_outcome
FROM conflicts k JOIN cases c USING (case_id)
ORDER BY k.site, k.seq DESC;
