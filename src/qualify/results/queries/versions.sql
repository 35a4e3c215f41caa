-- Which versions of engine, agent SDK and harness ran each row, and when last.
SELECT t.site, c.row, t.engine_kind AS engine, t.engine_version, t.engine_build,
       t.agent_sdk_version,
       t.harness_version, substr(t.harness_commit, 1, 12) AS harness_commit, t.harness_modified,
       t.harness_python, t.machine_driver AS driver, count(*) AS trials, max(t.ended) AS last
FROM finished t JOIN cases c USING (case_id)
GROUP BY ALL
ORDER BY t.site, c.row, last DESC;
