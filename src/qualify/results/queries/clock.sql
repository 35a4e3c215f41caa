-- Entries whose time is earlier than that of the entry before them.
-- :limit rows 1000 the most lines to answer (0: all)
SELECT site, seq, kind, time
FROM entries
WHERE clock_went_back
ORDER BY site, seq
LIMIT $limit;
