"""From the bytes of one YAML file to nested Python values with their positions.

Reads a strict part of YAML: one document of block or flow collections and scalars, UTF-8 with LF
line ends. Scalars stay text (`Scalar`); only a plain `null` becomes `None`. Refused with position
and advice: duplicate keys, tags, directives, merge keys, anything nested too deeply, aliases that
are cyclic or too many, and whatever YAML readers understand differently.

Never resolves types, never constructs objects, never reads more than 1 MB.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify.core.errors import UsageError
from qualify.manifests.scalars import Scalar, other_type, shown

if TYPE_CHECKING:
    from ruamel.yaml.error import MarkedYAMLError

MAX_BYTES = 1_000_000
MAX_DEPTH = 24
MAX_ALIASES = 50
MAX_NODES = 20_000

type Place = tuple[str | int, ...]
"""Path of a value inside a document."""
type Position = tuple[int, int]
"""Line and column, both from 1."""

_ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_NULLS = ("", "~", "Null", "NULL")


class YamlMistake(UsageError):
    """A file that cannot be read as a manifest; `line` and `column` from 1, or 0 when none."""

    def __init__(self, what: str, *, fix: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(what, fix=fix)
        self.line = line
        self.column = column


@dataclass(frozen=True)
class Document:
    """A parsed file: its value, and where each value and each key of a mapping stands."""

    value: Any
    values: dict[Place, Position]
    keys: dict[Place, Position]


def read_manifest(path: Path) -> bytes:
    """Return the bytes of a regular file of at most 1 MB. Raises `YamlMistake`."""
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise YamlMistake("is a folder, not a manifest", fix="rename or remove it")
        if not stat.S_ISREG(info.st_mode):
            raise YamlMistake("is not a regular file", fix="remove it")
        if info.st_size > MAX_BYTES:
            raise _too_large(info.st_size)
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise YamlMistake(
            f"cannot be read: {error.strerror or error}", fix="check the file and its permissions"
        ) from error
    if len(data) > MAX_BYTES:
        raise _too_large(len(data))
    return data


def _too_large(size: int) -> YamlMistake:
    return YamlMistake(
        f"has {size:,} bytes, more than the {MAX_BYTES:,} of a manifest",
        fix="manifests describe, data belongs in corpora/",
    )


def parse(data: bytes) -> Document:
    """Parse one manifest. Raises `YamlMistake` for the first thing that is wrong with it."""
    # Costs a sixth of a second, and a warm parse cache never needs it.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    text = _decode(data)
    builder = _Builder()
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except MarkedYAMLError as error:
        raise _syntax(error, text) from error
    except (YAMLError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise YamlMistake(f"is not YAML: {first}") from error
    return builder.document()


def _decode(data: bytes) -> str:
    if not data.strip():
        raise YamlMistake("is empty", fix="write the manifest, or remove the file")
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise YamlMistake(
            "starts with a byte order mark", fix="save it as UTF-8 without one", line=1, column=1
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _position(data[: error.start].decode("utf-8", "replace"))
        raise YamlMistake(
            "is not UTF-8 text", fix="save it as UTF-8", line=line, column=column
        ) from error
    odd = _ODD.search(text)
    if odd is not None:
        line, column = _position(text[: odd.start()])
        if odd[0] == "\r":
            raise YamlMistake(
                "has Windows line ends (CR LF)", fix="save it with LF", line=line, column=column
            )
        what = "is binary" if odd[0] == "\0" else f"holds the hidden character U+{ord(odd[0]):04X}"
        raise YamlMistake(
            what, fix='write it as an escape in "…", or remove it', line=line, column=column
        )
    return text


def _position(before: str) -> Position:
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _syntax(error: MarkedYAMLError, text: str) -> YamlMistake:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    source = text.split("\n")[line - 1] if line else ""
    if "\t" in source[:column]:
        column = source.index("\t") + 1
        return YamlMistake(
            "a tab where blanks are needed", fix="use spaces", line=line, column=column
        )
    problem = " ".join(str(error.problem or error.context or "syntax error").split())[:200]
    fixes = {
        "mapping values are not allowed": "check the indentation, or quote a value that holds ': '",
        "could not find expected ':'": "write `key: value`",
        "expected <block end>": "check the indentation",
        "found character": "quote the value",
    }
    fix = next((text for start, text in fixes.items() if problem.startswith(start)), "")
    return YamlMistake(f"is not YAML: {problem}", fix=fix, line=line, column=column)


@dataclass
class _Open:
    """A collection that is being read."""

    value: dict[str, Any] | list[Any]
    place: Place
    anchor: str | None
    key: str | None = None
    nodes: int = 1


@dataclass
class _Builder:
    """Builds a document from parser events, checking on the way, so that a hostile file is left
    at its first mistake. Aliases are copied in; their size counts each time.
    """

    values: dict[Place, Position] = field(default_factory=dict)
    keys: dict[Place, Position] = field(default_factory=dict)
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    stack: list[_Open] = field(default_factory=list)
    documents: int = 0
    aliases: int = 0
    nodes: int = 0
    root: Any = None

    def take(self, event: Any) -> None:
        """Take the next event of the parser."""
        handler = getattr(self, "_" + type(event).__name__.removesuffix("Event").lower(), None)
        if handler is not None:
            handler(event, event.start_mark.line + 1, event.start_mark.column + 1)

    def document(self) -> Document:
        """Return the finished document."""
        if not self.documents:
            raise YamlMistake("is empty", fix="write the manifest, or remove the file")
        return Document(self.root, self.values, self.keys)

    def _documentstart(self, event: Any, line: int, column: int) -> None:
        if event.version is not None or event.tags:
            raise YamlMistake("YAML directives are not accepted", fix="remove it", line=1, column=1)
        self.documents += 1
        if self.documents > 1:
            raise YamlMistake(
                "a second document in one file", fix="one manifest a file", line=line, column=column
            )

    def _mappingstart(self, event: Any, line: int, column: int) -> None:
        self._open({}, event, line, column)

    def _sequencestart(self, event: Any, line: int, column: int) -> None:
        self._open([], event, line, column)

    def _open(self, value: dict[str, Any] | list[Any], event: Any, line: int, column: int) -> None:
        self._refuse_tag(event, line, column)
        place = self._place(line, column)
        if len(self.stack) >= MAX_DEPTH:
            raise YamlMistake(f"is nested deeper than {MAX_DEPTH} levels", line=line, column=column)
        self.values[place] = (line, column)
        self.stack.append(_Open(value, place, event.anchor))
        if event.anchor is not None:
            self.anchors.pop(event.anchor, None)

    def _mappingend(self, _event: Any, line: int, column: int) -> None:
        closed = self.stack.pop()
        self._add(closed.value, closed.anchor, closed.nodes, line, column)

    _sequenceend = _mappingend

    def _scalar(self, event: Any, line: int, column: int) -> None:
        self._refuse_tag(event, line, column)
        plain = not event.style
        text: str = event.value
        if not text.isascii() and _SURROGATE.search(text):
            raise YamlMistake(
                "holds half of a surrogate pair", fix=r"write the character as \UXXXXXXXX",
                line=line, column=column,
            )  # fmt: skip
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._take_key(top, text, plain, line, column)
            return
        place = self._place(line, column)
        if plain and not text:
            # The parser stands behind the key already, perhaps lines further down.
            line, column = self.keys.get(place, (line, column))
        self.values[place] = (line, column)
        if plain and text in _NULLS:
            raise YamlMistake(
                f"{shown(text)} is read as null" if text else "has no value",
                fix="write null, or a value", line=line, column=column,
            )  # fmt: skip
        value = None if plain and text == "null" else Scalar.at(
            text, plain=plain, line=line, column=column
        )  # fmt: skip
        self._add(value, event.anchor, 1, line, column)

    def _take_key(self, top: _Open, text: str, plain: bool, line: int, column: int) -> None:
        assert isinstance(top.value, dict)
        if plain and text == "<<":
            raise YamlMistake(
                "merge keys are not accepted", fix="write the keys out", line=line, column=column
            )
        other = other_type(text) if plain else None
        if other is not None:
            raise YamlMistake(
                f"the key {shown(text)} is read as {other} by some YAML readers",
                fix="quote it", line=line, column=column,
            )  # fmt: skip
        place = (*top.place, text)
        if text in top.value:
            first = self.keys[place]
            raise YamlMistake(
                f"the key {shown(text)} stands twice (first in line {first[0]})",
                fix="remove one", line=line, column=column,
            )  # fmt: skip
        self.keys[place] = (line, column)
        top.key = text

    def _alias(self, event: Any, line: int, column: int) -> None:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise YamlMistake(
                f"has more than {MAX_ALIASES} aliases", fix="write the values out",
                line=line, column=column,
            )  # fmt: skip
        if any(level.anchor == event.anchor for level in self.stack):
            raise YamlMistake(
                f"the alias *{event.anchor[:40]} stands inside what it names: a cycle",
                fix="write the value out", line=line, column=column,
            )  # fmt: skip
        if event.anchor not in self.anchors:
            raise YamlMistake(
                f"the alias *{event.anchor[:40]} names nothing before it", line=line, column=column
            )
        self.values[self._place(line, column)] = (line, column)
        value, nodes = self.anchors[event.anchor]
        self._add(value, None, nodes, line, column)

    def _refuse_tag(self, event: Any, line: int, column: int) -> None:
        if event.tag is not None:
            raise YamlMistake(
                f"the tag {str(event.tag)[:40]} is not accepted",
                fix="remove it; fields have their types from the schema", line=line, column=column,
            )  # fmt: skip

    def _place(self, line: int, column: int) -> Place:
        """Path of the value that comes next."""
        if not self.stack:
            return ()
        top = self.stack[-1]
        if isinstance(top.value, list):
            return (*top.place, len(top.value))
        if top.key is None:
            raise YamlMistake(
                "a key must be text, not a list, a mapping or an alias", line=line, column=column
            )
        return (*top.place, top.key)

    def _add(self, value: Any, anchor: str | None, nodes: int, line: int, column: int) -> None:
        self.nodes += 1
        if anchor is not None:
            self.anchors[anchor] = (value, nodes)
        if not self.stack:
            self.root = value
            return
        top = self.stack[-1]
        top.nodes += nodes
        if max(top.nodes, self.nodes) > MAX_NODES:
            raise YamlMistake(
                f"has more than {MAX_NODES:,} values, aliases written out",
                fix="manifests describe, data belongs in corpora/", line=line, column=column,
            )  # fmt: skip
        if isinstance(top.value, list):
            top.value.append(value)
        else:
            assert top.key is not None
            top.value[top.key] = value
            top.key = None
