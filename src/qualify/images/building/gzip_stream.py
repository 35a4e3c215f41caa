"""A gzip member written on several processors, with the same bytes for any number of them.

The data is cut into blocks of a fixed size. Each block is deflated on its own, with the 32 KiB
before it as dictionary, and ends on a byte boundary; the blocks in a row are one deflate stream
(the way of pigz). The header names no file and no time.

Only zlib is used: libraries that choose their code by processor write different bytes on different
machines.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

BLOCK = 1 << 20
"""Bytes in a block. Part of the format: another size gives other bytes."""

_WINDOW = 32 * 1024
_HEADER = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255))  # no name, time 0, system unknown


class GzipStream:
    """Write-only; `close` must be called, or the member has no end.

    `level` is zlib's, 1 to 9. `threads` changes nothing but the time. After `close`, `size` and
    `sha256` describe what was written to `out`, `plain_size` and `plain_sha256` what went in.
    """

    def __init__(self, out: BinaryIO, level: int, threads: int) -> None:
        self._out = out
        self._level = level
        self._pool = ThreadPoolExecutor(max_workers=max(1, threads))
        self._waiting: deque[Future[bytes]] = deque()
        self._most = 2 * max(1, threads)
        self._block = bytearray()
        self._before = b""
        self._crc = 0
        self._plain = hashlib.sha256()
        self._packed = hashlib.sha256()
        self.plain_size = 0
        self.size = 0
        self._emit(_HEADER)

    @property
    def sha256(self) -> str:
        """Digest of the compressed bytes so far, hexadecimal."""
        return self._packed.hexdigest()

    @property
    def plain_sha256(self) -> str:
        """Digest of the uncompressed bytes so far, hexadecimal."""
        return self._plain.hexdigest()

    def write(self, data: bytes) -> int:
        """Take `data`; returns its length. Raises `OSError` when `out` cannot be written."""
        self._plain.update(data)
        self._crc = zlib.crc32(data, self._crc)
        self.plain_size += len(data)
        self._block += data
        while len(self._block) > BLOCK:
            self._submit(bytes(memoryview(self._block)[:BLOCK]), last=False)
            del self._block[:BLOCK]
        return len(data)

    def tell(self) -> int:
        """Position in the uncompressed data."""
        return self.plain_size

    def close(self) -> None:
        """Write what is left and the trailer; leaves `out` open."""
        self._submit(bytes(self._block), last=True)
        while self._waiting:
            self._emit(self._waiting.popleft().result())
        self._emit(struct.pack("<II", self._crc, self.plain_size & 0xFFFFFFFF))
        self._pool.shutdown()

    def abandon(self) -> None:
        """Stop without an end; for use after an error."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, block: bytes, *, last: bool) -> None:
        self._waiting.append(self._pool.submit(_deflate, block, self._before, self._level, last))
        self._before = block[-_WINDOW:]
        while len(self._waiting) > self._most or (self._waiting and self._waiting[0].done()):
            self._emit(self._waiting.popleft().result())

    def _emit(self, data: bytes) -> None:
        self._packed.update(data)
        self.size += len(data)
        self._out.write(data)


def _deflate(block: bytes, before: bytes, level: int, last: bool) -> bytes:
    if before:
        packer = zlib.compressobj(level, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, before)
    else:
        packer = zlib.compressobj(level, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY)
    return packer.compress(block) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
