-- The three newest counted trials of each case: what a verdict stands on.
SELECT row, suite, scenario, substr(trial, 8, 12) AS trial, ended, state, evidence_class
FROM trials
WHERE NOT experimental
QUALIFY row_number() OVER (
    PARTITION BY configuration, suite_digest, scenario, evidence_class ORDER BY seq DESC) <= 3
ORDER BY row, suite, scenario, seq DESC;
