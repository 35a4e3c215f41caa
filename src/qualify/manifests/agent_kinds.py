"""Manifest kinds of what drives a model: agents, and scripts that stand in for one."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from qualify.manifests.fields import Manifest, Strict, once
from qualify.manifests.scalars import (
    Flag,
    Identifier,
    Integer,
    LongText,
    Number,
    Parameter,
    RegularExpression,
    Text,
)

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

    harness: Literal["openhands"] = Field(description="The agent SDK.")
    lock: Identifier | None = Field(
        description="Pin set of the SDK under locks/. Null: not known; it cannot be run here."
    )
    system_prompt: LongText | None = Field(None, description="Null: the SDK's own.")
    tools: tuple[AgentTool, ...] = Field(min_length=1, description="In the order of the prompt.")
    in_context_example: Flag = Field(description="Whether the SDK's example text is sent.")
    grammar: LongText | None = Field(None, description="GBNF sent with every agent request.")
    sampling: Sampling
    limits: AgentLimits

    @model_validator(mode="after")
    def _tools_once(self) -> Self:
        once((tool.name for tool in self.tools), "tools", "name")
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
