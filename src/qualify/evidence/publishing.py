"""Checkpoints kept where the ledger's owner cannot change them afterwards: a folder or a service.

Published is what a checkpoint says and its signatures, under `<place>/<site>/<count>…`. Nothing is
ever replaced: what is already there must have the same bytes, and whatever was published before by
this user (receipts in the private store) must still be there, or the place has lost or changed it.
Publishing again what is published changes nothing, so that it may be interrupted at any moment and
two may do it at once.

A service is an HTTP server that takes `PUT` with `If-None-Match: *` and answers `GET`; https, or
http on this machine alone. Redirects are not followed, proxies not used, replies are bounded, and
every byte is read back and compared: what a service says of itself is not believed.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import orjson

from qualify.core.canonical import canonical_json
from qualify.core.digests import digest_bytes
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.core.errors import Refusal as Refused
from qualify.evidence.checkpoints import (
    StoredCheckpoint,
    checkpoint_lock,
    checkpoints_folder,
    load_checkpoint,
    statement_files,
)
from qualify.evidence.ledger import Ledger
from qualify.storage.folders import (
    fsync_folder,
    private_folder,
    read_plain,
    write_atomic,
    xdg_state_home,
)

VARIABLE = "QUALIFY_PUBLISH_TOKEN"
_MAX_FILE = 32 << 20
_SECONDS = 30
_PLAIN = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~-/")


class Place(Protocol):
    """Where checkpoints are kept."""

    name: str

    def read(self, path: str) -> bytes | None:
        """The bytes at a path; `None` when there are none. Raises `EnvironmentFault`."""

    def create(self, path: str, data: bytes) -> None:
        """Put bytes there unless something is there already. Raises `EnvironmentFault`."""


@dataclass
class Published:
    """What a publication did."""

    place: str
    new: list[int] = field(default_factory=list)
    """Counts of the checkpoints that were not there before."""
    kept: list[int] = field(default_factory=list)
    """Counts of those that were."""


def open_place(text: str) -> Place:
    """A folder's path or a service's URL. Raises `UsageError` for what may not be used."""
    if "://" in text:
        return _Service(text)
    return _Folder(Path(text))


def publish(ledger: Ledger, place: Place) -> Published:
    """Publish every checkpoint of the ledger that is not there yet.

    Raises `UsageError` when there is none, `Refusal` when the place holds something else for one,
    or has lost one that was published before, `EnvironmentFault` when it cannot be reached.
    """
    done = Published(place.name)
    with checkpoint_lock(ledger):
        stored = [load_checkpoint(path) for _, path in statement_files(checkpoints_folder(ledger))]
        if not stored:
            raise UsageError(
                "no checkpoint is signed", where=str(ledger.folder), fix="qualify evidence sign"
            )
        site = stored[-1].checkpoint.site
        receipts = _Receipts(site, place.name)
        _require_retained(receipts, place, stored)
        for each in stored:
            files = {path.name: read_plain(path, _MAX_FILE) for path in _parts(each)}
            if len(files) < 2:
                raise UsageError("is not signed", where=str(each.path), fix="qualify evidence sign")
            new = False
            # The statement comes last: where it is, its signatures are.
            for name in sorted(files, key=lambda name: name == each.path.name):
                new = _put(place, f"{site}/{name}", files[name]) or new
                receipts.add(f"{site}/{name}", digest_bytes(files[name]))
            (done.new if new else done.kept).append(each.checkpoint.count)
            receipts.save()
    return done


def _parts(each: StoredCheckpoint) -> list[Path]:
    wanted = (each.path, each.envelope, each.ssh_signature, each.bundle)
    return [path for path in wanted if path.exists()]


def _put(place: Place, path: str, data: bytes) -> bool:
    """Create it, or find it there with the same bytes; whether it is new."""
    there = place.read(path)
    if there is None:
        place.create(path, data)
        if place.read(path) != data:
            raise Refused(
                "does not give back what was put there",
                where=f"{place.name}: {path}",
                fix="choose another place: this one cannot be relied on",
            )
        return True
    if there != data:
        raise Refused(
            "holds another checkpoint of this site than the ledger's: one of the two was rewritten",
            where=f"{place.name}: {path}",
            fix="nothing was changed; compare both, and find out who signed the other one",
        )
    return False


def _require_retained(receipts: _Receipts, place: Place, stored: list[StoredCheckpoint]) -> None:
    here = {each.path.name for each in stored}
    for path, digest in receipts.files.items():
        there = place.read(path)
        if there is None or digest_bytes(there) != digest:
            what = "has lost" if there is None else "has changed"
            raise Refused(
                f"{what} {path}, which was published before",
                where=place.name,
                fix="its keeper must restore it; nothing more was published",
            )
        name = path.rpartition("/")[2]
        if name.removesuffix(".json").isdigit() and name not in here:
            raise Refused(
                f"holds {path}, and the ledger here does not know it any more: it was rolled back",
                where=place.name,
                fix="restore the ledger; `qualify evidence verify --at-least` shows what lacks",
            )


class _Receipts:
    """What this user published at a place: path → digest. Outside the results on purpose."""

    def __init__(self, site: str, place: str) -> None:
        name = digest_bytes(place.encode("utf-8"))[7:31]
        self._place = place
        self.path = xdg_state_home() / site / "published" / f"{name}.json"
        self.files: dict[str, str] = {}
        try:
            document = orjson.loads(read_plain(self.path, _MAX_FILE))
            self.files = {str(key): str(value) for key, value in document["files"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EnvironmentFault(
                "the receipts of what was published cannot be read",
                where=str(self.path),
                fix="move the file away; then nobody remembers what was published there before",
            ) from error

    def add(self, path: str, digest: str) -> None:
        self.files[path] = digest

    def save(self) -> None:
        private_folder(self.path.parent)
        document = {"schema": "qualify-published/1", "place": self._place, "files": self.files}
        try:
            write_atomic(self.path, canonical_json(document), mode=0o600)
        except OSError as error:
            raise EnvironmentFault(
                f"the receipt cannot be written: {error.strerror or error}",
                where=str(self.path),
                fix="free some space and publish again; what is published stays",
            ) from error


class _Folder:
    """A folder, for example on a medium that is written once, or of another machine."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder.absolute())
        self._folder = folder
        if not folder.is_dir():
            raise UsageError(
                "is no folder", where=str(folder), fix="make it, or give a service's URL"
            )

    def read(self, path: str) -> bytes | None:
        try:
            return read_plain(self._folder / path, _MAX_FILE)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._fault(path, "read", error) from error

    def create(self, path: str, data: bytes) -> None:
        target = self._folder / path
        partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(exist_ok=True)
            write_atomic(partial, data)
            try:
                # A link fails when the name is taken, where a rename would replace it.
                os.link(partial, target)
                fsync_folder(target.parent)
            except FileExistsError:
                pass
            finally:
                partial.unlink()
        except OSError as error:
            raise self._fault(path, "written", error) from error

    def _fault(self, path: str, what: str, error: OSError) -> EnvironmentFault:
        return EnvironmentFault(
            f"cannot be {what}: {error.strerror or error}",
            where=f"{self.name}: {path}",
            fix="check the free space and the permissions, and publish again",
        )


class _Service:
    """An HTTP service."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        why = ""
        if parts.scheme not in ("https", "http") or not host:
            why = "is no http address"
        elif parts.username is not None or parts.password is not None:
            why = f"holds a credential; put it into ${VARIABLE}"
        elif parts.query or parts.fragment or not set(parts.path) <= _PLAIN or ".." in parts.path:
            why = "holds more than a host and a plain path"
        elif parts.scheme == "http" and not _is_loopback(host):
            why = "is not encrypted; http is for this machine alone"
        try:
            self._port = parts.port
        except ValueError:
            why = "has a port that does not exist"
        if why:
            raise UsageError(why, where="--to", fix="give https://HOST/PATH, or a folder")
        self._host, self._secure = host, parts.scheme == "https"
        self._base = parts.path.rstrip("/")
        self.name = f"{parts.scheme}://{parts.netloc}{self._base}"

    def read(self, path: str) -> bytes | None:
        status, data = self._ask("GET", path, None, {})
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            raise self._fault(path, f"answered {status} when it was read")
        return data

    def create(self, path: str, data: bytes) -> None:
        headers = {"If-None-Match": "*", "Content-Type": "application/octet-stream"}
        status, _ = self._ask("PUT", path, data, headers)
        # Somebody was faster: whether with the same bytes, the caller reads.
        taken = (http.client.CONFLICT, http.client.PRECONDITION_FAILED)
        if not 200 <= status < 300 and status not in taken:
            raise self._fault(path, f"answered {status} when it was written")

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        token = os.environ.get(VARIABLE, "")
        credentials = {"Authorization": f"Bearer {token}"} if token else {}
        if self._secure:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=_SECONDS, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        try:
            connection.request(method, f"{self._base}/{path}", body, {**headers, **credentials})
            reply = connection.getresponse()
            data = reply.read(_MAX_FILE + 1)
            if len(data) > _MAX_FILE:
                raise self._fault(path, f"answered with more than {_MAX_FILE} bytes")
            return reply.status, data
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._fault(path, f"does not answer as a service does: {error}") from error
        finally:
            connection.close()

    def _fault(self, path: str, what: str) -> EnvironmentFault:
        return EnvironmentFault(
            ascii(what)[1:-1],
            where=f"{self.name}: {path}",
            fix="check the address and the network, and publish again; nothing is lost",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
