"""The reasons of a verdict, and which status each gives: one table, printed by the documentation.

A blocking reason keeps a row from being `qualified` and pulls its status to the one named here;
when several stand side by side, the status that comes first in `PRECEDENCE` is shown (and all
reasons with it). A note (`status` is `None`) changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qualify.core.status import RowStatus

PRECEDENCE: tuple[RowStatus, ...] = (
    RowStatus.UNSUPPORTED,
    RowStatus.FAILED,
    RowStatus.INCONCLUSIVE,
    RowStatus.INCOMPLETE,
    RowStatus.EXPIRED,
    RowStatus.UNTESTED,
    RowStatus.QUALIFIED,
)
"""Which status is shown when reasons of several stand side by side: the first."""


@dataclass(frozen=True)
class ReasonKind:
    """What a reason code means."""

    status: RowStatus | None
    """The status it gives; `None`: a note that blocks nothing."""
    meaning: str
    next_step: str


@dataclass(frozen=True)
class Reason:
    """One reason of a verdict: a code of `REASONS`, and what it is about."""

    code: str
    scenario: str | None = None
    trials: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    details: tuple[str, ...] = field(default=())
    """Reason codes that other records gave (an admission refusal, an engine that did not start)."""

    @property
    def kind(self) -> ReasonKind:
        """Its line in the table."""
        return REASONS[self.code]

    @property
    def blocking(self) -> bool:
        """Whether it keeps the row from being qualified."""
        return self.kind.status is not None

    def as_json(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        return {
            "code": self.code,
            "blocking": self.blocking,
            "meaning": self.kind.meaning,
            "next_step": self.kind.next_step,
            "scenario": self.scenario,
            "trials": list(self.trials),
            "checks": list(self.checks),
            "budgets": list(self.budgets),
            "details": list(self.details),
        }


_RUN = "run more trials: `qualify run ROW`"
_LOGS = "see why: `qualify trial show TRIAL` and `qualify trial logs TRIAL`"

REASONS: dict[str, ReasonKind] = {
    # unsupported
    "refused-by-admission": ReasonKind(
        RowStatus.UNSUPPORTED,
        "the declared facts of the row contradict each other",
        "see the reasons and their fixes: `qualify plan ROW`",
    ),
    # failed
    "failed-latest-trial": ReasonKind(
        RowStatus.FAILED, "the newest trial failed a required check", _LOGS
    ),
    "failed-recent-trial": ReasonKind(
        RowStatus.FAILED, "one of the newest trials failed a required check", _LOGS
    ),
    "budget-overrun": ReasonKind(
        RowStatus.FAILED, "a trial used more than its scenario allows", _LOGS
    ),
    "pass-share-below-policy": ReasonKind(
        RowStatus.FAILED,
        "too many of all trials in the window failed",
        "find out why trials fail; older ones leave the window with time",
    ),
    # inconclusive
    "missing-check": ReasonKind(
        RowStatus.INCONCLUSIVE, "a required check has no result in a trial", _LOGS
    ),
    "unknown-outcome": ReasonKind(
        RowStatus.INCONCLUSIVE, "a trial or one of its checks ended without an answer", _LOGS
    ),
    "usage-unknown": ReasonKind(
        RowStatus.INCONCLUSIVE,
        "use against a budget cannot be told from the record",
        "use an engine that reports its usage, or a scenario without that limit",
    ),
    "unknown-effects": ReasonKind(
        RowStatus.INCONCLUSIVE, "a trial left actions whose effect is not known", _LOGS
    ),
    "client-not-observed": ReasonKind(
        RowStatus.INCONCLUSIVE,
        "the requests seen do not show the row's tool mode and model",
        _LOGS,
    ),
    "unknown-model-revision": ReasonKind(
        RowStatus.INCONCLUSIVE,
        "the model's revision is not known",
        "pin the revision in the model's manifest",
    ),
    "unverified-model": ReasonKind(
        RowStatus.INCONCLUSIVE,
        "the model's files were not verified before a trial",
        "verify them: `qualify model verify MODEL`",
    ),
    "future-time": ReasonKind(
        RowStatus.INCONCLUSIVE,
        "a trial's time lies ahead of now",
        "set the clock right and run again",
    ),
    "overdue": ReasonKind(
        RowStatus.INCONCLUSIVE,
        "a trial is still running long after its time budget",
        "stop its process; the trial then counts as incomplete",
    ),
    "not-completed": ReasonKind(
        RowStatus.INCONCLUSIVE, "a session did not come to its own end", _LOGS
    ),
    "repeated-variant": ReasonKind(
        RowStatus.INCONCLUSIVE,
        "the newest trials repeat one variant; a repeat is no further trial",
        _RUN,
    ),
    "start-failed": ReasonKind(
        RowStatus.INCONCLUSIVE,
        "the engine did not become ready the last time",
        "see what is missing: `qualify doctor ROW`",
    ),
    # incomplete
    "incomplete-trial": ReasonKind(
        RowStatus.INCOMPLETE, "a trial was reserved and never finished", _RUN
    ),
    "client-not-bound": ReasonKind(
        RowStatus.INCOMPLETE,
        "what asked the model was not observed before the model's work, or not again at the end",
        _LOGS,
    ),
    "client-changed": ReasonKind(
        RowStatus.INCOMPLETE,
        "what asked the model was not the same from the beginning of a trial to its end",
        "find out what changed it (`qualify trial show TRIAL`), and run again",
    ),
    "implicit-context-limit": ReasonKind(
        RowStatus.INCOMPLETE,
        "a limit of the context was left to whatever the client takes for it",
        "say max_input_tokens and max_output_tokens in the agent's manifest",
    ),
    "too-few-trials": ReasonKind(RowStatus.INCOMPLETE, "fewer trials than the policy needs", _RUN),
    "pass-share-unproven": ReasonKind(
        RowStatus.INCOMPLETE,
        "too few of all trials in the window passed; those without an answer count as not passed",
        _RUN,
    ),
    # expired
    "stale": ReasonKind(RowStatus.EXPIRED, "a trial is older than the policy allows", _RUN),
    # untested
    "no-trials": ReasonKind(RowStatus.UNTESTED, "no trial has been run here", _RUN),
    "changed-configuration": ReasonKind(
        RowStatus.UNTESTED,
        "there are trials of this row, but of another configuration",
        "see what changed: `qualify matrix diff`; then run again",
    ),
    "changed-suite": ReasonKind(
        RowStatus.UNTESTED,
        "there are trials of this configuration, but of another version of the suite",
        _RUN,
    ),
    "scripted-evidence": ReasonKind(
        RowStatus.UNTESTED,
        "the trials ran a scripted double, which exercises the harness and qualifies nothing",
        "run a row with a real model",
    ),
    "fixture-evidence": ReasonKind(
        RowStatus.UNTESTED,
        "the trials ran a model made for tests, which qualifies nothing",
        "run a row with a real model",
    ),
    "imported-evidence": ReasonKind(
        RowStatus.UNTESTED, "the trials were declared elsewhere, which qualifies nothing", _RUN
    ),
    "experimental": ReasonKind(
        RowStatus.UNTESTED,
        "the trials were marked experimental before they ran",
        "run without --experimental",
    ),
    # notes
    "running": ReasonKind(None, "a trial is running now", "wait for its end"),
    "unconfined": ReasonKind(
        None,
        "the agent's commands ran without isolation and could have reached anything of its user",
        "install bubblewrap and run more trials",
    ),
    "declared-endpoint": ReasonKind(
        None,
        "weights, precision, hardware and server of a remote endpoint are declared, not observed",
        "nothing",
    ),
    "other-evidence-class": ReasonKind(
        None, "trials of a lower evidence class were left out", "nothing"
    ),
}
"""Code → meaning. The codes are part of the interface; they never change their meaning."""


@dataclass(frozen=True)
class StartFault:
    """Why an engine did not become ready, where its own words tell more than that it ended."""

    meaning: str
    next_step: str


START_FAULTS: dict[str, StartFault] = {
    "no-accelerator": StartFault(
        "the engine is built for accelerators and found none",
        "check the driver with `qualify doctor`, or choose a runtime for processors",
    ),
    "driver-too-old": StartFault(
        "the accelerator's driver is older than the engine's CUDA needs",
        "update the driver, or choose a runtime of an older CUDA",
    ),
    "out-of-memory": StartFault(
        "there was not enough memory for weights, buffers or the key/value cache",
        "stop other programs, take less context or more accelerators",
    ),
    "kv-cache-too-small": StartFault(
        "the key/value cache does not hold one request of the row's context",
        "declare less context, or give the cache more memory",
    ),
    "bad-parser": StartFault(
        "the engine does not know the tool or reasoning parser",
        "choose one of the runtime's tool_parsers",
    ),
    "bad-quantization": StartFault(
        "the engine cannot load weights of this quantization here",
        "choose another quantization, runtime or accelerator",
    ),
    "tensor-parallel-mismatch": StartFault(
        "heads or quantization groups cannot be divided by the row's tensor_parallel",
        "declare another tensor_parallel: `qualify plan ROW` names the valid ones",
    ),
    "collective-failed": StartFault(
        "the workers did not come together, or wait for each other for ever",
        "check the links between the accelerators; try tensor_parallel 1",
    ),
    "context-beyond-model": StartFault(
        "the row's context is longer than the model's own configuration allows",
        "declare less context",
    ),
    "model-not-served": StartFault(
        "the engine does not know the model's architecture",
        "choose a runtime that serves it",
    ),
    "model-unreadable": StartFault(
        "a file of the model cannot be read or is missing",
        "verify the model: `qualify model verify MODEL`",
    ),
    "compiler-missing": StartFault(
        "the engine wanted to compile a kernel and found no C compiler",
        "use an image that Qualify built, which holds one",
    ),
}
"""Reason codes of start failures that an engine's log told; they stand in a reason's `details`."""
