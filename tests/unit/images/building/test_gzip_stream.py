"""One gzip member, the same for any number of processors, that every reader understands."""

import gzip
import hashlib
import io
import random
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.images.building.gzip_stream import BLOCK, GzipStream


def packed(data: bytes, *, level: int = 4, threads: int = 1, step: int = 1 << 16) -> bytes:
    out = io.BytesIO()
    stream = GzipStream(out, level, threads)
    for start in range(0, len(data), step):
        stream.write(data[start : start + step])
    stream.close()
    assert stream.size == len(out.getvalue())
    assert stream.sha256 == hashlib.sha256(out.getvalue()).hexdigest()
    assert stream.plain_sha256 == hashlib.sha256(data).hexdigest()
    return out.getvalue()


def text(size: int) -> bytes:
    words = random.Random(7).choices([b"import ", b"return ", b"self.", b"0x%x\n" % size], k=size)
    return b"".join(words)[:size]


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5])
def test_what_goes_in_comes_out(size):
    data = text(size)
    assert gzip.decompress(packed(data)) == data


def test_the_number_of_processors_and_the_size_of_writes_change_nothing():
    data = text(4 * BLOCK + 17)
    first = packed(data, threads=1, step=1 << 20)
    assert packed(data, threads=2, step=999) == first
    assert packed(data, threads=7, step=len(data)) == first


def test_the_level_does():
    data = text(BLOCK)
    assert packed(data, level=9) != packed(data, level=1)


def test_it_is_a_single_member_that_names_no_file_and_no_time():
    data = packed(text(2 * BLOCK))
    assert data[:10] == bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255))
    listed = subprocess.run(["gzip", "-lv"], input=data, capture_output=True, check=False)
    assert subprocess.run(["gzip", "-t"], input=data, check=False).returncode == 0, listed


def test_blocks_share_what_came_before_them():
    data = text(BLOCK // 64) * 256
    assert len(packed(data)) < 1.1 * len(gzip.compress(data, 4))


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=5000), st.integers(1, 9), st.integers(1, 3))
def test_any_bytes_survive(data, level, threads):
    assert gzip.decompress(packed(data, level=level, threads=threads, step=100)) == data
