"""A checkout to build from, and Nix with the settings of a bare machine."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qualify.images.nix_build import nix_settings, source_tree

ROOT = Path(__file__).parents[2]
SYSTEM = "x86_64-linux"
SETTINGS = nix_settings({})["NIX_CONFIG"]
"""What a bare machine has to be told, as `qualify image build` tells it."""
SETS = (
    "nix-build",
    "launcher",
    "llama-cpp-cpu",
    "runner",
    "debian:build",
    "debian:base",
    "debian:runner",
    "debian:llama-cpp-cpu",
)
"""What the runner and the llama.cpp image are made of."""


@dataclass
class Checkout:
    """A git checkout of the working tree as it is now, in a folder with a space in its name."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def reference(self, attribute: str) -> str:
        """An attribute of its flake; Nix 2.8 does not take `.` where the path has a space."""
        return f"{source_tree(self.folder).reference}#{attribute}"

    def nix(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `nix` in the checkout."""
        done = subprocess.run(
            ["nix", *arguments],
            cwd=self.folder,
            env={**os.environ, "NIX_CONFIG": SETTINGS, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr[-4000:]
        return done

    def evaluated(self, attribute: str, *options: str) -> Any:
        """The value of an attribute of the flake."""
        return json.loads(self.nix("eval", "--json", self.reference(attribute), *options).stdout)

    def built(self, attribute: str, *options: str) -> Path:
        """Build an attribute of the flake; returns its store path."""
        done = self.nix("build", "--no-link", "--json", self.reference(attribute), *options)
        return Path(json.loads(done.stdout)[0]["outputs"]["out"])

    def qualify(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The `qualify` command of the working tree, on this checkout."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "qualify", "--project", str(self.folder), *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def image(self, name: str) -> dict[str, Any]:
        """Build an image with `qualify image build`; returns its document."""
        done = self.qualify("image", "build", name, "--json")
        assert done.returncode == 0, done.stderr[-4000:]
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def commit(self, text: str) -> str:
        """Commit everything; returns the commit."""
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--allow-empty", "--message", text)
        return git(self.folder, "rev-parse", "HEAD")


def git(folder: Path, *arguments: str) -> str:
    """Run git as a fixed person at a fixed time; returns what it prints."""
    person = {f"GIT_{role}_{part}": "someone@invalid" for role in ("AUTHOR", "COMMITTER")
              for part in ("NAME", "EMAIL")}  # fmt: skip
    times = {f"GIT_{role}_DATE": "2026-01-01T00:00:00Z" for role in ("AUTHOR", "COMMITTER")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**os.environ, **person, **times},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def checkout(folder: Path) -> Checkout:
    """Copy every file that git knows or would add, and commit it."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in listed.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
    git(folder, "init", "--quiet")
    made = Checkout(folder)
    made.commit("as it is")
    return made


@dataclass
class Elsewhere:
    """Another store, another temporary folder and, for root, another user: `nobody`."""

    place: Path
    tree: Checkout
    store: Path
    nix: str = "nix"
    settings: str = ""

    def reference(self, attribute: str) -> str:
        """An attribute of the flake."""
        return f"git+file://{quote(str(self.tree.folder))}#{attribute}"

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout, by that user, with that store."""
        scratch = self.place / "elsewhere"
        return subprocess.run(
            command,
            cwd=self.tree.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(scratch),
                "TMPDIR": str(scratch),
                "LC_ALL": "C",
                "TZ": "Asia/Tokyo",
                "NIX_CONFIG": f"{SETTINGS}\nbuild-users-group =\ncores = 1\n{self.settings}",
                "NIX_REMOTE": f"local?root={self.store}",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            umask=0o077,
            **_other_user(),
        )

    def built(self, attribute: str) -> Path:
        """Build an attribute of the flake; returns where it lies on this disk."""
        link = self.place / "result"
        done = self.run(self.nix, "build", "--out-link", str(link), self.reference(attribute))
        assert done.returncode == 0, done.stderr[-4000:]
        return self.store / str(link.readlink()).removeprefix("/")


def elsewhere(place: Path) -> Elsewhere:
    """Make one in a new folder below a temporary one that others may enter."""
    for folder in ("elsewhere", "store"):
        (place / folder).mkdir(parents=True)
    tree = checkout(place / "copy")
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "nobody", str(place)], check=True)
        open_to_others(place)
    return Elsewhere(place, tree, place / "store")


def open_to_others(folder: Path) -> None:
    """Let other users enter a temporary folder of pytest, whose parents are closed to them."""
    for each in (folder, *folder.parents):
        if each.is_dir() and not each.stat().st_mode & 0o001:
            each.chmod(each.stat().st_mode | 0o011)


def open_depot(depot: Path, folder: Path) -> Path:
    """The depot where another user can read it: links or copies of its files."""
    target = folder / "depot"
    same_disk = depot.stat().st_dev == folder.stat().st_dev
    shutil.copytree(depot, target, copy_function=os.link if same_disk else shutil.copy)
    for each in (target, *target.rglob("*")):
        each.chmod(each.stat().st_mode | (0o055 if each.is_dir() else 0o044))
    open_to_others(folder)
    return target


def _other_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def seeded_depot() -> Path:
    """A depot with the files of `SETS`, filled where needed, and seeded into the Nix store.

    Lies where `QUALIFY_TEST_DEPOT` says, else in the user's cache: filling it again costs a check.
    """
    from qualify.storage.folders import xdg_cache_home

    named = os.environ.get("QUALIFY_TEST_DEPOT", "")
    depot = Path(named) if named else xdg_cache_home() / "test-depot"
    for step in (["fill", *SETS, "--to", str(depot)], ["seed", str(depot)]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "qualify", "depot", *step],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
    return depot
