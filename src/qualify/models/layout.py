"""Where the model store lies and how it is laid out.

One store serves every project of a user (`QUALIFY_MODEL_STORE`, else the XDG data folder):

    blobs/<sha256>                      a file's bytes, read-only; the name is its SHA-256
    snapshots/<model>/<digest>/<path>   relative links to blobs, one folder per list of files
    licences/<model>.json               a person's approval of a licence
    partial/<sha256>/                   what an unfinished acquisition has so far
    locks/<sha256>.lock                 held while that blob is being acquired

A name under `blobs/` is an address, never a proof: see `store.verify`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from qualify.core.digests import digest_json
from qualify.manifests.configuration import files_content
from qualify.manifests.kinds import Model, ModelFile
from qualify.storage.folders import xdg_data_home

STORE_VARIABLE = "QUALIFY_MODEL_STORE"


def store_root() -> Path:
    """`$QUALIFY_MODEL_STORE`, else `models` in the XDG data folder. It need not exist."""
    value = os.environ.get(STORE_VARIABLE, "")
    return Path(value).absolute() if value else xdg_data_home() / "models"


def files_digest(model: Model) -> str:
    """Digest of the model's list of (path, size, SHA-256), independent of their order."""
    return digest_json(files_content(model))


@dataclass(frozen=True)
class Layout:
    """The paths of one store."""

    root: Path

    def blob(self, file: ModelFile) -> Path:
        """Where the bytes of `file` lie."""
        return self.root / "blobs" / str(file.sha256)

    def lock(self, file: ModelFile) -> Path:
        """The lock that is held while `file` is acquired."""
        return self.root / "locks" / f"{file.sha256}.lock"

    def partial(self, file: ModelFile) -> Path:
        """Folder of what an unfinished acquisition of `file` has so far."""
        return self.root / "partial" / str(file.sha256)

    def snapshot(self, model: Model) -> Path:
        """Folder of the links of `model`, as its manifest lists its files now."""
        short = files_digest(model).removeprefix("sha256:")[:16]
        return self.root / "snapshots" / str(model.id) / short

    def link(self, model: Model, file: ModelFile) -> Path:
        """The link through which `file` of `model` is opened."""
        return self.snapshot(model) / str(file.path)

    def link_target(self, model: Model, file: ModelFile) -> str:
        """What that link must hold, so that the store can be moved or mounted elsewhere."""
        return os.path.relpath(self.blob(file), self.link(model, file).parent)

    def approval(self, model: Model) -> Path:
        """Where the approval of the model's licence is recorded."""
        return self.root / "licences" / f"{model.id}.json"
