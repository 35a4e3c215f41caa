-- Cases whose newest trials all passed and become too old within some days, unless more are run.
-- :days count 7 how far to look ahead
-- :freshness count 30 how many days a policy lets a trial count
-- :trials count 3 how many trials a verdict needs
-- :now time now the moment to look from
WITH newest AS (
    SELECT site, case_id, unnest(max(seq, $trials)) AS seq
    FROM (SELECT site, case_id, seq FROM finished
          UNION ALL SELECT site, case_id, seq FROM unfinished)
    GROUP BY site, case_id
), cases_now AS (
    SELECT j.site, j.row, j.suite, j.scenario, j.evidence_class, j.configuration, j.suite_digest,
           count(*) AS trials, bool_and(j.grade = 'passed'
               AND greatest(j.reserved, j.ended) <= $now + INTERVAL 5 MINUTE) AS passed,
           min(least(j.reserved, j.ended)) + $freshness * INTERVAL 1 DAY AS expires
    FROM judged j SEMI JOIN newest n ON n.site = j.site AND n.seq = j.seq
    WHERE NOT j.experimental
    GROUP BY ALL
)
SELECT site, row, suite, scenario, evidence_class, substr(configuration, 8, 12) AS configuration,
       expires, floor(date_diff('second', $now, expires) / 86400)::BIGINT AS days_left
FROM cases_now
WHERE passed AND trials >= $trials AND expires >= $now AND expires <= $now + $days * INTERVAL 1 DAY
ORDER BY site, expires, row, suite, scenario;
