-- Tables of the results database. Times are UTC. Unknown is NULL, never 0.
-- `site` is the number of a ledger in `sites`: 0 is the local one, others were merged. Columns of
-- `finished` and `unfinished` are the fields of the records, nested ones joined by `_`.

CREATE TABLE meta (
    schema_version  INTEGER NOT NULL,
    grading_version INTEGER            -- of the rule that made `judgements`; NULL: none were made
);

CREATE TABLE sites (
    site          INTEGER NOT NULL,
    id            VARCHAR,             -- 32 hex digits; NULL: the ledger is empty
    ledger_count  BIGINT NOT NULL,     -- entries of the ledger that are in here
    ledger_digest VARCHAR NOT NULL     -- digest of the last one; empty without entries
);

CREATE TABLE entries (
    site            INTEGER NOT NULL,
    seq             BIGINT NOT NULL,
    kind            VARCHAR NOT NULL,
    time            TIMESTAMP NOT NULL,
    clock_went_back BOOLEAN NOT NULL
);

-- What trials have in common.
CREATE TABLE cases (
    case_id        BIGINT NOT NULL,
    row            VARCHAR NOT NULL,
    configuration  VARCHAR NOT NULL,
    suite          VARCHAR NOT NULL,
    suite_digest   VARCHAR NOT NULL,
    scenario       VARCHAR NOT NULL,
    evidence_class VARCHAR NOT NULL,
    experimental   BOOLEAN NOT NULL
);

-- Reserved, and without an end.
CREATE TABLE unfinished (
    site            INTEGER NOT NULL,
    seq             BIGINT NOT NULL,
    trial           VARCHAR NOT NULL,
    case_id         BIGINT NOT NULL,
    reserved        TIMESTAMP NOT NULL,
    ordinal         BIGINT NOT NULL,
    seed            VARCHAR NOT NULL,
    required_checks VARCHAR[] NOT NULL
);

-- Reserved and ended.
CREATE TABLE finished (
    site                                  INTEGER NOT NULL,
    seq                                   BIGINT NOT NULL,    -- of the reservation
    trial                                 VARCHAR NOT NULL,
    case_id                               BIGINT NOT NULL,
    reserved                              TIMESTAMP NOT NULL,
    ordinal                               BIGINT NOT NULL,
    seed                                  VARCHAR NOT NULL,
    end_seq                               BIGINT NOT NULL,
    ended                                 TIMESTAMP NOT NULL,
    judgement                             BIGINT,             -- NULL: the suite was not known
    recorded_checks                       STRUCT(check_id VARCHAR, required BOOLEAN,
                                                 outcome VARCHAR, reason VARCHAR)[] NOT NULL,
    budgets_exceeded                      STRUCT(budget VARCHAR, "limit" BIGINT, used BIGINT)[]
                                              NOT NULL,
    budgets_bind                          VARCHAR,            -- NULL: the record does not say
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
    client_requested_model                VARCHAR,            -- client_*: NULL where none was bound
    client_sdk_version                    VARCHAR,
    client_max_input_tokens               BIGINT,
    client_max_output_tokens              BIGINT,
    client_confirmation_policy            VARCHAR,
    client_analyzer                       VARCHAR,
    client_platform                       VARCHAR,
    client_options                        VARCHAR,
    client_security                       VARCHAR,
    client_readings                       BIGINT,
    client_read_at_end                    BOOLEAN,
    client_changed                        VARCHAR[],
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

-- Trials of other sites of which two ledgers of one site tell different ends. They are in no other
-- table: nobody can tell which end is true.
CREATE TABLE conflicts (
    site          INTEGER NOT NULL,
    seq           BIGINT NOT NULL,
    trial         VARCHAR NOT NULL,
    case_id       BIGINT NOT NULL,
    reserved      TIMESTAMP NOT NULL,
    ended         TIMESTAMP NOT NULL,
    outcome       VARCHAR NOT NULL,
    other_ended   TIMESTAMP NOT NULL,
    other_outcome VARCHAR NOT NULL
);

-- What the rule says of a record, whatever time it is; equal ones are kept once.
CREATE TABLE judgements (
    judgement BIGINT NOT NULL,
    grade     VARCHAR NOT NULL,
    faults    STRUCT(code VARCHAR, checks VARCHAR[], budgets VARCHAR[])[] NOT NULL,
    checks    STRUCT(check_id VARCHAR, outcome VARCHAR)[] NOT NULL
);

CREATE TABLE refusals (
    site          INTEGER NOT NULL,
    seq           BIGINT NOT NULL,
    time          TIMESTAMP NOT NULL,
    row           VARCHAR NOT NULL,
    configuration VARCHAR NOT NULL,
    reasons       VARCHAR[] NOT NULL
);

CREATE TABLE start_failures (
    site          INTEGER NOT NULL,
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
SELECT t.site, t.seq, t.trial, c.row, c.configuration, c.suite, c.suite_digest, c.scenario,
       t.ordinal, t.seed, c.evidence_class, c.experimental, t.reserved, t.ended, t.outcome AS state,
       t.* EXCLUDE (site, seq, trial, ordinal, seed, reserved, ended, case_id, judgement,
                    recorded_checks, budgets_exceeded)
FROM finished t JOIN cases c USING (case_id)
UNION ALL BY NAME
SELECT t.site, t.seq, t.trial, c.row, c.configuration, c.suite, c.suite_digest, c.scenario,
       t.ordinal, t.seed, c.evidence_class, c.experimental, t.reserved, t.reserved AS ended,
       'incomplete' AS state
FROM unfinished t JOIN cases c USING (case_id);

-- One line per check of a finished trial. `outcome` is NULL where the check was required and the
-- trial's end does not name it.
CREATE VIEW checks AS
SELECT site, seq, trial, unnest(recorded_checks, recursive := true) FROM finished;

CREATE VIEW budgets_exceeded AS
SELECT site, seq, trial, unnest(budgets_exceeded, recursive := true) FROM finished;

-- One line per trial with what it counts as: the rule's grade, and what was recorded where the rule
-- was not asked (`judgement` is NULL). What goes into a denominator is every line of a case.
CREATE VIEW judged AS
SELECT t.site, t.seq, t.trial, t.case_id, c.row, c.configuration, c.suite, c.suite_digest,
       c.scenario, t.ordinal, c.evidence_class, c.experimental, t.reserved, t.ended,
       coalesce(j.grade, t.outcome) AS grade, t.judgement
FROM finished t JOIN cases c USING (case_id) LEFT JOIN judgements j USING (judgement)
UNION ALL
SELECT t.site, t.seq, t.trial, t.case_id, c.row, c.configuration, c.suite, c.suite_digest,
       c.scenario, t.ordinal, c.evidence_class, c.experimental, t.reserved, t.reserved,
       'incomplete', NULL
FROM unfinished t JOIN cases c USING (case_id);
