"""Who may sign what: a registry of signers, and which of several registries is in force.

The first of these that exists is in force, alone; nothing is added from the others:

1. what the caller names (`--signer KEY`, `--signers FILE`);
2. the deployment's: `$QUALIFY_SIGNERS`, else `/etc/qualify/signers.json`;
3. the user's: `qualify/signers.json` in the XDG configuration folder;
4. the project's: `signers.json` beside `manifests/`. Whoever can change the project can change it,
   so an answer that stands on it alone says so.

A signer signs for the purposes and the sites that its entry names and for no others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qualify.core.clock import parse_time
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.core.identifiers import ID_PATTERN
from qualify.evidence.records import SiteId, Time
from qualify.evidence.signing.keys import PublicKey, parse_public_key, read_public_key
from qualify.evidence.signing.sigstore import Identity
from qualify.storage.folders import read_plain, xdg_config_home

type Purpose = Literal["checkpoints", "assessments", "ci", "institution"]
PURPOSES: tuple[Purpose, ...] = ("checkpoints", "assessments", "ci", "institution")
type Origin = Literal["caller", "deployment", "user", "project"]

FILE = "signers.json"
VARIABLE = "QUALIFY_SIGNERS"
DEPLOYMENT = Path("/etc/qualify") / FILE
SCHEMA = "qualify-signers/1"
_MAX_BYTES = 1 << 20
_FORMAT = "see docs/reference/evidence.md, Signers"


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Sigstore(_Closed):
    identity: str = Field(min_length=3, max_length=1000)
    issuer: str = Field(min_length=8, max_length=1000)
    trusted_root: str | None = Field(None, min_length=1, max_length=1000)


class _Signer(_Closed):
    name: str = Field(pattern=ID_PATTERN)
    public_key: str | None = Field(None, max_length=2000)
    sigstore: _Sigstore | None = None
    purposes: list[Purpose] = Field(min_length=1)
    sites: list[SiteId] | None = None
    valid_from: Time | None = None
    valid_until: Time | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.public_key is None) == (self.sigstore is None):
            raise ValueError("needs one of public_key and sigstore")
        return self


class _Registry(_Closed):
    schema_: Literal["qualify-signers/1"] = Field(alias="schema")
    signers: list[_Signer] = Field(min_length=1, max_length=1000)


@dataclass(frozen=True)
class Signer:
    """One that may sign, for some purposes and sites, within a time."""

    name: str
    key: PublicKey | None
    identity: Identity | None = None
    purposes: tuple[Purpose, ...] = PURPOSES
    sites: tuple[str, ...] | None = None
    """Ledgers' ids; `None`: of every one."""
    valid_from: datetime | None = None
    valid_until: datetime | None = None

    def may_sign(self, purpose: Purpose, site: str | None) -> bool:
        """Whether it is for that purpose and site; `None`: what is no site's."""
        return purpose in self.purposes and (
            self.sites is None or site is None or site in self.sites
        )

    def is_valid_at(self, time: datetime) -> bool:
        """Whether it was its time. The limits themselves belong to it."""
        return (self.valid_from is None or self.valid_from <= time) and (
            self.valid_until is None or time <= self.valid_until
        )


@dataclass(frozen=True)
class Registry:
    """The signers in force, and where they are from."""

    origin: Origin
    where: str
    signers: tuple[Signer, ...]

    def for_purpose(self, purpose: Purpose, site: str | None) -> list[Signer]:
        """Those that may sign that."""
        return [signer for signer in self.signers if signer.may_sign(purpose, site)]

    def named(self, key: PublicKey) -> str | None:
        """The name under which a key is registered."""
        return next((s.name for s in self.signers if s.key == key), None)


def signers_in_force(
    project: Path | None,
    keys: Sequence[Path] = (),
    files: Sequence[Path] = (),
) -> Registry | None:
    """The registry in force; `None` when there is none anywhere. Raises `UsageError`.

    `keys` and `files` are what the caller names; both together are one registry.
    """
    if keys or files:
        signers = [_of_key(path) for path in keys]
        for file in files:
            signers += read_registry(file)
        return Registry("caller", ", ".join(map(str, (*keys, *files))), tuple(signers))
    told = os.environ.get(VARIABLE, "")
    if told:
        return _registry("deployment", Path(told))
    if _is_there(DEPLOYMENT):
        return _registry("deployment", DEPLOYMENT)
    user = _of_user()
    if user is not None and _is_there(user):
        return _registry("user", user)
    if project is not None and _is_there(project / FILE):
        return _registry("project", project / FILE)
    return None


def _is_there(path: Path) -> bool:
    """Whether a registry is there. One that cannot be seen must not be passed over."""
    try:
        return path.exists()
    except OSError as error:
        raise UsageError(
            f"cannot be looked for: {error.strerror or error}",
            where=str(path),
            fix="let it be readable, or name the signers that count (--signers FILE)",
        ) from error


def _of_user() -> Path | None:
    try:
        return xdg_config_home() / FILE
    except EnvironmentFault:
        return None


def read_registry(path: Path) -> list[Signer]:
    """The signers of one file. Raises `UsageError` with the entry that is wrong."""
    where = str(path)
    try:
        data = read_plain(path, _MAX_BYTES)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=where) from error
    try:
        document = _Registry.model_validate(orjson.loads(data))
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"is not JSON ({error.msg})", where=f"{where}:{error.lineno}:{error.colno}", fix=_FORMAT
        ) from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{place}: {first['msg']}", where=where, fix=_FORMAT) from error
    found = [_signer(entry, path, number) for number, entry in enumerate(document.signers)]
    names = [signer.name for signer in found]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UsageError(
                f"signers.{number}: a second signer is called {name!r}",
                where=where,
                fix="rename it",
            )
    return found


def _signer(entry: _Signer, path: Path, number: int) -> Signer:
    key = identity = None
    if entry.public_key is not None:
        key = parse_public_key(
            entry.public_key.encode("utf-8"), f"{path}: signers.{number}.public_key"
        )
    elif entry.sigstore is not None:
        root = entry.sigstore.trusted_root
        identity = Identity(
            entry.sigstore.identity,
            entry.sigstore.issuer,
            path.parent / root if root is not None else None,
        )
    start, end = (parse_time(t) if t else None for t in (entry.valid_from, entry.valid_until))
    if start and end and end < start:
        raise UsageError(
            f"signers.{number}: ends before it begins", where=str(path), fix="correct its times"
        )
    return Signer(
        entry.name,
        key,
        identity,
        tuple(entry.purposes),
        tuple(entry.sites) if entry.sites is not None else None,
        start,
        end,
    )


def _registry(origin: Origin, path: Path) -> Registry:
    if origin in ("deployment", "user"):
        _require_own(path)
    return Registry(origin, str(path), tuple(read_registry(path)))


def _require_own(path: Path) -> None:
    """A registry that outranks the project must not be one that anybody can change."""
    try:
        info = path.stat()
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            fix=f"correct ${VARIABLE}, or put the registry there",
        ) from error
    if info.st_uid not in (0, os.geteuid()) or stat.S_IMODE(info.st_mode) & 0o022:
        raise UsageError(
            "can be changed by other users",
            where=str(path),
            fix="let it belong to root or to you, with mode 0644",
        )


def _of_key(path: Path) -> Signer:
    return Signer("given", read_public_key(path))
