-- Rows that admission refused, with the reasons; newest first.
-- :limit rows 1000 the most lines to answer (0: all)
SELECT r.site, r.time, r.row, unnest(r.reasons) AS reason, r.configuration
FROM refusals r
ORDER BY r.site, r.time DESC, r.row, reason
LIMIT $limit;
