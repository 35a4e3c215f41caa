"""Scalar types of manifest fields: each says which spelling it takes and what it becomes.

YAML readers disagree about plain (unquoted) scalars: `no`, `1e3`, `010` and `2026-01-01` are a
boolean, a number, an octal and a date for some, and text for others. Here a scalar arrives as
`Scalar`, its text together with whether it was plain, and the field's type decides:

- text fields refuse a plain scalar that YAML 1.1 or 1.2 would read as another type;
- typed fields (`Integer`, `Number`, `Flag`) take one plain spelling and refuse quoted text.

So editors, other readers and we always see the same value. Values that are not `Scalar` (models
built in Python, the parse cache) must already have the Python type.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from qualify.core.identifiers import ID_PATTERN, is_identifier

_OTHER_TYPE = re.compile(
    r"""
      (?P<null> ~ | null | Null | NULL | )
    | (?P<boolean> [yYnN] | yes | Yes | YES | no | No | NO | true | True | TRUE | false | False
        | FALSE | on | On | ON | off | Off | OFF )
    | (?P<integer> [-+]?0b[01_]+ | [-+]?0o[0-7_]+ | [-+]?0x[0-9a-fA-F_]+ | [-+]?[0-9][0-9_]*
        | [-+]?[1-9][0-9_]*(:[0-5]?[0-9])+ )
    | (?P<number> [-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?
        | [-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]* | [-+]?\.(inf|Inf|INF) | \.(nan|NaN|NAN) )
    | (?P<date> [0-9]{4}-[0-9]{2}-[0-9]{2}
        | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(\.[0-9]*)?
          ([ \t]*(Z|[-+][0-9]{1,2}(:?[0-9]{2})?))? )
    | (?P<special> = | << )
    """,
    re.VERBOSE,
)
_KIND_WORDS = {
    "null": "null", "boolean": "a boolean", "integer": "a number", "number": "a number",
    "date": "a date", "special": "a YAML operator",
}  # fmt: skip
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,15})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9._~/-]*)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff]")

MAX_TEXT = 500
MAX_LONG_TEXT = 20_000
MAX_PATTERN = 1_000
MAX_INTEGER = 2**53 - 1
"""The largest that canonical JSON can hold."""


class Scalar(str):
    """A scalar of a manifest: its text, whether it was plain, and where it stood (from 1)."""

    __slots__ = ("column", "line", "plain")

    plain: bool
    line: int
    column: int

    @classmethod
    def at(cls, text: str, *, plain: bool, line: int = 0, column: int = 0) -> Scalar:
        """Make one; `line` and `column` count from 1."""
        scalar = cls(text)
        scalar.plain, scalar.line, scalar.column = plain, line, column
        return scalar


def other_type(text: str) -> str | None:
    """Say what some YAML reader takes the plain scalar `text` for (`a boolean`), or `None`.

    The patterns are those of the YAML 1.1 type repository and of the YAML 1.2 core schema.
    """
    match = _OTHER_TYPE.fullmatch(text)
    return None if match is None else _KIND_WORDS[str(match.lastgroup)]


def mistake(what: str, fix: str = "", at: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """A mistake with its advice; `at` is the path of the field below the validated value."""
    return PydanticCustomError("manifest", "{what}", {"what": what, "fix": fix, "at": at})


def _text_of(value: Any, wanted: str) -> str:
    """Plain `str` of a value for a text field."""
    if not isinstance(value, str):
        raise mistake(f"must be {wanted}, not {_kind(value)}")
    if isinstance(value, Scalar) and value.plain:
        other = other_type(value)
        if other is not None:
            raise mistake(f"{shown(value)} is read as {other} by some YAML readers", "quote it")
    return str(value)


def _plain_of(value: Any, wanted: str) -> str | None:
    """Text of a plain scalar for a typed field, or `None` when `value` is no `Scalar`."""
    if not isinstance(value, Scalar):
        return None
    if not value.plain:
        raise mistake(f"must be {wanted}, not text", "remove the quotes")
    return str(value)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return "text"
    return type(value).__name__


def shown(text: str) -> str:
    """The text in quotes for a message, cut when it is long."""
    return repr(str(text)) if len(text) <= 60 else repr(str(text)[:57]) + "…"


def _text(value: Any) -> str:
    text = _text_of(value, "text")
    if not text or text != text.strip():
        raise mistake("must not be empty or start or end with a blank")
    if _CONTROL.search(text):
        raise mistake("must be one line without control characters")
    return text


def _long_text(value: Any) -> str:
    return _text_of(value, "text")


def _identifier(value: Any) -> str:
    text = _text_of(value, "an id")
    if not is_identifier(text):
        raise mistake(
            f"{shown(text)} is not an id",
            "use up to 80 of a-z 0-9 . _ - and start with a letter or digit",
        )
    return text


def _integer(value: Any) -> int:
    text = _plain_of(value, "a whole number")
    if text is None:
        if type(value) is not int:
            raise mistake(f"must be a whole number, not {_kind(value)}")
        return value
    if not _INTEGER.fullmatch(text) or text == "-0":
        raise mistake(f"{shown(text)} is not a whole number", "write digits only, as in 32768")
    number = int(text)
    if abs(number) > MAX_INTEGER:
        raise mistake(f"{text} is out of range", f"at most {MAX_INTEGER}")
    return number


def _flag(value: Any) -> bool:
    text = _plain_of(value, "true or false")
    if text is None:
        if type(value) is not bool:
            raise mistake(f"must be true or false, not {_kind(value)}")
        return value
    if text not in ("true", "false"):
        raise mistake(f"{shown(text)} is not true or false", "write true or false")
    return text == "true"


def _number(value: Any) -> Decimal:
    text = _plain_of(value, "a number")
    if text is None:
        if type(value) is not str and not isinstance(value, Decimal) and type(value) is not int:
            raise mistake(f"must be a number, not {_kind(value)}")
        text = str(value)
    if not _NUMBER.fullmatch(text):
        raise mistake(f"{shown(text)} is not a number", "write it as 7.5, without an exponent")
    return Decimal(canonical_number(Decimal(text)))


def canonical_number(value: Decimal) -> str:
    """The one spelling of a number: no exponent, no trailing zeros, no minus before zero."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _date(value: Any) -> datetime.date:
    if type(value) is datetime.date:
        return value
    text = _text_of(value, "a date")
    try:
        if not _DATE.fullmatch(text):
            raise ValueError
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise mistake(f"{shown(text)} is not a date", 'write it as "2026-07-21"') from error


def _address(value: Any) -> str:
    text = _text(value)
    if not _ADDRESS.fullmatch(text):
        raise mistake(
            f"{shown(text)} is not an address",
            "write https://host:port/v1, without user, query or fragment",
        )
    return text


def _sha256(value: Any) -> str:
    text = _text_of(value, "a SHA-256")
    if not _SHA256.fullmatch(text):
        raise mistake(f"{shown(text)} is not a SHA-256", "write 64 digits of 0-9 a-f")
    return text


def _relative_path(value: Any) -> str:
    text = _text(value)
    parts = text.split("/")
    if "\\" in text or text.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise mistake(
            f"{shown(text)} is not a relative path",
            "write names joined by /, without a leading / and without . or ..",
        )
    return text


def _regular_expression(value: Any) -> str:
    text = _text_of(value, "a regular expression")
    if not text or len(text) > MAX_PATTERN:
        raise mistake(f"must have 1 to {MAX_PATTERN} characters")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise mistake(f"{shown(text)} is not a regular expression: {error}") from error
    return text


Text = Annotated[str, BeforeValidator(_text), StringConstraints(min_length=1, max_length=MAX_TEXT)]
"""One line of 1 to 500 characters."""

LongText = Annotated[str, BeforeValidator(_long_text), StringConstraints(max_length=MAX_LONG_TEXT)]
"""Any text of up to 20,000 characters."""

Identifier = Annotated[
    str,
    BeforeValidator(_identifier),
    WithJsonSchema({"type": "string", "pattern": ID_PATTERN}),
]
"""Id of a manifest (see `core.identifiers`)."""

Parameter = Annotated[
    str, BeforeValidator(_text), StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
]
"""Name of a parameter or of a captured value."""

Integer = Annotated[int, BeforeValidator(_integer)]
"""A whole number, written in plain decimal digits."""

Flag = Annotated[bool, BeforeValidator(_flag)]
"""`true` or `false`, nothing else."""

Number = Annotated[
    Decimal,
    BeforeValidator(_number),
    PlainSerializer(canonical_number, return_type=str, when_used="json"),
    WithJsonSchema({"type": "number"}),
]
"""A decimal number, exact; dumped to JSON as its canonical text."""

Date = Annotated[
    datetime.date,
    BeforeValidator(_date),
    WithJsonSchema({"type": "string", "format": "date"}),
]
"""A day, written in quotes: "2026-07-21"."""

Sha256 = Annotated[
    str,
    BeforeValidator(_sha256),
    WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{64}$"}),
]
"""64 lower-case hexadecimal digits."""

Address = Annotated[
    str,
    BeforeValidator(_address),
    StringConstraints(max_length=MAX_TEXT),
    WithJsonSchema({"type": "string", "pattern": f"^{_ADDRESS.pattern}$", "maxLength": MAX_TEXT}),
]
"""An http or https address that carries no credentials."""

RelativePath = Annotated[
    str,
    BeforeValidator(_relative_path),
    StringConstraints(max_length=MAX_TEXT),
]
"""A relative POSIX path that cannot climb out of its folder."""

RegularExpression = Annotated[
    str,
    BeforeValidator(_regular_expression),
    WithJsonSchema({"type": "string", "format": "regex", "minLength": 1, "maxLength": MAX_PATTERN}),
]
"""A regular expression of Python's `re`."""
