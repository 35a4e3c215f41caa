-- Cases that passed up to a trial, or under a configuration, and pass less often since.
-- :digest digest - a trial, or a configuration (then only its rows are looked at)
-- :now time now the moment to look from: what lies over 5 minutes ahead of it is unknown
WITH found AS (
    -- Two are enough to tell that it is not one.
    (SELECT site, seq, trial AS digest, NULL AS configuration, NULL::VARCHAR[] AS rows
     FROM (SELECT site, seq, trial FROM finished UNION ALL SELECT site, seq, trial FROM unfinished)
     WHERE starts_with(trial, $digest) LIMIT 2)
    UNION ALL
    SELECT t.site, max(t.seq), c.configuration, c.configuration, list(DISTINCT c.row)
    FROM cases c
    JOIN (SELECT site, seq, case_id FROM finished
          UNION ALL SELECT site, seq, case_id FROM unfinished) t
        USING (case_id)
    WHERE starts_with(c.configuration, $digest)
    GROUP BY t.site, c.configuration
), point AS (
    SELECT site, CASE (SELECT count(DISTINCT digest) FROM found) WHEN 1 THEN seq
               ELSE error('several trials or configurations begin like that') END AS seq,
           configuration, rows
    FROM found
    UNION ALL
    SELECT 0, error('no trial and no configuration begins like that')::BIGINT, NULL, NULL
    FROM (SELECT count(*) AS n FROM found) WHERE n = 0
), points AS (
    -- One line: a join with several would keep every trial in memory, if the optimizer guesses badly.
    SELECT map_from_entries(list((site, seq))) AS seqs, any_value(configuration) AS configuration,
           flatten(list(rows)) AS rows
    FROM point
), sides AS (
    SELECT j.site, j.row, j.suite, j.scenario, j.evidence_class, j.seq, j.trial,
           CASE WHEN greatest(j.reserved, j.ended) > $now + INTERVAL 5 MINUTE
               THEN 'unknown' ELSE j.grade END AS grade,
           j.configuration, j.seq > p.seqs[j.site] AS since
    FROM judged j CROSS JOIN points p
    WHERE NOT j.experimental AND p.seqs[j.site] IS NOT NULL
        AND (p.configuration IS NULL
             OR (list_contains(p.rows, j.row)
                 AND (j.seq > p.seqs[j.site] OR j.configuration = p.configuration)))
), counted AS (
    SELECT site, row, suite, scenario, evidence_class,
           arg_max(grade, seq) FILTER (NOT since) AS newest_before,
           count(*) FILTER (NOT since AND grade = 'passed') AS passed_before,
           count(*) FILTER (NOT since) AS trials_before,
           count(*) FILTER (since AND grade = 'passed') AS passed_since,
           count(*) FILTER (since) AS trials_since,
           substr(arg_min(trial, seq) FILTER (since AND grade <> 'passed'), 8, 12)
               AS first_not_passed,
           substr(arg_min(configuration, seq) FILTER (since AND grade <> 'passed'), 8, 12)
               AS its_configuration
    FROM sides
    GROUP BY site, row, suite, scenario, evidence_class
)
SELECT * EXCLUDE (newest_before)
FROM counted
WHERE newest_before = 'passed' AND passed_since * trials_before < passed_before * trials_since
ORDER BY site, passed_since / trials_since - passed_before / trials_before, row, suite, scenario;
