"""What is inside of what: encodings, archives, large files, and what nobody can look into."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest
import zstandard

from qualify.scanning import windows
from qualify.scanning.contents import Limits, NotRead, parts
from qualify.scanning.scan import Finding, Report, scan
from qualify.scanning.selection import Chosen, named
from qualify.scanning.windows import BEFORE, BEHIND, OWN, Piece, Places

TODAY = date(2026, 12, 1)
MAIL = "lindqvist@" + "uni-west.edu"
TEXT = f"one\ntwo\nask {MAIL}\n".encode()
DER = bytes.fromhex("30 2e 02 01 00 30 05 06 03 2b 65 70 04 22 04 20") + bytes(range(32))


def tar(members: dict[str, bytes], **more: object) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def zipped(members: dict[str, bytes], comment: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = comment
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def scanned(tmp_path: Path, data: bytes, name: str = "file") -> Report:
    (tmp_path / name).write_bytes(data)
    return scan(named(tmp_path / name, tmp_path), today=TODAY)


PACKED: dict[str, tuple[bytes, str]] = {
    "plain": (TEXT, "file:3:5"),
    "UTF-8 with mark": (b"\xef\xbb\xbf" + TEXT, "file:3:5"),
    "UTF-16": (TEXT.decode().encode("utf-16"), "file:3:5"),
    "UTF-16 without mark": (TEXT.decode().encode("utf-16-be"), "file:3:5"),
    "Latin-1 around it": (b"\xe4\xf6\xfc\n" + TEXT, "file:4:5"),
    "a binary": (b"\0\1\2" * 9 + TEXT, "file:+39"),
    "wide letters in a binary": (b"\0\1\2" * 9 + TEXT.decode().encode("utf-16-le"), "file:+51"),
    "gzip": (gzip.compress(TEXT), "file:3:5"),
    "two gzip members": (gzip.compress(b"x\n") + gzip.compress(TEXT), "file:4:5"),
    "bzip2": (bz2.compress(TEXT), "file:3:5"),
    "xz": (lzma.compress(TEXT), "file:3:5"),
    "zstd": (zstandard.compress(TEXT), "file:3:5"),
    "tar": (tar({"a/b.txt": TEXT}), "file!a/b.txt:3:5"),
    "tar.gz": (gzip.compress(tar({"x": b"y" * 2000, "a/b.txt": TEXT})), "file!a/b.txt:3:5"),
    "tar.zst": (zstandard.compress(tar({"a/b.txt": TEXT})), "file!a/b.txt:3:5"),
    "gzip in a tar": (tar({"a.gz": gzip.compress(TEXT)}), "file!a.gz:3:5"),
    "zip": (zipped({"a.txt": TEXT}), "file!a.txt:3:5"),
    "zip in zip": (zipped({"a.zip": zipped({"b": TEXT})}), "file!a.zip!b:3:5"),
    "zip behind a program": (b"#!/bin/sh\n" + zipped({"a.txt": TEXT}), "file!a.txt:3:5"),
    "comment of a zip": (zipped({"a": b"x"}, comment=MAIL.encode()), "file!comment"),
    "behind the end of a tar": (tar({"a": b"x"}) + TEXT, "file!after the end:+9228"),
}  # fmt: skip


@pytest.mark.parametrize("what", PACKED)
def test_it_is_found_where_it_is(what: str, tmp_path: Path) -> None:
    data, place = PACKED[what]
    report = scanned(tmp_path, data)
    assert {(f.kind, f.position) for f in report.findings} == {("e-mail", place)}


def test_names_in_archives_are_looked_at_and_masked(tmp_path: Path) -> None:
    home = "ho" + "me/lindqvist"
    report = scanned(tmp_path, tar({f"/{home}/empty": b""}))
    assert [(f.kind, f.in_name) for f in report.findings] == [("local-path", True)]
    assert "lindqvist" not in repr(report)


def test_a_private_key_in_bytes_is_found(tmp_path: Path) -> None:
    assert [f.kind for f in scanned(tmp_path, DER, "k.der").findings] == ["private-key"]
    assert scanned(tmp_path, DER.replace(b"\x02\x01\x00", b"\x02\x01\x07"), "other.der").clean


UNREAD: dict[str, tuple[bytes, str]] = {
    "a damaged gzip": (gzip.compress(TEXT * 99)[:-30], "cannot be unpacked"),
    "a damaged zip": (zipped({"a": TEXT})[:-30], "cannot be unpacked"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(90), "7z"),
    "PDF": (b"%PDF-1.7\n" + bytes(90), "PDF"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(90), "picture"),
    "age": (b"age-encryption.org/v1\n-> x\n", "encrypted"),
    "DuckDB without a reader": (bytes(8) + b"DUCK" + bytes(90), "DuckDB"),
    "packed five times": (gzip.compress(gzip.compress(gzip.compress(gzip.compress(gzip.compress(
        TEXT))))), "more than"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNREAD)
def test_what_is_not_looked_into_is_named(what: str, tmp_path: Path) -> None:
    data, why = UNREAD[what]
    report = scanned(tmp_path, data)
    assert not report.clean
    assert [why in (f.why or "") for f in report.findings if f.kind == "unread"] == [True]


def test_an_encrypted_member_is_named(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.txt": TEXT}))
    data[6] |= 1
    directory = data.rfind(b"PK\x01\x02")
    data[directory + 8] |= 1
    (found,) = scanned(tmp_path, bytes(data)).findings
    assert found.why == "is encrypted"


def why(data: bytes, limits: Limits) -> list[str]:
    return [p.why for p in parts(io.BytesIO(data), None, limits) if isinstance(p, NotRead)]


SMALL = Limits(unpacked=1 << 20, ratio=2, members=50, nested=4096, header=1 << 17)
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "gzip": (lambda: gzip.compress(bytes(4 << 20)), "unpacks to more than 1 MiB"),
    "zstd": (lambda: zstandard.compress(bytes(4 << 20)), "unpacks to more than 1 MiB"),
    "zip": (lambda: zipped({"a": bytes(4 << 20)}), "unpacks to more than 1 MiB"),
    "members of a zip": (lambda: zipped({f"{n:02}": b"" for n in range(60)}), "members"),
    "members of a tar": (lambda: tar({str(n): b"" for n in range(60)}), "members"),
    "an archive in an archive": (lambda: tar({"a.gz": gzip.compress(os.urandom(9000))}), "packed"),
    "directory of a zip": (lambda: zipped({"x" * 4000 + str(n): b"" for n in range(40)}), "direct"),
    "a header of a tar": (lambda: tar({"x" * 200_000: b""}), "header"),
    "a header of a packed tar": (lambda: gzip.compress(tar({"x" * 200_000: b""})), "header"),
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_ends_at_its_limit(what: str) -> None:
    make, expected = BOMBS[what]
    assert any(expected in each for each in why(make(), SMALL))


def test_an_archive_within_the_limits_is_read_whole() -> None:
    assert why(tar({str(n): b"x" for n in range(40)}), SMALL) == []


@pytest.mark.parametrize(
    "unit", [b"a", b"password:", b"/home/", b"@a.b", b"0 ", b'{"kty":', b"A\n"]
)
def test_memory_does_not_grow_with_a_line(unit: bytes) -> None:
    class Endless(io.RawIOBase):
        """24 MiB of one line."""

        left = 24 << 20

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            count = min(len(buffer), self.left)
            buffer[:count] = (unit * (count // len(unit) + 1))[:count]
            self.left -= count
            return count

    tracemalloc.start()
    for _ in windows.text_windows(io.BufferedReader(Endless()), "utf-8", ""):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * (OWN + BEHIND)


SHORT = 64 << 10
"""A window for tests, so that there are some."""


@pytest.mark.parametrize(
    "place", [0, SHORT - 10, SHORT, SHORT + BEHIND - 8, 2 * SHORT - 3, 2 * SHORT + 70, 3 * SHORT]
)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("filling", [b" ", b"x\n"])
def test_what_lies_across_windows_is_found_once(
    place: int, binary: bool, filling: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "OWN", SHORT)
    before = (filling * (place // len(filling) + 1))[:place]
    behind = (filling * SHORT)[: SHORT + 99]
    data = before + b" " + MAIL.encode() + b" " + behind
    data = b"\0\0\0" + data if binary else data
    report = scanned(tmp_path, data)
    (found,) = report.findings
    start = data.index(MAIL.encode())
    if binary:
        assert found.offset == start
    else:
        line = data.count(b"\n", 0, start) + 1
        assert (found.line, found.column) == (line, start - data.rfind(b"\n", 0, start))


def test_each_character_belongs_to_exactly_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "OWN", SHORT)
    text = "".join(f"{n:07d}\n" for n in range(SHORT))
    pieces: Iterator[Piece] = windows.windows(iter([text[:5], text[5:]]), "")
    owned = ""
    for piece in pieces:
        start = len(owned) - piece.first
        assert piece.text == text[start : start + len(piece.text)]
        line = text.count("\n", 0, len(owned)) + 1
        assert Places(piece).at(piece.first)[0] == line
        assert not owned or piece.first >= BEFORE
        owned += piece.text[piece.first : piece.last]
    assert owned == text


@pytest.mark.parametrize(
    "unit",
    [
        "password: ", "password='x\\", "untrusted comment: secret key", "A" * 64 + "\n",
        '{"kty":', '"d":"', "-----BEGIN PRIVATE KEY-----\n", "-----BEGIN PUBLIC KEY-----",
        "/ho" + "me/a/", "://a:", "a@b.", "+49 1 ", "\\u0041", "<password x", "eyJ", "DE12 3456 ",
        "a/", "sha256:", "C:\\Users\\",
    ],
)  # fmt: skip
def test_time_is_linear(unit: str, tmp_path: Path) -> None:
    """A pattern that goes back and forth would need hours for these, not seconds."""
    started = time.perf_counter()
    scanned(tmp_path, (unit * (200_000 // len(unit))).encode(), "a.env")
    assert time.perf_counter() - started < 10


def test_a_file_full_of_findings_is_left_and_said_to_be(tmp_path: Path) -> None:
    report = scanned(tmp_path, (MAIL + "\n").encode() * 5000)
    assert report.kinds == {"e-mail": 1000, "unread": 1}


def test_links_are_not_followed_and_their_targets_are_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (tmp_path / "outside.txt").write_bytes(TEXT)
    (root / "inner").symlink_to(tmp_path / "outside.txt")
    (root / "home").symlink_to("/ho" + "me/lindqvist/x")
    (root / "circle").symlink_to("circle")
    report = scan(named(root, root), today=TODAY)
    assert [(f.place, f.kind, f.in_name) for f in report.findings if f.place == "home"] == [
        ("home", "local-path", True)
    ]
    assert "e-mail" not in report.kinds


def test_a_pipe_is_left_out_and_nothing_waits_for_it(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    os.mkfifo(root / "pipe")
    report = scan(named(root, root), today=TODAY)
    assert report.left_out == [("pipe", "a device, a pipe or a socket")]
    late = [Chosen(root / "pipe", "pipe", "file")]
    assert [f.why for f in scan(late, today=TODAY).findings] == [
        "cannot be read (is no file any more)"
    ]


def test_the_declared_size_of_a_directory_is_not_believed(tmp_path: Path) -> None:
    data = bytearray(zipped({"a": TEXT}))
    struct.pack_into("<L", data, data.rfind(b"PK\x05\x06") + 12, 0xFFFFFFF0)
    report = scanned(tmp_path, bytes(data))
    assert [f.kind for f in report.findings] == ["unread"]


def test_a_finding_says_where_but_not_what() -> None:
    assert Finding("a", "e-mail", line=1, column=2).position == "a:1:2"
    assert Finding("a", "e-mail", offset=7).position == "a:+7"
