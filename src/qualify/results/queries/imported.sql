-- Outcomes declared elsewhere beside the trials run here; neither stands in for the other.
WITH here AS (
    SELECT c.configuration, sum(k.trials)::BIGINT AS trials, sum(k.passed)::BIGINT AS passed
    FROM (SELECT case_id, count(*) AS trials, count(*) FILTER (coalesce(grade, outcome) = 'passed')
              AS passed
          FROM finished LEFT JOIN judgements USING (judgement) WHERE site = 0 GROUP BY case_id
          UNION ALL SELECT case_id, count(*), 0 FROM unfinished WHERE site = 0 GROUP BY case_id) k
    JOIN cases c USING (case_id)
    WHERE NOT c.experimental AND c.evidence_class = 'real-model'
    GROUP BY c.configuration
)
SELECT i.row, d.platform, d.model, i.outcome AS declared, i.date, i.driver, i.reason,
       coalesce(h.trials, 0) AS local_trials, coalesce(h.passed, 0) AS local_passed
FROM imported i
LEFT JOIN declared_rows d ON d.row = i.row
LEFT JOIN here h ON h.configuration = d.configuration
ORDER BY d.platform, i.row, i.date;
