"""The base layers of images: digests of the Debian closures that `locks/debian.json` pins.

A row that runs inside an image binds the digest of its runtime's closure: every package file of it,
and nothing else of the lock, so that another image's packages change no other row's configuration.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qualify.core.digests import digest_json

LOCK = "locks/debian.json"


def closure_digests(project: Path) -> dict[str, str]:
    """Digest of each closure by name, as `qualify.pins.debian` makes it; empty without a lock.

    A lock that is damaged gives none: `qualify lock requirements --check` says what is wrong.
    """
    try:
        lock: Any = json.loads((project / LOCK).read_bytes())
        files = {package["name"]: package["sha256"] for package in lock["packages"]}
        return {
            name: digest_json(sorted(files[package] for package in closure["packages"]))
            for name, closure in lock["closures"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
