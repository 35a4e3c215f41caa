"""A run: admit a row, make engine and worker ready together, run its trials, assess.

Order matters for the wait of a person: the engine's process is started before anything heavy is
imported, the worker imports the agent SDK while the engine loads the model, and the model's files
are hashed meanwhile; no trial is reserved before all three are done. Whatever ends the run (a
finished list, a fault, Ctrl-C, SIGTERM), engine and worker are stopped; what was reserved stays
recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from qualify.core.clock import Clock, format_time
from qualify.core.errors import UsageError
from qualify.evidence.ledger import Ledger, Reserved, open_ledger
from qualify.evidence.places import RUN_LOCK, runs_folder, trial_folder
from qualify.evidence.records import Refusal, StartFailure
from qualify.manifests.catalog import Catalog
from qualify.manifests.configuration import Configuration, SuiteIdentity, resolve, suite_identity
from qualify.manifests.kinds import Scenario
from qualify.runner.identity import engine_record, file_stamp, harness, machine_identity
from qualify.runner.image_place import image_place
from qualify.runner.installed import require_locked
from qualify.runner.preconditions import (
    require_machine,
    require_space,
    require_unchanged,
    row_lock,
)
from qualify.runner.progress import CheckLine, Reporter, TrialSummary
from qualify.runner.trial import Bench, run_trial
from qualify.runner.workers import Worker, spawn_worker
from qualify.runtimes.admission import RefusalReason, admit
from qualify.runtimes.contained import ImageRoot
from qualify.runtimes.engine import Engine, EngineFacts, EngineFault, make_engine
from qualify.runtimes.locked import locked_versions
from qualify.runtimes.probe import probe_machine
from qualify.sandbox.isolation import available
from qualify.scenarios.contract import mismatches
from qualify.storage.folders import private_folder, xdg_state_home
from qualify.storage.locks import file_lock

_WORKER_TIMEOUT_S = 300

type StartWorker = Callable[[Path], Worker]
type AcquireModel = Callable[[Configuration, Reporter], Path | None]
type VerifyModel = Callable[[Configuration, Callable[[int], None]], str | None]
"""Hashes the model's files; the callable hears of each chunk, and may raise to break it off."""


@dataclass(frozen=True)
class Request:
    """What was asked for. `seed` makes the run experimental."""

    row: str
    suite: str
    trials: int
    results: Path
    experimental: bool = False
    seed: str | None = None
    image: Path | None = None
    """The image that the row runs in; only for placement image."""


@dataclass
class Result:
    """What a run did; the verdict is the assessor's."""

    configuration: Configuration
    suite: SuiteIdentity
    trials: list[TrialSummary] = field(default_factory=list)
    refused: tuple[tuple[str, str, str], ...] = ()
    """Reasons of admission: code, sentence, fix."""
    start_failure: EngineFault | None = None
    run_folder: Path | None = None
    isolation: str | None = None
    """What the agent's commands ran under; `None`: none ran."""


def execute(
    catalog: Catalog,
    request: Request,
    reporter: Reporter,
    *,
    acquire: AcquireModel,
    verify: VerifyModel,
    clock: Clock | None = None,
    start_worker: StartWorker = spawn_worker,
) -> Result:
    """Run `request.trials` trials of each scenario of the suite.

    Raises `UsageError` (unknown row or suite, wrong machine, row in use; nothing recorded) and
    `EnvironmentFault`. A refusal by admission and an engine that does not start are recorded and
    returned.
    """
    clock = clock or Clock()
    configuration = resolve(catalog, request.row)
    suite = suite_identity(catalog, request.suite)
    if not 1 <= request.trials <= 1000:
        raise UsageError(f"--trials {request.trials} is not between 1 and 1000")
    for scenario in suite.scenarios:
        for wrong in mismatches(scenario):
            raise UsageError(
                wrong,
                where=f"scenario {scenario.id}",
                fix="see docs/reference/scenarios.md for this version's checks",
            )
    ledger = open_ledger(request.results, clock)
    result = Result(configuration, suite)
    with row_lock(configuration):
        require_machine(configuration)
        reasons = _contradictions(catalog, configuration)
        root = None
        if not reasons:
            require_locked(catalog.project, configuration)
            root = _image(catalog, configuration, request, reporter)
        require_space(request.results, xdg_state_home())
        site = ledger.prepare()
        if reasons:
            result.refused = tuple((r.code, r.text, r.fix) for r in reasons)
            ledger.append(
                Refusal(
                    time=format_time(clock.now()),
                    row=configuration.row.id,
                    configuration=configuration.digest,
                    reasons=tuple(r.code for r in reasons),
                )
            )
            return result
        _run_admitted(
            catalog, request, result, ledger, site, reporter, acquire, verify, clock,
            start_worker, root,
        )  # fmt: skip
    return result


def _image(
    catalog: Catalog, configuration: Configuration, request: Request, reporter: Reporter
) -> ImageRoot | None:
    """The image of a row that runs in one. Raises `UsageError` and what is wrong with the image."""
    if request.image is not None:
        reporter.phase("opening and unpacking the image")
    return image_place(catalog, configuration, request.image)


def _contradictions(catalog: Catalog, configuration: Configuration) -> tuple[RefusalReason, ...]:
    """Why the row can work nowhere, by its own declared facts.

    Raises `UsageError` when it merely cannot be run here and now: that is no evidence, and would
    otherwise turn a row that is qualified elsewhere into an unsupported one.
    """
    locked = locked_versions(catalog.project, configuration.runtime)
    reasons = admit(configuration, probe_machine(), locked)
    found = tuple(reason for reason in reasons if reason.contradiction)
    if reasons and not found:
        raise UsageError(
            "; ".join(reason.text for reason in reasons),
            where=f"row {configuration.row.id}",
            fix=f"{reasons[0].fix}; nothing was recorded",
        )
    return found


def _run_admitted(
    catalog: Catalog,
    request: Request,
    result: Result,
    ledger: Ledger,
    site: str,
    reporter: Reporter,
    acquire: AcquireModel,
    verify: VerifyModel,
    clock: Clock,
    start_worker: StartWorker,
    root: ImageRoot | None,
) -> None:
    configuration = result.configuration
    reporter.phase("looking for the model")
    model_path = acquire(configuration, reporter)
    stamp = file_stamp(model_path)
    runs = private_folder(runs_folder(site))
    run_folder = private_folder(
        runs / f"{format_time(clock.now()).replace(':', '')}-{secrets.token_hex(4)}"
    )
    result.run_folder = run_folder
    with contextlib.ExitStack() as stack:
        # While it is held, a purge leaves the folder alone.
        stack.enter_context(file_lock(run_folder / RUN_LOCK))
        reporter.phase("starting the engine and the agent")
        engine = make_engine(
            configuration,
            model_path=model_path,
            private=run_folder,
            startup_budget_s=configuration.startup_budget_s,
            root=root,
        )
        stack.callback(engine.stop)
        begun = clock.monotonic_ms()
        try:
            engine.start()
            worker = start_worker(run_folder)
            stack.callback(worker.stop)
            verified = _verify_beside(stack, verify, configuration)
            facts = _wait_ready(engine, verified, reporter)
            bench = replace(
                _make_bench(stack, result, engine, facts, worker, verified, reporter),
                model_file=model_path,
                model_stamp=stamp,
            )
            _run_trials(stack, catalog, request, result, ledger, site, bench, engine, clock,
                        reporter, start_worker)  # fmt: skip
        except EngineFault as fault:
            result.start_failure = fault
            ledger.append(
                StartFailure(
                    time=format_time(clock.now()),
                    row=configuration.row.id,
                    configuration=configuration.digest,
                    reason=fault.reason_code,
                    elapsed_ms=clock.monotonic_ms() - begun,
                )
            )


def _verify_beside(
    stack: contextlib.ExitStack, verify: VerifyModel, configuration: Configuration
) -> Future[str | None]:
    """Hash the model's files in a thread; the end of `stack` breaks that off within a chunk."""
    cancelled = threading.Event()

    def check(_bytes: int) -> None:
        if cancelled.is_set():
            raise CancelledError

    pool = stack.enter_context(ThreadPoolExecutor(1))
    stack.callback(cancelled.set)
    return pool.submit(verify, configuration, check)


def _wait_ready(engine: Engine, verified: Future[str | None], reporter: Reporter) -> EngineFacts:
    """Wait for the engine; when it fails and the model is damaged, the model is the error."""
    try:
        return engine.wait_ready(reporter.detail)
    except EngineFault:
        reporter.phase("verifying the model")
        verified.result()
        raise


def _make_bench(
    stack: contextlib.ExitStack,
    result: Result,
    engine: Engine,
    facts: EngineFacts,
    worker: Worker,
    verified: Future[str | None],
    reporter: Reporter,
) -> Bench:
    from qualify.runner.metering import make_relay

    reporter.phase("waiting for the agent")
    relay = make_relay(result.configuration, engine, reporter)
    stack.callback(relay.stop)
    worker_ms = worker.wait_ready(_WORKER_TIMEOUT_S)
    reporter.phase("verifying the model")
    files = verified.result()
    harness()
    assert result.run_folder is not None
    isolation = available((Path(sys.base_prefix),) if sys.base_prefix != "/usr" else ())
    result.isolation = isolation.kind
    return Bench(
        configuration=result.configuration,
        engine=engine_record(facts, result.configuration),
        engine_start_ms=facts.start_ms,
        worker_start_ms=worker_ms,
        machine=machine_identity(probe_machine()),
        verified_files=files,
        relay=relay,
        worker=worker,
        isolation=isolation,
        run_folder=result.run_folder,
    )


def _run_trials(
    stack: contextlib.ExitStack,
    catalog: Catalog,
    request: Request,
    result: Result,
    ledger: Ledger,
    site: str,
    bench: Bench,
    engine: Engine,
    clock: Clock,
    reporter: Reporter,
    start_worker: StartWorker,
) -> None:
    total = request.trials * len(result.suite.scenarios)
    number = 0
    for _ in range(request.trials):
        for scenario in result.suite.scenarios:
            number += 1
            reporter.trial_started(number, total, scenario.id)
            require_unchanged(catalog, scenario)
            reserved = reserve(ledger, request, result, scenario)
            with ledger.live_lock(reserved.trial):
                record, metered = run_trial(
                    bench,
                    scenario,
                    catalog.project / "corpora" / scenario.corpus,
                    reserved,
                    trial_folder(site, reserved.trial),
                    clock,
                    reporter,
                )
                ledger.finish(record)
            summary = TrialSummary(
                trial=reserved.trial,
                scenario=scenario.id,
                ordinal=reserved.ordinal,
                outcome=record.outcome,
                stop_reason=record.stop_reason,
                checks=tuple(CheckLine(c.check, c.outcome, c.reason) for c in record.checks),
                wall_ms=record.timings.wall_ms,
                model_ms=record.timings.model_ms,
                own_ms=metered.own_ms,
                completion_tokens=record.usage.completion_tokens,
                first_token_ms=record.timings.first_token_ms_median,
                tokens_per_s_milli=record.timings.completion_tokens_per_s_milli,
            )
            result.trials.append(summary)
            reporter.trial_finished(summary)
            if number < total:
                bench = _repaired(stack, bench, engine, record.stop_reason, reporter, start_worker)


def _repaired(
    stack: contextlib.ExitStack,
    bench: Bench,
    engine: Engine,
    stop_reason: str,
    reporter: Reporter,
    start_worker: StartWorker,
) -> Bench:
    """Start again what died in the last trial, so that one fault does not become many."""
    if not engine.alive():
        reporter.phase("starting the engine again")
        engine.stop()
        engine.start()
        facts = engine.wait_ready(reporter.detail)
        bench.relay.retarget(engine.base_url, engine.api_key)
        bench = replace(
            bench,
            engine=engine_record(facts, bench.configuration),
            engine_start_ms=facts.start_ms,
        )
    if stop_reason in ("worker-died", "deadline"):
        reporter.phase("starting the agent again")
        bench.worker.stop()
        worker = start_worker(bench.run_folder)
        stack.callback(worker.stop)
        return replace(bench, worker=worker, worker_start_ms=worker.wait_ready(_WORKER_TIMEOUT_S))
    return bench


def reserve(ledger: Ledger, request: Request, result: Result, scenario: Scenario) -> Reserved:
    """Reserve the next trial of a scenario; its seed follows from the ordinal."""
    configuration, suite = result.configuration, result.suite

    def derive_seed(ordinal: int) -> str:
        if request.seed is not None:
            return _digest(f"chosen|{request.seed}")
        if request.experimental:
            # It must not show what the next counted trial will be.
            return _digest(f"experimental|{secrets.token_hex(16)}")
        parts = (configuration.digest, suite.digest, scenario.id, str(ordinal))
        return _digest("|".join(parts))

    return ledger.reserve(
        row=configuration.row.id,
        configuration=configuration.digest,
        suite=suite.id,
        suite_digest=suite.digest,
        scenario=scenario.id,
        evidence_class=configuration.evidence_class,
        experimental=request.experimental or request.seed is not None,
        required_checks=tuple(scenario.checks),
        derive_seed=derive_seed,
    )


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
