-- Which versions of engine, agent SDK and harness ran each row, and when last.
SELECT row, engine_kind AS engine, engine_version, engine_build, agent_sdk_version, harness_version,
       substr(harness_commit, 1, 12) AS harness_commit, harness_modified, harness_python,
       machine_driver AS driver, count(*) AS trials, max(ended) AS last
FROM trials
WHERE engine_kind IS NOT NULL
GROUP BY ALL
ORDER BY row, last DESC;
