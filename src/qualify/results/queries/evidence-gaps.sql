-- What is lacking in the evidence here for each declared row under its present configuration.
-- :trials count 3 how many trials a verdict needs
WITH present AS (
    SELECT c.case_id, c.row, c.suite, c.suite_digest, c.scenario
    FROM cases c JOIN declared_rows d ON d.row = c.row AND d.configuration = c.configuration
        AND d.evidence_class = c.evidence_class
    WHERE NOT c.experimental
), facts AS (
    SELECT case_id, judgement, count(*) AS trials,
           count(*) FILTER (harness_commit IS NULL OR harness_modified IS NOT FALSE) AS modified,
           count(*) FILTER (enforcement_sandbox = 'none') AS unconfined
    FROM finished WHERE site = 0 AND case_id IN (SELECT case_id FROM present)
    GROUP BY ALL
), open_ones AS (
    SELECT case_id, count(*) AS trials FROM unfinished WHERE site = 0 GROUP BY ALL
), gaps AS (
    SELECT d.row, NULL AS suite, NULL AS scenario, 'no-trials' AS gap, 0 AS trials
    FROM declared_rows d
    WHERE d.row NOT IN (SELECT row FROM present JOIN facts USING (case_id))
    UNION ALL
    SELECT p.row, p.suite, p.scenario, 'too-few-trials', sum(f.trials)::BIGINT
    FROM present p JOIN facts f USING (case_id)
    GROUP BY p.case_id, p.row, p.suite, p.scenario
    HAVING sum(f.trials) < $trials
    UNION ALL
    SELECT p.row, p.suite, p.scenario, 'incomplete-trial', o.trials
    FROM present p JOIN open_ones o USING (case_id)
    UNION ALL
    SELECT row, suite, scenario, fault.code, sum(trials)::BIGINT
    FROM (SELECT p.row, p.suite, p.scenario, f.trials, unnest(j.faults) AS fault
          FROM present p JOIN facts f USING (case_id) JOIN judgements j USING (judgement))
    WHERE fault.code NOT IN ('failed', 'budget-overrun')
    GROUP BY ALL
    UNION ALL
    SELECT p.row, p.suite, p.scenario, 'not-judged', sum(f.trials)::BIGINT
    FROM present p JOIN facts f USING (case_id) WHERE f.judgement IS NULL GROUP BY ALL
    UNION ALL
    SELECT p.row, p.suite, p.scenario, 'modified-harness', sum(f.modified)::BIGINT
    FROM present p JOIN facts f USING (case_id) GROUP BY ALL HAVING sum(f.modified) > 0
    UNION ALL
    SELECT p.row, p.suite, p.scenario, 'unconfined', sum(f.unconfined)::BIGINT
    FROM present p JOIN facts f USING (case_id) GROUP BY ALL HAVING sum(f.unconfined) > 0
)
SELECT row, suite, scenario, gap, trials FROM gaps ORDER BY row, suite, scenario, gap;
