"""Canonical JSON (RFC 8785) for data without floats and with ASCII keys.

For such data the bytes that orjson writes with sorted keys are exactly those of RFC 8785 (a
property test compares them with the `rfc8785` library). Anything else is refused rather than
written in another form: floats (records hold integers with the unit in the name), keys that are
not ASCII, and integers that an IEEE double cannot hold.
"""

from __future__ import annotations

from typing import Any

import orjson

_MAX_SAFE_INTEGER = 2**53 - 1
_LEAVES = frozenset((str, int, bool, type(None)))
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


class NotCanonical(ValueError):
    """The value has no canonical form here; the message names the path inside it."""


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 encoding of `value`.

    Raises `NotCanonical` for floats, non-ASCII or non-string keys, integers outside ±(2^53-1),
    lone surrogates and types that JSON does not have.
    """
    try:
        if _is_plain(value):
            return orjson.dumps(value, option=_OPTIONS)
    except (TypeError, RecursionError) as error:
        _explain(value, "$")
        raise NotCanonical(f"$: {error}") from error
    _explain(value, "$")
    raise NotCanonical("$: has no canonical form")


def _is_plain(value: Any) -> bool:
    """Whether orjson writes `value` as the RFC says (it looks after integers itself)."""
    kind = type(value)
    if kind is dict:
        # Raises TypeError for a key that is no text.
        if not all(map(str.isascii, value)):
            return False
        inner = value.values()
    elif kind is list or kind is tuple:
        inner = value
    else:
        return kind in _LEAVES
    if _LEAVES.issuperset(map(type, inner)):
        return True
    # A loop: a generator would cost as much again as everything else here.
    for item in inner:  # noqa: SIM110
        if type(item) not in _LEAVES and not _is_plain(item):
            return False
    return True


def _explain(value: Any, path: str) -> None:
    """Raise `NotCanonical` with the first place in `value` that has no canonical form."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return
    if kind is int:
        if not -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER:
            raise NotCanonical(f"{path}: integer {value} is outside ±(2^53-1)")
        return
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii():
                raise NotCanonical(f"{path}: key {key!r} is not an ASCII string")
            _explain(item, f"{path}.{key}")
        return
    if kind is list or kind is tuple:
        for index, item in enumerate(value):
            _explain(item, f"{path}[{index}]")
        return
    raise NotCanonical(f"{path}: {kind.__name__} has no canonical form")
