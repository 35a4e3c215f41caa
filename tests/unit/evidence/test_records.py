"""Records hold no free text, no floats and no surprises, and have one canonical form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from qualify.core.canonical import canonical_json
from qualify.core.digests import digest_bytes
from qualify.core.status import CheckOutcome
from qualify.evidence.records import ENTRY, BudgetUse, Genesis, Trial
from support import evidence

TRIAL = digest_bytes(b"a trial")
EXAMPLES: dict[str, dict[str, Any]] = {
    entry.kind: entry.model_dump(mode="json")
    for entry in (
        Genesis(time="2026-11-30T12:00:00Z", site="0" * 32),
        evidence.reservation(),
        evidence.trial(
            TRIAL, exceeded=(BudgetUse(budget="actions", limit=1, used=2),), checks={
                "exact-bytes": CheckOutcome.PASSED}
        ),
        evidence.refusal(),
        evidence.start_failure(),
    )
}  # fmt: skip
FREE_TEXT = (
    "Append the line 'done' to notes.txt",
    "/home/someone/project/notes.txt",
    "C:\\Users\\someone",
    "sk-Proj4bCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "password=hunter2",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "rm -rf / ; echo $HOME",
    "two\nlines",
    "someone@example.org",
    "{\"role\": \"user\"}",
    "<b>bold</b>",
    "grün",
    "x" * 200,
    " ",
    "",
)  # fmt: skip
HARDWARE = {"cpu_model", "gpu_model"}
"""Names that the hardware gives itself: words with spaces, but no text that means anything."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def replaced(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> bytes:
    copy = orjson.loads(orjson.dumps(record))
    inside = copy
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    return orjson.dumps(copy)


FIELDS = [(kind, path) for kind, record in EXAMPLES.items() for path in leaves(record)]


def test_the_examples_themselves_are_valid() -> None:
    for record in EXAMPLES.values():
        assert ENTRY.validate_json(orjson.dumps(record)).model_dump(mode="json") == record
    assert len(FIELDS) > 80


@pytest.mark.parametrize(("kind", "path"), FIELDS, ids=lambda part: str(part)[-60:])
def test_no_field_takes_free_text(kind: str, path: tuple[Any, ...]) -> None:
    for text in FREE_TEXT:
        if path[-1] in HARDWARE and re.fullmatch(r"[A-Za-z0-9 ()@.,+_-]{1,64}", text):
            continue
        with pytest.raises(ValidationError):
            ENTRY.validate_json(replaced(EXAMPLES[kind], path, text))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FIELDS), st.text(min_size=1).filter(lambda t: re.search(r"[^\x21-\x7e]", t)))
def test_no_field_takes_text_with_other_than_visible_ascii(
    field: tuple[str, tuple[Any, ...]], text: str
) -> None:
    kind, path = field
    if path[-1] in HARDWARE:
        text = text.replace(" ", "\t")
    with pytest.raises(ValidationError):
        ENTRY.validate_json(replaced(EXAMPLES[kind], path, text))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(FIELDS),
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(max_value=-1)
    | st.lists(st.text(), max_size=2)
    | st.dictionaries(st.text(), st.text(), max_size=2),
)
def test_no_field_takes_floats_negative_numbers_or_loose_structures(
    field: tuple[str, tuple[Any, ...]], value: Any
) -> None:
    kind, path = field
    if not (value if isinstance(value, int) else 0) > -(2**53):
        value = -1
    with pytest.raises(ValidationError):
        ENTRY.validate_json(replaced(EXAMPLES[kind], path, value))


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for item in schema.values():
            yield from objects(item)
    elif isinstance(schema, list):
        for item in schema:
            yield from objects(item)


def test_every_string_of_the_schema_is_bounded_and_every_object_closed() -> None:
    strings = 0
    for part in objects(ENTRY.json_schema()):
        if part.get("type") == "string" and "enum" not in part and "const" not in part:
            strings += 1
            pattern = part["pattern"]
            assert pattern.startswith("^")
            assert pattern.endswith("$")
            longest = part.get("maxLength", 100)
            assert longest <= 100
            assert not any(
                "maxLength" not in part and re.fullmatch(pattern, letter * 1000) for letter in "a0A"
            )
            assert "." not in re.sub(r"\[[^\]]*\]|\\.", "", pattern), "a dot takes any character"
        assert part.get("type") != "number", "records hold no floats"
        if part.get("type") == "object":
            assert part["additionalProperties"] is False
    assert strings > 5


@pytest.mark.parametrize("kind", EXAMPLES)
def test_unknown_fields_are_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        ENTRY.validate_json(orjson.dumps({**EXAMPLES[kind], "note": "anything"}))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValidationError):
        ENTRY.validate_json(b'{"kind":"prompt","text":"x"}')


@pytest.mark.parametrize(
    "time", ["2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-11-30T25:00:00Z"]
)
def test_a_time_that_does_not_exist_is_refused(time: str) -> None:
    with pytest.raises(ValidationError):
        ENTRY.validate_json(replaced(EXAMPLES["genesis"], ("time",), time))


def test_records_cannot_be_changed_afterwards() -> None:
    record = evidence.trial(TRIAL)
    with pytest.raises(ValidationError, match="frozen"):
        record.trial = digest_bytes(b"other")  # type: ignore[misc]


def test_nothing_is_converted_silently() -> None:
    with pytest.raises(ValidationError):
        ENTRY.validate_json(replaced(EXAMPLES["start-failure"], ("elapsed_ms",), "9"))
    with pytest.raises(ValidationError):
        ENTRY.validate_json(replaced(EXAMPLES["reservation"], ("experimental",), 1))


def test_unknown_is_null_and_differs_from_zero() -> None:
    unknown = evidence.trial(TRIAL, usage={"completion_tokens": None})
    zero = evidence.trial(TRIAL, usage={"completion_tokens": 0})
    assert canonical_json(unknown.model_dump(mode="json")) != canonical_json(
        zero.model_dump(mode="json")
    )


COUNTS = st.none() | st.integers(0, 2**53 - 1)


@settings(max_examples=100, deadline=None)
@given(COUNTS, COUNTS, st.booleans(), st.lists(st.sampled_from(CheckOutcome), max_size=4))
def test_the_canonical_form_is_that_of_rfc_8785_and_reads_back(
    tokens: int | None, rate: int | None, matches: bool, outcomes: list[CheckOutcome]
) -> None:
    record = evidence.trial(
        TRIAL,
        usage={"completion_tokens": tokens},
        timings={"completion_tokens_per_s_milli": rate},
        agent={"model_name_matches": matches},
        checks={f"check-{i}": outcome for i, outcome in enumerate(outcomes)},
    )
    plain = record.model_dump(mode="json")
    data = canonical_json(plain)
    assert data == rfc8785.dumps(plain)
    again = ENTRY.validate_json(data)
    assert isinstance(again, Trial)
    assert again == record
