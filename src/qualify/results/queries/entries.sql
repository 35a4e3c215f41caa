-- What the ledger holds, by kind.
SELECT kind, count(*) AS entries, min(time) AS first, max(time) AS last
FROM entries
GROUP BY kind
ORDER BY kind;
