"""What every inference engine offers, whichever it is.

An engine is started at once and without waiting, becomes ready by answering a real completion, says
what is really running, and stops with everything that belongs to it. Every fault has a reason code
that a record can hold. This module imports nothing heavy: the server's start waits for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.core.status import EngineKind

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration
    from qualify.runtimes.contained import ImageRoot

type Progress = Callable[[str], None]
"""Hears what an engine is doing, in a few words."""


class EngineFault(EnvironmentFault):
    """An engine that did not start, is not what the row says, or does not answer.

    `reason_code` is one of docs/reference/engines.md.
    """

    def __init__(self, reason_code: str, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.reason_code = reason_code


@dataclass(frozen=True)
class EngineFacts:
    """What a running engine said of itself. `None`: it does not tell."""

    kind: EngineKind
    version: str | None
    build: str | None
    context_tokens_per_slot: int | None
    slots: int | None
    tensor_parallel: int
    chat_template: str | None
    """Digest of the chat template's text."""
    tool_parser: str | None
    remote: bool
    start_ms: int
    """From `start` to the first answered completion."""
    image: str | None = None
    """Digest of the image that the server ran in; `None`: on the host, or elsewhere."""
    network: Literal["open", "loopback-only"] | None = None
    """What the server's network namespace had besides loopback, as its process saw it."""


class Engine(Protocol):
    """An inference engine of one configuration. Use: start, wait_ready, work, stop.

    After `stop` it may be started again, on another address and with another key.
    """

    @property
    def base_url(self) -> str:
        """Address up to and including `/v1`. Raises `RuntimeError` before it is ready."""

    @property
    def api_key(self) -> str:
        """Bearer token of every request; empty where none is needed."""

    @property
    def model_name(self) -> str:
        """The only model id that may be asked for."""

    @property
    def request_extras(self) -> Mapping[str, Any]:
        """Body fields that the relay adds to see more of the engine's progress."""

    def start(self) -> None:
        """Start and return at once. Raises `EngineFault` when nothing could be started."""

    def wait_ready(self, progress: Progress | None = None) -> EngineFacts:
        """Wait until a completion came back, at most the start-up budget.

        Raises `EngineFault`; the engine is stopped by then.
        """

    def alive(self) -> bool:
        """Whether the engine can still be asked, as far as it can be told without asking it."""

    def stop(self) -> None:
        """End everything that was started. Idempotent, never raises for what is gone."""


ENGINES: dict[EngineKind, tuple[str, str]] = {
    EngineKind.LLAMA_CPP: ("qualify.runtimes.llama_cpp", "LlamaCppEngine"),
    EngineKind.VLLM: ("qualify.runtimes.vllm", "VllmEngine"),
    EngineKind.ENDPOINT: ("qualify.runtimes.endpoint", "EndpointEngine"),
    EngineKind.SCRIPTED: ("qualify.runtimes.scripted", "ScriptedEngine"),
}
"""Engine kind → module and class. A class takes `(configuration, model_path, private, budget)`."""
IN_IMAGES = frozenset((EngineKind.LLAMA_CPP, EngineKind.VLLM))
"""Engines that can run inside an image; their classes take `root` besides."""


def make_engine(
    configuration: Configuration,
    *,
    model_path: Path | None,
    private: Path,
    startup_budget_s: int,
    root: ImageRoot | None = None,
) -> Engine:
    """Return the configuration's engine, not started.

    `model_path` is the model's file, or the folder of a snapshot (only engines that load one need
    it), `private` an existing private folder for logs, `startup_budget_s` the seconds from `start`
    until it must be ready, `root` the image that the server runs in. Raises `UsageError` for an
    engine that this installation cannot run, or not in an image.
    """
    kind = configuration.runtime.engine
    if kind not in ENGINES:
        raise UsageError(
            f"engine {kind.value} cannot be started by this version",
            where=f"runtime {configuration.runtime.id}",
            fix="its rows carry outcomes from elsewhere; choose a row of another engine",
        )
    if root is not None and kind not in IN_IMAGES:
        raise UsageError(
            f"engine {kind.value} does not run in an image",
            where=f"row {configuration.row.id}",
            fix="declare placement host",
        )
    module, name = ENGINES[kind]
    options = {} if root is None else {"root": root}
    engine: Engine = getattr(importlib.import_module(module), name)(
        configuration, model_path, private, startup_budget_s, **options
    )
    return engine
