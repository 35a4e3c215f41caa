"""Scalars: one spelling for each type, and no plain text that readers understand differently."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from qualify.manifests import scalars
from qualify.manifests.scalars import Scalar, other_type


def read(kind: Any, text: str, *, plain: bool) -> Any:
    return TypeAdapter(kind).validate_python(Scalar.at(text, plain=plain))


def refusal(kind: Any, text: str, *, plain: bool) -> dict[str, Any]:
    with pytest.raises(ValidationError) as caught:
        read(kind, text, plain=plain)
    error = caught.value.errors()[0]
    return {"what": error["msg"], **error.get("ctx", {})}


TRAPS = [
    "no", "No", "NO", "yes", "on", "off", "y", "n", "true", "False", "null", "~", "", "1", "-1",
    "+1", "010", "0o10", "0x1F", "0b11", "1_000", "1:30", "190:20:30", "1e3", "1E3", "1.5", ".5",
    "5.", "1_0.5", "-.inf", ".NaN", "1e-3", "12.10", "1234567e10", "2026-01-01",
    "2026-1-1T1:00:00Z", "2026-01-01 10:00:00 +01:00", "=", "<<",
]  # fmt: skip


@pytest.mark.parametrize("text", TRAPS)
def test_plain_text_that_some_reader_takes_for_another_type_must_be_quoted(text: str) -> None:
    assert "quote it" in refusal(scalars.LongText, text, plain=True)["fix"]
    assert read(scalars.LongText, text, plain=False) == text


@pytest.mark.parametrize(
    "text",
    ["node", "nope", "1.2.3", "2026.10.11549", "0.25.1+cu129", "1e", "e3", "12.10.1", "2026-01",
     "10:00:00:", "0o9x", "none", "nan", "inf", "1-2", "_1", "f86cb2c1", "12e45a", "a: b"],
)  # fmt: skip
def test_plain_text_that_every_reader_takes_for_text_is_taken(text: str) -> None:
    assert other_type(text) is None
    assert read(scalars.Text, text, plain=True) == text


@pytest.mark.parametrize("text", ["010", "+5", "1_000", "0x10", "1e3", "-0", "5.0", "", "9" * 17])
def test_a_whole_number_has_one_spelling(text: str) -> None:
    refusal(scalars.Integer, text, plain=True)


def test_a_whole_number_is_plain_and_within_what_canonical_json_holds() -> None:
    assert read(scalars.Integer, "-12", plain=True) == -12
    assert read(scalars.Integer, str(2**53 - 1), plain=True) == 2**53 - 1
    assert "out of range" in refusal(scalars.Integer, str(2**53), plain=True)["what"]
    assert refusal(scalars.Integer, "12", plain=False)["fix"] == "remove the quotes"


@pytest.mark.parametrize("text", ["True", "yes", "on", "1", "TRUE"])
def test_a_flag_is_true_or_false_and_nothing_else(text: str) -> None:
    refusal(scalars.Flag, text, plain=True)
    refusal(scalars.Flag, "true", plain=False)
    assert read(scalars.Flag, "true", plain=True) is True
    assert read(scalars.Flag, "false", plain=True) is False


@pytest.mark.parametrize(
    ("text", "canonical"), [("7.50", "7.5"), ("0", "0"), ("-0.0", "0"), ("10", "10"), ("1.0", "1")]
)
def test_equal_numbers_are_dumped_alike(text: str, canonical: str) -> None:
    value = read(scalars.Number, text, plain=True)
    assert value == Decimal(text)
    assert TypeAdapter(scalars.Number).dump_python(value, mode="json") == canonical


@pytest.mark.parametrize("text", ["1e3", ".5", "5.", "01.5", ".inf", "1_0.5"])
def test_a_number_has_no_exponent_and_no_missing_digits(text: str) -> None:
    refusal(scalars.Number, text, plain=True)


def test_a_float_is_refused_because_it_is_not_what_was_written() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(scalars.Number).validate_python(0.1)
    assert TypeAdapter(scalars.Number).validate_python("0.1") == Decimal("0.1")


def test_a_date_is_quoted_and_exists() -> None:
    assert read(scalars.Date, "2026-07-21", plain=False) == datetime.date(2026, 7, 21)
    assert "quote it" in refusal(scalars.Date, "2026-07-21", plain=True)["fix"]
    refusal(scalars.Date, "2026-02-30", plain=False)
    refusal(scalars.Date, "20260721", plain=False)


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../b", "a//b", "./a", "a/", "a\\b", "a/."])
def test_a_relative_path_cannot_leave_its_folder(path: str) -> None:
    refusal(scalars.RelativePath, path, plain=False)
    assert read(scalars.RelativePath, "data/part01.bin", plain=True) == "data/part01.bin"


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<a>x)(?P<a>y)", ""])
def test_a_regular_expression_compiles(pattern: str) -> None:
    refusal(scalars.RegularExpression, pattern, plain=False)
    assert read(scalars.RegularExpression, "a(b|c)", plain=True) == "a(b|c)"


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31m", " a", "a ", "a\u202eb", "", "x" * 501])
def test_text_is_one_clean_line(text: str) -> None:
    refusal(scalars.Text, text, plain=False)
    assert read(scalars.Text, "x" * 500, plain=False) == "x" * 500


@pytest.mark.parametrize("name", ["A", "a..b", "-a", "a/b", "a b", "a" * 81, "ä"])
def test_an_id_is_safe_as_a_file_name(name: str) -> None:
    refusal(scalars.Identifier, name, plain=False)
    assert read(scalars.Identifier, "qwen2.5-coder-1.5b_x", plain=True) == "qwen2.5-coder-1.5b_x"


def test_a_digest_is_lower_case_and_whole() -> None:
    refusal(scalars.Sha256, "A" * 64, plain=False)
    refusal(scalars.Sha256, "a" * 63, plain=False)
    assert "quote it" in refusal(scalars.Sha256, "1" * 64, plain=True)["fix"]
    assert read(scalars.Sha256, "a" * 64, plain=True) == "a" * 64
