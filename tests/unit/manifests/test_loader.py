"""Hostile and mistaken YAML: one clear error each, at its place, quickly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.manifests.kinds import KINDS
from qualify.manifests.loader import (
    MAX_ALIASES,
    MAX_BYTES,
    Document,
    YamlMistake,
    parse,
    read_manifest,
)
from qualify.manifests.scalars import Scalar
from qualify.manifests.validation import validate
from support.projects import SOUND

BAD: dict[str, tuple[bytes, str, tuple[int, int]]] = {
    "empty": (b"", "is empty", (0, 0)),
    "only a comment": (b"# nothing\n", "is empty", (0, 0)),
    "only blanks": (b" \n\n", "is empty", (0, 0)),
    "byte order mark": (b"\xef\xbb\xbfid: a\n", "byte order mark", (1, 1)),
    "utf-16": ("id: a\n".encode("utf-16"), "byte order mark", (1, 1)),
    "windows line ends": (b"id: a\r\nx: b\r\n", "Windows line ends", (1, 6)),
    "binary": (b"id: a\nx: \x00\x01\n", "is binary", (2, 4)),
    "latin-1": (b"id: a\nx: caf\xe9\n", "not UTF-8", (2, 7)),
    "gzip": (b"\x1f\x8b\x08\x00\x00", "not UTF-8", (1, 2)),
    "right-to-left override": ("id: a\u202eb\n".encode(), "U+202E", (1, 6)),
    "line separator": ("id: a\u2028b\n".encode(), "U+2028", (1, 6)),
    "escape character": (b"id: \x1b[31m\n", "U+001B", (1, 5)),
    "half a surrogate": (b'id: "\\ud800"\n', "surrogate", (1, 5)),
    "tab as indentation": (b"a:\n\tb: c\n", "a tab", (2, 1)),
    "duplicate key": (b"a: x\nb: y\na: z\n", "stands twice (first in line 1)", (3, 1)),
    "nested duplicate key": (b"a:\n  - {b: x, b: y}\n", "stands twice", (2, 12)),
    "tag": (b"a: !!python/object:os.system x\n", "tag", (1, 4)),
    "own tag": (b"a: !secret x\n", "tag !secret", (1, 4)),
    "tag on a collection": (b"a: !!set {b}\n", "tag", (1, 4)),
    "merge key": (b"a: &x {b: c}\nd:\n  <<: *x\n", "merge keys", (3, 3)),
    "directive": (b"%YAML 1.1\n---\na: b\n", "directives", (1, 1)),
    "two documents": (b"a: b\n---\na: c\n", "second document", (2, 1)),
    "cycle": (b"a: &x [b, *x]\n", "a cycle", (1, 11)),
    "cycle through a mapping": (b"a: &x\n  b: *x\n", "a cycle", (2, 6)),
    "alias without anchor": (b"a: *x\n", "names nothing before it", (1, 4)),
    "list as key": (b"? [a]\n: b\n", "a key must be text", (1, 3)),
    "alias as key": (b"a: &x b\n*x : c\n", "a key must be text", (2, 1)),
    "key that is a boolean to some": (b"on: x\n", "'on' is read as a boolean", (1, 1)),
    "key that is a number": (b"1: x\n", "'1' is read as a number", (1, 1)),
    "no value": (b"c: y\na:\nb: x\n", "has no value", (2, 1)),
    "null in another spelling": (b"a: ~\n", "is read as null", (1, 4)),
    "unclosed bracket": (b"a: [b\n", "is not YAML", (2, 1)),
    "unclosed quote": (b'a: "b\n', "is not YAML", (2, 1)),
    "colon in a value": (b"a: b: c\n", "mapping values are not allowed", (1, 5)),
    "outdented": (b"a:\n  b: c\n d: e\n", "is not YAML", (3, 2)),
    "deep nesting": (b"a: " + b"[" * 100 + b"]" * 100, "nested deeper", (1, 27)),
    "very deep nesting": (b"[" * 900_000, "nested deeper", (1, 25)),
    "deep block nesting": (
        b"".join(b" " * n + b"a:\n" for n in range(400)) + b" " * 400 + b"b\n",
        "nested deeper",
        (25, 25),
    ),
    "too many values": (b"a: [" + b"b," * 30_000 + b"]", "more than 20,000 values", (1, 40003)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_error_at_its_place(name: str) -> None:
    data, what, place = BAD[name]
    with pytest.raises(YamlMistake) as caught:
        parse(data)
    assert what in caught.value.what
    assert "\n" not in str(caught.value)
    assert (caught.value.line, caught.value.column) == place


def test_exploding_aliases_are_stopped_by_their_number_and_by_their_size() -> None:
    levels = ["a0: &a0 [" + "x," * 200 + "]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 6)]
    with pytest.raises(YamlMistake, match=r"more than 20,000 values"):
        parse("\n".join(levels).encode())
    many = "a: &x y\nb: [" + ", ".join(["*x"] * (MAX_ALIASES + 1)) + "]\n"
    with pytest.raises(YamlMistake, match="more than 50 aliases"):
        parse(many.encode())


def test_a_few_aliases_are_copied_in() -> None:
    document = parse(b"a: &x {b: c}\nd: *x\ne: [*x, *x]\n")
    assert document.value == {"a": {"b": "c"}, "d": {"b": "c"}, "e": [{"b": "c"}, {"b": "c"}]}


def test_scalars_keep_text_plainness_and_place() -> None:
    document = parse(b'id: 0123\nnested:\n  - "yes"\n  - |\n    two\n    lines\n  - null\n')
    first, nested = document.value["id"], document.value["nested"]
    assert (first, first.plain, first.line, first.column) == ("0123", True, 1, 5)
    assert (nested[0], nested[0].plain, nested[0].line) == ("yes", False, 3)
    assert (nested[1], nested[1].plain) == ("two\nlines\n", False)
    assert nested[2] is None
    assert all(isinstance(item, Scalar) for item in nested[:2])
    assert document.values["nested", 0] == (3, 5)
    assert document.keys["nested",] == (2, 1)


def test_a_quoted_null_and_a_quoted_empty_text_are_text() -> None:
    assert parse(b"a: \"null\"\nb: ''\n").value == {"a": "null", "b": ""}


def test_a_folder_a_pipe_and_a_missing_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "link.yaml").symlink_to("nowhere")
    for name, what in [
        ("folder.yaml", "is a folder"),
        ("pipe.yaml", "not a regular file"),
        ("link.yaml", "cannot be read: No such file"),
    ]:
        with pytest.raises(YamlMistake) as caught:
            read_manifest(tmp_path / name)
        assert what in caught.value.what


def test_fifty_megabytes_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(50_000_000)
    with pytest.raises(YamlMistake, match="50,000,000 bytes"):
        read_manifest(path)
    path.write_bytes(b"a" * MAX_BYTES)
    assert len(read_manifest(path)) == MAX_BYTES


def outcome(data: bytes) -> Document | YamlMistake:
    try:
        return parse(data)
    except YamlMistake as mistake:
        return mistake


@pytest.mark.parametrize(
    "data",
    [b"!" * 900_000, b"'" + b"k" * 900 + b"': x\n'" + b"k" * 900 + b"': x\n",
     b"*" + b"a" * 900_000, b"a: *" + b"a" * 9000],
    ids=["tag", "key", "alias", "unknown alias"],
)  # fmt: skip
def test_a_message_stays_short_whatever_the_file_holds(data: bytes) -> None:
    with pytest.raises(YamlMistake) as caught:
        parse(data)
    assert len(str(caught.value)) < 400


@settings(max_examples=300, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.text("ab:-?[]{},&*!|>'\"%#@\\ \n\t~<=.0", max_size=60).map(str.encode),
    )
)
def test_any_bytes_give_a_document_or_one_mistake(data: bytes) -> None:
    read = outcome(data)
    if isinstance(read, YamlMistake):
        assert read.what
        assert "\n" not in str(read)
        assert len(str(read)) < 400
    else:
        assert read.values


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from([name for name in SOUND if name.startswith("manifests/")]),
    place=st.floats(0, 1),
    junk=st.sampled_from(
        [
            b"",
            b"\n",
            b": ",
            b"- ",
            b"[",
            b"}",
            b"*x ",
            b"&x ",
            b"!t ",
            b"\xff",
            b"null",
            b"1e3",
            b"\t",
        ]
    ),
    cut=st.integers(0, 5),
)
def test_a_spoilt_manifest_is_sound_or_gives_places_in_it(
    name: str, place: float, junk: bytes, cut: int
) -> None:
    data = SOUND[name].encode()
    start = int(place * len(data))
    spoilt = data[:start] + junk + data[start + cut :]
    read = outcome(spoilt)
    if isinstance(read, YamlMistake):
        assert 0 <= read.line <= spoilt.count(b"\n") + 1
        return
    result = validate(read, KINDS[name.split("/")[1]], "file.yaml")
    if isinstance(result, list):
        for mistake in result:
            file, line, column = mistake.where.split(":")
            assert file == "file.yaml"
            assert 1 <= int(line) <= spoilt.count(b"\n") + 1
            assert int(column) >= 1
