"""Writes what lies beside an image that Nix built: its bill of materials and its provenance.

Started by `nix/images.nix` as `python -P -m qualify.images.beside LAYOUT LOCKS OUT`. The files
have the bytes that `qualify image sbom` and `provenance` print. They are made without opening a
layer: each layer's builder has left the texts that state a licence beside it, so that a change of
our own code costs no pass over gigabytes that stayed the same.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from qualify.core.errors import QualifyError
from qualify.images.attestations import make_provenance, pins_of
from qualify.images.image import open_image
from qualify.images.licences import stated_licences
from qualify.images.provenance import FILE_NAME as PROVENANCE_FILE
from qualify.images.sbom import FILE_NAME as SBOM_FILE
from qualify.images.sbom import sbom_bytes


def write_beside(layout: Path, locks: Path, out: Path) -> None:
    """Write both files into the folder `out`. Raises `QualifyError` as `pins_of` does."""
    image = open_image(layout)
    pins = pins_of(image, locks)
    blobs = [layout / "blobs/sha256" / (layer.digest or "")[7:] for layer in image.layers]
    stated = stated_licences(_texts(blobs))
    (out / SBOM_FILE).write_bytes(sbom_bytes(pins, image.labels, image.digest, stated))
    (out / PROVENANCE_FILE).write_bytes(make_provenance(image, pins))


def _texts(blobs: list[Path]) -> Iterator[tuple[str, bytes]]:
    """The texts that the builders of the layers have left, by path."""
    texts: dict[str, str] = {}
    for blob in blobs:
        texts |= json.loads((blob.resolve().parent / "stated.json").read_text("ascii"))
    for path in sorted(texts):
        yield path, base64.b64decode(texts[path])


if __name__ == "__main__":
    try:
        write_beside(*map(Path, sys.argv[1:4]))
    except QualifyError as fault:
        sys.exit(f"error: {fault}")
