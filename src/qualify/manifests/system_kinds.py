"""Manifest kinds of what is qualified: runtimes, models, platforms."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from qualify.core.status import EngineKind
from qualify.manifests.fields import Manifest, Strict, not_bound, once
from qualify.manifests.scalars import (
    Address,
    Flag,
    Identifier,
    Integer,
    Number,
    RelativePath,
    Sha256,
    Text,
    mistake,
)

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


class VllmLaunch(Strict):
    """Launch template of the vLLM engine. What is null is left to vLLM."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Of computation. auto: the model's."
    )
    quantization: Text | None = Field(
        None, description="Null: as the model's own configuration says."
    )
    gpu_memory_percent: Integer = Field(
        90, ge=1, le=100, description="Share of each accelerator that the engine takes."
    )
    cpu_kv_cache_gib: Integer | None = Field(
        None, ge=1, description="Key/value cache of the processor build, GiB. Null: accelerators."
    )
    batch_tokens: Integer | None = Field(
        None, ge=1, description="Tokens computed at once. Null: vLLM's choice."
    )
    prefix_caching: Flag = Field(True, description="Keep what prompts with one beginning share.")
    reasoning_parser: Text | None = Field(None, description="Null: none.")
    chat_template_required: Flag = Field(
        True, description="Refuse a model without a chat template instead of falling back."
    )


class Prices(Strict):
    """What tokens cost, as the provider declares it; one US dollar is 1,000,000 micro-USD."""

    prompt_microusd_per_million: Integer = Field(ge=0, description="Of a million prompt tokens.")
    completion_microusd_per_million: Integer = Field(
        ge=0, description="Of a million completion tokens."
    )

    def cost(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Micro-USD of so many tokens, rounded up. Nothing is taken off for cached ones."""
        millionths = (
            prompt_tokens * self.prompt_microusd_per_million
            + completion_tokens * self.completion_microusd_per_million
        )
        return -(-millionths // 1_000_000)


class EndpointLaunch(Strict):
    """A declared OpenAI-compatible endpoint that somebody else runs."""

    url: Address = Field(description="Base address up to and including /v1.")
    provider: Text = Field(description="Who runs it, as declared.")
    model_name: Text = Field(description="The only model id that may be asked for.")
    api_key_variable: Text | None = not_bound(
        None, "Environment variable with the key.", pattern=r"^[A-Z][A-Z0-9_]{0,63}$"
    )
    prices: Prices | None = not_bound(
        None, "Without them the cost of a trial is not known, and a limit of it cannot be kept."
    )


class SupportedPrecision(Strict):
    """What one precision of weights needs from this runtime's engine."""

    precision: Text = Field(description="As rows name it, such as fp8 or awq.")
    minimum_compute_capability: Number | None = Field(
        None, ge=0, description="Null: no accelerator is needed."
    )
    whole_groups: Literal["none", "linear", "all"] = Field(
        "none",
        description="Where each shard must hold whole quantization groups and blocks: nowhere "
        "(it pads), in linear layers, or in experts too.",
    )
    source: Text = Field(description="Where that is known from.")


class Runtime(Manifest):
    """A pinned inference environment."""

    engine: EngineKind = Field(description="What serves the model.")
    lock: Identifier | None = Field(
        None,
        description="Pin set under locks/. Null: nothing to pin (endpoint, scripted), or known "
        "from elsewhere only, and then it cannot be run here.",
    )
    packages: tuple[Package, ...] = Field((), description="Versions asserted before a run.")
    python: Text | None = Field(None, description="Version such as 3.12. Null: any.")
    cuda: Text | None = Field(None, description="CUDA ABI such as 12.9. Null: none.")
    minimum_driver: Text | None = not_bound(None, "Oldest driver, for admission.")
    minimum_compute_capability: Number | None = not_bound(None, "Lowest, for admission.", ge=0)
    tool_parsers: tuple[Text, ...] = not_bound((), "Server tool parsers that it offers.")
    quantizations: tuple[SupportedPrecision, ...] = not_bound(
        (), "Precisions that it serves and what each needs. Empty: not listed, not judged."
    )
    model_formats: tuple[Literal["gguf", "safetensors"], ...] = not_bound(
        (), "Formats of weights that it serves. Empty: what its engine is made for."
    )
    startup_budget_s: Integer = not_bound(180, "Seconds until ready.", ge=1, le=7200)
    llama_cpp: LlamaCppLaunch | None = Field(None, description="Only for engine llama-cpp.")
    vllm: VllmLaunch | None = Field(
        None, description="Only for engine vllm, and needed where there is a lock."
    )
    base_layer: Identifier | None = not_bound(
        None, "Debian closure of its image under locks/debian.json; an image row binds its digest."
    )
    endpoint: EndpointLaunch | None = Field(None, description="Only for engine endpoint.")

    @model_validator(mode="after")
    def _engine_and_its_section(self) -> Self:
        sections = {
            EngineKind.LLAMA_CPP: "llama_cpp",
            EngineKind.VLLM: "vllm",
            EngineKind.ENDPOINT: "endpoint",
        }
        for engine, section in sections.items():
            given = getattr(self, section) is not None
            if given and self.engine is not engine:
                raise mistake(
                    f"the section {section} does not belong to engine {self.engine.value}",
                    "remove it",
                    (section,),
                )
            # A vLLM runtime without a lock only stands for outcomes from elsewhere.
            needed = engine is not EngineKind.VLLM or self.lock is not None
            if self.engine is engine and needed and not given:
                raise mistake(f"engine {engine.value} needs the section {section}", "", ("engine",))
        once((package.name for package in self.packages), "packages", "name")
        once(self.tool_parsers, "tool_parsers")
        once((each.precision for each in self.quantizations), "quantizations", "precision")
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


class WeightQuantization(Strict):
    """How the weights of a model are stored, as far as it matters for loading them."""

    precision: Text = Field(description="As rows name it, such as fp8 or awq.")
    group_size: Integer | None = Field(
        None, ge=1, description="Weights along an input that share a scale. Null: not known."
    )
    output_block: Integer | None = Field(
        None, ge=1, description="Outputs that share a scale. Null: each has its own."
    )
    quantized: Literal["linear", "experts"] = Field(
        "linear", description="What is quantized: all linear layers of a block, or experts only."
    )


class Architecture(Strict):
    """Facts that admission needs. What is null is not known, and nothing is judged by it."""

    parameters: Integer = Field(ge=1)
    blocks: Integer | None = Field(None, ge=1)
    heads: Integer | None = Field(None, ge=1)
    kv_heads: Integer | None = Field(None, ge=1)
    head_dimension: Integer | None = Field(None, ge=1)
    embedding: Integer | None = Field(None, ge=1)
    intermediate: Integer | None = Field(
        None, ge=1, description="Width of the dense feed-forward layers."
    )
    experts: Integer | None = Field(None, ge=1, description="Routed experts of a block.")
    moe_intermediate: Integer | None = Field(None, ge=1, description="Width of one expert.")
    vocabulary: Integer | None = Field(None, ge=1, description="Rows of the embedding.")
    full_attention_blocks: Integer | None = Field(
        None, ge=0, description="Blocks that keep keys and values of the whole context. Null: all."
    )
    sliding_window: Integer | None = Field(
        None, ge=1, description="Tokens that the other blocks keep. Null: they keep none."
    )
    trained_context: Integer = Field(ge=1, description="Tokens.")
    weight_bytes: Integer | None = Field(
        None, ge=1, description="Bytes of all weights, where the files are not listed."
    )
    quantization: WeightQuantization | None = None


class Model(Manifest):
    """A model at an immutable revision."""

    repository: Text = Field(description="Where its publisher keeps it.")
    revision: Text | None = Field(
        None, pattern=r"^[0-9a-f]{40}$", description="Null: not known; such a row cannot qualify."
    )
    format: Literal["gguf", "safetensors"]
    licence: Licence = not_bound(..., "Licence of the weights.")
    chat_template: Literal["embedded", "none", "unknown"] = "unknown"
    tool_parsers: tuple[Text, ...] = not_bound(
        (), "Server tool parsers that are made for its calls. Empty: not known."
    )
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
        once((file.path for file in self.files), "files", "path")
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
        once(self.cpu_features, "cpu_features")
        return self
