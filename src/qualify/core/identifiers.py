"""Identifiers: lower-case words that are safe as file names, keys and command-line arguments."""

from __future__ import annotations

import re

ID_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,79}$"
_ID = re.compile(ID_PATTERN)


def is_identifier(text: str) -> bool:
    """Tell whether `text` may be the id of a manifest."""
    return _ID.fullmatch(text) is not None and ".." not in text


def nearest(name: str, known: list[str]) -> str:
    """Return a hint such as `did you mean 'cpu-qwen2.5-coder-1.5b'?`, or an empty string."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""
