"""JSON Schemas for editors: current, and of one mind with the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from qualify.core.errors import UsageError
from qualify.manifests.field_tables import all_tables, field_table
from qualify.manifests.files import list_files
from qualify.manifests.kinds import KINDS
from qualify.manifests.schema import json_schema, schema_bytes, schema_names
from support.projects import SOUND

PROJECT = Path(__file__).parents[3]


def errors(kind: str, text: str) -> list[str]:
    """What an editor shows: a YAML 1.2 reader, then the schema."""
    schema = json_schema(kind)
    value: Any = YAML(typ="safe", pure=True).load(text)
    validator = jsonschema.Draft202012Validator(schema)
    return [error.message for error in validator.iter_errors(value)]


@pytest.mark.parametrize("name", schema_names())
def test_the_committed_schema_is_current(name: str) -> None:
    path = PROJECT / "docs/reference/schemas" / f"{name}.json"
    assert path.read_bytes() == schema_bytes(name), (
        "run `qualify manifest schema --write docs/reference/schemas`"
    )


def test_every_kind_has_a_schema_and_no_other_file_lies_there() -> None:
    found = {path.name for path in (PROJECT / "docs/reference/schemas").iterdir()}
    assert found == {f"{name}.json" for name in schema_names()}
    assert set(schema_names().values()) == set(KINDS)


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_is_itself_valid_and_speaks_json_schema(name: str) -> None:
    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    known = {"ge", "gt", "le", "lt"}
    assert not known & _keywords(schema)


def _keywords(node: Any) -> set[str]:
    if isinstance(node, dict):
        inner = set().union(*map(_keywords, node.values())) if node else set()
        return set(node) | inner
    return set().union(*map(_keywords, node)) if isinstance(node, list) and node else set()


def test_every_shipped_manifest_satisfies_its_schema() -> None:
    files, mistakes = list_files(PROJECT)
    assert files
    assert not mistakes
    for file in files:
        assert errors(file.kind, file.path.read_text()) == [], file.shown


@pytest.mark.parametrize(
    ("path", "kind", "old", "new"),
    [
        ("manifests/matrix/one.yaml", "row", "precision: q4", "precison: q4"),
        ("manifests/matrix/one.yaml", "row", "4096", "16"),
        ("manifests/matrix/one.yaml", "row", "4096", '"4096"'),
        ("manifests/matrix/one.yaml", "row", "tool_mode: prompt", "tool_mode: promt"),
        ("manifests/matrix/one.yaml", "row", "precision: q4", "precision: 0123"),
        ("manifests/agents/coder.yaml", "agent", "0.5", "2.5"),
        ("manifests/agents/coder.yaml", "agent", "in_context_example: false\n", ""),
        ("manifests/models/small.yaml", "model", "b.gguf, size: 2", "b.gguf, size: -2"),
        ("manifests/models/small.yaml", "model", "kind: hub", "kind: torrent"),
    ],
)
def test_an_editor_flags_what_the_loader_refuses(path: str, kind: str, old: str, new: str) -> None:
    assert errors(kind, SOUND[path]) == []
    assert old in SOUND[path]
    assert errors(kind, SOUND[path].replace(old, new, 1))


def test_the_schema_says_which_fields_are_not_bound() -> None:
    properties = json_schema("row")["properties"]
    assert properties["imported"]["x-qualify-bound"] is False
    assert "x-qualify-bound" not in properties["precision"]


def test_an_unknown_kind_brings_the_nearest_one() -> None:
    assert json_schema("matrix") == json_schema("row")
    with pytest.raises(UsageError, match="did you mean 'platform"):
        json_schema("platfrom")


def test_the_reference_page_holds_the_fields_as_they_are() -> None:
    page = (PROJECT / "docs/reference/manifests.md").read_text()
    assert page.endswith(all_tables()), "replace what follows `## Fields`"


def test_a_table_names_every_field_and_what_is_bound() -> None:
    table = field_table("row")
    assert all(f"`{name}`" in table for name in json_schema("row")["properties"])
    assert "| `imported[].reason` | text or null | `null` | no |" in table
    assert "| `agent` | text | needed | content |" in table
    assert "| `precision` | text | needed | yes |" in table
