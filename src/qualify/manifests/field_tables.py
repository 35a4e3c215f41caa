"""The fields of each manifest kind as a Markdown table, made from its JSON Schema.

The reference page holds these tables; a test keeps the two equal.
"""

from __future__ import annotations

import json
from typing import Any

from qualify.manifests.configuration import LOCKS, REFERENCES
from qualify.manifests.schema import json_schema, schema_names

_HEAD = ["| field | type | default | bound | meaning |", "|---|---|---|---|---|"]
_CONTENT = {
    field
    for fields in (*REFERENCES.values(), *([field] for field in LOCKS.values()))
    for field in fields
}


def field_table(name: str) -> str:
    """The table of one kind. Raises `UsageError` for an unknown one.

    The column *bound* says `yes`, `no`, or `content` where a name stands for what it names.
    """
    schema = json_schema(name)
    word = schema["title"]
    lines = _lines(schema, schema, "", bound=word != "bundle")
    if word == "suite":
        lines = [line.replace("| yes |", "| content |") for line in lines]
    return "\n".join([*_HEAD, *lines]) + "\n"


def all_tables() -> str:
    """Every table under its heading, as the reference page holds them."""
    return "\n".join(
        f"### {word}\n\n`{_place(word, kind)}`. {json_schema(word)['description']}\n\n"
        + field_table(word)
        for word, kind in schema_names().items()
    )


def _place(word: str, kind: str) -> str:
    return "corpora/ID/card.yaml" if word == "corpus" else f"manifests/{kind}/**/ID.yaml"


def _lines(node: dict[str, Any], root: dict[str, Any], prefix: str, *, bound: bool) -> list[str]:
    lines = []
    for name, field in node.get("properties", {}).items():
        words, parts = _types(field, root)
        default = "needed"
        if name not in node.get("required", ()):
            default = f"`{json.dumps(field['default'])}`" if "default" in field else "empty"
        here = bound and field.get("x-qualify-bound") is not False
        shown = "no" if not here else "content" if not prefix and name in _CONTENT else "yes"
        meaning = field.get("description", "").removesuffix(" Not bound.").replace("|", "\\|")
        line = f"| `{prefix}{name}` | {words} | {default} | {shown} | {meaning} |"
        lines.append(line.replace("|  |", "| |"))
        for part, suffix in parts:
            lines += _lines(part, root, f"{prefix}{name}{suffix}.", bound=here)
    return list(dict.fromkeys(lines))


type _Types = tuple[str, list[tuple[dict[str, Any], str]]]
"""Words for a type, and the mappings inside it with the suffix that leads to each."""


def _types(field: dict[str, Any], root: dict[str, Any]) -> _Types:
    if "$ref" in field:
        target = root["$defs"][field["$ref"].rpartition("/")[2]]
        return ("mapping", [(target, "")]) if "properties" in target else _types(target, root)
    alternatives = field.get("anyOf") or field.get("oneOf")
    if alternatives:
        found = [_types(each, root) for each in alternatives]
        words = " or ".join(dict.fromkeys(words for words, _ in found))
        return words, [part for _, parts in found for part in parts]
    if field.get("type") == "array":
        words, parts = _types(field.get("items", {}), root)
        return f"list of {words}", [(part, f"[]{suffix}") for part, suffix in parts]
    return _scalar(field), []


def _scalar(field: dict[str, Any]) -> str:
    """A scalar type with its words or bounds."""
    listed = field.get("enum") or ([field["const"]] if "const" in field else None)
    if listed:
        return ", ".join(f"`{word}`" for word in listed)
    if field["type"] == "object":
        return "mapping of names to text"
    words = {"string": "text", "integer": "whole number"}.get(field["type"], field["type"])
    low = field.get("minimum")
    if "exclusiveMinimum" in field:
        low = f"above {field['exclusiveMinimum']}"
    high = field.get("maximum")
    if low is None and high is None:
        return str(words)
    return f"{words} {'' if low is None else low}…{'' if high is None else high}"
