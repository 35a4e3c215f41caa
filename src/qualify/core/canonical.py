"""Canonical JSON (RFC 8785) for data without floats and with ASCII keys.

For such data the bytes that orjson writes with sorted keys are exactly those of RFC 8785 (a
property test compares them with the `rfc8785` library). Anything else is refused rather than
written in another form: floats (records hold integers with the unit in the name), keys that are
not ASCII, and integers that an IEEE double cannot hold. `canonicalize` is for the JSON of others,
which may hold all of that: it is slower by the `rfc8785` library.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

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


def canonicalize(text: bytes) -> bytes:
    """The RFC 8785 form of a JSON text (I-JSON, RFC 7493): any keys, and numbers as doubles.

    Raises `NotCanonical` for what is not I-JSON: no JSON at all, a key twice in one object, lone
    surrogates, NaN and infinities, nesting beyond Python's limit.
    """
    import rfc8785

    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_distinct,
            parse_int=_double_or_integer,
            parse_constant=_no_number,
        )
        if _is_plain(value):
            return orjson.dumps(value, option=_OPTIONS)
        return rfc8785.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotCanonical(f"$: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _double_or_integer(digits: str) -> int | float:
    """Integers that a double cannot hold exactly are written as the double that is nearest."""
    if len(digits) < 16:
        return int(digits)
    value = float(digits)
    return value if abs(value) > _MAX_SAFE_INTEGER else int(digits)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


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
