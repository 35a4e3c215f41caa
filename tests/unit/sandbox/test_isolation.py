"""The isolation says what it really gives: bubblewrap where it works, `none` where it does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qualify.sandbox.isolation import Isolation, available, witnessed

REALLY = """#!/bin/bash
while [ "$1" != "--" ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture(autouse=True)
def _fresh_probe() -> Iterator[None]:
    available.cache_clear()
    yield
    available.cache_clear()


def pretend(folder: Path, script: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `script` in the place of bubblewrap; `None`: there is none."""
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    if script is not None:
        (folder / "bwrap").write_text(script)
        (folder / "bwrap").chmod(0o755)


def test_bubblewrap_works_on_a_machine_that_runs_these_tests() -> None:
    found = available((Path(sys.base_prefix),))
    assert found == Isolation("bubblewrap", (Path(sys.base_prefix),)), "install bubblewrap"


def test_without_bubblewrap_there_is_no_isolation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path / "bin", None, monkeypatch)
    assert available() == Isolation("none")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("#!/bin/sh\nexit 0\n", id="that starts nothing and says all is well"),
        pytest.param("#!/bin/sh\nexit 1\n", id="that fails"),
        pytest.param(REALLY, id="that runs the command unconfined"),
        pytest.param("not a program", id="that is no program"),
    ],
)
def test_a_bubblewrap_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    pretend(tmp_path / "bin", script, monkeypatch)
    assert available() == Isolation("none")


def folders(base: Path) -> dict[str, Path]:
    found = {name: base / name for name in ("workspace", "home", "temporary")}
    for folder in found.values():
        folder.mkdir()
    return found


def test_without_isolation_the_command_line_stays_as_it_is(tmp_path: Path) -> None:
    wrapped = Isolation("none").wrap(["true"], **folders(tmp_path), environment={"A": "b"})
    assert wrapped == ["true"]


def test_a_command_gets_exactly_the_environment_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIAL", "secret-of-the-environment")
    argv = Isolation("bubblewrap").wrap(
        ["/usr/bin/env"], **folders(tmp_path), environment={"GREETING": "hello", "EMPTY": ""}
    )
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    # PWD is what bubblewrap's --chdir says of itself.
    lines = {line for line in done.stdout.splitlines() if not line.startswith("PWD=")}
    assert lines == {"GREETING=hello", "EMPTY="}


def test_only_the_given_folders_can_be_written(tmp_path: Path) -> None:
    places = folders(tmp_path)
    (tmp_path / "other").mkdir()
    script = "; ".join(
        f"echo x > {path}/file"
        for path in (*places.values(), tmp_path / "other", "/usr", "/etc", "/")
    )
    argv = Isolation("bubblewrap").wrap(
        ["/bin/sh", "-c", script], **places, environment={"PATH": "/usr/bin:/bin"}
    )
    subprocess.run(argv, check=False, capture_output=True)
    assert all((path / "file").exists() for path in places.values())
    assert list((tmp_path / "other").iterdir()) == []
    assert not any(Path(path, "file").exists() for path in ("/usr", "/etc", "/"))


def test_only_a_command_that_ended_inside_is_witnessed() -> None:
    assert witnessed(b'{ "child-pid": 7 }\n{ "exit-code": 0 }\n')
    assert not witnessed(b'{ "child-pid": 7 }\n')
    assert not witnessed(b"")
