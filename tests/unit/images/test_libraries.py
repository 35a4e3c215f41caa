"""What ELF files ask for, read from a stream, against binutils and against whole-file reading."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.images import libraries
from qualify.images.libraries import NeededLibraries
from support.images import elf


def read(data: bytes, piece: int = 1 << 20) -> tuple[str, ...] | None:
    reader = NeededLibraries()
    for start in range(0, len(data), piece):
        reader.feed(data[start : start + piece])
    return reader.result()


@given(
    st.lists(st.from_regex(r"lib[a-z]{1,20}\.so\.[0-9]", fullmatch=True), max_size=5),
    st.integers(0, 3000),
    st.booleans(),
    st.integers(1, 4000),
)
def test_names_are_found_whatever_the_pieces(names, filler, strings_last, piece):
    assert read(elf(*names, filler=filler, strings_last=strings_last), piece) == tuple(names)


@pytest.mark.parametrize("strings_last", [True, False])
def test_a_file_larger_than_what_is_kept_is_read(strings_last, monkeypatch):
    monkeypatch.setattr(libraries, "_HEAD", 4096)
    data = elf("libcudart.so.12", filler=100_000, strings_last=strings_last)
    assert read(data, 1000) == ("libcudart.so.12",)


@pytest.mark.parametrize(("recent", "found"), [(1 << 20, ("libcudart.so.12",)), (10, None)])
def test_a_string_table_that_has_just_passed_is_at_hand(recent, found, monkeypatch):
    """As patchelf leaves it: behind what is kept of the start, before the dynamic section."""
    monkeypatch.setattr(libraries, "_HEAD", 64 + 2 * 56)
    monkeypatch.setattr(libraries, "_RECENT", recent)
    assert read(elf("libcudart.so.12", filler=500, strings_last=False), 100) == found


@pytest.mark.parametrize("cut", [10, 70, 200, 260])
def test_a_truncated_file_cannot_be_told(cut):
    data = elf("libcudart.so.12", "libc.so.6")
    assert read(data[: min(cut, len(data) - 1)]) is None


def test_a_file_for_another_machine_word_cannot_be_told():
    data = bytearray(elf("libc.so.6"))
    data[4] = 1
    assert read(bytes(data)) is None


@given(st.binary(max_size=400), st.integers(0, 300))
def test_no_bytes_make_the_reader_fail(noise, at):
    data = bytearray(elf("libc.so.6", filler=50))
    data[at : at + len(noise)] = noise
    assert read(b"\x7fELF\x02\x01" + bytes(data[6:])) is not False


def test_real_libraries_are_read_as_binutils_reads_them():
    assert shutil.which("readelf"), "binutils is needed for this test"
    import orjson

    files = [Path(sys.executable).resolve(), Path(orjson.__file__).with_name("orjson")]
    files = [path for path in files if path.is_file()]
    files += sorted(Path("/usr/lib/x86_64-linux-gnu").glob("lib[a-m]*.so.*"))[:40]
    compared = 0
    for path in files:
        data = path.read_bytes()
        if not data.startswith(b"\x7fELF"):
            continue
        out = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
        expected = tuple(re.findall(r"\(NEEDED\).*\[(.+)\]", out.stdout))
        assert read(data) == expected, path
        compared += 1
    assert compared >= 10
