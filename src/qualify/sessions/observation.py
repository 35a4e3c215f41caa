"""What the owner sees of the client that asks the model, read from the live objects themselves.

Read before any model work (and bound in the journal), before each continuation, and at the end: the
record can say that one and the same client did all of it. Digests here are of set-up alone, without
key, address and the session's own folders, so that equal set-ups have equal digests.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qualify.core.digests import digest_bytes
from qualify.sessions.construction import sdk_version, set_up
from qualify.sessions.journal import ClientSeen

if TYPE_CHECKING:
    from qualify.sessions.owner import SessionSpec


def observe(conversation: Any, spec: SessionSpec) -> ClientSeen:
    """The client of an open conversation, as it is now."""
    state, dump = conversation.state, set_up(conversation.agent)
    llm = conversation.agent.llm
    python = platform.python_version().rstrip("+")  # a build between two releases has a plus
    policy, analyzer = state.confirmation_policy, state.security_analyzer
    return ClientSeen(
        requested_model=digest_bytes(llm.model.removeprefix("openai/").encode()),
        sdk_version=sdk_version(),
        max_input_tokens=llm.max_input_tokens,
        max_output_tokens=llm.max_output_tokens,
        confirmation_policy=type(policy).__name__,
        analyzer=None if analyzer is None else type(analyzer).__name__,
        platform=f"{platform.system()}-{platform.machine()}-{python}",
        options=_digest(dump.pop("llm", None)),
        security=_digest(
            {
                "agent": dump,
                "policy": _dump(policy),
                "analyzer": _dump(analyzer),
                "hooks": _dump(state.hook_config),
                "iterations": state.max_iterations,
                "isolation": spec.isolation,
            }
        ),
    )


def differences(before: ClientSeen, now: ClientSeen) -> Iterator[str]:
    """Names of what is no longer as it was."""
    for name in ClientSeen.model_fields:
        if getattr(before, name) != getattr(now, name):
            yield name.replace("_", "-")


def implicit(client: ClientSeen) -> bool:
    """Whether a limit of the context is left to whatever the SDK or the server takes for it."""
    return client.max_input_tokens is None or client.max_output_tokens is None


def _dump(part: Any) -> Any:
    return None if part is None else part.model_dump(mode="json")


def _digest(value: Any) -> str:
    return digest_bytes(json.dumps(value, sort_keys=True).encode())
