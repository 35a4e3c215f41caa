"""A small model cut into parts, wheels that carry them, and machines worse than this one."""

import ctypes
import hashlib
import os
import random
import shutil
import subprocess
import traceback
import zipfile

import pytest

from qualify.manifests.kinds import Model

PART_BYTES = 300_000
PARTS = 4


def model_of(files, *, name="tiny-model", parts=None, licence="Apache-2.0", approval="none"):
    """A model whose first file comes from `parts` (package, version, member)."""
    sources = []
    if parts:
        pieces = [{"package": p, "version": v, "member": m} for p, v, m in parts]
        sources = [{"kind": "python-packages", "file": next(iter(files)), "parts": pieces}]
    return Model.model_validate(
        {
            "id": name,
            "repository": "example/tiny",
            "format": "gguf",
            "licence": {"spdx": licence, "approval": approval},
            "files": [
                {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for path, data in files.items()
            ],
            "sources": sources,
        }
    )


def write_wheel(folder, package, version, members):
    """A wheel as build tools make it, deflated, with metadata and record."""
    stem = f"{package.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    kind = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content = {**members, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": kind.encode()}
    record = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {**content, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(member, data)
    return path


class Depot:
    """A folder of wheels: the only place that this machine's clients know during a test."""

    def __init__(self, folder):
        self.folder = folder
        self.data = random.Random(7).randbytes(PART_BYTES * PARTS)
        self.parts = []
        for number in range(PARTS):
            package, member = f"tiny-model-part{number + 1}", f"tiny_model/part{number + 1}.bin"
            piece = self.data[number * PART_BYTES : (number + 1) * PART_BYTES]
            write_wheel(folder, package, "1.0", {member: piece})
            self.parts.append((package, "1.0", member))

    def model(self, **changes):
        return model_of({"tiny.gguf": self.data}, parts=self.parts, **changes)


@pytest.fixture
def store(tmp_path, monkeypatch):
    folder = tmp_path / "store"
    monkeypatch.setenv("QUALIFY_MODEL_STORE", str(folder))
    return folder


@pytest.fixture
def depot(tmp_path, monkeypatch):
    folder = tmp_path / "depot"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    return Depot(folder)


def forked(action):
    """Run `action` in a forked child; return (exit status or minus the signal, its answer)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            code = 0
            try:
                text = str(action())
            except BaseException:  # noqa: BLE001 - the child must not go on as a second pytest
                text, code = traceback.format_exc(), 3
            os.write(writer, text.encode()[-60_000:])
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def _private_mounts(*commands):
    os.unshare(os.CLONE_NEWNS | (0 if os.geteuid() == 0 else os.CLONE_NEWUSER))
    recursive_private = 0x4000 | (1 << 18)
    ctypes.CDLL(None).mount(None, b"/", None, recursive_private, None)
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def with_mounts():
    """Run an action in a child with mounts of its own, made by the given commands first."""
    status, text = forked(lambda: _private_mounts(["true"]))
    if status or shutil.which("mount") is None:
        why = f"no mount namespaces here: {text.splitlines()[-1] if text else status}"
        if os.geteuid() == 0:
            pytest.fail(f"{why}; as root, not tested is not passed")
        pytest.skip(why)

    def run(commands, action):
        def inside():
            _private_mounts(*commands)
            return action()

        return forked(inside)

    return run
