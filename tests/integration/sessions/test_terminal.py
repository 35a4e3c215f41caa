"""The terminal tool: what the kernel says of a command is reported, and nothing survives it."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qualify.sandbox.isolation import Isolation, available
from support.children import until

type Terminal = Callable[..., Any]


@pytest.fixture(params=["none", "bubblewrap"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    """Both isolations; these tests need a working bubblewrap."""
    if request.param == "none":
        return Isolation("none")
    available.cache_clear()
    found = available((Path(sys.base_prefix),))
    assert found.kind == "bubblewrap", "install bubblewrap"
    return found


@pytest.fixture
def terminal(agent_sdk: None, isolation: Isolation, tmp_path: Path) -> Terminal:
    """`terminal(command, timeout_s=20, output_bytes=4000)` runs one command."""
    for name in ("workspace", "home", "tmp"):
        (tmp_path / name).mkdir()
    return lambda command, **options: executor(isolation, tmp_path, **options)(action(command))


def executor(
    isolation: Isolation, base: Path, timeout_s: int = 20, output_bytes: int = 4000
) -> Any:
    from qualify.sessions.tools import CommandExecutor

    return CommandExecutor(
        isolation, base / "workspace", base / "home", base / "tmp", timeout_s, output_bytes
    )


def action(command: str, **more: Any) -> Any:
    from openhands.tools.terminal.definition import TerminalAction

    return TerminalAction(command=command, **more)


def running(mark: str) -> list[int]:
    """Processes whose command line holds `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(int(entry.name))
    return found


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("no-such-command-anywhere", 127),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("false; echo said; exit 7", 7),
    ],
)
def test_the_exit_code_is_the_commands_own(terminal: Terminal, command: str, code: int) -> None:
    seen = terminal(command)
    assert (seen.exit_code, seen.metadata.exit_code) == (code, code)
    assert not seen.timeout
    assert not seen.is_error


def test_output_and_errors_come_in_their_order(terminal: Terminal) -> None:
    assert terminal("echo one; echo two >&2; echo three").text == "one\ntwo\nthree"


def test_a_command_that_reads_finds_nothing_to_read(terminal: Terminal) -> None:
    assert (terminal("cat").exit_code, terminal("cat").text) == (0, "")


def test_a_timeout_ends_the_command_and_all_that_it_started(terminal: Terminal) -> None:
    seen = terminal("sleep 97.31 & (sleep 97.31; touch late) & sleep 97.31", timeout_s=1)
    assert seen.timeout
    assert seen.exit_code == 137
    assert "stopped after 1 seconds" in seen.text
    until(lambda: running("97.31") == [])


def test_the_agent_may_ask_for_less_time_and_never_for_more(
    terminal: Terminal, isolation: Isolation, tmp_path: Path
) -> None:
    run = executor(isolation, tmp_path, timeout_s=1)
    assert run(action("sleep 97.41", timeout=90)).timeout
    run = executor(isolation, tmp_path, timeout_s=90)
    assert run(action("sleep 97.41", timeout=0.2)).timeout
    assert not run(action("true", timeout=0)).timeout


def test_what_a_command_leaves_in_the_background_is_ended(terminal: Terminal) -> None:
    seen = terminal("sleep 97.51 & echo started")
    assert (seen.exit_code, seen.text) == (0, "started")
    until(lambda: running("97.51") == [])


def test_output_is_kept_up_to_the_limit_and_the_rest_counted(terminal: Terminal) -> None:
    seen = terminal("head -c 100000 /dev/zero | tr '\\0' x; exit 5", output_bytes=300)
    assert seen.text == "x" * 300 + "\n[99700 bytes left out]"
    assert seen.exit_code == 5
    assert terminal("printf x", output_bytes=1).text == "x"


def test_endless_output_ends_with_the_time(terminal: Terminal) -> None:
    seen = terminal("yes", timeout_s=1, output_bytes=300)
    assert seen.timeout
    assert len(seen.text) < 500


def test_bytes_that_are_no_text_are_described(terminal: Terminal) -> None:
    assert terminal("printf '\\377\\376ok'").text == "\ufffd\ufffdok"


def test_the_environment_holds_nothing_but_the_allow_list(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CREDENTIAL", "secret-of-the-environment")
    monkeypatch.setenv("PATH", f"/secret-place:{os.environ['PATH']}")
    seen = terminal("env; tr '\\0' '\\n' < /proc/$$/environ")
    names = {line.split("=")[0] for line in seen.text.splitlines()}
    shell = {"PWD", "SHLVL", "OLDPWD", "_"}
    assert names - shell == {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONDONTWRITEBYTECODE"}
    assert f"HOME={tmp_path / 'home'}" in seen.text
    assert "/secret-place" not in seen.text
    assert "secret-of-the-environment" not in seen.text


def test_running_python_leaves_no_bytecode_in_the_project(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "workspace" / "part.py").write_text("VALUE = 6\n")
    assert terminal("python3 -c 'import part; print(part.VALUE)'").text == "6"
    assert [path.name for path in (tmp_path / "workspace").iterdir()] == ["part.py"]
    assert list((tmp_path / "home").iterdir()) == []


def test_a_running_command_can_be_interrupted(
    terminal: Terminal, isolation: Isolation, tmp_path: Path
) -> None:
    run = executor(isolation, tmp_path)
    seen: list[Any] = []
    thread = threading.Thread(
        target=lambda: seen.append(run(action("touch begun; exec sleep 97.61")))
    )
    thread.start()
    until((tmp_path / "workspace" / "begun").exists)
    run.interrupt()
    thread.join(20)
    assert seen[0].exit_code == 143
    until(lambda: running("97.61") == [])


def test_input_for_a_running_command_is_refused(
    terminal: Terminal, isolation: Isolation, tmp_path: Path
) -> None:
    seen = executor(isolation, tmp_path)(action("touch effects", is_input=True))
    assert seen.is_error
    assert seen.exit_code is None
    assert list((tmp_path / "workspace").iterdir()) == []


def test_no_file_descriptor_of_ours_is_left_open(terminal: Terminal) -> None:
    terminal("true")
    before = open_files()
    for _ in range(5):
        terminal("echo x")
    until(lambda: open_files() <= before)


def test_the_network_is_closed_under_bubblewrap(terminal: Terminal, isolation: Isolation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        seen = terminal(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached")
    assert ("reached" in seen.text) == (isolation.kind == "none")
    names = terminal("tail -n +3 /proc/net/dev | cut -d: -f1").text.split()
    assert isolation.kind == "none" or names == ["lo"]


def test_nothing_outside_the_project_can_be_written_under_bubblewrap(
    terminal: Terminal, isolation: Isolation, tmp_path: Path
) -> None:
    seen = terminal(f"echo in > inside; echo out > {tmp_path}/outside; ls {tmp_path}")
    assert (tmp_path / "workspace" / "inside").read_text() == "in\n"
    assert (tmp_path / "outside").exists() == (isolation.kind == "none")
    assert "workspace" in seen.text


def test_nothing_of_the_user_can_be_read_under_bubblewrap(
    terminal: Terminal, isolation: Isolation, tmp_path: Path
) -> None:
    (tmp_path / "private").write_text("secret-of-the-user")
    seen = terminal(f"cat {tmp_path}/private /proc/*/cmdline | tr '\\0' ' '")
    assert ("secret-of-the-user" in seen.text) == (isolation.kind == "none")


def test_not_even_a_daemon_survives_under_bubblewrap(agent_sdk: None, tmp_path: Path) -> None:
    for name in ("workspace", "home", "tmp"):
        (tmp_path / name).mkdir()
    run = executor(Isolation("bubblewrap", (Path(sys.base_prefix),)), tmp_path)
    seen = run(action("setsid nohup sleep 97.71 > /dev/null 2>&1 & sleep 0.3; echo started"))
    assert (seen.exit_code, seen.text) == (0, "started")
    until(lambda: running("97.71") == [])


def test_a_sandbox_that_cannot_start_is_no_exit_code_of_the_command(
    agent_sdk: None, tmp_path: Path
) -> None:
    for name in ("workspace", "home", "tmp"):
        (tmp_path / name).mkdir()
    run = executor(Isolation("bubblewrap", (tmp_path / "missing",)), tmp_path)
    seen = run(action("touch effects"))
    assert seen.is_error
    assert seen.exit_code is None
    assert list((tmp_path / "workspace").iterdir()) == []
