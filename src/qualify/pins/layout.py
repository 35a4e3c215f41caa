"""The one layout of a lock file: canonical JSON, one package a line, with its own digest.

Serves the locks of Python packages and of Debian packages alike. A file in any other layout, or
one whose content does not match the digest in it, was not written by a resolution and is refused.
"""

from __future__ import annotations

from typing import Any

import orjson

from qualify.core.canonical import canonical_json
from qualify.core.digests import digest_json
from qualify.core.errors import UsageError

MAX_LOCK_BYTES = 16 << 20
REMAKE = "make it again with `qualify lock resolve`"


def file_bytes(content: dict[str, Any]) -> bytes:
    """The file for `content`, whose key `packages` is a list; `digest` is added to it.

    Raises `NotCanonical` for content without a canonical form.
    """
    header = {key: value for key, value in content.items() if key != "packages"}
    header["digest"] = digest_json(content)
    lines = [b'"%s":%s' % (key.encode(), canonical_json(header[key])) for key in sorted(header)]
    position = sum(1 for key in header if key < "packages")
    rows = b",\n".join(canonical_json(package) for package in content["packages"])
    lines.insert(position, b'"packages":[\n' + rows + b"\n]")
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def parse_object(data: bytes, schema: str, where: str) -> tuple[dict[str, Any], Any]:
    """The object in `data` without `schema` and `digest`, and the digest it declares.

    Raises `UsageError` when it is too large, no JSON, or of another schema.
    """
    if len(data) > MAX_LOCK_BYTES:
        raise UsageError(f"a lock has at most {MAX_LOCK_BYTES} bytes", where=where, fix=REMAKE)
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"is not JSON: {error}", where=where, fix=REMAKE) from error
    if not isinstance(raw, dict) or raw.pop("schema", None) != schema:
        raise UsageError(f"is not a lock of schema {schema}", where=where, fix=REMAKE)
    return raw, raw.pop("digest", None)


def require_own_form(data: bytes, canonical: bytes, declared: Any, found: str, where: str) -> None:
    """Raise `UsageError` when the digest or the layout is not what a resolution would write."""
    if declared != found:
        raise UsageError(
            f"was edited by hand: it declares {declared} and holds {found}", where=where, fix=REMAKE
        )
    if canonical != data:
        raise UsageError("is not in the layout that locks have", where=where, fix=REMAKE)


def first_mistake(errors: list[Any], raw: dict[str, Any]) -> str:
    """The first of pydantic's errors as one line that names the package it is about."""
    first = errors[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    name = ""
    match first["loc"]:
        case ("packages", int(index), *_) if isinstance(entry := raw["packages"][index], dict):
            name = f" (package {entry.get('name')!r})"
    return f"{place.lstrip('.')}{name}: {first['msg']}"
