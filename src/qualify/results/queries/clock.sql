-- Entries whose time is earlier than that of the entry before them.
SELECT site, seq, kind, time
FROM entries
WHERE clock_went_back
ORDER BY site, seq;
