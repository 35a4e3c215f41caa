"""The status words of Qualify, spelled once.

Row status is derived from evidence, never typed by hand. An unknown is a value of its own and is
never read as a pass.
"""

from __future__ import annotations

from enum import StrEnum


class RowStatus(StrEnum):
    """What the evidence says of one configuration for one suite."""

    QUALIFIED = "qualified"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    INCONCLUSIVE = "inconclusive"
    EXPIRED = "expired"
    INCOMPLETE = "incomplete"
    UNTESTED = "untested"


class CheckOutcome(StrEnum):
    """Result of one check of one trial."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class TrialOutcome(StrEnum):
    """How a trial ended. Only a finished trial has one; a reserved one is `incomplete`."""

    PASSED = "passed"
    """Every required check passed."""
    FAILED = "failed"
    """Every required check has an answer and at least one is `failed`."""
    UNKNOWN = "unknown"
    """A required check has no answer: crashed, timed out, unstarted, unreadable."""


class EvidenceClass(StrEnum):
    """What stood behind a trial. Classes never stand in for each other."""

    REAL_MODEL = "real-model"
    FIXTURE = "fixture"
    SCRIPTED = "scripted"
    IMPORTED = "imported"


class EngineKind(StrEnum):
    """The inference engines that a runtime manifest may name."""

    VLLM = "vllm"
    LLAMA_CPP = "llama-cpp"
    ENDPOINT = "endpoint"
    SCRIPTED = "scripted"


class ToolMode(StrEnum):
    """How the agent asks for tools: the API's tool calls, or text that the SDK converts."""

    NATIVE = "native"
    PROMPT = "prompt"
