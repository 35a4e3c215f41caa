-- Entries whose time is earlier than that of the entry before them.
SELECT seq, kind, time, digest
FROM entries
WHERE clock_went_back
ORDER BY seq;
