"""Stored bytes of a layer → its tar, in a thread that reads ahead and hashes both sides.

Understands plain tar, gzip (also of several members) and zstd, told apart by their first bytes and
held against the declared media type. At most a few chunks of 1 MiB wait at any moment.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import queue
import threading
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import zstandard

from qualify.core.errors import QualifyError
from qualify.images.blobs import BlobStore
from qualify.images.errors import ImageFault, damaged
from qualify.images.image import Layer

CHUNK = 1 << 20
_WAITING = 6
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHER = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}


class ReadAhead:
    """Gives the tar of one layer chunk by chunk; an empty chunk is its end."""

    def __init__(
        self, store: BlobStore, layer: Layer, where: str, progress: Callable[[int], None] | None
    ) -> None:
        self._where = where
        self._layer = layer
        self._stored = _Counted(store.open(layer.name), progress)
        self._tar_hash = hashlib.sha256()
        self._chunks: queue.Queue[bytes | BaseException] = queue.Queue(_WAITING)
        self._stop = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="layer", daemon=True)
        self._thread.start()

    def next(self) -> bytes:
        """The next chunk. Raises `ImageFault` for a stream that is damaged."""
        if self._ended:
            return b""
        found = self._chunks.get()
        if isinstance(found, BaseException):
            self._ended = True
            raise found
        self._ended = not found
        return found

    def close(self) -> None:
        """End the thread; what it still holds is dropped."""
        self._stop.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._chunks.get(timeout=0.02)
        self._stored.close()

    @property
    def stored_size(self) -> int:
        """Bytes as stored; complete after the end."""
        return self._stored.count

    @property
    def stored_digest(self) -> str:
        """Digest of the stored bytes; complete after the end."""
        return "sha256:" + self._stored.hash.hexdigest()

    @property
    def tar_digest(self) -> str:
        """Digest of the tar; complete after the end."""
        return "sha256:" + self._tar_hash.hexdigest()

    def _run(self) -> None:
        try:
            source = self._decompressed()
            while chunk := source.read(CHUNK):
                self._tar_hash.update(chunk)
                if not self._put(chunk):
                    return
            while self._stored.read(CHUNK):
                pass
            self._put(b"")
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            self._put(damaged(f"is truncated or damaged: {error}", self._where))
        except OSError as error:
            self._put(damaged(f"cannot be read: {error.strerror or error}", self._where))
        except QualifyError as error:
            self._put(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader must not wait for ever
            self._put(error)

    def _put(self, item: bytes | BaseException) -> bool:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._chunks.put(item, timeout=0.1)
                return True
        return False

    def _decompressed(self) -> BinaryIO:
        head = self._stored.peek()
        found = "gzip" if head.startswith(_GZIP) else "zstd" if head.startswith(_ZSTD) else ""
        for magic, name in _OTHER.items():
            if head.startswith(magic):
                raise ImageFault(
                    f"is compressed with {name}", where=self._where, fix="use gzip or zstd"
                )
        self._compare(found)
        if found == "gzip":
            return cast("BinaryIO", gzip.GzipFile(fileobj=cast("Any", self._stored)))
        return _zstd(self._stored) if found else cast("BinaryIO", self._stored)

    def _compare(self, found: str) -> None:
        media_type = self._layer.media_type
        if self._layer.digest is None:
            return
        declared = next((n for n in ("gzip", "zstd") if media_type.endswith(n)), "")
        if declared != found:
            raise damaged(
                f"is {found or 'not compressed'}, and {media_type} is declared", self._where
            )


class _Counted(io.RawIOBase):
    """The stored bytes: counted, hashed, and reported."""

    def __init__(self, raw: BinaryIO, progress: Callable[[int], None] | None) -> None:
        self._raw = raw
        self._progress = progress
        self._head = b""
        self.hash = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def peek(self) -> bytes:
        """The first bytes, which a reader will get again."""
        self._head = self._take(8)
        return self._head

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; the ones peeked at come first."""
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._take(size if size >= 0 else CHUNK)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _take(self, size: int) -> bytes:
        data = self._raw.read(size) or b""
        self.hash.update(data)
        self.count += len(data)
        if self._progress is not None and data:
            self._progress(len(data))
        return data

    def close(self) -> None:
        self._raw.close()
        super().close()


def _zstd(stored: _Counted) -> BinaryIO:
    reader = zstandard.ZstdDecompressor().stream_reader(
        cast("Any", stored), read_across_frames=True
    )
    return cast("BinaryIO", reader)
