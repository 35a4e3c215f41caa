"""The manifest kinds: what a file under `manifests/` may say.

One file holds one manifest; its folder gives the kind, its `id` equals the file's name. All models
are frozen, unknown keys are errors, every scalar arrives as text with its position and is typed by
the field (see `scalars`). Fields declared with `not_bound` stay out of the configuration, suite and
policy digests; everything else is bound, so a new field is bound unless somebody says otherwise.

Rules between fields of one manifest stand here; rules between manifests stand in `catalog`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qualify.core.status import EngineKind, ToolMode
from qualify.manifests.scalars import (
    Date,
    Flag,
    Identifier,
    Integer,
    LongText,
    Number,
    Parameter,
    RegularExpression,
    RelativePath,
    Sha256,
    Text,
    mistake,
)


class Strict(BaseModel):
    """Base of everything that a manifest may hold: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)


def not_bound(default: Any, description: str, **constraints: Any) -> Any:
    """A field that no digest binds: the schema says so with `x-qualify-bound: false`."""
    return Field(
        default,
        description=f"{description} Not bound.",
        json_schema_extra={"x-qualify-bound": False},
        **constraints,
    )


def _once(names: Iterable[str], field: str, key: str | None = None) -> None:
    """Refuse a name that stands twice in the list `field`."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            at = (field, index) if key is None else (field, index, key)
            raise mistake(f"{name!r} stands twice in {field}", "remove one", at)
        seen.add(name)


class Manifest(Strict):
    """What all kinds share."""

    id: Identifier = not_bound(..., "Name of the manifest; equals the file's name.")
    notes: LongText | None = not_bound(None, "For readers.")


# ── runtimes ─────────────────────────────────────────────────────────────────────────────────────


class Package(Strict):
    """An exact version of one Python distribution."""

    name: Text
    version: Text


class LlamaCppLaunch(Strict):
    """Launch template of the llama.cpp engine."""

    threads: Integer | None = Field(None, ge=1, le=1024, description="Null: all physical cores.")
    batch_tokens: Integer = Field(512, ge=1, le=65536)
    gpu_layers: Integer = Field(0, ge=0, le=100000)
    chat_template_required: Flag = Field(
        True, description="Refuse a model without a chat template instead of falling back."
    )


class EndpointLaunch(Strict):
    """A declared OpenAI-compatible endpoint that somebody else runs."""

    url: Text = Field(
        pattern=r"^https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9._~/-]*)?$",
        description="Base address up to and including /v1; no user, query or fragment.",
    )
    provider: Text = Field(description="Who runs it, as declared.")
    model_name: Text = Field(description="The only model id that may be asked for.")
    api_key_variable: Text | None = not_bound(
        None, "Environment variable with the key.", pattern=r"^[A-Z][A-Z0-9_]{0,63}$"
    )


class Runtime(Manifest):
    """A pinned inference environment."""

    engine: EngineKind
    lock: Identifier | None = Field(
        None,
        description="Pin set under locks/. Null: nothing to pin (endpoint, scripted), or known "
        "from elsewhere only, and then it cannot be run here.",
    )
    packages: tuple[Package, ...] = Field((), description="Versions asserted before a run.")
    python: Text | None = None
    cuda: Text | None = Field(None, description="CUDA ABI such as 12.9. Null: none.")
    minimum_driver: Text | None = not_bound(None, "Oldest driver, for admission.")
    minimum_compute_capability: Number | None = not_bound(None, "Lowest, for admission.", ge=0)
    tool_parsers: tuple[Text, ...] = not_bound((), "Server tool parsers that it offers.")
    startup_budget_s: Integer = not_bound(180, "Seconds until ready.", ge=1, le=7200)
    llama_cpp: LlamaCppLaunch | None = Field(None, description="Only for engine llama-cpp.")
    endpoint: EndpointLaunch | None = Field(None, description="Only for engine endpoint.")

    @model_validator(mode="after")
    def _engine_and_its_section(self) -> Self:
        sections = {EngineKind.LLAMA_CPP: "llama_cpp", EngineKind.ENDPOINT: "endpoint"}
        for engine, section in sections.items():
            given = getattr(self, section) is not None
            if given and self.engine is not engine:
                raise mistake(
                    f"the section {section} does not belong to engine {self.engine.value}",
                    "remove it",
                    (section,),
                )
            if self.engine is engine and not given:
                raise mistake(f"engine {engine.value} needs the section {section}", "", ("engine",))
        _once((package.name for package in self.packages), "packages", "name")
        _once(self.tool_parsers, "tool_parsers")
        return self


# ── models ───────────────────────────────────────────────────────────────────────────────────────


class ModelFile(Strict):
    """One file of a model snapshot."""

    path: RelativePath
    size: Integer = Field(ge=0, description="Bytes.")
    sha256: Sha256


class PackagePart(Strict):
    """A member of a Python package that holds a file's bytes, or a part of them."""

    package: Text
    version: Text
    member: RelativePath


class PythonPackagesSource(Strict):
    """Parts carried by Python packages, concatenated in order. Transport only: nothing in the
    packages is believed.
    """

    kind: Literal["python-packages"]
    file: RelativePath = Field(description="The model file that the parts make up.")
    parts: tuple[PackagePart, ...] = Field(min_length=1)


class HubSource(Strict):
    """The model's repository on a hub, at the manifest's revision."""

    kind: Literal["hub"]


class FileSource(Strict):
    """Only by `qualify model acquire MODEL --from FILE`."""

    kind: Literal["file"]


class BundleSource(Strict):
    """Only by importing a bundle."""

    kind: Literal["bundle"]


class Licence(Strict):
    """The licence of the weights."""

    spdx: Text = Field(description="SPDX identifier or LicenseRef-…")
    approval: Literal["none", "explicit"] = Field(
        "none", description="explicit: a person must approve it by name before first use."
    )
    attribution: Text | None = None


type Source = Annotated[
    PythonPackagesSource | HubSource | FileSource | BundleSource, Field(discriminator="kind")
]
"""Where the files of a model can come from."""


class Architecture(Strict):
    """Facts that admission needs."""

    parameters: Integer = Field(ge=1)
    blocks: Integer | None = Field(None, ge=1)
    heads: Integer | None = Field(None, ge=1)
    kv_heads: Integer | None = Field(None, ge=1)
    head_dimension: Integer | None = Field(None, ge=1)
    embedding: Integer | None = Field(None, ge=1)
    trained_context: Integer = Field(ge=1, description="Tokens.")


class Model(Manifest):
    """A model at an immutable revision."""

    repository: Text
    revision: Text | None = Field(
        None, pattern=r"^[0-9a-f]{40}$", description="Null: not known; such a row cannot qualify."
    )
    format: Literal["gguf", "safetensors"]
    licence: Licence = not_bound(..., "Licence of the weights.")
    chat_template: Literal["embedded", "none", "unknown"] = "unknown"
    purpose: Literal["release", "test"] = Field(
        "release", description="test: made for tests; its trials are evidence class fixture."
    )
    files: tuple[ModelFile, ...] = Field(
        (), description="Every file. Empty: known from elsewhere, cannot be run here."
    )
    sources: tuple[Source, ...] = not_bound((), "Where the files can come from, best first.")
    architecture: Architecture | None = not_bound(None, "Facts for admission.")

    @model_validator(mode="after")
    def _sources_make_declared_files(self) -> Self:
        _once((file.path for file in self.files), "files", "path")
        paths = [file.path for file in self.files]
        for index, source in enumerate(self.sources):
            if isinstance(source, PythonPackagesSource) and source.file not in paths:
                raise mistake(
                    f"{source.file!r} is not among the model's files",
                    "declare it under files with size and sha256",
                    ("sources", index, "file"),
                )
        return self


# ── platforms ────────────────────────────────────────────────────────────────────────────────────


class Gpu(Strict):
    """The accelerators of a platform."""

    model: Text
    count: Integer = Field(ge=1)
    memory_mib: Integer = Field(ge=1, description="MiB of each.")
    compute_capability: Number


class Platform(Manifest):
    """A named place with hardware."""

    provider: Text = Field(description="Whose machine it is; `local` for any.")
    architecture: Literal["x86_64", "aarch64"]
    minimum_cores: Integer = Field(1, ge=1)
    minimum_memory_mib: Integer = Field(1, ge=1)
    cpu_features: tuple[Text, ...] = ()
    gpu: Gpu | None = None
    driver: Text | None = Field(None, description="Declared driver version.")

    @model_validator(mode="after")
    def _features_once(self) -> Self:
        _once(self.cpu_features, "cpu_features")
        return self


# ── agents ───────────────────────────────────────────────────────────────────────────────────────


class AgentTool(Strict):
    """A tool that the agent offers, with the description that the model reads."""

    name: Literal["terminal", "file_editor", "finish", "think", "task_tracker"]
    description: LongText | None = Field(None, description="Null: the SDK's own.")
    parameters: dict[Identifier, LongText] | None = Field(
        None,
        description="Parameters that are offered, with their wording. Null: all, in the SDK's.",
    )


class Sampling(Strict):
    """What is asked for in every request; asserted from the request that was sent."""

    temperature: Number | None = Field(None, ge=0, le=2)
    top_p: Number | None = Field(None, gt=0, le=1)
    seed: Integer | None = Field(None, ge=0)


class AgentLimits(Strict):
    """Limits inside one SDK run."""

    max_input_tokens: Integer = Field(16384, ge=256)
    max_output_tokens: Integer = Field(200, ge=1)
    max_iterations: Integer = Field(12, ge=1, le=500)
    command_timeout_s: Integer = Field(60, ge=1, le=3600)
    command_output_bytes: Integer = Field(30000, ge=100)
    request_timeout_s: Integer = Field(300, ge=1, le=3600)


class Agent(Manifest):
    """How the coding agent is set up. All of it is bound."""

    harness: Literal["openhands"]
    lock: Identifier | None = Field(
        description="Pin set of the SDK under locks/. Null: not known; it cannot be run here."
    )
    system_prompt: LongText | None = Field(None, description="Null: the SDK's own.")
    tools: tuple[AgentTool, ...] = Field(min_length=1)
    in_context_example: Flag
    grammar: LongText | None = Field(None, description="GBNF sent with every agent request.")
    sampling: Sampling
    limits: AgentLimits

    @model_validator(mode="after")
    def _tools_once(self) -> Self:
        _once((tool.name for tool in self.tools), "tools", "name")
        return self


# ── scripts ──────────────────────────────────────────────────────────────────────────────────────


class ScriptedCall(Strict):
    """A tool call; `{name}` in a value is replaced by the capture of that name."""

    tool: Text
    arguments: dict[Parameter, LongText]


class ScriptedReply(Strict):
    """One answer of the scripted engine. The first reply whose conditions hold is played."""

    when_message: RegularExpression | None = Field(
        None, description="Must be found in the last message of the request."
    )
    when_turn: Integer | None = Field(
        None, ge=0, description="Assistant messages since the last user message."
    )
    text: LongText | None = None
    calls: tuple[ScriptedCall, ...] = ()
    status: Integer = Field(200, ge=200, le=599)
    delay_ms: Integer = Field(0, ge=0, le=600000)
    fault: Literal["garbage", "hang", "disconnect", "exit"] | None = None


class Script(Manifest):
    """What the scripted engine plays: a double of a model. Never qualifies anything."""

    captures: dict[Parameter, RegularExpression] = Field(
        default_factory=dict,
        description="Named values taken from the newest user message in which group 1 is found.",
    )
    replies: tuple[ScriptedReply, ...] = Field(min_length=1)


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

    runtime: Identifier
    model: Identifier | None = Field(None, description="Null only for scripted runtimes.")
    script: Identifier | None = Field(None, description="Only for scripted runtimes.")
    platform: Identifier
    precision: Text
    context_tokens: Integer | None = Field(
        ge=256, description="Context of each slot. Null: not known; such a row cannot be run here."
    )
    slots: Integer = Field(1, ge=1, le=1024)
    tensor_parallel: Integer = Field(1, ge=1)
    tool_parser: Text | None = None
    tool_mode: ToolMode
    agent: Identifier
    graph_mode: Literal["eager", "cuda-graphs"] | None = Field(
        "eager", description="Null: not known; such a row cannot be run here."
    )
    placement: Literal["host", "image", "enclave"] = "host"
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
        _once(self.suites, "suites")
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

    kind: Literal["acceptance", "repair"]
    contract: Integer = Field(ge=1, description="Version of the check contract that it is for.")
    corpus: Identifier
    checks: tuple[Identifier, ...] = Field(min_length=1, description="Required checks.")
    budgets: Budgets

    @model_validator(mode="after")
    def _checks_once(self) -> Self:
        _once(self.checks, "checks")
        return self


class Suite(Manifest):
    """A named set of scenarios. Verdicts are keyed by configuration and suite."""

    scenarios: tuple[Identifier, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _scenarios_once(self) -> Self:
        _once(self.scenarios, "scenarios")
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
        _once((file.path for file in self.files), "files", "path")
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
    """What an offline bundle holds."""

    runtimes: tuple[Identifier, ...] = ()
    models: tuple[Identifier, ...] = ()
    rows: tuple[Identifier, ...] = Field(min_length=1)
    documentation: Flag = True


KINDS: dict[str, type[Manifest]] = {
    "runtimes": Runtime,
    "models": Model,
    "platforms": Platform,
    "agents": Agent,
    "scripts": Script,
    "matrix": Row,
    "scenarios": Scenario,
    "suites": Suite,
    "corpora": Corpus,
    "policies": Policy,
    "bundles": Bundle,
}
"""Folder under `manifests/` (corpora: under `corpora/`) → kind."""
