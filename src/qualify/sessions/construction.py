"""Building the SDK's agent and conversation from an agent manifest, and reading them back."""

from __future__ import annotations

import contextlib
import importlib
import uuid
from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qualify.core.digests import digest_bytes
from qualify.sessions.environment import prepare_this_process

if TYPE_CHECKING:
    from qualify.sessions.agent import GatedAgent
    from qualify.sessions.owner import PendingAction, SessionSpec


_LATE_IMPORTS = (
    "h11",
    "socksio",
    "openai",
    "openai.resources.chat.completions",
    "openai.types",
    "openhands.sdk.llm.provider_connection_store",
)
"""What the SDK would import at its first request: over a second that belongs to no trial."""


def sdk_version() -> str:
    """Version of the agent SDK."""
    return version("openhands-sdk")


def preload() -> None:
    """Import the SDK and what a session needs of it: some ten seconds of CPU, paid once."""
    prepare_this_process()
    import openhands.sdk  # noqa: F401

    from qualify.sessions import agent, tools  # noqa: F401

    tools.register()
    for name in _LATE_IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def build_agent(spec: SessionSpec, folder: Path) -> GatedAgent:
    """The agent that `spec` describes. Raises what the SDK raises for an impossible set-up."""
    preload()
    from openhands.sdk import LLM, Tool
    from pydantic import SecretStr

    from qualify.sessions.agent import GatedAgent

    manifest = spec.agent
    limits, sampling = manifest["limits"], manifest["sampling"]
    offer_example(wanted=manifest["in_context_example"])
    extra: dict[str, Any] = {"cache_prompt": True}
    if manifest.get("grammar"):
        extra["grammar"] = manifest["grammar"]
    if sampling.get("seed") is not None:
        extra["seed"] = int(sampling["seed"])
    llm = LLM(
        model=f"openai/{spec.model_name}",
        base_url=spec.base_url,
        api_key=SecretStr(spec.api_key),
        usage_id="agent",
        native_tool_calling=spec.tool_mode == "native",
        temperature=_number(sampling.get("temperature")),
        top_p=_number(sampling.get("top_p")),
        # Without these the SDK takes an unknown model for a reasoning model and drops the
        # temperature without a word.
        capability_overrides={"supports_reasoning_effort": False, "supports_sampling_params": True},
        max_output_tokens=limits["max_output_tokens"],
        max_input_tokens=limits["max_input_tokens"],
        caching_prompt=False,
        num_retries=1,
        timeout=limits["request_timeout_s"],
        input_cost_per_token=0.0,
        output_cost_per_token=0.0,
        litellm_extra_body=extra,
    )
    prompt = manifest.get("system_prompt")
    return GatedAgent(
        llm=llm,
        tools=[
            Tool(name=tool["name"], params=_tool_params(tool, spec, folder))
            for tool in manifest["tools"]
        ],
        include_default_tools=[],
        **({"system_prompt": prompt} if prompt else {}),
    )


def _tool_params(tool: dict[str, Any], spec: SessionSpec, folder: Path) -> dict[str, Any]:
    if tool["name"] in ("think", "task_tracker"):
        return {}
    params: dict[str, Any] = {
        "description": tool.get("description"),
        "offered": tool.get("parameters"),
    }
    if tool["name"] == "terminal":
        limits = spec.agent["limits"]
        params |= {
            "isolation": spec.isolation,
            "readable": list(spec.readable),
            "home": str(folder / "home"),
            "temporary": str(folder / "tmp"),
            "timeout_s": limits["command_timeout_s"],
            "output_bytes": limits["command_output_bytes"],
        }
    return params


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def offer_example(*, wanted: bool) -> None:
    """Switch the in-context example of the SDK's text tool format on or off in this process."""
    from openhands.sdk.llm.mixins import non_native_fc

    current: Any = non_native_fc.convert_fncall_messages_to_non_fncall_messages
    original = getattr(current, "__wrapped__", current)

    @wraps(original)
    def convert(*args: Any, **kwargs: Any) -> Any:
        kwargs["add_in_context_learning_example"] = (
            wanted and kwargs["add_in_context_learning_example"]
        )
        return original(*args, **kwargs)

    non_native_fc.convert_fncall_messages_to_non_fncall_messages = convert


def fingerprint(agent: GatedAgent) -> str:
    """Digest of the agent's own dump with what is no part of its set-up taken out.

    The SDK has no fingerprint of its own.
    """
    import json

    return digest_bytes(json.dumps(set_up(agent), sort_keys=True).encode())


def set_up(agent: Any) -> dict[str, Any]:
    """The agent's own dump without what differs for each trial.

    Keys are masked by the dump; the relay's address and the trial's folders are dropped.
    """
    dump: dict[str, Any] = agent.model_dump(mode="json", exclude_none=True)
    dump.get("llm", {}).pop("base_url", None)
    dump.get("llm", {}).pop("api_key", None)
    for tool in dump.get("tools", []):
        for name in ("home", "temporary"):
            tool.get("params", {}).pop(name, None)
    return dump


def open_conversation(
    spec: SessionSpec, folder: Path, agent: GatedAgent, on_event: Callable[[Any], None]
) -> Any:
    """Open or reopen the conversation. Every group of actions will ask for confirmation."""
    from openhands.sdk import Conversation
    from openhands.sdk.security import AlwaysConfirm

    conversation = Conversation(
        agent=agent,
        workspace=str(folder / "workspace"),
        persistence_dir=str(folder / "conversation"),
        conversation_id=uuid.UUID(spec.session),
        visualizer=None,
        callbacks=[on_event],
        max_iteration_per_run=spec.agent["limits"]["max_iterations"],
        delete_on_close=False,
    )
    conversation.set_confirmation_policy(AlwaysConfirm())
    return conversation


def unmatched(conversation: Any) -> list[PendingAction]:
    """Actions of the active branch without an observation."""
    import json

    from qualify.sessions.owner import PendingAction

    return [
        PendingAction(a.id, a.tool_name, json.loads(a.tool_call.arguments or "{}"))
        for a in unmatched_events(conversation)
    ]


def unmatched_events(conversation: Any) -> list[Any]:
    """The SDK's own events of these actions."""
    from openhands.sdk.conversation.state import ConversationState

    return list(ConversationState.get_unmatched_actions(conversation.state.active_branch()))


def status(conversation: Any) -> Literal["waiting", "finished", "idle", "error", "stuck", "paused"]:
    """Where the conversation rests, in our words. A `running` that rests is an error."""
    from openhands.sdk.conversation.state import ConversationExecutionStatus as Sdk

    words: dict[Any, Literal["waiting", "finished", "idle", "error", "stuck", "paused"]] = {
        Sdk.WAITING_FOR_CONFIRMATION: "waiting",
        Sdk.FINISHED: "finished",
        Sdk.IDLE: "idle",
        Sdk.PAUSED: "paused",
        Sdk.STUCK: "stuck",
    }
    return words.get(conversation.state.execution_status, "error")


def classify(error: BaseException) -> str:
    """Bounded code for what a run raised: the innermost known cause, never its text."""
    codes = {
        "LLMContextWindowExceedError": "context-exceeded",
        "ContextWindowExceededError": "context-exceeded",
        "LLMTimeoutError": "model-timeout",
        "Timeout": "model-timeout",
        "APIConnectionError": "model-unreachable",
        "LLMServiceUnavailableError": "model-unreachable",
        "ServiceUnavailableError": "model-unreachable",
        "InternalServerError": "model-error",
        "LLMBadRequestError": "model-error",
        "BadRequestError": "model-error",
        "LLMMalformedActionError": "malformed-action",
        "LLMNoActionError": "no-action",
        "LLMNoResponseError": "no-response",
    }
    seen: BaseException | None = error
    found = "run-error"
    while seen is not None:
        found = codes.get(type(seen).__name__, found)
        seen = seen.__cause__ or seen.__context__
    return found


def resting_error(conversation: Any) -> str | None:
    """Bounded code of an error that the SDK announced instead of raising it."""
    codes = {"MaxIterationsReached": "step-limit", "BudgetExceeded": "budget-used-up"}
    for event in reversed(conversation.state.events):
        if type(event).__name__ == "ConversationErrorEvent":
            return codes.get(event.code, "agent-error")
    return None


def usage(conversation: Any) -> tuple[int, int, int]:
    """Requests, prompt tokens and completion tokens that the SDK counted."""
    metrics = conversation.conversation_stats.get_combined_metrics()
    tokens = metrics.accumulated_token_usage
    return (
        len(metrics.response_latencies),
        tokens.prompt_tokens if tokens else 0,
        tokens.completion_tokens if tokens else 0,
    )
