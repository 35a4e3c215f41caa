"""GGUF headers: the text is found, and no damaged or hostile file gets further than an error."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.runtimes.gguf import GgufError, read_metadata

KEY = "tokenizer.chat_template"


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(*entries, version=3, count=None):
    number = len(entries) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", version, 0, number) + b"".join(entries)


def entry(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


ENTRIES = (
    entry("general.architecture", 8, text("llama")),
    entry("llama.context_length", 4, struct.pack("<I", 8192)),
    entry("llama.rope", 6, struct.pack("<f", 0.5)),
    entry("tokenizer.tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("bc") + text("")),
    entry("tokenizer.scores", 9, struct.pack("<IQ", 6, 2) + struct.pack("<ff", 0, 1)),
    entry(KEY, 8, text("{{ messages }}")),
)


def write(folder, data):
    path = folder / "m.gguf"
    path.write_bytes(data)
    return path


def test_wanted_values_are_read_past_every_kind_of_entry(tmp_path):
    path = write(tmp_path, header(*ENTRIES) + b"tensors")
    assert read_metadata(path, {KEY, "llama.context_length", "not.there"}) == {
        KEY: "{{ messages }}",
        "llama.context_length": 8192,
    }


def test_version_2_is_read_as_well(tmp_path):
    assert read_metadata(write(tmp_path, header(*ENTRIES, version=2)), {KEY}) == {
        KEY: "{{ messages }}"
    }


def test_a_file_without_the_value_says_so_by_leaving_it_out(tmp_path):
    assert read_metadata(write(tmp_path, header(*ENTRIES[:-1])), {KEY}) == {}


@given(st.integers(0, len(header(*ENTRIES)) - 1))
def test_a_header_cut_anywhere_is_an_error(tmp_path_factory, length):
    path = write(tmp_path_factory.mktemp("cut"), header(*ENTRIES)[:length])
    with pytest.raises(GgufError):
        read_metadata(path, {KEY})


@given(st.binary(max_size=200))
def test_no_bytes_after_the_magic_do_more_than_raise(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("noise"), b"GGUF" + struct.pack("<I", 3) + data)
    with contextlib.suppress(GgufError):
        read_metadata(path, {KEY})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ELF\x7f" * 8,
        header(version=1),
        header(version=99),
        header(count=1 << 40),
        header(entry("k", 8, struct.pack("<Q", 1 << 62))),
        header(entry("k", 9, struct.pack("<IQ", 8, 1 << 62) + text("a"))),
        header(entry("k", 9, struct.pack("<IQ", 4, 1 << 62))),
        header(entry("k", 9, struct.pack("<IQ", 9, 1))),
        header(entry("k", 77, b"")),
        header(entry(KEY, 8, struct.pack("<Q", 2 << 20) + b"x" * (2 << 20))),
    ],
)
def test_hostile_headers_are_refused(tmp_path, data):
    with pytest.raises(GgufError):
        read_metadata(write(tmp_path, data), {KEY})
