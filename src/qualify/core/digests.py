"""SHA-256 digests, written `sha256:<64 hex digits>`.

The algorithm stands in the value so that a digest can never be mistaken for another kind of hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qualify.core.canonical import canonical_json

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
_DIGEST = re.compile(DIGEST_PATTERN)
_CHUNK = 1 << 20


def is_digest(text: str) -> bool:
    """Tell whether `text` is a digest in our notation."""
    return _DIGEST.fullmatch(text) is not None


def digest_bytes(data: bytes) -> str:
    """Digest of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Digest of the canonical JSON of `value`."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Digest of a file's content, read in chunks of 1 MiB.

    `progress` is called with the number of bytes of each chunk. Raises `OSError`.
    """
    state = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            state.update(buffer[:count])
            if progress is not None:
                progress(count)
    return "sha256:" + state.hexdigest()


def keyed_digest(key: bytes, data: bytes) -> str:
    """HMAC-SHA-256 of `data`.

    Used where plain digests could be guessed (commands, prompts): the key stays in the trial's
    private store.
    """
    return "sha256:" + hmac.new(key, data, hashlib.sha256).hexdigest()
