"""Seeding: the files of a depot become valid paths of the Nix store, where builds look for them.

The path of a pinned file depends on its name and hash alone. It is computed here, so that what is
valid already is not even read, and a file that is not what it should be never enters: the path that
nix-store answers with is compared, after the file itself was.

A depot carries the same as a script for sh, for a machine that has nothing but Nix.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qualify.core.errors import EnvironmentFault, Refusal
from qualify.pins.depot import BUSYBOX, FILES, DepotIndex, file_problem, read_index
from qualify.pins.elf import FOLDER, nar_sha256

STORE = "/nix/store"
_ALPHABET = "0123456789abcdfghijklmnpqrsvwxyz"
_AT_ONCE = 200


def flat_store_path(name: str, sha256: str) -> str:
    """The store path of a file called `name` whose SHA-256 is `sha256` (hexadecimal)."""
    inner = hashlib.sha256(f"fixed:out:sha256:{sha256}:".encode()).hexdigest()
    return _store_path(f"output:out:sha256:{inner}:{STORE}:{name}", name)


def folder_store_path(name: str, nar: str) -> str:
    """The store path of a folder called `name` whose NAR has this SHA-256 (hexadecimal)."""
    return _store_path(f"source:sha256:{nar}:{STORE}:{name}", name)


def _store_path(described: str, name: str) -> str:
    whole = hashlib.sha256(described.encode()).digest()
    short = bytearray(20)
    for position, byte in enumerate(whole):
        short[position % 20] ^= byte
    number = int.from_bytes(short, "little")
    text = "".join(_ALPHABET[number >> (5 * place) & 31] for place in range(31, -1, -1))
    return f"{STORE}/{text}-{name}"


@dataclass(frozen=True)
class Seeded:
    """How many paths were added, and how many were valid before."""

    added: int
    valid: int


def seed(depot: Path, report: Callable[[int, int], None] = lambda _done, _all: None) -> Seeded:
    """Add everything in `depot` to the Nix store; `report` is told how many of how many are done.

    Raises `EnvironmentFault` without Nix or where this user may not add to the store, `Refusal` for
    a file of the depot that is missing or changed; what was added before stays.
    """
    index = read_index(depot)
    program = shutil.which("nix-store")
    if program is None:
        raise EnvironmentFault(
            "Nix is not installed here", fix="install Nix (on Debian: apt-get install nix-bin)"
        )
    paths = _paths(index)
    invalid = _invalid(program, list(paths))
    report(len(paths) - len(invalid), len(paths))
    if any(paths[path] == BUSYBOX for path in invalid):
        _require_busybox(depot, index)
        folder = str(depot / FOLDER)
        wanted = [path for path in invalid if paths[path] == BUSYBOX]
        _add(program, ["--recursive", "sha256", folder], wanted)
    files = {file.name: file for file in index.files}
    flat = [path for path in invalid if paths[path] != BUSYBOX]
    for start in range(0, len(flat), _AT_ONCE):
        wanted = flat[start : start + _AT_ONCE]
        for path in wanted:
            name = paths[path]
            if problem := file_problem(depot / FILES / name, files[name]):
                raise Refusal(
                    f"is {problem.kind}: {problem.detail}",
                    where=str(depot / problem.name),
                    fix="fill the depot again with `qualify depot fill`",
                )
        _add(program, ["sha256", *(str(depot / FILES / paths[path]) for path in wanted)], wanted)
        report(len(paths) - len(flat) + start + len(wanted), len(paths))
    return Seeded(added=len(invalid), valid=len(paths) - len(invalid))


def _paths(index: DepotIndex) -> dict[str, str]:
    """Store path → name in the depot."""
    paths = {flat_store_path(file.name, file.sha256): file.name for file in index.files}
    if index.busybox:
        paths[folder_store_path(FOLDER, index.busybox.nar_sha256)] = BUSYBOX
    return paths


def _invalid(program: str, paths: Sequence[str]) -> list[str]:
    done = _nix(program, ["--check-validity", "--print-invalid", *paths])
    lines = set(done.stdout.split())
    if done.returncode != 0 or not lines <= set(paths):
        raise _cannot(done.stderr)
    return [path for path in paths if path in lines]


def _add(program: str, arguments: Sequence[str], wanted: Sequence[str]) -> None:
    method = [argument for argument in arguments if argument == "--recursive"]
    rest = [argument for argument in arguments if argument != "--recursive"]
    done = _nix(program, [*method, "--add-fixed", *rest])
    if done.returncode != 0:
        raise _cannot(done.stderr)
    if done.stdout.split() != list(wanted):
        raise Refusal(
            "nix-store gives other paths to the depot's files than their hashes do",
            where=", ".join(sorted(set(wanted) - set(done.stdout.split()))[:3]),
            fix=f"is the store somewhere else than {STORE}? Otherwise verify the depot",
        )


def _require_busybox(depot: Path, index: DepotIndex) -> None:
    path = depot / BUSYBOX
    members = sorted(entry.name for entry in (depot / FOLDER).iterdir()) if path.is_file() else []
    assert index.busybox is not None
    if members != ["busybox"] or nar_sha256(path.read_bytes()) != index.busybox.nar_sha256:
        raise Refusal(
            "is not the program of the pinned package",
            where=str(path),
            fix="fill the depot again with `qualify depot fill`",
        )


def _nix(program: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _cannot(stderr: str) -> EnvironmentFault:
    lines = [line.strip() for line in stderr.splitlines() if "error:" in line]
    said = lines[0].rpartition("error: ")[2] if lines else stderr.strip()[-200:] or "no message"
    if "ermission denied" in said or "read-only" in said.lower():
        return EnvironmentFault(
            f"this user may not add to the Nix store: {said}",
            where=STORE,
            fix="run it as root, or let a Nix daemon run and use that",
        )
    if "o space left" in said:
        return EnvironmentFault("the disk filled up", where=STORE, fix="free some space there")
    return EnvironmentFault(f"nix-store failed: {said}", where=STORE, fix="does Nix work here?")


def seed_script(index: DepotIndex) -> bytes:
    """The script `DEPOT/seed`: the same work for a machine that has only sh and Nix.

    It trusts nothing either: nix-store names every path by what it read, and the script compares.
    Of other programs it uses only `cat` and `dirname`.
    """
    rows = [
        f"flat {path} {FILES}/{name}" for path, name in _paths(index).items() if "/" not in name
    ]
    if index.busybox:
        path = folder_store_path(FOLDER, index.busybox.nar_sha256)
        rows.insert(0, f"folder {path} {FOLDER}")
    return _SCRIPT.replace("@ROWS@", "\n".join(rows)).encode()


_SCRIPT = """\
#!/bin/sh
# Puts every file of this depot into the Nix store. Needs sh and nix-store, no network.
# Usage: sh seed
set -eu
cd "$(dirname "$0")"
command -v nix-store >/dev/null || { echo "error: Nix is not installed here" >&2; exit 1; }

rows() {
  cat <<'END'
@ROWS@
END
}

paths=$(rows | while read -r kind path file; do echo "$path"; done)
# shellcheck disable=SC2086
invalid=$(nix-store --check-validity --print-invalid $paths)
# shellcheck disable=SC2086
invalid=" $(echo $invalid) "
rows | {
  added=0
  valid=0
  while read -r kind path file; do
    case $invalid in
      *" $path "*) ;;
      *) valid=$((valid + 1)); continue ;;
    esac
    [ -e "$file" ] || { echo "error: $file is missing in this depot" >&2; exit 10; }
    case $kind in
      flat) got=$(nix-store --add-fixed sha256 "$file" </dev/null) ;;
      *) got=$(nix-store --recursive --add-fixed sha256 "$file" </dev/null) ;;
    esac
    if [ "$got" != "$path" ]; then
      echo "error: $file is not what this depot lists (or the store is not /nix/store)" >&2
      exit 10
    fi
    added=$((added + 1))
  done
  echo "added $added, valid before $valid"
}
"""
