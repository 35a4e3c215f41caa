-- Passed of all trials for each row, suite and scenario; errors and unfinished trials stay in.
SELECT row, configuration, suite, suite_digest, scenario, evidence_class,
       count(*) FILTER (state = 'passed') AS passed, count(*) AS total,
       count(*) FILTER (state = 'failed') AS failed,
       count(*) FILTER (state = 'unknown') AS unknown,
       count(*) FILTER (state = 'incomplete') AS incomplete, max(ended) AS newest
FROM trials
WHERE NOT experimental
GROUP BY ALL
ORDER BY row, suite, scenario, newest DESC;
