-- What the ledgers hold, by kind.
SELECT site, kind, count(*) AS entries, min(time) AS first, max(time) AS last
FROM entries
GROUP BY site, kind
ORDER BY site, kind;
