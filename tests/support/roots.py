"""The root of a small real image: this Python with the libraries it needs, and Qualify's servers.

Made of hard links where the disk allows, so it costs little; nothing of it is a double.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import qualify
from qualify.runtimes.contained import CODE, ImageRoot

DIGEST = "sha256:" + "5" * 64


def make_root(folder: Path, *, packages: Iterable[str] = ()) -> ImageRoot:
    """An image root with `/usr/bin/python3` and the named packages of this environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("usr/bin", "usr/lib64", "etc", "tmp", "proc"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    standard = folder / "usr/lib" / version
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        standard,
        copy_function=_link,
        symlinks=True,
        ignore=shutil.ignore_patterns("site-packages", "__pycache__", "test", "idlelib"),
    )
    python = folder / "usr/bin" / version
    _link(Path(sys.executable).resolve(), python)
    (folder / "usr/bin/python3").symlink_to(version)
    site = folder / f"usr/local/lib/{version}/dist-packages"
    site.mkdir(parents=True)
    for package in packages:
        for found in Path(sysconfig.get_path("purelib")).glob(f"{package}*"):
            shutil.copytree(found, site / found.name, copy_function=_link, symlinks=True)
    # Where the interpreter looks of its own accord; it is told of the folder of the packages.
    (standard / "site-packages").mkdir()
    (standard / "site-packages/image.pth").write_text(f"/{site.relative_to(folder)}\n")
    binaries = [Path(sys.executable).resolve(), *standard.rglob("*.so"), *site.rglob("*.so")]
    for library in _libraries(binaries):
        own = library.is_relative_to(sys.base_prefix)
        target = folder / (f"usr/lib/{library.name}" if own else library.relative_to("/"))
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(library.resolve(), target)
    code = folder / CODE.removeprefix("/")
    code.mkdir(parents=True)
    for script in (Path(qualify.__file__).parent / "runtimes").glob("*_server.py"):
        shutil.copy(script, code / script.name)
    return ImageRoot(folder, DIGEST, {"FROM_THE_IMAGE": "yes", "LD_LIBRARY_PATH": "/usr/lib"})


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """What the loader would load, by the paths under which it looks."""
    found: set[Path] = set()
    for binary in binaries:
        said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
        found |= {Path(each) for each in re.findall(r"(/\S+) \(0x", said.stdout)}
    return {each for each in found if each.exists()}
