"""Puts layers together into an OCI image layout.

The specification, as JSON in the file that `specPath` names:

    {"name": …, "layers": [FOLDER, …], "config": {…}, "labels": {…}, "declarations": FILE}

Layers are folders that `LayerWriter` has written, lowest first; the layout links to their blobs
instead of copying them. Two layers that own one path are an error. `config` is the `config` object
of the image configuration without labels.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from qualify.images.building.layer_writer import (
    BuildError,
    check_shared,
    write_json,
)
from qualify.images.building.step import Step, run

CREATED = "1970-01-01T00:00:01Z"
"""Creation time of every image: a real one would make every build another image."""

_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


def main(step: Step) -> None:
    """Write the layout."""
    folders = [Path(folder) for folder in step.spec["layers"]]
    check_owners(folders)
    layers = [json.loads((folder / "layer.json").read_text("ascii")) for folder in folders]
    blobs = step.out / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for folder, layer in zip(folders, layers, strict=True):
        blob = blobs / layer["digest"].removeprefix("sha256:")
        blob.symlink_to(folder / "layer.tar.gz")
    config = _blob(blobs, _configuration(step.spec, layers), _CONFIG)
    manifest = _blob(
        blobs,
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": config,
            "layers": [
                {"mediaType": _LAYER, "digest": layer["digest"], "size": layer["size"]}
                for layer in layers
            ],
        },
        _MANIFEST,
    )
    manifest["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    write_json(step.out / "oci-layout", {"imageLayoutVersion": "1.0.0"})
    write_json(
        step.out / "index.json",
        {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [manifest]},
    )
    (step.out / "digest").write_text(f"{manifest['digest']}\n", encoding="ascii")


def check_owners(folders: list[Path]) -> None:
    """Raise `BuildError` when a path has owners in two layers, or is a file in one and a folder in
    another.
    """
    files: dict[str, tuple[str, str]] = {}
    directories: set[str] = set()
    for folder in folders:
        owned = json.loads((folder / "owners.json").read_text("ascii"))
        for path, (owner, identity) in owned["files"].items():
            if path in files:
                check_shared(path, files[path], (owner, identity))
            files[path] = (owner, identity)
        directories.update(owned["folders"])
    for path in directories:
        if path in files:
            raise BuildError(f"{path} is a file of {files[path][0]} and a folder in another layer")


def _configuration(spec: dict[str, Any], layers: list[dict[str, Any]]) -> dict[str, Any]:
    declarations = Path(spec["declarations"]).read_text("ascii").strip()
    labels = {**spec["labels"], "qualify.declarations": declarations}
    return {
        "created": CREATED,
        "architecture": "amd64",
        "os": "linux",
        "config": {**spec["config"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [layer["diff_id"] for layer in layers]},
        "history": [
            {"created": CREATED, "created_by": "qualify", "comment": layer["title"]}
            for layer in layers
        ],
    }


def _blob(blobs: Path, value: object, kind: str) -> dict[str, Any]:
    """Write a JSON blob under its digest; returns its descriptor."""
    data = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode(
        "ascii"
    )
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


if __name__ == "__main__":
    run(main)
