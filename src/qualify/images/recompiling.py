"""Compiled bytecode of an image, held against its source by compiling the source again.

The image's bytecode is never loaded: `marshal` may be harmed by bytes that are made for it. What is
expected is computed from the source and compared as bytes. Where they differ, both are walked side
by side along the expected code: a file may then still differ in nothing but instructions (with
their line and exception tables and the depth of the stack), as the compilers of two releases of one
Python do. Names, constants, arguments and the nesting of functions are always compared.

Streams the layers once, and holds a file only until its partner has come.
"""

from __future__ import annotations

import _imp
import hashlib
import importlib.util
import marshal
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from types import CodeType
from typing import Any

from qualify.images.building.bytecode import compiled
from qualify.images.image import Image
from qualify.images.layers import Allowance, LayerReader
from qualify.images.limits import LIMITS, MIB, Limits

_HEAD = 16
_HASH_BASED, _ALL_FLAGS = 1, 3
_BATCH = MIB
_BATCHES = 16
_IN_PROCESS = 200
"""So many files are compared here: starting processes takes longer."""
_HELD = 512 * MIB
"""What may wait for its partner."""
_MARSHAL_VERSION = 2


class Verdict(StrEnum):
    """What comparing one file with its source gave."""

    SAME = "is what its source gives"
    INSTRUCTIONS = "has other instructions than its source gives"
    """Nothing else differs; what another release of the same Python compiles may look so."""
    ANOTHER_PYTHON = "is of a Python that is not the one here"
    """Its source's hash is right; its code was not compared."""
    UNREAD = "could not be read beside its source"
    CODE = "is not the code of its source"
    SOURCE_HASH = "was made from another source"
    BY_TIME = "goes by the time of its source, not by a hash"
    MAGIC = "has the mark of another Python than its name"
    NO_PYTHON = "has a source that cannot be compiled"
    SHORT = "is no bytecode"


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and its bytecode: path and SHA-256 of each, and the layers they are in."""

    source_path: str
    code_path: str
    source: bytes
    code: bytes
    tag: str
    """Of the bytecode's name, such as `cpython-313`."""
    layers: tuple[int, int]


def verdicts(
    image: Image,
    pairs: Iterable[Pair],
    progress: Callable[[int], None] | None = None,
    limits: Limits = LIMITS,
) -> Iterator[tuple[Pair, Verdict]]:
    """The verdict on each pair, in any order; `progress` gets the stored bytes read.

    Raises `ImageFault` for a layer that cannot be read, `BrokenProcessPool` when a source ends the
    process that compiles it.
    """
    waiting = _Waiting(pairs)
    workers = _Workers(many=len(waiting.left) > _IN_PROCESS)
    try:
        for pair, source, code in _contents(image, waiting, progress, limits):
            yield from workers.put(pair, source, code)
        yield from workers.finish()
    finally:
        workers.close()
    yield from ((pair, Verdict.UNREAD) for pair in waiting.left)


class _Waiting:
    """Pairs that lack a content, by the digests that they need."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.left = dict.fromkeys(pairs)
        self._needed: dict[bytes, list[Pair]] = {}
        self._found: dict[bytes, bytes] = {}
        self._held = 0
        for pair in self.left:
            for digest in {pair.source, pair.code}:
                self._needed.setdefault(digest, []).append(pair)
        self.layers = {layer for pair in self.left for layer in pair.layers}

    def give(self, data: bytes) -> Iterator[tuple[Pair, bytes, bytes]]:
        """Take a content; the pairs that are complete with it."""
        digest = hashlib.sha256(data).digest()
        if digest in self._found or digest not in self._needed:
            return
        if self._held + len(data) > _HELD:
            return
        self._found[digest] = data
        self._held += len(data)
        for pair in list(self._needed[digest]):
            if pair.source in self._found and pair.code in self._found:
                yield pair, self._found[pair.source], self._found[pair.code]
                self._done(pair)

    def _done(self, pair: Pair) -> None:
        del self.left[pair]
        for digest in {pair.source, pair.code}:
            self._needed[digest].remove(pair)
            if not self._needed[digest]:
                del self._needed[digest]
                self._held -= len(self._found.pop(digest))


def _contents(
    image: Image,
    waiting: _Waiting,
    progress: Callable[[int], None] | None,
    limits: Limits,
) -> Iterator[tuple[Pair, bytes, bytes]]:
    allowance = Allowance(limits)
    for layer in image.layers:
        if layer.index not in waiting.layers or not waiting.left:
            continue
        with LayerReader(image, layer, allowance, progress) as reader:
            for member in reader.members():
                if (
                    member.kind == "file"
                    and member.path.endswith((".py", ".pyc"))
                    and member.size <= limits.text
                ):
                    yield from waiting.give(b"".join(reader.chunks()))


class _Workers:
    """Compares in processes of their own, where there is much to compare."""

    def __init__(self, *, many: bool) -> None:
        # Fresh processes: a copy of one with threads can wait for ever for a lock of theirs.
        self._pool = (
            ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"))
            if many
            else None
        )
        self._running: deque[tuple[list[Pair], Future[list[Verdict]]]] = deque()
        self._pairs: list[Pair] = []
        self._batch: list[tuple[str, str, bytes, bytes]] = []
        self._size = 0

    def put(self, pair: Pair, source: bytes, code: bytes) -> Iterator[tuple[Pair, Verdict]]:
        """Add one comparison; what is done by now."""
        self._pairs.append(pair)
        self._batch.append((pair.source_path, pair.tag, source, code))
        self._size += len(source) + len(code)
        if self._size >= _BATCH:
            yield from self._send()

    def _send(self) -> Iterator[tuple[Pair, Verdict]]:
        pairs, batch = self._pairs, self._batch
        self._pairs, self._batch, self._size = [], [], 0
        if self._pool is None:
            yield from zip(pairs, compare(batch), strict=True)
            return
        self._running.append((pairs, self._pool.submit(compare, batch)))
        while len(self._running) > _BATCHES:
            yield from self._next()

    def _next(self) -> Iterator[tuple[Pair, Verdict]]:
        pairs, result = self._running.popleft()
        yield from zip(pairs, result.result(), strict=True)

    def finish(self) -> Iterator[tuple[Pair, Verdict]]:
        """Everything that is not done yet."""
        yield from self._send()
        while self._running:
            yield from self._next()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def compare(batch: list[tuple[str, str, bytes, bytes]]) -> list[Verdict]:
    """The verdict on each (path of the source without leading slash, tag, source, bytecode)."""
    return [_verdict(path, tag, source, code) for path, tag, source, code in batch]


def _verdict(path: str, tag: str, source: bytes, code: bytes) -> Verdict:
    fault = _fault_of_head(tag, source, code[:_HEAD])
    if fault is not None:
        return fault
    try:
        expected = compiled(source, f"/{path}")
    except (MemoryError, OverflowError):
        expected = None
    if expected is None:
        return Verdict.NO_PYTHON
    if expected[_HEAD:] == code[_HEAD:]:
        return Verdict.SAME
    same = _SideBySide(expected[_HEAD:], code[_HEAD:]).same_but_instructions()
    return Verdict.INSTRUCTIONS if same else Verdict.CODE


def _fault_of_head(tag: str, source: bytes, head: bytes) -> Verdict | None:
    """What the first bytes say against a file; also when its code cannot be compared here."""
    magic, flags = head[:4], int.from_bytes(head[4:8], "little")
    if len(head) < _HEAD:
        return Verdict.SHORT
    if not flags & _HASH_BASED or flags > _ALL_FLAGS:
        return Verdict.BY_TIME
    # PEP 552: the key of the hash is the magic number of the Python that the file is of.
    if head[8:] != _imp.source_hash(int.from_bytes(magic, "little"), source):
        return Verdict.SOURCE_HASH
    if (tag == sys.implementation.cache_tag) != (magic == importlib.util.MAGIC_NUMBER):
        return Verdict.MAGIC
    return None if magic == importlib.util.MAGIC_NUMBER else Verdict.ANOTHER_PYTHON


class _Differs(Exception):
    pass


class _SideBySide:
    """Walks expected bytes of `marshal` (version 2, which has no references) and other ones."""

    def __init__(self, expected: bytes, other: bytes) -> None:
        self._a, self._b = expected, other
        self._at_a = self._at_b = 0

    def same_but_instructions(self) -> bool:
        try:
            self._code(marshal.loads(self._a))  # noqa: S302 compiled here
        except _Differs:
            return False
        return self._at_b == len(self._b)

    def _code(self, code: CodeType) -> None:
        """As CPython 3.13 writes a code object (`w_complex_object` in Python/marshal.c)."""
        self._equal(1 + 3 * 4)  # the type, and three counts of arguments
        self._skip(4)  # the depth of the stack
        self._equal(4)  # flags
        self._skip_bytes()  # instructions
        self._equal(1 + 4)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            else:
                self._equal_object(constant)
        self._equal_object(code.co_names)
        self._equal_names()
        self._equal(1 + 4 + self._length())  # kinds of the variables
        for text in (code.co_filename, code.co_name, code.co_qualname):
            self._equal_object(text)
        self._equal(4)  # first line
        self._skip_bytes()  # lines
        self._skip_bytes()  # exceptions

    def _equal(self, size: int) -> None:
        end_a, end_b = self._at_a + size, self._at_b + size
        if self._a[self._at_a : end_a] != self._b[self._at_b : end_b]:
            raise _Differs
        self._at_a, self._at_b = end_a, end_b

    def _equal_object(self, value: Any) -> None:
        self._equal(len(marshal.dumps(value, _MARSHAL_VERSION)))

    def _equal_names(self) -> None:
        """The names of variables, which a code object gives only sorted by their kinds."""
        count = self._length()
        self._equal(1 + 4)
        for _ in range(count):
            self._equal(1 + 4 + self._length())

    def _length(self) -> int:
        """The length that follows the type at the expected place."""
        return int.from_bytes(self._a[self._at_a + 1 : self._at_a + 5], "little")

    def _skip(self, size: int) -> None:
        self._at_a += size
        self._at_b += size

    def _skip_bytes(self) -> None:
        """Past a bytes object in both, of any length."""
        if self._b[self._at_b : self._at_b + 1] != b"s":
            raise _Differs
        self._at_a += 5 + self._length()
        length = int.from_bytes(self._b[self._at_b + 1 : self._at_b + 5], "little")
        self._at_b += 5 + length
        if self._at_b > len(self._b):
            raise _Differs
