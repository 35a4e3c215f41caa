"""From a parsed document to a typed manifest, with every mistake at its line and column.

All mistakes of a document are found at once. Messages say what is wrong and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from qualify.core.errors import UsageError
from qualify.core.identifiers import nearest
from qualify.manifests.kinds import Manifest
from qualify.manifests.loader import Document, Place
from qualify.manifests.scalars import shown


def validate(document: Document, kind: type[Manifest], file: str) -> Manifest | list[UsageError]:
    """Return the manifest, or every mistake of it as `file:line:column: what (fix)`."""
    if not isinstance(document.value, dict):
        where = place_in(document, (), file)
        return [UsageError("must be a mapping", where=where, fix="write `id: …` in its first line")]
    try:
        return kind.model_validate(document.value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        return [
            _translate(detail, document, kind, file)
            for detail in details
            if not _follows(detail, details)
        ]


def _follows(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Whether a list counts as too short only because its entries have mistakes of their own."""
    place = detail["loc"]
    return detail["type"] == "too_short" and any(
        other is not detail and other["loc"][: len(place)] == place for other in details
    )


def place_in(document: Document, place: Place, file: str, *, key: bool = False) -> str:
    """`file:line:column` of the value at `place`, or of the nearest thing around it.

    With `key`, of the key instead of the value.
    """
    if key and place in document.keys:
        line, column = document.keys[place]
        return f"{file}:{line}:{column}"
    while place and place not in document.values:
        place = place[:-1]
    line, column = document.values.get(place, (1, 1))
    return f"{file}:{line}:{column}"


def real_place(document: Document, location: Iterable[str | int]) -> Place:
    """Drop from a pydantic location what is no key or index (names of union members)."""
    node: Any = document.value
    place: list[str | int] = []
    for step in location:
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            continue
        place.append(step)
    return tuple(place)


def _translate(
    detail: ErrorDetails, document: Document, kind: type[Manifest], file: str
) -> UsageError:
    location, context = detail["loc"], detail.get("ctx", {})
    code = detail["type"]
    if code == "extra_forbidden":
        place = real_place(document, location)
        name = str(location[-1])
        fix = nearest(name[:80], _siblings(kind, location[:-1])) or "remove it"
        where = place_in(document, place, file, key=True)
        return UsageError(f"unknown key {shown(name)}", where=where, fix=fix)
    if code == "missing":
        place = real_place(document, location[:-1])
        return UsageError(
            f"{_dotted(place, location[-1])} is missing",
            where=place_in(document, place, file),
            fix=f"add `{location[-1]}: …`",
        )
    if code == "manifest":
        place = real_place(document, (*location, *context.get("at", ())))
        what, fix = str(context["what"]), str(context["fix"])
    else:
        place = real_place(document, location)
        what, fix = _plain(detail, context)
    if place:
        what = f"{_dotted(place)}: {what}"
    return UsageError(what, where=place_in(document, place, file), fix=fix)


def _plain(detail: ErrorDetails, context: dict[str, Any]) -> tuple[str, str]:
    """What and fix of pydantic's own kinds of error."""
    code = detail["type"]
    table = {
        "literal_error": ("is not one of the words known here", "write {expected}"),
        "enum": ("is not one of the words known here", "write {expected}"),
        "greater_than_equal": ("is too small", "at least {ge}"),
        "greater_than": ("is too small", "more than {gt}"),
        "less_than_equal": ("is too large", "at most {le}"),
        "string_too_long": ("is too long", "at most {max_length} characters"),
        "string_too_short": ("is too short", "at least {min_length} characters"),
        "too_short": ("has too few entries", "at least {min_length}"),
        "string_pattern_mismatch": ("has another form", "it must match {pattern}"),
        "tuple_type": ("must be a list", "write one entry a line, each after `- `"),
        "model_type": ("must be a mapping", "write `key: value` below it"),
        "model_attributes_type": ("must be a mapping", "write `key: value` below it"),
        "dict_type": ("must be a mapping", "write `key: value` below it"),
        "union_tag_not_found": ("has no kind", "add `kind:` with one of the kinds known here"),
        "union_tag_invalid": ("has an unknown kind", "write {expected_tags}"),
    }
    if code in table:
        what, fix = table[code]
        return what, fix.format(**context)
    return detail["msg"][:1].lower() + detail["msg"][1:], ""


def _dotted(place: Place, last: str | int | None = None) -> str:
    parts = [*place] if last is None else [*place, last]
    text = ""
    for part in parts:
        name = str(part)[:60]
        text += f"[{part}]" if isinstance(part, int) else f".{name}" if text else name
    return text


def _siblings(kind: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Names that may stand where an unknown key stood."""
    models: list[type[BaseModel]] = [kind]
    for step in location:
        if not isinstance(step, str):
            continue
        found = [
            inner
            for model in models
            if step in model.model_fields
            for inner in _models_in(model.model_fields[step].annotation)
        ]
        models = found or [m for m in models if _tagged(m, step)] or models
    return sorted({name for model in models for name in model.model_fields})


def _tagged(model: type[BaseModel], tag: str) -> bool:
    field = model.model_fields.get("kind")
    return field is not None and tag in getattr(field.annotation, "__args__", ())


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = getattr(annotation, "__value__", None)
    parts = (inner,) if inner is not None else getattr(annotation, "__args__", ())
    return [model for part in parts for model in _models_in(part)]
