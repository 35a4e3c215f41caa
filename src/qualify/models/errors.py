"""What can be wrong with a model or its store, each with what to do next."""

from __future__ import annotations

import errno
from pathlib import Path

from qualify.core.errors import EnvironmentFault, Refusal, UsageError
from qualify.manifests.kinds import Model, ModelFile
from qualify.models.layout import STORE_VARIABLE


class ModelFileMismatch(Refusal):
    """A file is not the one that the manifest names.

    `file` is its path in the model; `expected` and `found` are sizes (`98362432 bytes`) or digests.
    """

    def __init__(
        self, model: Model, file: ModelFile, expected: str, found: str, *, where: str, fix: str
    ) -> None:
        super().__init__(
            f"{file.path} of model {model.id} is not what its manifest says: "
            f"expected {expected}, found {found}",
            where=where,
            fix=fix,
        )
        self.file = str(file.path)
        self.expected = expected
        self.found = found


class ModelAbsent(UsageError):
    """The model, or a file of it, is not in the store and may not or cannot be fetched."""


class LicenceNotApproved(UsageError):
    """The model's licence asks for a person's approval, and there is none."""


class DownloadFailed(EnvironmentFault):
    """No package client of this machine delivered a package."""


def bytes_text(count: int) -> str:
    """`1.12 GB`: decimal units, for people."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def no_space(root: Path, needed: int, free: int) -> EnvironmentFault:
    """The error for a disk that is too small; sizes in bytes."""
    return EnvironmentFault(
        f"not enough space for the model: needs {bytes_text(needed)}, has {bytes_text(free)} free",
        where=str(root),
        fix=f"free {bytes_text(needed - free)}, or set {STORE_VARIABLE} to a larger disk",
    )


def store_fault(error: OSError, root: Path) -> EnvironmentFault:
    """Turn what the operating system says about the store into advice."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = f"free some space, or set {STORE_VARIABLE} to a folder on a larger disk"
        what = "the disk filled up; what was downloaded so far is kept"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        fix = f"set {STORE_VARIABLE} to a folder that you may write to"
        what = "the model store is read-only here and the model is not completely in it"
    else:
        fix = "check the disk and the folder"
        what = f"the model store cannot be used: {error.strerror or error}"
    return EnvironmentFault(what, where=str(error.filename or root), fix=fix)
