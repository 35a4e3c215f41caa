-- Outcomes declared elsewhere beside the trials run here; neither stands in for the other.
SELECT i.row, d.platform, d.model, i.outcome AS declared, i.date, i.driver, i.reason,
       count(t.trial) AS local_trials,
       count(t.trial) FILTER (t.state = 'passed') AS local_passed
FROM imported i
LEFT JOIN declared_rows d ON d.row = i.row
LEFT JOIN trials t ON t.configuration = d.configuration AND NOT t.experimental
    AND t.evidence_class = 'real-model'
GROUP BY ALL
ORDER BY d.platform, i.row, i.date;
