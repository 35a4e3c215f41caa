"""Tools with the SDK's own schemas and executors of ours.

The SDK's terminals report wrong exit codes now and then on a loaded machine, and its editor is not
confined to the workspace. Here a command is one `bash -c` in its own process group, under the best
isolation there is, with time and output limits; its exit code is the one that the kernel reported
for that process. Files are edited only below the workspace.

What the model reads (descriptions, offered parameters) comes from the agent manifest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openhands.sdk.tool import ToolExecutor, register_tool
from openhands.sdk.tool.builtins.finish import FinishTool
from openhands.sdk.tool.builtins.think import ThinkTool
from openhands.tools.file_editor.definition import (
    FileEditorAction,
    FileEditorObservation,
    FileEditorTool,
)
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal.definition import (
    TerminalAction,
    TerminalObservation,
    TerminalTool,
)
from openhands.tools.terminal.metadata import CmdOutputMetadata

from qualify.sandbox.isolation import Isolation, witnessed

if TYPE_CHECKING:
    from openhands.sdk.conversation.state import ConversationState

_KEPT_PARAMETERS = ("security_risk", "summary")


def _offer(schema: dict[str, Any], offered: Mapping[str, str] | None) -> dict[str, Any]:
    """Reduce a tool's parameters to those that the agent manifest offers, with its wording.

    `security_risk` and `summary` stay: the SDK's text format shows them in its own example and
    refuses calls that use a parameter which the schema does not have.
    """
    if offered is None:
        return schema
    properties = {}
    for name, value in schema.get("properties", {}).items():
        if name in _KEPT_PARAMETERS:
            properties[name] = {**value, "description": offered.get(name, "Optional.")}
        elif name in offered:
            properties[name] = {**value, "description": offered[name]}
    required = [name for name in schema.get("required", []) if name in properties]
    return {**schema, "properties": properties, "required": required}


class CommandExecutor(ToolExecutor[TerminalAction, TerminalObservation]):
    """Runs one command at a time; `interrupt` ends the one that runs."""

    def __init__(
        self, isolation: Isolation, workspace: Path, home: Path, temporary: Path,
        timeout_s: int, output_bytes: int,
    ) -> None:  # fmt: skip
        self._isolation = isolation
        self._workspace, self._home, self._temporary = workspace, home, temporary
        self._timeout_s, self._output_bytes = timeout_s, output_bytes
        self._running: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()

    def __call__(self, action: TerminalAction, conversation: Any = None) -> TerminalObservation:
        """Run the command to its end, its limit or an `interrupt`."""
        if action.is_input or action.reset:
            return _observation(
                action.command, "This terminal runs whole commands only.", None, error=True
            )
        limit = min(action.timeout or self._timeout_s, self._timeout_s)
        status, status_write = os.pipe()
        try:
            process = self._start(action.command, status_write)
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(status_write)
        with self._guard:
            self._running = process
        reader = _BoundedReader(process, self._output_bytes)
        try:
            code = process.wait(limit)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
            _kill_group(process)
            code = process.wait()
        finally:
            # Whatever the command left behind in its group must not outlive it.
            _kill_group(process)
            with self._guard:
                self._running = None
        text = reader.text()
        with os.fdopen(status, "rb") as stream:
            ended = self._isolation.kind == "none" or witnessed(stream.read())
        if timed_out:
            text += f"\n[The command was stopped after {limit:g} seconds.]"
        elif not ended and code >= 0:
            return _observation(action.command, f"The sandbox failed. {text}", None, error=True)
        # As a shell says it: 128 + the signal that ended the command.
        code = 128 - code if code < 0 else code
        return _observation(action.command, text, code, timeout=timed_out)

    def _start(self, command: str, status: int) -> subprocess.Popen[bytes]:
        environment = command_environment(self._home, self._temporary)
        argv = self._isolation.wrap(
            ["/bin/bash", "--noprofile", "--norc", "-c", command],
            workspace=self._workspace, home=self._home, temporary=self._temporary,
            environment=environment, status=status,
        )  # fmt: skip
        return subprocess.Popen(
            argv, cwd=self._workspace, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=() if self._isolation.kind == "none" else (status,),
        )  # fmt: skip

    def interrupt(self) -> None:
        """End the running command (SIGTERM to its group)."""
        with self._guard:
            if self._running is not None:
                _kill_group(self._running, signal.SIGTERM)

    def close(self) -> None:
        """End what still runs."""
        self.interrupt()


class _BoundedReader:
    """Drains a pipe in a thread and keeps the first `limit` bytes."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        self._stream, self._limit = process.stdout, limit
        self._kept = bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        assert self._stream is not None
        with self._stream:
            while chunk := self._stream.read1(65536):  # type: ignore[attr-defined]
                room = self._limit - len(self._kept)
                self._kept += chunk[:room]
                self._dropped += max(0, len(chunk) - room)

    def text(self) -> str:
        """What was read; waits a moment for the last bytes of a command that has ended."""
        self._thread.join(5)
        text = self._kept.decode("utf-8", "replace")
        return text + (f"\n[{self._dropped} bytes left out]" if self._dropped else "")


def _kill_group(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def command_environment(home: Path, temporary: Path) -> dict[str, str]:
    """The whole environment of a command: nothing is inherited, so no secret can be."""
    return {
        "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home), "TMPDIR": str(temporary), "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _observation(
    command: str, text: str, code: int | None, *, timeout: bool = False, error: bool = False
) -> TerminalObservation:
    return TerminalObservation.from_text(
        text=text.rstrip("\n"),
        command=command,
        exit_code=code,
        timeout=timeout,
        is_error=error,
        metadata=CmdOutputMetadata(exit_code=-1 if code is None else code),
    )


class CommandTool(TerminalTool):
    """`terminal`, one isolated command per call."""

    name = "terminal"
    offered: dict[str, str] | None = None

    @classmethod
    def create(cls, conv_state: ConversationState, **params: Any) -> Sequence[CommandTool]:
        """The tool as the agent manifest describes it."""
        readable = tuple(Path(p) for p in params["readable"])
        executor = CommandExecutor(
            Isolation(params["isolation"], readable),
            Path(conv_state.workspace.working_dir),
            Path(params["home"]),
            Path(params["temporary"]),
            params["timeout_s"],
            params["output_bytes"],
        )
        tool = TerminalTool.create(conv_state, executor=executor)[0]
        return [cls(**_fields(tool, params), executor=executor)]

    def _get_tool_schema(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return _offer(super()._get_tool_schema(*args, **kwargs), self.offered)


class ConfinedEditor(ToolExecutor[FileEditorAction, FileEditorObservation]):
    """The SDK's editor behind a check that the real path lies below the workspace."""

    def __init__(self, inner: ToolExecutor[Any, Any], workspace: Path) -> None:
        self._inner, self._workspace = inner, workspace.resolve()

    def __call__(self, action: FileEditorAction, conversation: Any = None) -> FileEditorObservation:
        """Edit below the workspace; answer anything else with an error."""
        path = Path(action.path)
        path = path if path.is_absolute() else self._workspace / path
        real = path.resolve()
        if real != self._workspace and self._workspace not in real.parents:
            return FileEditorObservation.from_text(
                text="This path is outside the project folder.",
                command=action.command, path=action.path, is_error=True,
            )  # fmt: skip
        confined = action.model_copy(update={"path": str(real)})
        result: FileEditorObservation = self._inner(confined, conversation)
        return result


class ConfinedFileEditorTool(FileEditorTool):
    """`file_editor`, confined to the workspace."""

    name = "file_editor"
    offered: dict[str, str] | None = None

    @classmethod
    def create(
        cls, conv_state: ConversationState, **params: Any
    ) -> Sequence[ConfinedFileEditorTool]:
        """The tool as the agent manifest describes it."""
        tool = FileEditorTool.create(conv_state)[0]
        assert tool.executor is not None
        executor = ConfinedEditor(tool.executor, Path(conv_state.workspace.working_dir))
        return [cls(**_fields(tool, params), executor=executor)]

    def _get_tool_schema(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return _offer(super()._get_tool_schema(*args, **kwargs), self.offered)


class DescribedFinishTool(FinishTool):
    """`finish` with the manifest's wording."""

    name = "finish"
    offered: dict[str, str] | None = None

    @classmethod
    def create(
        cls, conv_state: ConversationState | None = None, **params: Any
    ) -> Sequence[DescribedFinishTool]:
        """The tool as the agent manifest describes it."""
        tool = FinishTool.create(conv_state)[0]
        return [cls(**_fields(tool, params), executor=tool.executor)]

    def _get_tool_schema(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return _offer(super()._get_tool_schema(*args, **kwargs), self.offered)


def _fields(tool: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "action_type": tool.action_type,
        "observation_type": tool.observation_type,
        "description": params.get("description") or tool.description,
        "annotations": tool.annotations,
        "offered": params.get("offered"),
    }


_registered = False


def register() -> None:
    """Make the tools known to the SDK under the names that agent manifests use."""
    global _registered  # noqa: PLW0603
    if _registered:
        return
    _registered = True
    register_tool("terminal", CommandTool)
    register_tool("file_editor", ConfinedFileEditorTool)
    register_tool("finish", DescribedFinishTool)
    register_tool("think", ThinkTool)
    register_tool("task_tracker", TaskTrackerTool)
