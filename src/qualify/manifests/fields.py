"""What all manifest models share: strictness, and fields that no digest binds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from qualify.manifests.scalars import Identifier, LongText, mistake


class Strict(BaseModel):
    """Base of everything that a manifest may hold: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)


def not_bound(default: Any, description: str, **constraints: Any) -> Any:
    """A field that no digest binds: the schema says so with `x-qualify-bound: false`."""
    return Field(
        default,
        description=f"{description} Not bound.",
        json_schema_extra={"x-qualify-bound": False},
        **constraints,
    )


def once(names: Iterable[str], field: str, key: str | None = None) -> None:
    """Refuse a name that stands twice in the list `field`."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            at = (field, index) if key is None else (field, index, key)
            raise mistake(f"{name!r} stands twice in {field}", "remove one", at)
        seen.add(name)


class Manifest(Strict):
    """What all kinds share."""

    id: Identifier = not_bound(..., "Name of the manifest; equals the file's name.")
    notes: LongText | None = not_bound(None, "For readers.")
