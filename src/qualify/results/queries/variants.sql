-- Outcome by variant: which seeded variants a row passes and which it fails.
SELECT row, scenario, substr(variant, 8, 12) AS variant, count(*) AS trials,
       count(*) FILTER (state = 'passed') AS passed, list_sort(list(DISTINCT ordinal)) AS ordinals
FROM trials
WHERE variant IS NOT NULL
GROUP BY ALL
ORDER BY row, scenario, min(ordinal);
