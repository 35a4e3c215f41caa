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
from pathlib import PurePosixPath

_UNCHECKED = (1).to_bytes(4, "little")
"""Flags of a `.pyc`: it has the hash of its source, which is not compared (PEP 552)."""
_MARSHAL_VERSION = 2
_BATCH_BYTES = 1 << 18
_BATCHES = 8


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
    any other. Compiles ahead in `workers` processes and holds a few hundred kilobytes of source for
    each at a time. The processes start afresh: a copy of one with threads could wait for ever for
    a lock that a thread held. One that dies ends the work with an error.
    """
    with ProcessPoolExecutor(max(1, workers), multiprocessing.get_context("spawn")) as pool:
        waiting: deque[tuple[list[tuple[Item, int | None]], Future[list[bytes | None]]]] = deque()
        for batch, sources in _batches(items, source_of):
            waiting.append((batch, pool.submit(_compile_all, sources)))
            if len(waiting) > _BATCHES:
                yield from _done(*waiting.popleft())
        while waiting:
            yield from _done(*waiting.popleft())


def _batches[Item](
    items: Iterable[Item], source_of: Callable[[Item], tuple[str, bytes] | None]
) -> Iterator[tuple[list[tuple[Item, int | None]], list[tuple[str, bytes]]]]:
    batch: list[tuple[Item, int | None]] = []
    sources: list[tuple[str, bytes]] = []
    held = 0
    for item in items:
        source = source_of(item)
        if source is None:
            batch.append((item, None))
        else:
            batch.append((item, len(sources)))
            sources.append(source)
            held += len(source[1])
        if held >= _BATCH_BYTES or len(batch) >= 4096:
            yield batch, sources
            batch, sources, held = [], [], 0
    if batch:
        yield batch, sources


def _done[Item](
    batch: list[tuple[Item, int | None]], result: Future[list[bytes | None]]
) -> Iterator[tuple[Item, bytes | None]]:
    made = result.result()
    for item, index in batch:
        yield item, None if index is None else made[index]


def _compile_all(sources: list[tuple[str, bytes]]) -> list[bytes | None]:
    return [compiled(source, path) for path, source in sources]
