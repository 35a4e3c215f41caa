-- Rows that admission refused, with the reasons.
SELECT time, row, unnest(reasons) AS reason, configuration
FROM refusals
ORDER BY time DESC, row, reason;
