-- Engines that did not become ready.
SELECT time, row, reason, elapsed_ms, configuration
FROM start_failures
ORDER BY seq DESC;
