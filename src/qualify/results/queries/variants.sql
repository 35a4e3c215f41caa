-- Outcome by variant, among the newest trials of each case: which a row passes and which it fails.
-- :trials count 20 how many of the newest trials of each case to look at
-- :row name * only this row
WITH newest AS (
    SELECT site, case_id, list_min(max(seq, $trials)) AS first FROM finished GROUP BY site, case_id
)
SELECT t.site, c.row, c.scenario, substr(t.variant, 8, 12) AS variant, count(*) AS trials,
       count(*) FILTER (coalesce(j.grade, t.outcome) = 'passed') AS passed,
       list_sort(list(DISTINCT t.ordinal)) AS ordinals
FROM finished t JOIN newest n ON n.site = t.site AND n.case_id = t.case_id AND t.seq >= n.first
    JOIN cases c ON c.case_id = t.case_id
    LEFT JOIN judgements j USING (judgement)
WHERE NOT c.experimental AND $row IN ('*', c.row)
GROUP BY ALL
ORDER BY t.site, c.row, c.scenario, min(t.ordinal), variant;
