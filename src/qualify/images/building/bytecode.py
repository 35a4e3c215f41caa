"""Bytecode that Python trusts without looking at the source's time (PEP 552, unchecked-hash).

An image is read-only for its user, so what is not compiled ahead is compiled at every start. The
bytes depend on the source and the path it will have, on nothing else. In particular not on what
the compiling process holds in memory: since its version 3, `marshal` marks objects by whether
something else refers to them at that moment, so that a name that happens to be alive elsewhere
changes the bytes. Version 2 has no such marks, and is read by every Python 3.
"""

from __future__ import annotations

import importlib.util
import marshal
import multiprocessing
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_UNCHECKED = (1).to_bytes(4, "little")
"""Flags of a `.pyc`: it has the hash of its source, which is not compared (PEP 552)."""
_MARSHAL_VERSION = 2
_BATCH_BYTES = 1 << 18
"""Sources of one batch."""
_BATCH_HELD = 8 << 20
"""What the items of one batch carry, compiled or not."""
_BATCHES = 8
_WAITING_HELD = 64 << 20
"""What the items of all batches that wait may carry."""


def bytecode_path(path: str) -> str:
    """Where Python 3.13 looks for the bytecode of a source file."""
    source = PurePosixPath(path)
    return str(source.parent / "__pycache__" / f"{source.stem}.cpython-313.pyc")


def compiled(source: bytes, path: str) -> bytes | None:
    """Bytecode of a source that will lie at the absolute `path`; `None` when it is no Python 3.13.

    Packages ship templates and code for other versions with the ending `.py`; installers leave
    them uncompiled too.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError):
        return None
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
    return head + marshal.dumps(code, _MARSHAL_VERSION)


def with_bytecode[Item](
    items: Iterable[Item],
    source_of: Callable[[Item], tuple[str, bytes] | None],
    workers: int,
) -> Iterator[tuple[Item, bytes | None]]:
    """Each item, in order, with the bytecode of its source.

    `source_of` gives the absolute path and the bytes of an item that is to be compiled, `None` for
    any other. Compiles ahead in `workers` processes. What waits for its turn is bounded by what
    all items carry (their bytes, or those of their parts as `data`), not only those to compile:
    64 MiB, one batch, and the item at hand. The processes start afresh: a copy of one with threads
    could wait for ever for a lock that a thread held. One that dies ends the work with an error.
    """
    with ProcessPoolExecutor(max(1, workers), multiprocessing.get_context("spawn")) as pool:
        waiting: deque[tuple[_Batch[Item], Future[list[bytes | None]]]] = deque()
        held = 0
        for batch in _batches(items, source_of):
            waiting.append((batch, pool.submit(_compile_all, batch.sources)))
            held += batch.held
            del batch
            while waiting and (len(waiting) > _BATCHES or held > _WAITING_HELD):
                held -= waiting[0][0].held
                yield from _done(*waiting.popleft())
        while waiting:
            yield from _done(*waiting.popleft())


@dataclass
class _Batch[Item]:
    """What goes to a process at once."""

    items: list[tuple[Item, int | None]] = field(default_factory=list)
    """Each with the place of its source among `sources`."""
    sources: list[tuple[str, bytes]] = field(default_factory=list)
    source_bytes: int = 0
    held: int = 0
    """Bytes that the items carry."""

    def add(self, item: Item, source: tuple[str, bytes] | None) -> None:
        self.items.append((item, None if source is None else len(self.sources)))
        self.held += _carried(item)
        if source is not None:
            self.sources.append(source)
            self.source_bytes += len(source[1])

    @property
    def full(self) -> bool:
        return (
            self.source_bytes >= _BATCH_BYTES or self.held >= _BATCH_HELD or len(self.items) >= 4096
        )


def _batches[Item](
    items: Iterable[Item], source_of: Callable[[Item], tuple[str, bytes] | None]
) -> Iterator[_Batch[Item]]:
    batch = _Batch[Item]()
    for item in items:
        batch.add(item, source_of(item))
        if batch.full:
            yield batch
            batch = _Batch[Item]()
    if batch.items:
        yield batch


def _carried(item: object) -> int:
    """Bytes in memory that an item keeps there: it, its parts, or their `data`."""
    parts = item if isinstance(item, tuple) else (item,)
    found = (part if isinstance(part, bytes) else getattr(part, "data", None) for part in parts)
    return sum(len(data) for data in found if isinstance(data, bytes))


def _done[Item](
    batch: _Batch[Item], result: Future[list[bytes | None]]
) -> Iterator[tuple[Item, bytes | None]]:
    made = result.result()
    for item, index in batch.items:
        yield item, None if index is None else made[index]


def _compile_all(sources: list[tuple[str, bytes]]) -> list[bytes | None]:
    return [compiled(source, path) for path, source in sources]
