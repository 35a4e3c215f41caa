"""One trial: plant the project, drive the session in the worker, judge what is left, record it.

Nothing here believes the worker: the files, a replay in a fresh process and the relay's counts are
what the record is made of. Whatever cannot be told is `None` or `unknown`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qualify.core.clock import Clock, format_time
from qualify.core.errors import EnvironmentFault, QualifyError
from qualify.core.status import CheckOutcome, EngineKind, TrialOutcome
from qualify.evidence.ledger import Reserved
from qualify.evidence.records import (
    Audit,
    Check,
    Enforcement,
    Engine,
    Machine,
    ModelIdentity,
    Trial,
)
from qualify.manifests.configuration import Configuration
from qualify.manifests.kinds import Scenario
from qualify.runner.identity import (
    agent_identity,
    client_identity,
    file_stamp,
    harness,
    model_identity,
)
from qualify.runner.metering import Metered, ask_directly, meter, prices_of, remaining
from qualify.runner.progress import Reporter
from qualify.runner.workers import Worker, WorkerDied, WorkerLate
from qualify.runtimes.calls import milli
from qualify.runtimes.relay import Relay
from qualify.sandbox.isolation import Isolation
from qualify.scenarios.checks import disguises
from qualify.scenarios.contract import IDENTITY, Kind, Limits, Observed, Variant, Verdict, unknown
from qualify.scenarios.contract import kind as scenario_kind
from qualify.sessions.audit import export_audit, verify_audit
from qualify.sessions.owner import SessionSpec, session_uuid
from qualify.sessions.replay import Replay
from qualify.storage.folders import private_folder, write_atomic

_REPLAY_TIMEOUT_S = 120


@dataclass(frozen=True)
class Bench:
    """What stands ready for every trial of a run."""

    configuration: Configuration
    engine: Engine
    engine_start_ms: int | None
    worker_start_ms: int | None
    machine: Machine
    verified_files: str | None
    relay: Relay
    worker: Worker
    isolation: Isolation
    run_folder: Path
    model_file: Path | None = None
    model_stamp: tuple[int, ...] | None = None
    """Of `model_file` before the engine opened it."""

    def model_files(self) -> str | None:
        """Digest of the verified files; `None` once the file is another one than at the start."""
        unchanged = file_stamp(self.model_file) == self.model_stamp
        return self.verified_files if unchanged else None


@dataclass(frozen=True)
class Driven:
    """What came back from the worker, or why nothing did."""

    stop_reason: str
    answer: dict[str, Any]


def run_trial(
    bench: Bench,
    scenario: Scenario,
    corpus: Path,
    reserved: Reserved,
    folder: Path,
    clock: Clock,
    reporter: Reporter,
) -> tuple[Trial, Metered]:
    """Run one reserved trial and return its record (not yet in the ledger).

    Raises `QualifyError` only where no record can be made; the trial then stays incomplete.
    """
    begun = clock.monotonic_ms()
    deadline = time.monotonic() + scenario.budgets.wall_time_s
    module = scenario_kind(scenario.kind)
    variant = module.vary(corpus, reserved.seed)
    plant(folder, variant, bench.run_folder)
    mark = bench.relay.mark()
    temperature = bench.configuration.agent.sampling.temperature
    direct = ask_directly(
        bench.relay,
        variant.prompts["direct"],
        None if temperature is None else float(temperature),
        deadline,
    )
    prices = prices_of(bench.configuration)
    limits = remaining(scenario.budgets, bench.relay.since(mark), prices)
    driven = _drive(bench, scenario, limits, variant, reserved, folder, deadline, reporter)
    worked_ms = clock.monotonic_ms() - begun
    replay = replay_fresh(folder)
    metered = meter(bench.relay.since(mark), driven.answer, replay, worked_ms, prices)
    if bench.engine.kind is EngineKind.SCRIPTED:
        # A double has no speed.
        metered = replace(metered, generation_milli=None, prompt_milli=None)
    observed, audit = observe(bench, variant, folder, driven, direct, metered, replay)
    verdicts = judge(module, scenario, observed)
    agent = agent_identity(
        bench.configuration,
        fingerprint=driven.answer.get("fingerprint"),
        modes=metered.modes,
        temperatures=metered.temperatures,
        names_match=metered.names_match,
    )
    model = model_identity(bench.configuration, bench.model_files())
    if IDENTITY in scenario.checks:
        verdicts[IDENTITY] = _identity(bench, model, agent.model_dump())
    checks = tuple(
        Check(check=name, outcome=verdicts[name].outcome, reason=verdicts[name].reason)
        for name in scenario.checks
    )
    record = Trial(
        time=format_time(clock.now()),
        trial=reserved.trial,
        outcome=outcome_of(checks),
        stop_reason=driven.stop_reason,
        variant=variant.digest(),
        checks=checks,
        budgets_exceeded=metered.over(scenario.budgets),
        budgets_bind="between-steps",
        engine=bench.engine,
        model=model,
        machine=bench.machine,
        agent=agent,
        client=client_identity(replay),
        harness=harness(),
        enforcement=enforcement(bench.isolation),
        usage=metered.usage,
        timings=metered.timings(
            clock.monotonic_ms() - begun - worked_ms, bench.engine_start_ms, bench.worker_start_ms
        ),
        audit=audit,
    )
    _refuse_secret(record, variant)
    return record, metered


def plant(folder: Path, variant: Variant, run_folder: Path) -> None:
    """Write the synthetic project into the trial's private folder."""
    private_folder(folder)
    workspace = private_folder(folder / "workspace")
    for name, text in variant.files.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_atomic(folder / "run", f"{run_folder.name}\n".encode(), mode=0o600, durable=False)


def _drive(
    bench: Bench,
    scenario: Scenario,
    limits: Limits,
    variant: Variant,
    reserved: Reserved,
    folder: Path,
    deadline: float,
    reporter: Reporter,
) -> Driven:
    job = {
        "kind": scenario.kind,
        "prompts": dict(variant.prompts),
        "limits": asdict(limits),
        "session": asdict(
            SessionSpec(
                folder=str(folder),
                session=session_uuid(reserved.trial).hex,
                agent=bench.configuration.agent.model_dump(mode="json"),
                tool_mode=bench.configuration.row.tool_mode,
                base_url=bench.relay.url,
                api_key=bench.relay.key,
                model_name=bench.relay.model_name,
                isolation=bench.isolation.kind,
                readable=tuple(str(path) for path in bench.isolation.readable),
            )
        ),
    }

    def on_event(message: dict[str, Any]) -> None:
        if message["event"] == "step":
            reporter.step(message["number"], message["tool"])

    try:
        answer = bench.worker.perform(job, deadline, on_event)
    except (WorkerDied, WorkerLate) as error:
        # Nothing may write into the trial's folder while it is judged.
        bench.worker.stop()
        return Driven("deadline" if isinstance(error, WorkerLate) else "worker-died", {})
    if answer["event"] == "broke":
        return Driven(answer["code"], {})
    return Driven(answer["stop_reason"], answer)


def observe(
    bench: Bench,
    variant: Variant,
    folder: Path,
    driven: Driven,
    direct: bool | None,
    metered: Metered,
    replay: Replay | None,
) -> tuple[Observed, Audit]:
    """Put together what is left of the trial; export and verify the audit."""
    events = head = content = export_digest = None
    try:
        export = export_audit(folder)
        events, head = verify_audit(export.path)
        content, export_digest = export.content, export.digest
    except (QualifyError, OSError):
        pass
    observed = Observed(
        variant=variant,
        folder=folder,
        stop_reason=driven.stop_reason,
        direct_answered=direct,
        tool_mode=bench.configuration.row.tool_mode,
        tool_modes_sent=metered.modes,
        projection=driven.answer.get("projection"),
        replay=replay,
        audit_events=events,
        audit_head=head,
        audit_content=content,
        python=sys.executable if bench.isolation.kind == "none" else _plain_python(),
        extra={"readable": [str(path) for path in bench.isolation.readable]},
    )
    audit = Audit(
        journal_head=replay.head if replay else None,
        journal_events=replay.events if replay else None,
        export=export_digest,
        export_events=events,
        unknown_effects=replay.unknown_effects if replay else 0,
    )
    return observed, audit


def _plain_python() -> str:
    """The interpreter outside the virtual environment: the one that commands can see."""
    return str(Path(sys.base_prefix) / "bin" / "python3")


def replay_fresh(folder: Path) -> Replay | None:
    """Replay the session in a new process; `None` when that is not possible."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "qualify.sessions.replay", str(folder)],
            capture_output=True, timeout=_REPLAY_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Replay(**json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


def judge(module: Kind, scenario: Scenario, observed: Observed) -> dict[str, Verdict]:
    """The kind's verdicts; a judge that breaks leaves every one of its checks unknown."""
    try:
        return module.judge(observed)
    except Exception:  # noqa: BLE001  (whatever the trial left behind broke the judge: no pass)
        return {check: unknown("judge-broke") for check in scenario.checks}


def outcome_of(checks: tuple[Check, ...]) -> TrialOutcome:
    """`unknown` when a required check has no answer, else `failed` when one is, else `passed`."""
    outcomes = {check.outcome for check in checks}
    if CheckOutcome.UNKNOWN in outcomes:
        return TrialOutcome.UNKNOWN
    return TrialOutcome.FAILED if CheckOutcome.FAILED in outcomes else TrialOutcome.PASSED


def _identity(bench: Bench, model: ModelIdentity | None, agent: dict[str, Any]) -> Verdict:
    """A8: nothing that the record must name is missing, and the agent asked as declared."""
    from qualify.scenarios.contract import PASSED, failed

    needed = [agent["sdk_version"], agent["fingerprint"], agent["tool_mode_observed"]]
    if model is not None and not bench.engine.remote:
        # Of somebody else's server these stay declared; the record says that it is remote.
        needed += [model.files, bench.engine.version, bench.engine.context_tokens_per_slot]
    if any(value is None for value in needed):
        return unknown("identity-incomplete")
    declared = bench.configuration.agent.sampling.temperature
    asked = agent["temperature_milli_observed"]
    if declared is not None and asked != milli(float(declared)):
        return failed("other-temperature")
    return PASSED if agent["model_name_matches"] else failed("other-model-name")


def enforcement(isolation: Isolation) -> Enforcement:
    """What held for the commands of the trial."""
    confined = isolation.kind == "bubblewrap"
    return Enforcement(
        sandbox=isolation.kind,
        network="loopback-only" if confined else "open",
        private_home=True,
        environment_allow_list=True,
    )


def _refuse_secret(record: Trial, variant: Variant) -> None:
    """The last line of defence: a record that holds the planted secret is never written."""
    content = record.model_dump_json().encode()
    if any(shape in content for shape in disguises(variant.secret)):
        raise EnvironmentFault(
            "the record would hold the planted secret; it was not written",
            fix="report this defect of Qualify",
        )
