"""Builds an image of a project with Nix: looks first whether it can work, then shows how it goes.

Promises: settings that a build depends on (flakes, a sandbox without a way around it, no
substitutes) are passed along and never taken from the machine; what is missing is said in one
sentence before anything is built. Never downloads: pinned files are in the Nix store already, or
the build is refused.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.core.identifiers import nearest
from qualify.images.nix_faults import explained

SYSTEM = "x86_64-linux"
UNKNOWN_REVISION = "unknown"

_PINNED = f"legacyPackages.{SYSTEM}.pinned"
_BUILDING = re.compile(r"building '/nix/store/[0-9a-z]{32}-(.+)\.drv'")
_TAIL_LINES = 40
_LISTED = 3


@dataclass(frozen=True)
class Tree:
    """The source tree to build from."""

    project: Path
    reference: str
    """How Nix is told of it."""
    revision: str
    """The commit, with `-dirty` when tracked files differ from it; `unknown` outside a checkout."""
    dirty: bool
    untracked: tuple[str, ...]
    """Files that are not in the image because git does not know them; at most three."""


@dataclass(frozen=True)
class BuiltImage:
    """A finished image."""

    name: str
    digest: str
    """Of the image's manifest."""
    path: Path
    """The OCI layout in the Nix store."""
    revision: str
    seconds: float


def build_image(
    project: Path, name: str, link: Path | None, report: Callable[[str], None]
) -> BuiltImage:
    """Build the image `name` (such as `runner`) and leave `link` to it, when given.

    `report` gets the name of each part as its build starts, and remarks about the tree. Raises
    `EnvironmentFault` for what the machine lacks, `UsageError` for an unknown image, for files that
    are not in the store and for what the builders refuse.
    """
    nix = _require_nix()
    tree = source_tree(project)
    for remark in remarks(tree):
        report(remark)
    settings = nix_settings(os.environ)
    _require_seeded(nix, tree, settings, name)
    if link is not None and (link.exists() or link.is_symlink()) and not link.is_symlink():
        raise UsageError("is in the way", where=str(link), fix="remove it, or give another --out")
    started = time.monotonic()
    path = _build(nix, tree, settings, name, link, report)
    digest = (path / "digest").read_text("ascii").strip()
    return BuiltImage(name, digest, path, tree.revision, time.monotonic() - started)


def nix_settings(environment: dict[str, str] | os._Environ[str]) -> dict[str, str]:
    """The environment for Nix: the caller's settings first, then ours, which win."""
    lines = [
        environment.get("NIX_CONFIG", ""),
        "experimental-features = nix-command flakes",
        "sandbox = true",
        "sandbox-fallback = false",
        "sandbox-paths =",
        "substitute = false",
        "warn-dirty = false",
    ]
    if os.geteuid() == 0 and not _has_build_users():
        lines.append("build-users-group =")
    return {**environment, "NIX_CONFIG": "\n".join(line for line in lines if line)}


def source_tree(project: Path) -> Tree:
    """How the project's files reach Nix. Raises `UsageError` when it has no flake."""
    root = project.resolve()
    if not (root / "flake.nix").is_file():
        raise UsageError(
            "holds no flake.nix: images are built from a checkout of this project",
            where=str(root),
            fix="give --project a checkout",
        )
    escaped = quote(str(root), safe="/")
    if not (root / ".git").exists():
        return Tree(root, f"path:{escaped}", UNKNOWN_REVISION, dirty=False, untracked=())
    head = _git(root, "rev-parse", "HEAD")
    changed: list[str] = []
    untracked: list[str] = []
    for line in _git(root, "status", "--porcelain", "--untracked-files=normal").splitlines():
        (untracked if line.startswith("??") else changed).append(line[3:])
    revision = f"{head}-dirty" if changed else head
    return Tree(root, f"git+file://{escaped}", revision, bool(changed), tuple(untracked[:_LISTED]))


def remarks(tree: Tree) -> list[str]:
    """What a person should know about the tree before the image is theirs."""
    found = []
    if tree.dirty:
        found.append(f"the tree has changes that are not committed: revision {tree.revision}")
    if tree.revision == UNKNOWN_REVISION:
        found.append("this is no git checkout: the image's revision is unknown")
    if tree.untracked:
        found.append(
            f"not in the image, because git does not track it: {', '.join(tree.untracked)}"
            " (`git add -N` makes it known)"
        )
    return found


def _require_nix() -> str:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise EnvironmentFault(
            f"images are built on x86_64 Linux, this is {platform.machine()} {platform.system()}",
            fix="build on such a machine, or carry a bundle here",
        )
    nix = shutil.which("nix")
    if nix is None:
        raise EnvironmentFault(
            "Nix is not installed here", fix="install it (on Debian: apt-get install nix-bin)"
        )
    return nix


def _has_build_users() -> bool:
    """Whether the group that Nix as root builds with exists and has members."""
    import grp

    try:
        return bool(grp.getgrnam("nixbld").gr_mem)
    except KeyError:
        return False


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise EnvironmentFault(
            "git is not installed here, and this is a git checkout", fix="install git"
        ) from error
    if done.returncode != 0:
        raise explained(done.stderr, str(root))
    return done.stdout.rstrip("\n")


def _require_seeded(nix: str, tree: Tree, settings: dict[str, str], name: str) -> None:
    """Raise `UsageError` naming the first pinned file that is not in the store."""
    needed = _needed(nix, tree, settings, name)
    paths: dict[str, str] = needed["paths"]
    program = str(Path(nix).with_name("nix-store"))
    done = subprocess.run(
        [program, "--check-validity", "--print-invalid", *paths],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=settings,
        check=False,
    )
    missing = [paths[path] for path in done.stdout.split() if path in paths]
    if done.returncode != 0 and not missing:
        raise explained(done.stderr, "the Nix store")
    if missing:
        sets = " ".join(needed["sets"])
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise UsageError(
            f"{min(missing)}{more} not in the Nix store, and builds download nothing",
            where=f"image {name}",
            fix=f"qualify depot fill {sets} --to DEPOT && qualify depot seed DEPOT",
        )


def _needed(nix: str, tree: Tree, settings: dict[str, str], name: str) -> dict[str, Any]:
    known = json.loads(
        _eval(nix, tree, settings, _PINNED, "--apply", "builtins.attrNames", "--json")
    )
    if name not in known:
        hint = nearest(name, known)
        raise UsageError(
            f"there is no image {name!r}" + (f" ({hint})" if hint else ""),
            fix=f"one of: {', '.join(known)}",
        )
    needed: dict[str, Any] = json.loads(_eval(nix, tree, settings, f"{_PINNED}.{name}", "--json"))
    return needed


def _eval(nix: str, tree: Tree, settings: dict[str, str], attribute: str, *options: str) -> str:
    done = subprocess.run(
        [nix, "eval", f"{tree.reference}#{attribute}", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=settings,
        cwd=tree.project,
        check=False,
    )
    if done.returncode != 0:
        raise explained(done.stderr, tree.reference)
    return done.stdout


def _build(
    nix: str,
    tree: Tree,
    settings: dict[str, str],
    name: str,
    link: Path | None,
    report: Callable[[str], None],
) -> Path:
    """Run `nix build`; returns the store path."""
    attribute = f"image-{name}"
    if tree.dirty:
        # Not every Nix tells a flake the commit of a changed tree.
        revision = json.dumps(tree.revision)
        flake = json.dumps(tree.reference)
        call = f"((builtins.getFlake {flake}).lib.atRevision {revision}).packages.{attribute}"
        target = ["--impure", "--expr", call]
    else:
        target = [f"{tree.reference}#{attribute}"]
    where = ["--out-link", str(link)] if link else ["--no-link"]
    command = [nix, "build", *target, *where, "--json", "--print-build-logs"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=settings,
        cwd=tree.project,
    ) as process:
        try:
            tail = _followed(process, report)
            assert process.stdout is not None
            answer = process.stdout.read()
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise explained("\n".join(tail), f"image {name}")
    return Path(json.loads(answer)[0]["outputs"]["out"])


def _followed(process: subprocess.Popen[str], report: Callable[[str], None]) -> deque[str]:
    """Read what Nix says until it ends; returns its last lines."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    assert process.stderr is not None
    for line in process.stderr:
        if found := _BUILDING.search(line):
            report(found[1])
        else:
            tail.append(line.rstrip("\n"))
    return tail
