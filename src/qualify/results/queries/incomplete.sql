-- Trials that were reserved and have no end: crashed, killed, or running now.
SELECT substr(trial, 8, 12) AS trial, reserved, row, suite, scenario, ordinal, evidence_class
FROM trials
WHERE state = 'incomplete'
ORDER BY seq DESC;
