-- Rows that admission refused, with the reasons.
SELECT time, row, reason, configuration
FROM refusals
ORDER BY seq DESC, reason;
