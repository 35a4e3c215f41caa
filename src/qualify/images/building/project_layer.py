"""Makes the last layer: this project's code and declarations. It alone changes with our code.

The specification, as JSON in the file that `specPath` names:

    {"title": …, "parts": {"src": PATH, "manifests": PATH, …}, "command": true}

Each part goes to `/opt/qualify/NAME`. With `command` there is a `/usr/bin/qualify`. The digest of
the declarations is left in `declarations`, for the label of the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qualify.images.building.bytecode import bytecode_path, compiled
from qualify.images.building.declared import declarations_digest
from qualify.images.building.layer_writer import BuildError, LayerWriter
from qualify.images.building.step import Step, run

HOME = "opt/qualify"
"""Where the project lies in an image, relative to the root."""

_OWNER = "qualify"
_COMMAND = b"""\
#!/usr/bin/python3 -P
import sys

from qualify.cli import main

sys.exit(main())
"""


def main(step: Step) -> None:
    """Write the layer."""
    parts = {name: Path(path) for name, path in sorted(step.spec["parts"].items())}
    with LayerWriter(step.out, title=step.spec["title"], threads=step.cores) as layer:
        for name, place in parts.items():
            for path in _files(place):
                relative = path.relative_to(place).as_posix()
                target = f"{HOME}/{name}" if path == place else f"{HOME}/{name}/{relative}"
                _write(layer, path, target)
        if step.spec["command"]:
            layer.file("usr/bin/qualify", _COMMAND, _OWNER, mode=0o755)
    digest = declarations_digest({name: parts[name] for name in ("corpora", "manifests")})
    (step.out / "declarations").write_text(f"{digest}\n", encoding="ascii")


def _files(place: Path) -> Iterator[Path]:
    """Every file at or below a path, sorted."""
    if place.is_symlink() or not place.is_dir():
        yield place
        return
    for path in sorted(place.iterdir()):
        yield from _files(path)


def _write(layer: LayerWriter, path: Path, target: str) -> None:
    if path.is_symlink() or not path.is_file():
        raise BuildError(f"{target} is neither a file nor a folder: a project holds nothing else")
    data = path.read_bytes()
    executable = bool(path.stat().st_mode & 0o100)
    layer.file(target, data, _OWNER, mode=0o755 if executable else 0o644)
    if target.startswith(f"{HOME}/src/") and target.endswith(".py"):
        bytecode = compiled(data, f"/{target}")
        if bytecode is None:
            raise BuildError(f"{target} is no Python 3.13")
        layer.file(bytecode_path(target), bytecode, _OWNER)


if __name__ == "__main__":
    run(main)
