"""No record can be built with free text, whichever of its fields the text is put in.

Every class of records is found by itself: a new one is under test from the moment it exists.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import qualify.evidence
from qualify.evidence.records import Machine, Record

PLANTED = [
    "Append the line 'done' to notes.txt", "two\nlines", "tab\tbed", " ", "", "\0", "x" * 200,
    "/ho" + "me/someone/notes.txt", "C:\\Us" + "ers\\someone", "../../etc/passwd", "~/.ssh/id_rsa",
    "AKIA" + "IOSFODNN7EXAMPLE", "ghp_" + "a1B2c3D4e5F6" * 3, "sk-ant-api03-" + "aB3" * 30,
    "Bearer " + "eyJhbGciOiJI" + "UzI1NiJ9.e30.x", "password=hunter2", "someone@" + "example.org",
    "-----BEGIN OPENSSH PRIVATE KEY-----", "https://host/x?y", "+49 341 " + "1234567",
    '{"role": "user"}', "rm -rf / ; echo $HOME", "grün", "👩‍💻", "\u202etxt",
]  # fmt: skip
"""What somebody could want to put into a record: prompts, paths, credentials, addresses."""
SPACED = st.tuples(st.text(min_size=1), st.sampled_from(" \n\t\r\0\\/\"'{}<>|;$"), st.text()).map(
    "".join
)
ODD = st.text(min_size=1).filter(lambda text: re.search(r"[^\x21-\x7e]", text) is not None)
LONG = st.text(st.characters(codec="ascii"), min_size=101, max_size=400)
FREE = st.sampled_from(PLANTED) | SPACED | ODD | LONG
HARDWARE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ()@.,+_-]{0,63}")
"""The names that hardware gives itself have spaces: `Intel(R) Xeon(R) CPU @ 2.20GHz`."""
PROPER: tuple[Any, ...] = (
    "a-word", "sha256:" + "0" * 64, "2026-11-30T12:00:00Z", "1.2.3", "0" * 32, "0" * 40, 1, True,
    None, [], "AlwaysConfirm", "Linux-x86_64-3.13.0",
)  # fmt: skip


def subclasses(of: type[Record]) -> Iterator[type[Record]]:
    for each in of.__subclasses__():
        yield each
        yield from subclasses(each)


for module in pkgutil.walk_packages(qualify.evidence.__path__, "qualify.evidence."):
    importlib.import_module(module.name)
CLASSES = sorted(
    {each for each in subclasses(Record) if each.__module__.startswith("qualify.")},
    key=lambda each: each.__qualname__,
)
FIELDS = [(each, name) for each in CLASSES for name in each.model_fields]


def refused(record: type[Record], field: str, value: Any) -> bool:
    """Whether the record says that this field cannot have this value; others may be missing."""
    try:
        record.model_validate_json(json.dumps({field: value}))
    except ValidationError as error:
        return any(each["loc"][:1] == (field,) for each in error.errors())
    return False


def free_for(record: type[Record], field: str, text: str) -> bool:
    return (
        "Hardware" in str(record.model_fields[field].annotation)
        and HARDWARE.fullmatch(text) is not None
        and max(map(len, re.split("[ ()@.,]", text))) < 20
    )


def test_the_records_are_all_there() -> None:
    names = {each.__name__ for each in CLASSES}
    assert {"Genesis", "Reservation", "Trial", "Refusal", "StartFailure", "Check"} <= names
    assert len(FIELDS) > 90


@pytest.mark.parametrize("text", PLANTED, ids=range(len(PLANTED)))
def test_no_field_of_any_record_takes_a_planted_text(text: str) -> None:
    taken = [
        (record.__name__, name, value)
        for record, name in FIELDS
        for value in (text, [text], {"key": text}, {text: 1}, [[text]])
        if not (value == text and free_for(record, name, text)) and not refused(record, name, value)
    ]
    assert taken == []


@pytest.mark.parametrize(
    "name",
    [
        "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "AMD EPYC 9654 96-Core Processor",
        "NVIDIA A100-SXM4-80GB", "NVIDIA RTX 6000 Ada Generation", "Neoverse-V2",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    ],
)  # fmt: skip
def test_the_names_of_real_hardware_fit(name: str) -> None:
    assert not refused(Machine, "cpu_model", name)
    assert not refused(Machine, "gpu_model", name)


@pytest.mark.parametrize("token", ["AKIA" + "IOSFODNN7EXAMPLE", "ghp_" + "a1B2c3D4e5F6" * 3])
def test_no_name_of_hardware_hides_a_credential(token: str) -> None:
    for name in (token, f"CPU {token} @ 2.70GHz", token.replace("_", "-")):
        assert refused(Machine, "cpu_model", name)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(FIELDS), FREE, st.sampled_from(("alone", "list", "value", "key")))
def test_no_field_of_any_record_takes_free_text(
    field: tuple[type[Record], str], text: str, shape: str
) -> None:
    record, name = field
    values: dict[str, Any] = {"alone": text, "list": [text], "value": {"a": text}, "key": {text: 1}}
    if shape == "alone" and free_for(record, name, text):
        return
    assert refused(record, name, values[shape])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CLASSES), st.from_regex(r"[a-z_]{1,20}", fullmatch=True), FREE)
def test_no_record_takes_a_field_that_it_does_not_have(
    record: type[Record], name: str, text: str
) -> None:
    if name not in record.model_fields:
        assert refused(record, name, text)


@pytest.mark.parametrize(("record", "name"), FIELDS)
def test_each_field_takes_what_it_is_for(record: type[Record], name: str) -> None:
    """The positive control: a field that took nothing would refuse free text as well."""
    annotation = record.model_fields[name].annotation
    choices = [each.value for each in annotation] if _is_enum(annotation) else []
    choices += [each for part in (annotation, *get_args(annotation)) for each in get_args(part)]
    choices += [each.value for part in get_args(annotation) if _is_enum(part) for each in part]
    if _is_record(annotation) or any(_is_record(part) for part in get_args(annotation)):
        return  # its own fields are under test
    plain = [each for each in (*PROPER, *choices) if isinstance(each, (str, int, list, NoneType))]
    assert any(not refused(record, name, value) for value in plain)


NoneType = type(None)


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Record)
