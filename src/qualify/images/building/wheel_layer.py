"""Makes a layer out of wheels, with their bytecode. Nothing is unpacked on the way.

The specification, as JSON in the file that `specPath` names:

    {"title": …, "wheels": [{"name": …, "version": …, "path": …}, …]}

A wheel may name members in `left_out` that are not installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qualify.images.building.bytecode import bytecode_path, with_bytecode
from qualify.images.building.layer_writer import LayerWriter
from qualify.images.building.step import Step, run
from qualify.images.building.wheel import INSTALLER, SITE, Wheel, WheelFile


def main(step: Step) -> None:
    """Write the layer."""
    wheels = [
        Wheel(
            Path(pin["path"]),
            f"{pin['name']} {pin['version']}",
            frozenset(pin.get("left_out", ())),
        )
        for pin in sorted(step.spec["wheels"], key=lambda pin: str(pin["name"]))
    ]
    with LayerWriter(step.out, title=step.spec["title"], threads=step.cores) as layer:
        written: list[WheelFile] = []
        for (wheel, file), bytecode in with_bytecode(_items(wheels), _source, step.cores):
            if file is None:
                _finish(layer, wheel, written)
                written = []
                continue
            with wheel.open(file) as data:
                layer.stream(file.path, data, file.size, wheel.name, mode=file.mode)
            if bytecode is not None:
                layer.file(bytecode_path(file.path), bytecode, wheel.name)
                file.bytecode = True
            file.data = file.data if "/scripts/" in file.entry.filename else None
            written.append(file)


def _items(wheels: list[Wheel]) -> Iterator[tuple[Wheel, WheelFile | None]]:
    """Every file of every wheel, and `None` after the last file of each."""
    for wheel in wheels:
        for file in wheel.files():
            yield wheel, file
        yield wheel, None


def _source(item: tuple[Wheel, WheelFile | None]) -> tuple[str, bytes] | None:
    file = item[1]
    if file is None or file.data is None or not file.path.endswith(".py"):
        return None
    return (f"/{file.path}", file.data) if file.path.startswith(f"{SITE}/") else None


def _finish(layer: LayerWriter, wheel: Wheel, written: list[WheelFile]) -> None:
    path, record = wheel.record(written)
    layer.file(path, record, wheel.name)
    layer.file(wheel.installer_path, INSTALLER, wheel.name)


if __name__ == "__main__":
    run(main)
