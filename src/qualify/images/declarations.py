"""One digest for everything that a project declares: each file of `manifests/` and `corpora/`.

An image carries the declarations of the commit it was built from and names this digest in the label
`qualify.declarations`. The digest is the SHA-256 of the canonical JSON that maps each file's path
below the project (POSIX, such as `manifests/matrix/one.yaml`) to the SHA-256 of its bytes in
hexadecimal. Nothing else enters: no modes, times, folders, or what Python leaves beside sources
(`__pycache__`, `*.pyc`).

The image builder has its own copy of this rule, because it runs in the build sandbox with the
standard library alone; a test holds the two equal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from qualify.core.canonical import NotCanonical
from qualify.core.digests import digest_file, digest_json
from qualify.core.errors import UsageError

FOLDERS = ("corpora", "manifests")
LABEL = "qualify.declarations"


def declared_files(root: Path) -> dict[str, str]:
    """SHA-256 (hexadecimal) of each file of `manifests/` and `corpora/` below `root`, by path.

    Raises `UsageError` for a link or another thing that is neither file nor folder: it would mean
    something else where the image runs.
    """
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for parent, folders, names in os.walk(root / folder):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            files = [name for name in names if not name.endswith((".pyc", ".pyo"))]
            for name in (*files, *folders):
                path = Path(parent, name)
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    raise UsageError(
                        "is neither a file nor a folder",
                        where=str(path),
                        fix="declarations are plain files; copy what it leads to",
                    )
            for name in files:
                path = Path(parent, name)
                shown = path.relative_to(root).as_posix()
                found[shown] = digest_file(path).removeprefix("sha256:")
    return found


def declarations_digest(root: Path) -> str:
    """Digest of the declarations below `root`. Raises `UsageError` as `declared_files`."""
    return digest_of_files(declared_files(root), str(root))


def digest_of_files(files: Mapping[str, str], where: str = "") -> str:
    """Digest of a map from path to SHA-256. Raises `UsageError` for a name that is not ASCII."""
    try:
        return digest_json(dict(files))
    except NotCanonical as error:
        raise UsageError(
            "holds a file whose name is not ASCII", where=where, fix="rename it"
        ) from error
