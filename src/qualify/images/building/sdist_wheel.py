"""Makes the wheel of a package that ships only its sources, with setuptools and nothing else.

The specification, as JSON in the file that `specPath` names:

    {"name": …, "version": …, "path": SDIST, "wheel": FILE NAME, "tools": [WHEEL, …]}

Only pure Python: there is no compiler in the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from qualify.images.building.layer_writer import BuildError
from qualify.images.building.step import Step, run


def main(step: Step) -> None:
    """Write the wheel into the result's folder."""
    spec = step.spec
    with tempfile.TemporaryDirectory() as scratch:
        tools = Path(scratch, "tools")
        for tool in spec["tools"]:
            with zipfile.ZipFile(tool) as archive:
                archive.extractall(tools)  # noqa: S202
        sources = Path(scratch, "sources")
        with tarfile.open(spec["path"]) as archive:
            archive.extractall(sources, filter="data")
        folders = [path for path in sources.iterdir() if path.is_dir()]
        if len(folders) != 1:
            raise BuildError(f"{spec['name']} has {len(folders)} top folders instead of one")
        made = _build(folders[0], tools, step.out)
    if not made.endswith("-none-any.whl"):
        raise BuildError(f"{spec['name']} {spec['version']} is not pure Python: it built {made}")
    (step.out / made).rename(step.out / "wheel.whl")


def _build(folder: Path, tools: Path, out: Path) -> str:
    sys.path.insert(0, str(tools))
    os.chdir(folder)
    os.environ["SOURCE_DATE_EPOCH"] = "315532800"
    import importlib

    build_meta = importlib.import_module("setuptools.build_meta")

    with contextlib.redirect_stdout(sys.stderr):
        name: str = build_meta.build_wheel(str(out))
    return name


if __name__ == "__main__":
    run(main)
