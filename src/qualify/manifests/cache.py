"""The parse cache: validated manifests by the digest of their file's bytes.

One file per project in the user's own cache folder (0700). An entry is found by the kind and the
SHA-256 of the bytes just read, never by a file's name, size or time; the whole cache is keyed by
the code that made it and carries a checksum. Whatever does not fit is ignored and made anew, and a
cache that cannot be written is no fault.

Holds only manifests that validated: a file with mistakes is parsed each time.
"""

from __future__ import annotations

import contextlib
import hashlib
from functools import cache as once
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pydantic

from qualify.core.errors import EnvironmentFault
from qualify.storage.folders import private_folder, write_atomic, xdg_cache_home

MAX_CACHE_BYTES = 256 << 20


@once
def code_digest() -> str:
    """SHA-256 over the sources of this package and the versions of the YAML and model libraries."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    # Found without importing it: the file states its version, and the import costs a sixth of a
    # second that a warm load does not have to pay.
    yaml = find_spec("ruamel.yaml")
    if yaml is not None and yaml.origin is not None:
        sources.append(Path(yaml.origin))
    state = hashlib.sha256(pydantic.VERSION.encode())
    for source in sources:
        state.update(source.read_bytes())
    return state.hexdigest()


class ParseCache:
    """Cache of one project. `get` and `put` entries, then `save` once."""

    def __init__(self, project: Path, folder: Path | None = None) -> None:
        name = hashlib.sha256(str(project.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
        self._folder = folder
        self._name = f"{name[:32]}.cache"
        self._kept: dict[str, Any] = {}
        self._changed = False
        self._old = self._read()

    def get(self, kind: str, digest: str) -> Any | None:
        """The value stored for a file of `kind` whose bytes have this SHA-256, or `None`."""
        key = f"{kind}/{digest}"
        value = self._old.get(key)
        if value is not None:
            self._kept[key] = value
        return value

    def put(self, kind: str, digest: str, value: Any) -> None:
        """Store plain JSON data."""
        self._kept[f"{kind}/{digest}"] = value
        self._changed = True

    def save(self) -> None:
        """Write the entries of this load, if there is anything new; never raises for I/O."""
        if not self._changed and len(self._kept) == len(self._old):
            return
        body = orjson.dumps({"code": code_digest(), "entries": self._kept})
        head = hashlib.sha256(body).hexdigest().encode()
        with contextlib.suppress(OSError, EnvironmentFault, RuntimeError):
            folder = private_folder(self._place())
            write_atomic(folder / self._name, head + b"\n" + body, mode=0o600, durable=False)

    def _place(self) -> Path:
        return self._folder or xdg_cache_home() / "manifests"

    def _read(self) -> dict[str, Any]:
        try:
            folder = self._place()
            info = folder.stat()
            if info.st_mode & 0o077:
                return {}
            path = folder / self._name
            if path.stat().st_size > MAX_CACHE_BYTES:
                return {}
            head, _, body = path.read_bytes().partition(b"\n")
            if hashlib.sha256(body).hexdigest().encode() != head:
                return {}
            content = orjson.loads(body)
            if content["code"] != code_digest():
                return {}
            entries = content["entries"]
        except (OSError, RuntimeError, ValueError, KeyError, TypeError):
            return {}
        return entries if isinstance(entries, dict) else {}
