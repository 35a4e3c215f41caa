"""Records and ledgers for tests, built with the real models and written by the real ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from qualify.core.clock import Clock, format_time
from qualify.core.digests import digest_bytes
from qualify.core.status import CheckOutcome, EngineKind, EvidenceClass, ToolMode, TrialOutcome
from qualify.evidence.ledger import Ledger, Reserved
from qualify.evidence.records import (
    AgentIdentity,
    Audit,
    BudgetUse,
    Check,
    Client,
    Enforcement,
    Engine,
    Harness,
    Machine,
    ModelIdentity,
    Refusal,
    Reservation,
    StartFailure,
    Timings,
    Trial,
    Usage,
)
from qualify.manifests.kinds import Budgets, Policy, Scenario

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
CHECKS = ("exact-bytes", "replay")
ROW = "cpu-row"
CONFIGURATION = digest_bytes(b"configuration")
SUITE_DIGEST = digest_bytes(b"suite")
SCENARIO = "append"
DAY = timedelta(days=1)
CLIENT = Client(
    requested_model=digest_bytes(b"model"),
    sdk_version="1.58.2",
    max_input_tokens=16384,
    max_output_tokens=200,
    confirmation_policy="AlwaysConfirm",
    analyzer=None,
    platform="Linux-x86_64-3.13.0",
    options=digest_bytes(b"options"),
    security=digest_bytes(b"security"),
    readings=4,
    read_at_end=True,
    changed=(),
)


@dataclass
class SettableClock:
    """A clock whose hands a test moves."""

    moment: datetime = NOW

    def clock(self) -> Clock:
        return Clock(now=lambda: self.moment, monotonic_ms=lambda: 0)

    def advance(self, **parts: int) -> None:
        self.moment += timedelta(**parts)


@dataclass(frozen=True)
class SuiteStandIn:
    """The three fields of a suite that an assessment reads."""

    id: str = "acceptance"
    digest: str = SUITE_DIGEST
    scenarios: tuple[Scenario, ...] = field(default_factory=lambda: (scenario(),))


def scenario(id: str = SCENARIO, **budgets: Any) -> Scenario:
    limits = {"wall_time_s": 600, "actions": 8, "model_calls": 12, **budgets}
    return Scenario(
        id=id,
        kind="acceptance",
        contract=1,
        corpus="synthetic",
        checks=CHECKS,
        budgets=Budgets(**limits),
    )


def policy(**numbers: Any) -> Policy:
    values = {"trials_needed": 3, "freshness_days": 30, "minimum_pass_percent": 80, **numbers}
    return Policy(id="release", **values)


def client(**changes: Any) -> Client:
    """What asked the model: bound, read again, and the same all along, unless told otherwise."""
    return CLIENT.model_copy(update=changes)


def seed(ordinal: int, scenario: str = SCENARIO) -> str:
    return digest_bytes(f"{scenario} {ordinal}".encode())


def reservation(ordinal: int = 0, time: datetime = NOW, **changes: Any) -> Reservation:
    values = {
        "row": ROW,
        "configuration": CONFIGURATION,
        "suite": "acceptance",
        "suite_digest": SUITE_DIGEST,
        "scenario": SCENARIO,
        "evidence_class": EvidenceClass.REAL_MODEL,
        "experimental": False,
        "required_checks": CHECKS,
        **changes,
    }
    values.setdefault("seed", seed(ordinal, values["scenario"]))
    return Reservation(time=format_time(time), ordinal=ordinal, **values)


def trial(
    identifier: str,
    time: datetime = NOW,
    *,
    outcome: TrialOutcome = TrialOutcome.PASSED,
    checks: dict[str, CheckOutcome] | None = None,
    exceeded: tuple[BudgetUse, ...] = (),
    usage: dict[str, Any] | None = None,
    timings: dict[str, Any] | None = None,
    model: ModelIdentity | str | None = "known",
    agent: dict[str, Any] | None = None,
    client: Client | Literal["known"] | None = "known",
    unknown_effects: int = 0,
    remote: bool = False,
    stop_reason: str = "completed",
    variant: str | None = None,
    sandbox: Literal["none", "bubblewrap"] = "bubblewrap",
) -> Trial:
    """The end of a trial: clean, unless told otherwise."""
    found = dict.fromkeys(CHECKS, CheckOutcome.PASSED) if checks is None else checks
    known = ModelIdentity(id="model", revision="a" * 40, files=digest_bytes(b"files"))
    return Trial(
        time=format_time(time),
        trial=identifier,
        outcome=outcome,
        stop_reason=stop_reason,
        variant=variant or digest_bytes(f"variant of {identifier}".encode()),
        checks=tuple(Check(check=name, outcome=result) for name, result in found.items()),
        budgets_exceeded=exceeded,
        budgets_bind="between-steps",
        engine=Engine(
            kind=EngineKind.LLAMA_CPP,
            version="1.2.3",
            build="b1",
            context_tokens_per_slot=4096,
            slots=1,
            tensor_parallel=1,
            chat_template=digest_bytes(b"template"),
            tool_parser=None,
            remote=remote,
        ),
        model=known if model == "known" else model,
        machine=Machine(
            architecture="x86_64",
            cpu_model="A CPU @ 2.10GHz",
            logical_cores=2,
            memory_mib=7900,
            gpu_model=None,
            gpu_count=0,
            driver=None,
        ),
        agent=AgentIdentity(
            **{
                "id": "agent",
                "sdk_version": "1.58.2",
                "fingerprint": digest_bytes(b"agent"),
                "tool_mode_requested": ToolMode.PROMPT,
                "tool_mode_observed": ToolMode.PROMPT,
                "temperature_milli_observed": 0,
                "model_name_matches": True,
                "skills": 0,
                **(agent or {}),
            }
        ),
        client=CLIENT if client == "known" else client,
        harness=Harness(version="0.1.0", commit="b" * 40, modified=False, python="3.13.0"),
        enforcement=Enforcement(
            sandbox=sandbox, network="open", private_home=True, environment_allow_list=True
        ),
        usage=Usage(
            **{
                "model_calls": 4,
                "failed_calls": 0,
                "prompt_tokens": 1200,
                "cached_prompt_tokens": 800,
                "completion_tokens": 90,
                "cost_microusd": None,
                "actions_proposed": 2,
                "actions_executed": 1,
                "actions_rejected": 1,
                **(usage or {}),
            }
        ),
        timings=Timings(
            **{
                "wall_ms": 20_000,
                "judging_ms": 400,
                "model_ms": 18_000,
                "tool_ms": 1_000,
                "first_token_ms_median": 300,
                "completion_tokens_per_s_milli": 21_500,
                "prompt_tokens_per_s_milli": 150_000,
                "engine_start_ms": 1_900,
                "worker_start_ms": 9_000,
                **(timings or {}),
            }
        ),
        audit=Audit(
            journal_head=digest_bytes(b"head"),
            journal_events=20,
            export=digest_bytes(b"export"),
            export_events=20,
            unknown_effects=unknown_effects,
        ),
    )


def reserve(ledger: Ledger, **changes: Any) -> Reserved:
    """Reserve a trial in a real ledger."""
    values: dict[str, Any] = {
        "row": ROW,
        "configuration": CONFIGURATION,
        "suite": "acceptance",
        "suite_digest": SUITE_DIGEST,
        "scenario": SCENARIO,
        "evidence_class": EvidenceClass.REAL_MODEL,
        "experimental": False,
        "required_checks": CHECKS,
        **changes,
    }
    name = values["scenario"]
    return ledger.reserve(derive_seed=lambda ordinal: seed(ordinal, name), **values)


def run(ledger: Ledger, clock: SettableClock, **end: Any) -> Reserved:
    """Reserve and finish a trial; `end` as for `trial`."""
    reserved = reserve(ledger)
    clock.advance(seconds=20)
    ledger.finish(trial(reserved.trial, clock.moment, **end))
    return reserved


def refusal(time: datetime = NOW, **changes: Any) -> Refusal:
    values = {"row": ROW, "configuration": CONFIGURATION, "reasons": ("context-too-large",)}
    return Refusal(time=format_time(time), **{**values, **changes})


def start_failure(time: datetime = NOW, **changes: Any) -> StartFailure:
    values = {"row": ROW, "configuration": CONFIGURATION, "reason": "never-ready", "elapsed_ms": 9}
    return StartFailure(time=format_time(time), **{**values, **changes})
