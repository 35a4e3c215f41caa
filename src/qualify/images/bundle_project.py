"""The project's own files in a bundle: those of the commit, or, without git, those that lie there.

In a checkout, names and bytes are those of the commit `HEAD`, compared file by file with git's own
object ids; git's index and its notes about changed files are not believed. What git does not track
stays behind. Where a file differs, nothing is carried unless the caller asks for it, and then the
revision ends in `-dirty`, as that of an image does. Without git the revision is `unknown`.

What Python derives from sources (`DERIVED`) is never carried, what editors and file managers leave
(`LEFT_BEHIND`) only when a commit holds it. Links and names that cannot be carried are refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from qualify.core.errors import UsageError
from qualify.images import bundle_format as form
from qualify.images.nix_build import UNKNOWN_REVISION
from qualify.manifests.kinds import Bundle

DERIVED = ("__pycache__", "*.pyc", "*.pyo")
LEFT_BEHIND = ("*~", ".#*", "#*#", ".*.sw[a-p]", ".DS_Store", "Thumbs.db")
_CHUNK = 1 << 20
_NAMED = 3
_SECONDS = 120


@dataclass(frozen=True)
class CarriedFile:
    """One file of the project: where it lies, the SHA-256 (hexadecimal) and size of its bytes."""

    path: Path
    sha256: str
    size: int


@dataclass(frozen=True)
class Carried:
    """Everything of the project that goes along, by path in the bundle, sorted."""

    files: Mapping[str, CarriedFile]
    revision: str
    """The commit, with `-dirty` when a carried file differs from it; `unknown` without git."""
    changed: tuple[str, ...] = ()
    """Paths that differ from the commit."""
    untracked: tuple[str, ...] = ()
    """Paths that stay behind because git does not track them."""

    @property
    def remarks(self) -> list[str]:
        """What a person should know before the bundle is theirs."""
        found = []
        if self.changed:
            found.append(
                f"not as in the commit: {_few(self.changed)}; the revision is {self.revision}"
            )
        if self.revision == UNKNOWN_REVISION:
            found.append("the project is no git checkout: the bundle's revision is unknown")
        if self.untracked:
            found.append(
                f"not in the bundle, because git does not track it: {_few(self.untracked)}"
                " (`git add` and commit it)"
            )
        return found


def carried_files(project: Path, bundle: Bundle, *, changes: bool = False) -> Carried:
    """The files that `bundle` takes from `project`; with `changes` also where they are not those of
    the commit.

    Raises `UsageError` for what cannot be carried, and for changed files without `changes`.
    """
    folders = [*form.FOLDERS, *([form.DOCUMENTATION] if bundle.documentation else [])]
    for folder in folders:
        if not (project / folder).is_dir():
            raise UsageError(f"has no folder {folder}/", where=str(project), fix="add it")
    parts = (form.LICENCE, *folders)
    if (project / ".git").exists():
        found = _of_checkout(project, parts, changes)
    else:
        found = Carried(
            {name: _file(project, name) for name in sorted(_walked(project, parts))},
            UNKNOWN_REVISION,
        )
    _require_distinct(found.files, project)
    if form.declaration_path(str(bundle.id), found.files) is None:
        raise UsageError(
            f"the manifest of the bundle {bundle.id!r} is not part of the commit",
            where=str(project),
            fix=f"commit manifests/bundles/{bundle.id}.yaml",
        )
    return found


def _of_checkout(project: Path, parts: tuple[str, ...], changes: bool) -> Carried:
    head = _git(project, "rev-parse", "--verify", "HEAD^{commit}").decode("ascii").strip()
    committed = _committed(project, head, parts)
    known = set(_names(_git(project, "ls-files", "-z", "--", *parts)))
    algorithm = "sha1" if len(head) == 40 else "sha256"
    files: dict[str, CarriedFile] = {}
    changed = []
    for name in sorted(committed.keys() | known):
        if _is_like(name, DERIVED):
            continue
        there = os.path.lexists(project / name)
        if there:
            files[name] = _file(project, name)
        if (
            not there
            or name not in known
            or not _is_blob(files[name], committed.get(name), algorithm)
        ):
            changed.append(name)
    if changed and not changes:
        raise UsageError(
            f"differs from its commit {head[:12]}: {_few(changed)}",
            where=str(project),
            fix="commit the changes, or carry them with --with-changes "
            "(the bundle's revision then ends in -dirty)",
        )
    if changed:
        files = {name: file for name, file in files.items() if name in known}
    others = _git(project, "ls-files", "-z", "--others", "--exclude-standard", "--", *parts)
    untracked = [n for n in _names(others) if not _is_like(n, (*DERIVED, *LEFT_BEHIND))]
    revision = f"{head}-dirty" if changed else head
    return Carried(files, revision, tuple(changed), tuple(sorted(untracked)))


def _committed(project: Path, head: str, parts: tuple[str, ...]) -> dict[str, str]:
    """Object id of each plain file of the commit; of anything else an id that no file has."""
    found = {}
    listed = _git(project, "ls-tree", "-r", "-z", "--full-tree", head, "--", *parts)
    for row in listed.split(b"\0"):
        if row:
            mode, _, blob = row.partition(b"\t")[0].decode("ascii").split(" ")
            name = os.fsdecode(row.partition(b"\t")[2])
            found[name] = blob if mode in ("100644", "100755") else ""
    return found


def _is_blob(file: CarriedFile, blob: str | None, algorithm: str) -> bool:
    """Whether the file is the object of that id: git hashes a header with the size, then bytes."""
    state = hashlib.new(algorithm, f"blob {file.size}\0".encode("ascii"), usedforsecurity=False)
    with file.path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest() == blob


def _walked(project: Path, parts: tuple[str, ...]) -> Iterator[str]:
    """Files as they lie there, but for what is derived or left behind."""
    unwanted = (*DERIVED, *LEFT_BEHIND)
    for part in parts:
        if part == form.LICENCE and os.path.lexists(project / part):
            yield part
        elif part != form.LICENCE:
            _require_plain(project, part, stat.S_ISDIR)
        for parent, below, names in os.walk(project / part):
            below[:] = [name for name in below if not _is_like(name, unwanted)]
            within = Path(parent).relative_to(project)
            for name in below:
                _require_plain(project, (within / name).as_posix(), stat.S_ISDIR)
            yield from ((within / n).as_posix() for n in names if not _is_like(n, unwanted))


def _is_like(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(part, pattern) for part in name.split("/") for pattern in patterns)


def _file(project: Path, name: str) -> CarriedFile:
    """Read one file. Raises `UsageError` when it, or a folder on the way, is something else."""
    for end in (slash.start() for slash in re.finditer("/", name)):
        _require_plain(project, name[:end], stat.S_ISDIR)
    _require_plain(project, name, stat.S_ISREG)
    path, state, size = project / name, hashlib.sha256(), 0
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                state.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            fix="check its permissions",
        ) from error
    return CarriedFile(path, state.hexdigest(), size)


def _require_plain(project: Path, name: str, is_right: Callable[[int], bool]) -> None:
    path = project / name
    if not is_right(path.lstat().st_mode):
        kind = "folder" if is_right is stat.S_ISDIR else "plain file"
        raise UsageError(
            f"is no {kind}",
            where=ascii(str(path))[1:-1],
            fix="put there what belongs there: a bundle holds no links and no devices",
        )
    if not form.is_safe_path(name):
        raise UsageError(
            "has a name that cannot be carried", where=ascii(str(path)), fix="rename it"
        )


def _require_distinct(found: Mapping[str, CarriedFile], project: Path) -> None:
    if pair := form.collision(found):
        raise UsageError(
            f"{pair[0]!a} and {pair[1]!a} are one on a medium where case does not count",
            where=str(project),
            fix="rename one",
        )


def _few(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(ascii(name)[1:-1] for name in names[:_NAMED]) + more


def _names(listed: bytes) -> list[str]:
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _git(project: Path, *arguments: str) -> bytes:
    """What git prints about this very folder: never about one around it, and without hooks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ours = {
        "GIT_CEILING_DIRECTORIES": str(project.resolve().parent),
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }
    try:
        done = subprocess.run(
            ["git", "--no-replace-objects", "-C", str(project), "-c", "core.fsmonitor=false",
             *arguments],
            stdin=subprocess.DEVNULL, env={**kept, **ours}, capture_output=True,
            timeout=_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode("utf-8", "replace").strip()
        last = said.splitlines()[-1][:200] if said else str(error)[:200]
        raise UsageError(
            f"is a checkout, and git cannot tell which files belong to it: {last!a}",
            where=str(project),
            fix="install git, check `git status` there, or use an export of the project",
        ) from error
    return done.stdout
