"""What somebody with a bundle in hand can do: change parts of it and write the lists anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qualify.core.canonical import canonical_json
from qualify.images import bundle_format as form
from qualify.images import open_image
from support.bundles import sha256


def relist(bundle: Path, *, index: bool = True, sums: bool = True) -> None:
    """Write the lists anew for the files as they lie there now."""
    document: dict[str, Any] = json.loads((bundle / "bundle.json").read_bytes())
    document["files"] = [
        {
            "path": path.relative_to(bundle).as_posix(),
            "sha256": sha256(path.read_bytes()),
            "size": path.stat().st_size,
        }
        for path in sorted(bundle.rglob("*"), key=lambda each: each.relative_to(bundle).as_posix())
        if path.is_file() and path.name not in ("bundle.json", "SHA256SUMS")
    ]
    rewrite(bundle, document, index=index, sums=sums)


def rewrite(bundle: Path, document: Any, *, index: bool = True, sums: bool = True) -> None:
    """Write the list `document`, and the sums that follow from it."""
    data = canonical_json(document) + b"\n"
    if index:
        (bundle / "bundle.json").write_bytes(data)
    if sums:
        listed = {each["path"]: each["sha256"] for each in document["files"]}
        listed["bundle.json"] = sha256((bundle / "bundle.json").read_bytes())
        lines = [f"{listed[path]}  {path}\n" for path in sorted(listed)]
        (bundle / "SHA256SUMS").write_text("".join(lines))


def relabel(bundle: Path, name: str, changes: dict[str, str | None]) -> None:
    """Give an image other labels (`None`: none), and say so wherever its digest stands."""
    image = open_image(bundle / "images", reference=name)
    config = json.loads(image.config_bytes)
    labels = config["config"]["Labels"]
    for label, value in changes.items():
        labels.pop(label, None)
        if value is not None:
            labels[label] = value
    manifest = json.loads(image.manifest_bytes)
    config_bytes = json.dumps(config).encode()
    (bundle / form.blob_path(manifest["config"]["digest"])).unlink()
    (bundle / form.blob_path(image.digest)).unlink()
    manifest["config"].update(digest=f"sha256:{sha256(config_bytes)}", size=len(config_bytes))
    manifest_bytes = json.dumps(manifest).encode()
    for data in (config_bytes, manifest_bytes):
        (bundle / form.blob_path(f"sha256:{sha256(data)}")).write_bytes(data)
    document = json.loads((bundle / "bundle.json").read_bytes())
    for entry in document["images"]:
        if entry["name"] == name:
            entry.update(digest=f"sha256:{sha256(manifest_bytes)}")
            entry.update(manifest_size=len(manifest_bytes))
            entry.update(revision=labels.get("org.opencontainers.image.revision") or "unknown")
    images = [form.BundledImage.model_validate(each) for each in document["images"]]
    (bundle / "images/index.json").write_bytes(form.layout_index(images))
    for path in (bundle / "attestations" / name).iterdir():
        old, new = image.digest.removeprefix("sha256:"), sha256(manifest_bytes)
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))
    rewrite(bundle, document)
    relist(bundle)
