-- Engines that did not become ready; newest first.
-- :limit rows 1000 the most lines to answer (0: all)
SELECT site, time, row, reason, elapsed_ms, configuration
FROM start_failures
ORDER BY site, seq DESC
LIMIT $limit;
