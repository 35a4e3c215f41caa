"""./qualify on a fresh machine, with the real script and pip, and small packages made here.

The project is a copy of the entry point with locks of its own, in a folder whose name has a space.
Its packages are wheels on disk, so that nothing is fetched; as none of them is uv, each set-up
goes the way without uv.
"""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAIN = """
import os, sys, tiny
print(os.getcwd(), sys.argv[1:], sys.flags.safe_path, sys.dont_write_bytecode, tiny.__file__)
"""


def make_wheel(folder: Path, name: str) -> str:
    """Write a wheel with one module and return its requirement line with the hash."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "WORD = 'here'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }

    def record(path: str, text: str) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        return f"{path},sha256={digest.decode()},{len(text)}\n"

    files[f"{info}/RECORD"] = (
        "".join(record(*item) for item in files.items()) + f"{info}/RECORD,,\n"
    )
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return f"{name}==1.0 \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def make_project(folder: Path) -> Path:
    (folder / "wheels").mkdir(parents=True)
    (folder / "src/qualify").mkdir(parents=True)
    (folder / "src/qualify/__init__.py").touch()
    (folder / "src/qualify/__main__.py").write_text(MAIN)
    shutil.copy(ROOT / "qualify", folder)
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    requirements = folder / "locks/requirements"
    requirements.mkdir(parents=True)
    for name in ("bootstrap", "base", "run"):
        package = "tiny" if name == "base" else f"tiny{name}"
        (requirements / f"{name}.txt").write_text(make_wheel(folder / "wheels", package))
    return folder


def environment(project: Path, **changes: str) -> dict[str, str]:
    dropped = ("PIP_", "UV_", "QUALIFY_", "PYTHON", "COV_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    here = Path(sys._base_executable).parent
    kept |= {
        "PATH": f"{here}:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": (project / "wheels").as_uri(),
        "PIP_CONFIG_FILE": os.devnull,
        "QUALIFY_BYTECODE": "lazy",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return kept | changes


def start(
    project: Path,
    *arguments: str,
    cwd: Path,
    command: Path | None = None,
    start_new_session: bool = False,
    **changes: str,
):
    return subprocess.Popen(
        [command or project / "qualify", *arguments],
        cwd=cwd,
        env=environment(project, **changes),
        start_new_session=start_new_session,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(project: Path, *arguments: str, cwd: Path, **more):
    process = start(project, *arguments, cwd=cwd, **more)
    output, errors = process.communicate(timeout=110)
    return process.returncode, output, errors


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A project that two calls at the same moment have set up, and what they said."""
    base = tmp_path_factory.mktemp("fresh machine")
    project = make_project(base / "the project")
    calls = [start(project, f"call-{n}", cwd=base) for n in range(2)]
    said = [call.communicate(timeout=110) for call in calls]
    return project, [call.returncode for call in calls], said


def test_two_first_calls_at_once_both_work(installed):
    _, codes, said = installed
    assert codes == [0, 0], said
    assert sorted("call-0" in output for output, _ in said) == [False, True]


def test_a_first_call_is_quiet_but_for_one_line(installed):
    for _, errors in installed[2]:
        assert errors.count("\n") <= 1
        assert "setting up, once" in errors


def test_a_second_call_is_instant_and_silent(installed, tmp_path):
    project = installed[0]
    stamp = (project / ".venv/qualify-stamp").stat().st_mtime_ns
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        code, _, errors = run(project, cwd=tmp_path)
        seconds.append(time.monotonic() - began)
        assert (code, errors) == (0, "")
    assert min(seconds) < 0.5
    assert (project / ".venv/qualify-stamp").stat().st_mtime_ns == stamp


def test_it_keeps_the_callers_folder_and_arguments_through_a_symlink(installed, tmp_path):
    project = installed[0]
    (tmp_path / "tool").symlink_to(project / "qualify")
    (tmp_path / "tiny.py").write_text("raise SystemExit('the wrong module')")
    code, output, errors = run(project, "a b", "*", command=tmp_path / "tool", cwd=tmp_path)
    assert (code, errors) == (0, "")
    assert output.startswith(f"{tmp_path} ['a b', '*'] True False {project}/.venv/")


def test_a_half_made_environment_is_made_anew(installed, tmp_path):
    project = installed[0]
    (project / ".venv/qualify-stamp").unlink()
    (project / ".venv/left-over").touch()
    code, _, errors = run(project, cwd=tmp_path)
    assert code == 0, errors
    assert not (project / ".venv/left-over").exists()
    assert (project / ".venv/qualify-stamp").exists()


def test_a_set_up_killed_in_the_middle_is_made_anew(tmp_path):
    project = make_project(tmp_path / "p")
    killed = start(project, cwd=tmp_path, start_new_session=True)
    while not (project / ".venv/pyvenv.cfg").exists():
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not (project / ".venv/qualify-stamp").exists()
    code, _, errors = run(project, cwd=tmp_path)
    assert code == 0, errors


def test_a_changed_lock_is_installed(installed, tmp_path):
    project = installed[0]
    lock = project / "locks/requirements/run.txt"
    lock.write_text(lock.read_text() + make_wheel(project / "wheels", "tinymore"))
    code, _, errors = run(project, cwd=tmp_path)
    assert code == 0, errors
    assert list((project / ".venv").rglob("tinymore.py"))


def test_a_file_with_another_hash_is_not_installed(tmp_path):
    project = make_project(tmp_path / "p")
    lock = project / "locks/requirements/base.txt"
    lock.write_text(lock.read_text().replace("sha256:", "sha256:0")[:-2] + "\n")
    code, output, errors = run(project, cwd=tmp_path)
    assert (code, output) == (1, "")
    assert "HASH" in errors
    assert "setup.log" in errors
    assert not (project / ".venv/qualify-stamp").exists()


def test_without_a_python_it_says_what_to_install(tmp_path):
    project = make_project(tmp_path / "p")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env", "sha256sum", "flock", "mkdir", "rmdir", "rm", "tail", "readlink"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    changes = {"PATH": str(tools), "PYENV_ROOT": str(tmp_path / "none"), "HOME": str(tmp_path)}
    code, output, errors = run(project, cwd=tmp_path, **changes)
    assert (code, output) == (2, "")
    assert "no Python 3.13 3.12 3.14 found" in errors
    assert "pyenv install" in errors
    assert not (project / ".venv").exists()


def find_python(project: Path, **changes: str):
    script = 'source "$1/scripts/bootstrap.bash"; bootstrap_find_python'
    return subprocess.run(
        ["bash", "-c", script, "bash", str(project)],
        env=environment(project, **changes),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_python_of_pyenv_is_found_behind_a_shim_that_does_not_run(tmp_path):
    version = f"3.{sys.version_info[1]}"
    real = Path(sys._base_executable).resolve()
    shims, versions = tmp_path / "shims", tmp_path / "pyenv/versions" / f"{version}.9/bin"
    shims.mkdir()
    versions.mkdir(parents=True)
    for name in ("python3.12", "python3.13", "python3.14", "python3"):
        (shims / name).write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
        (shims / name).chmod(0o755)
    path = f"{shims}:/usr/bin:/bin"
    (versions / "python3").symlink_to(real)
    found = find_python(ROOT, PATH=path, PYENV_ROOT=str(tmp_path / "pyenv"))
    assert found.returncode == 0
    assert Path(found.stdout.strip()) == real


def test_a_folder_that_somebody_else_made_is_left_alone(tmp_path):
    project = make_project(tmp_path / "p")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    code, _, errors = run(project, cwd=tmp_path, QUALIFY_VENV=str(precious))
    assert code == 2
    assert "was not made by this script" in errors
    assert (precious / "thesis.tex").exists()


def test_a_place_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path):
    project = make_project(tmp_path / "p")
    code, _, errors = run(project, cwd=tmp_path, QUALIFY_VENV="/proc/nowhere/venv")
    assert code == 2
    assert "QUALIFY_VENV" in errors
