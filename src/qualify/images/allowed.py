"""Files that a guard lets pass by the digest of their bytes, each with its reason, as data."""

from __future__ import annotations

import functools
from importlib import resources

import orjson


@functools.cache
def allowed_files(name: str) -> dict[str, str]:
    """SHA-256 (hexadecimal) → reason, of the file `name` in `data/`."""
    text = resources.files("qualify.images").joinpath("data", name).read_bytes()
    return {entry["sha256"]: entry["reason"] for entry in orjson.loads(text)["files"]}
