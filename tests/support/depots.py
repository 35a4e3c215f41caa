"""Small locks and depots, made of wheels that are made here."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from qualify.pins.depot import DepotIndex, StoredBusybox, StoredFile, StoredSet, index_bytes
from qualify.pins.depot_seed import seed_script
from qualify.pins.elf import nar_sha256
from qualify.pins.locks import Lock, LockedFile, LockedPackage, LockPlatform, lock_bytes

PROGRAM = b"\x7fELF not really a busybox"


def sha256(data: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def wheel_bytes(name: str, version: str = "1.0", size: int = 0, tag: str = "py3-none-any") -> bytes:
    """A wheel that pip accepts, with `size` bytes of ballast."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    members = {
        f"{module}/__init__.py": b"",
        f"{module}/ballast": (sha256(name.encode()) * (size // 64 + 1)).encode()[:size],
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    rows = [f"{path},sha256={_unpadded(data)},{len(data)}" for path, data in members.items()]
    members[f"{info}/RECORD"] = ("\n".join([*rows, f"{info}/RECORD,,"]) + "\n").encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, data in members.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), data)
    return stream.getvalue()


def _unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def sdist_bytes(name: str, setup: str, version: str = "1.0") -> bytes:
    """A source distribution whose `setup.py` is `setup`."""
    members = {
        "setup.py": setup,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, text in members.items():
            info = tarfile.TarInfo(f"{name}-{version}/{path}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


def wheel_name(package: str, version: str = "1.0", tag: str = "py3-none-any") -> str:
    """The file name of a wheel."""
    return f"{package.replace('-', '_')}-{version}-{tag}.whl"


def write_lock(
    locks: Path, name: str, files: dict[str, tuple[str, bytes]], **changes: object
) -> Lock:
    """Write `locks/NAME.json`: an image set of packages, each with its file's name and bytes."""
    locks.mkdir(exist_ok=True)
    (locks.parent / "manifests").mkdir(exist_ok=True)
    packages = tuple(
        LockedPackage(
            name=package,
            version="1.0",
            files=(LockedFile(file=file, sha256=sha256(data), size=len(data)),),
        )
        for package, (file, data) in sorted(files.items())
    )
    content: dict[str, object] = {
        "set": name,
        "purpose": "a lock for tests",
        "cutoff": "2026-11-30T00:00:00Z",
        "inputs": ("demo",),
        "platform": LockPlatform(
            glibc="2.41", libc="glibc", machine="x86_64", pythons=("3.13",), system="linux"
        ),
        "packages": packages,
    }
    lock = Lock(**(content | changes))  # type: ignore[arg-type]
    (locks / f"{name}.json").write_bytes(lock_bytes(lock))
    return lock


def make_depot(folder: Path, files: dict[str, bytes], *, busybox: bool = True) -> DepotIndex:
    """A filled depot of one set `demo`, without any client at work."""
    (folder / "files").mkdir(parents=True)
    for name, data in files.items():
        (folder / "files" / name).write_bytes(data)
    stored = tuple(
        StoredFile(name=name, sha256=sha256(files[name]), size=len(files[name]))
        for name in sorted(files)
    )
    program = StoredBusybox(nar_sha256=nar_sha256(PROGRAM), size=len(PROGRAM))
    index = DepotIndex(
        busybox=program if busybox else None,
        files=stored,
        sets={"demo": StoredSet(digest="sha256:" + "d" * 64, files=tuple(sorted(files)))},
    )
    if busybox:
        (folder / "busybox-elf").mkdir()
        (folder / "busybox-elf/busybox").write_bytes(PROGRAM)
        (folder / "busybox-elf/busybox").chmod(0o755)
    (folder / "depot.json").write_bytes(index_bytes(index))
    (folder / "seed").write_bytes(seed_script(index))
    return index
