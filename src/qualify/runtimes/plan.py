"""The launch plan: what a run of a row would start, without starting it.

Pure data for people and for `--json`. It holds no key, no path of this machine and no content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qualify.core.status import EngineKind
from qualify.runtimes.memory import MemoryEstimate, estimate_memory
from qualify.runtimes.processes import ENVIRONMENT

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration
    from qualify.manifests.kinds import Scenario


@dataclass(frozen=True)
class ScenarioBudget:
    """The limits of one scenario. `None`: not limited."""

    scenario: str
    kind: str
    wall_time_s: int
    actions: int
    model_calls: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_microusd: int | None


@dataclass(frozen=True)
class LaunchPlan:
    """What would be started."""

    row: str
    configuration: str
    evidence_class: str
    engine: str
    program: str
    """What is started, in words: a package's server, or the endpoint that is asked."""
    arguments: dict[str, Any]
    environment: tuple[str, ...]
    """Names of the variables that a server process is given; nothing else is inherited."""
    listens: str
    model: str | None
    model_files: tuple[tuple[str, int, str], ...]
    """Path, bytes and SHA-256 of every file that is verified first."""
    agent: str
    tool_mode: str
    startup_budget_s: int
    memory: MemoryEstimate | None
    budgets: tuple[ScenarioBudget, ...]


def launch_plan(configuration: Configuration, scenarios: Sequence[Scenario]) -> LaunchPlan:
    """The plan of a row for the scenarios of a suite. Starts nothing, writes nothing."""
    row, runtime, model = configuration.row, configuration.runtime, configuration.model
    program, listens = _PROGRAMS.get(runtime.engine, ("nothing: this engine is not available", "-"))
    arguments, added = _arguments(configuration)
    if row.placement == "image":
        program = f"{program}, inside an image built on the Debian closure {runtime.base_layer}"
    return LaunchPlan(
        row=row.id,
        configuration=configuration.digest,
        evidence_class=configuration.evidence_class.value,
        engine=runtime.engine.value,
        program=program,
        arguments=arguments,
        environment=(*ENVIRONMENT, *added) if runtime.engine is not EngineKind.ENDPOINT else (),
        listens=listens,
        model=model.id if model is not None else None,
        model_files=tuple((f.path, f.size, f.sha256) for f in model.files) if model else (),
        agent=row.agent,
        tool_mode=row.tool_mode.value,
        startup_budget_s=configuration.startup_budget_s,
        memory=estimate_memory(configuration),
        budgets=tuple(
            ScenarioBudget(scenario=s.id, kind=s.kind, **s.budgets.model_dump()) for s in scenarios
        ),
    )


_PROGRAMS = {
    EngineKind.LLAMA_CPP: (
        "llama.cpp's server from the package xllamacpp, in a process group of its own",
        "127.0.0.1, a port that the kernel chooses, behind a random key",
    ),
    EngineKind.VLLM: (
        "vLLM's OpenAI-compatible server, in a process group of its own",
        "127.0.0.1, a port that the kernel chooses, behind a random key on every path",
    ),
    EngineKind.SCRIPTED: (
        "a server that plays the row's script, in a process group of its own",
        "127.0.0.1, a port that the kernel chooses, behind a random key",
    ),
    EngineKind.ENDPOINT: ("nothing: somebody else's server is asked", "the declared address"),
}


def _arguments(configuration: Configuration) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the program is told, and the names of the variables that its engine adds."""
    from qualify.runtimes import llama_cpp, vllm

    runtime, row = configuration.runtime, configuration.row
    known = row.context_tokens is not None
    if runtime.engine is EngineKind.LLAMA_CPP and known:
        return llama_cpp.launch_arguments(configuration), ()
    if runtime.vllm is not None and known:
        launch = vllm.launch_arguments(configuration)
        return {
            "command": " ".join(launch["arguments"]),
            **launch["environment"],
        }, (*vllm.ENVIRONMENT, *launch["environment"])
    if runtime.endpoint is not None:
        return runtime.endpoint.model_dump(mode="json"), ()
    if configuration.script is not None:
        return {"script": configuration.script.id, "replies": len(configuration.script.replies)}, ()
    return {"context_tokens": row.context_tokens, "tensor_parallel": row.tensor_parallel}, ()
