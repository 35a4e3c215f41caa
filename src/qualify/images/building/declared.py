"""The digest of the declarations, with the standard library alone.

The rule is that of `qualify.images.declarations`; a test holds the two equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path


def declarations_digest(folders: Mapping[str, Path]) -> str:
    """Digest over every file of `folders`, whose keys are their names in the project."""
    found: dict[str, str] = {}
    for name, folder in folders.items():
        for path in folder.rglob("*"):
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[f"{name}/{path.relative_to(folder).as_posix()}"] = digest
    canonical = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(canonical.encode('ascii')).hexdigest()}"
