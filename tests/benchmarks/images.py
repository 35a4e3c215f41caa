"""Measures image builds: the flake's evaluation, and an image after a change of one line.

`./test bench` prints one Markdown table, as `measure.py` does. It needs Nix with the pinned files
of the llama.cpp image seeded, skopeo, umoci and buildah; nothing here passes or fails. Ours
evaluates the flake, compiles and packs the project layer in Nix's sandbox, writes configuration,
manifest, SBOM and provenance; the yardsticks are told the changed folder and pack it as one more
layer onto a copy of the same image.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import ROOT, Figure, command, pair

from qualify.images.nix_build import nix_settings

IMAGE = "image-llama-cpp-cpu"
TARGET = "/opt/qualify/src"


def copied_project(place: Path) -> Path:
    """What git would give a newcomer, in a folder that may be changed."""
    project = place / "project"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout.split(b"\0")
    for name in filter(None, listed):
        source, target = ROOT / os.fsdecode(name), project / os.fsdecode(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    return project


def evaluation(project: Path, settings: dict[str, str]) -> Figure:
    """From nothing to the derivation of one image, without Nix's evaluation cache."""
    output = f"path:{project}#packages.x86_64-linux.{IMAGE}.drvPath"
    return pair(
        f"evaluation of `{IMAGE}`",
        command("nix", "eval", "--raw", "--option", "eval-cache", "false", output, **settings),
        "`nix eval --expr 1`",
        command("nix", "eval", "--expr", "1", **settings),
    )


def after_a_change(place: Path, project: Path, settings: dict[str, str]) -> list[Figure]:
    """The image again, each time with another last line in one module."""
    changed = project / "src" / "qualify" / "core" / "clock.py"
    original = changed.read_text("utf-8")
    numbers = itertools.count()
    link, layout = place / "image", place / "layout"
    build = command("nix", "build", f"path:{project}#{IMAGE}", "-o", str(link), **settings)
    build()
    # skopeo's copy is whole, which umoci needs: it writes into the layout.
    command("skopeo", "copy", f"oci:{link.resolve()}", f"oci:{layout}:before")()

    def change() -> None:
        changed.write_text(f"{original}# {next(numbers)}\n", "utf-8")

    title = f"`{IMAGE}` after a change of one line"
    return [
        pair(
            title, build, "`umoci insert` of the changed folder",
            command(
                "umoci", "insert", "--rootless", "--image", f"{layout}:before", "--tag", "after",
                str(project / "src"), TARGET,
            ),
            before=change,
        ),
        pair(
            title, build, "`buildah copy` and `buildah commit`",
            with_buildah(place, layout, project / "src"), runs=3, before=change,
        ),
    ]  # fmt: skip


def with_buildah(place: Path, layout: Path, source: Path) -> Callable[[], object]:
    """The code copied into a working container of the image, committed as a new image."""
    store = ("buildah", "--root", str(place / "store"), "--runroot", str(place / "run"),
             "--storage-driver", "vfs")  # fmt: skip
    started = subprocess.run(
        [*store, "from", "--quiet", f"oci:{layout}:before"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    container = started.stdout.strip()
    copy = command(*store, "copy", container, str(source), TARGET)
    commit = command(*store, "commit", "--timestamp", "1", container, f"oci:{place}/new:latest")

    def work() -> None:
        copy()
        commit()

    return work


def main() -> None:
    """Measure and print."""
    settings = nix_settings(os.environ)
    missing = [name for name in ("nix", "skopeo", "umoci", "buildah") if shutil.which(name) is None]
    if missing:
        sys.exit(f"not measured: {', '.join(missing)} missing")
    with tempfile.TemporaryDirectory(prefix="qualify-bench-") as name:
        place = Path(name)
        project = copied_project(place)
        figures = [evaluation(project, settings), *after_a_change(place, project, settings)]
    print("| what | seconds: median (min to max) | against | seconds | ratio |")
    print("|---|---|---|---|---|")
    for figure in figures:
        print(figure.line())


if __name__ == "__main__":
    main()
