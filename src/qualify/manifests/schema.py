"""JSON Schemas of the manifest kinds, for editors (dialect 2020-12).

They describe what a YAML 1.2 reader makes of a file, so an editor flags most mistakes while they
are typed. `qualify manifest check` finds more: rules between fields and between files, and plain
scalars that readers understand differently. Fields outside the digests carry
`x-qualify-bound: false`.
"""

from __future__ import annotations

import json
from typing import Any

from qualify.core.errors import UsageError
from qualify.core.identifiers import nearest
from qualify.manifests.kinds import KINDS
from qualify.manifests.references import singular

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


def schema_names() -> dict[str, str]:
    """Name of each schema → kind: the word for one manifest (`row`) → its folder (`matrix`)."""
    return {singular(kind): kind for kind in KINDS}


def json_schema(name: str) -> dict[str, Any]:
    """The schema of one kind, by its word (`row`) or folder (`matrix`). Raises `UsageError`."""
    names = schema_names()
    kind = names.get(name, name)
    if kind not in KINDS:
        known = sorted({*names, *KINDS})
        raise UsageError(
            f"there is no kind of manifest {name!a}",
            fix=nearest(name[:80], known) or "known: " + ", ".join(names),
        )
    schema = _plain(KINDS[kind].model_json_schema(mode="validation"))
    word = singular(kind)
    return {"$schema": DIALECT, "$id": f"urn:qualify:manifest:{word}", **schema, "title": word}


def schema_bytes(name: str) -> bytes:
    """The file `docs/reference/schemas/NAME.json`: indented, sorted keys, one final newline."""
    text = json.dumps(json_schema(name), indent=2, sort_keys=True, ensure_ascii=False)
    return text.encode() + b"\n"


def _plain(node: Any, *, names: bool = False) -> Any:
    """Give constraints their JSON Schema keywords and drop titles that only repeat a name."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {}
    for key, value in node.items():
        if not names and key == "title":
            continue
        # Constraints on `number | null` come out under pydantic's own names.
        name = key if names else _KEYWORDS.get(key, key)
        plain[name] = _plain(value, names=key in ("properties", "$defs") and not names)
    return plain
