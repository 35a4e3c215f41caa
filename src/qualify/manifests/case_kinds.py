"""Manifest kinds of what is asked: rows, scenarios, suites, corpora, policies, bundles."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from qualify.core.status import ToolMode
from qualify.manifests.fields import Manifest, Strict, not_bound, once
from qualify.manifests.scalars import Date, Flag, Identifier, Integer, LongText, Text, mistake
from qualify.manifests.system_kinds import ModelFile

# ── matrix rows ──────────────────────────────────────────────────────────────────────────────────


class ImportedOutcome(Strict):
    """An outcome observed elsewhere. Never counts as a trial here."""

    outcome: Literal["qualified", "unsupported", "inconclusive"]
    date: Date | None = Field(description="Null: not stated.")
    driver: Text | None = None
    reason: LongText | None = Field(None, description="Needed unless qualified.")
    evidence: Text = Field(description="Where it was declared.")

    @model_validator(mode="after")
    def _a_no_has_a_reason(self) -> Self:
        if self.outcome != "qualified" and not self.reason:
            raise mistake(f"{self.outcome} needs a reason", "add reason:", ("outcome",))
        return self


class Row(Manifest):
    """One line of the compatibility matrix."""

    runtime: Identifier = Field(description="Inference environment.")
    model: Identifier | None = Field(None, description="Null only for scripted runtimes.")
    script: Identifier | None = Field(None, description="Only for scripted runtimes.")
    platform: Identifier = Field(description="Place with its hardware.")
    precision: Text = Field(description="Of the weights, such as q4_k_m or fp8.")
    context_tokens: Integer | None = Field(
        ge=256, description="Context of each slot. Null: not known; such a row cannot be run here."
    )
    slots: Integer = Field(1, ge=1, le=1024, description="Requests served at once.")
    tensor_parallel: Integer = Field(1, ge=1, description="Accelerators that share a layer.")
    tool_parser: Text | None = Field(None, description="The server's. Null: none is named.")
    tool_mode: ToolMode = Field(description="The API's tool calls, or text that is converted.")
    agent: Identifier = Field(description="How the coding agent is set up.")
    graph_mode: Literal["eager", "cuda-graphs"] | None = Field(
        "eager", description="Null: not known; such a row cannot be run here."
    )
    placement: Literal["host", "image", "enclave"] = Field(
        "host", description="Where the runtime is: installed, in an image, in an enclave."
    )
    startup_budget_s: Integer | None = not_bound(
        None, "Seconds until ready; null: the runtime's.", ge=1, le=7200
    )
    suites: tuple[Identifier, ...] = not_bound((), "Suites that the row is judged by.")
    imported: tuple[ImportedOutcome, ...] = not_bound((), "Outcomes observed elsewhere.")

    @model_validator(mode="after")
    def _a_model_or_a_script(self) -> Self:
        if (self.model is None) == (self.script is None):
            raise mistake(
                "needs either a model or a script",
                "name a model, or a script for a scripted runtime",
                ("model",) if self.model is not None else (),
            )
        once(self.suites, "suites")
        return self


# ── scenarios, suites, corpora, policies, bundles ────────────────────────────────────────────────


class Budgets(Strict):
    """Limits of one trial. Null: not limited."""

    wall_time_s: Integer = Field(ge=1)
    actions: Integer = Field(ge=1, description="Proposed actions, rejected ones too.")
    model_calls: Integer = Field(ge=1)
    prompt_tokens: Integer | None = Field(None, ge=1)
    completion_tokens: Integer | None = Field(None, ge=1)
    cost_microusd: Integer | None = Field(None, ge=0)


class Scenario(Manifest):
    """One case to run."""

    kind: Literal["acceptance", "repair"] = Field(description="Which module runs it.")
    contract: Integer = Field(ge=1, description="Version of the check contract that it is for.")
    corpus: Identifier = Field(description="Its data.")
    checks: tuple[Identifier, ...] = Field(min_length=1, description="Required checks.")
    budgets: Budgets

    @model_validator(mode="after")
    def _checks_once(self) -> Self:
        once(self.checks, "checks")
        return self


class Suite(Manifest):
    """A named set of scenarios. Verdicts are keyed by configuration and suite."""

    scenarios: tuple[Identifier, ...] = Field(
        min_length=1, description="Bound with their ids, by which trials are kept."
    )

    @model_validator(mode="after")
    def _scenarios_once(self) -> Self:
        once(self.scenarios, "scenarios")
        return self


class Corpus(Manifest):
    """Card of a pinned set of cases: `corpora/<id>/card.yaml`, beside its data files."""

    title: Text = not_bound(..., "What it is.")
    licence: Text = not_bound(..., "SPDX identifier of the data's licence.")
    origin: Text = not_bound(..., "Where the data comes from.")
    synthetic: Flag = not_bound(..., "Made up for tests; holds nothing of any person.")
    files: tuple[ModelFile, ...] = Field(min_length=1, description="Every data file.")

    @model_validator(mode="after")
    def _files_once(self) -> Self:
        once((file.path for file in self.files), "files", "path")
        return self


class Policy(Manifest):
    """The numbers that an assessment uses."""

    trials_needed: Integer = Field(ge=1, description="Newest trials that must all have passed.")
    freshness_days: Integer = Field(ge=1)
    minimum_pass_percent: Integer = Field(
        ge=0, le=100, description="Share of all trials in the window that must have passed."
    )
    future_tolerance_s: Integer = Field(
        300, ge=0, description="A trial further ahead of now counts as unknown."
    )


class Bundle(Manifest):
    """What an offline bundle holds, besides locks, manifests and corpora."""

    images: tuple[Identifier, ...] = Field(
        min_length=1, description="By their label qualify.image."
    )
    rows: tuple[Identifier, ...] = Field(
        (), description="Rows that can be run from it: an image serves the runtime of each."
    )
    documentation: Flag = Field(True, description="The folder docs/ goes along.")

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        once(self.images, "images")
        once(self.rows, "rows")
        return self
