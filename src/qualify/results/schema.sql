-- Tables of the results database. Times are UTC. Unknown is NULL, never 0.
-- Columns of `reservations` and `endings` are the fields of the records, nested ones joined by `_`.

CREATE TABLE meta (
    schema_version INTEGER NOT NULL,
    ledger_count   BIGINT NOT NULL,   -- entries of the ledger that are in here
    ledger_digest  VARCHAR NOT NULL    -- digest of the last one; empty without entries
);

CREATE TABLE entries (
    seq             BIGINT NOT NULL,
    digest          VARCHAR NOT NULL,
    kind            VARCHAR NOT NULL,
    time            TIMESTAMP NOT NULL,
    clock_went_back BOOLEAN NOT NULL
);

CREATE TABLE reservations (
    trial          VARCHAR NOT NULL,
    seq            BIGINT NOT NULL,
    time           TIMESTAMP NOT NULL,
    row            VARCHAR NOT NULL,
    configuration  VARCHAR NOT NULL,
    suite          VARCHAR NOT NULL,
    suite_digest   VARCHAR NOT NULL,
    scenario       VARCHAR NOT NULL,
    ordinal        BIGINT NOT NULL,
    seed           VARCHAR NOT NULL,
    evidence_class VARCHAR NOT NULL,
    experimental   BOOLEAN NOT NULL
);

CREATE TABLE endings (
    trial                                 VARCHAR NOT NULL,
    seq                                   BIGINT NOT NULL,
    time                                  TIMESTAMP NOT NULL,
    outcome                               VARCHAR NOT NULL,
    stop_reason                           VARCHAR NOT NULL,
    variant                               VARCHAR NOT NULL,
    engine_kind                           VARCHAR NOT NULL,
    engine_version                        VARCHAR,
    engine_build                          VARCHAR,
    engine_context_tokens_per_slot        BIGINT,
    engine_slots                          BIGINT,
    engine_tensor_parallel                BIGINT NOT NULL,
    engine_chat_template                  VARCHAR,
    engine_tool_parser                    VARCHAR,
    engine_remote                         BOOLEAN NOT NULL,
    engine_image                          VARCHAR,
    engine_network                        VARCHAR,
    model_id                              VARCHAR,
    model_revision                        VARCHAR,
    model_files                           VARCHAR,
    machine_architecture                  VARCHAR NOT NULL,
    machine_cpu_model                     VARCHAR,
    machine_logical_cores                 BIGINT,
    machine_memory_mib                    BIGINT,
    machine_gpu_model                     VARCHAR,
    machine_gpu_count                     BIGINT NOT NULL,
    machine_driver                        VARCHAR,
    agent_id                              VARCHAR NOT NULL,
    agent_sdk_version                     VARCHAR,
    agent_fingerprint                     VARCHAR,
    agent_tool_mode_requested             VARCHAR NOT NULL,
    agent_tool_mode_observed              VARCHAR,
    agent_temperature_milli_observed      BIGINT,
    agent_model_name_matches              BOOLEAN,
    agent_skills                          BIGINT NOT NULL,
    harness_version                       VARCHAR NOT NULL,
    harness_commit                        VARCHAR,
    harness_modified                      BOOLEAN,
    harness_python                        VARCHAR NOT NULL,
    harness_record_schema                 INTEGER NOT NULL,
    enforcement_sandbox                   VARCHAR NOT NULL,
    enforcement_network                   VARCHAR NOT NULL,
    enforcement_private_home              BOOLEAN NOT NULL,
    enforcement_environment_allow_list    BOOLEAN NOT NULL,
    usage_model_calls                     BIGINT NOT NULL,
    usage_failed_calls                    BIGINT NOT NULL,
    usage_prompt_tokens                   BIGINT,
    usage_cached_prompt_tokens            BIGINT,
    usage_completion_tokens               BIGINT,
    usage_cost_microusd                   BIGINT,
    usage_actions_proposed                BIGINT NOT NULL,
    usage_actions_executed                BIGINT NOT NULL,
    usage_actions_rejected                BIGINT NOT NULL,
    timings_wall_ms                       BIGINT NOT NULL,
    timings_judging_ms                    BIGINT,
    timings_model_ms                      BIGINT,
    timings_tool_ms                       BIGINT,
    timings_first_token_ms_median         BIGINT,
    timings_completion_tokens_per_s_milli BIGINT,
    timings_prompt_tokens_per_s_milli     BIGINT,
    timings_engine_start_ms               BIGINT,
    timings_worker_start_ms               BIGINT,
    audit_journal_head                    VARCHAR,
    audit_journal_events                  BIGINT,
    audit_export                          VARCHAR,
    audit_export_events                   BIGINT,
    audit_unknown_effects                 BIGINT NOT NULL
);

CREATE TABLE checks (
    trial    VARCHAR NOT NULL,
    check_id VARCHAR NOT NULL,
    required BOOLEAN NOT NULL,
    outcome  VARCHAR,                  -- NULL: required, and the trial's end does not name it
    reason   VARCHAR
);

CREATE TABLE budgets_exceeded (
    trial  VARCHAR NOT NULL,
    budget VARCHAR NOT NULL,
    "limit" BIGINT NOT NULL,
    used   BIGINT
);

CREATE TABLE refusals (
    seq           BIGINT NOT NULL,
    time          TIMESTAMP NOT NULL,
    row           VARCHAR NOT NULL,
    configuration VARCHAR NOT NULL,
    reason        VARCHAR NOT NULL
);

CREATE TABLE start_failures (
    seq           BIGINT NOT NULL,
    time          TIMESTAMP NOT NULL,
    row           VARCHAR NOT NULL,
    configuration VARCHAR NOT NULL,
    reason        VARCHAR NOT NULL,
    elapsed_ms    BIGINT NOT NULL
);

-- From the manifests, not from the ledger: what is declared.

CREATE TABLE declared_rows (
    row             VARCHAR NOT NULL,
    configuration   VARCHAR NOT NULL,
    runtime         VARCHAR NOT NULL,
    engine          VARCHAR NOT NULL,
    model           VARCHAR,
    platform        VARCHAR NOT NULL,
    provider        VARCHAR NOT NULL,
    agent           VARCHAR NOT NULL,
    "precision"     VARCHAR,
    context_tokens  BIGINT,
    tensor_parallel BIGINT,
    tool_mode       VARCHAR NOT NULL,
    graph_mode      VARCHAR,
    placement       VARCHAR,
    evidence_class  VARCHAR NOT NULL
);

CREATE TABLE imported (
    row      VARCHAR NOT NULL,
    outcome  VARCHAR NOT NULL,
    date     DATE,
    driver   VARCHAR,
    reason   VARCHAR,
    evidence VARCHAR NOT NULL
);

-- One line per trial. `state` is its outcome, or `incomplete` while it has no end (a trial that is
-- running now has none either). The end of an incomplete trial is its reservation's time.
CREATE VIEW trials AS
SELECT r.trial, r.seq, r.row, r.configuration, r.suite, r.suite_digest, r.scenario, r.ordinal,
       r.seed, r.evidence_class, r.experimental, r.time AS reserved,
       coalesce(e.time, r.time) AS ended, coalesce(e.outcome, 'incomplete') AS state,
       e.* EXCLUDE (trial, seq, time)
FROM reservations r LEFT JOIN endings e ON e.trial = r.trial;
