"""Ed25519 keys (RFC 8032): read with care, named by the digest of their public half.

A key's id is the SHA-256 of its SubjectPublicKeyInfo (DER, RFC 8410). Private keys are PKCS#8 PEM
or OpenSSH files; one is never taken when others can read it, when it needs a passphrase, or when it
lies where evidence or a project lies, because what lies there is copied and published.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from qualify.core.digests import digest_bytes
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.storage.folders import read_plain, xdg_config_home

VARIABLE = "QUALIFY_SIGNING_KEY"
FILE = "signing-key"
_MAX_BYTES = 64 << 10
_PEM_PUBLIC = b"-----BEGIN PUBLIC KEY-----"
_OPENSSH_PRIVATE = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_NEW_KEY = "make one with `qualify evidence keys new --to FILE`"

# Public keys of small order: with one of them anybody can make signatures that verify. These are
# the encodings that libsodium refuses (its ge25519_has_small_order).
_SMALL_ORDER = frozenset(
    bytes.fromhex(text)
    for text in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
)


@dataclass(frozen=True)
class PublicKey:
    """The public half of an Ed25519 key: 32 bytes."""

    raw: bytes

    @property
    def id(self) -> str:
        """SHA-256 of the SubjectPublicKeyInfo, as `sha256:…`."""
        info = self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return digest_bytes(info)

    @property
    def key(self) -> Ed25519PublicKey:
        """For libraries that want the object."""
        return Ed25519PublicKey.from_public_bytes(self.raw)

    @property
    def pem(self) -> str:
        """PEM, as `openssl pkey -pubin` reads it."""
        made = self.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return made.decode("ascii")

    @property
    def ssh(self) -> str:
        """One line as in `~/.ssh/*.pub`, without a comment."""
        return self.key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether this key signed exactly `data` (RFC 8032, section 5.1.7)."""
        try:
            self.key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """Something that signs: a private key in memory, or an agent that holds one.

    A private key is never printed, and never written but by `write_new_key`.
    """

    public: PublicKey
    origin: str
    """Where it is from, for messages."""
    signer: Callable[[bytes], bytes] = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """The signature of `data` (64 bytes), verified before it is given away.

        Raises `EnvironmentFault` when an agent does not sign or answers with something else.
        """
        made = self.signer(data)
        if not self.public.verifies(made, data):
            raise EnvironmentFault(
                "answered with something that is no signature", where=self.origin,
                fix="nothing was signed; use a key file",
            )  # fmt: skip
        return made

    @classmethod
    def of(cls, private: Ed25519PrivateKey, origin: str) -> SigningKey:
        """From a private key in memory."""
        raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return cls(PublicKey(raw), origin, private.sign)


def parse_public_key(data: bytes, where: str) -> PublicKey:
    """The key of a PEM or OpenSSH public key. Raises `UsageError` for anything else."""
    text = data.strip()
    if b"PRIVATE KEY" in text:
        raise UsageError(
            "is a private key", where=where, fix="give its public half (`… keys show FILE`)"
        )
    try:
        found = (
            load_pem_public_key(text) if text.startswith(b"-----") else load_ssh_public_key(text)
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            "is no public key", where=where, fix="give an Ed25519 key, PEM or `ssh-ed25519 …`"
        ) from error
    if not isinstance(found, Ed25519PublicKey):
        raise UsageError(f"is {_kind(found)}", where=where, fix="only Ed25519 keys are accepted")
    key = PublicKey(found.public_bytes(Encoding.Raw, PublicFormat.Raw))
    _require_strong(key, where)
    return key


def read_public_key(path: Path) -> PublicKey:
    """As `parse_public_key`, from a file."""
    return parse_public_key(_read(path), str(path))


def read_signing_key(path: Path, never_below: Iterable[Path] = ()) -> SigningKey:
    """Read a private key that only its owner can read.

    Raises `UsageError` for a key of another kind, one that needs a passphrase, one that others can
    read or that belongs to another user, and one that lies in one of the folders `never_below`.
    """
    where = str(path)
    refuse_below(path, never_below)
    data = _read(path, private=True)
    found: object
    try:
        if data.lstrip().startswith(_OPENSSH_PRIVATE):
            found = load_ssh_private_key(data, password=None)
        else:
            found = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise UsageError(
            "needs a passphrase",
            where=where,
            fix="signing asks nobody: use a key of its own without one, " + _NEW_KEY,
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        # OpenSSH tells an encrypted key without a passphrase by a plain ValueError.
        if "assword" in str(error):
            raise UsageError(
                "needs a passphrase",
                where=where,
                fix="signing asks nobody: use a key of its own without one, " + _NEW_KEY,
            ) from error
        raise UsageError("is no private key", where=where, fix=_NEW_KEY) from error
    if not isinstance(found, Ed25519PrivateKey):
        raise UsageError(f"is {_kind(found)}", where=where, fix=f"use Ed25519: {_NEW_KEY}")
    key = SigningKey.of(found, where)
    _require_strong(key.public, where)
    return key


def signing_key_path(option: str | Path | None) -> Path | None:
    """The key to sign with: as the caller names it, else `$QUALIFY_SIGNING_KEY`, else
    `qualify/signing-key` in the XDG configuration folder if it is there; `None`: there is none.
    """
    named = str(option) if option else os.environ.get(VARIABLE, "")
    if named:
        return Path(named)
    try:
        usual = xdg_config_home() / FILE
        return usual if usual.exists() else None
    except (EnvironmentFault, OSError):
        # No home, or one of somebody else: this user has put no key there.
        return None


def write_new_key(path: Path, never_below: Iterable[Path] = ()) -> SigningKey:
    """Make a key and write it (PKCS#8 PEM, mode 0600). Never replaces a file.

    Raises `UsageError` when the file exists or lies where keys must not lie.
    """
    refuse_below(path, never_below)
    key = Ed25519PrivateKey.generate()
    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(handle, 0o600)
            os.write(handle, data)
            os.fsync(handle)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(handle)
    except FileExistsError as error:
        raise UsageError(
            "is already there", where=str(path), fix="choose another name: keys are not replaced"
        ) from error
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be written: {error.strerror or error}",
            where=str(path),
            fix="check that its folder exists, and its permissions",
        ) from error
    return SigningKey.of(key, str(path))


def refuse_below(path: Path, folders: Iterable[Path]) -> None:
    """Raise `UsageError` when `path` lies in one of the folders, links followed."""
    real = path.resolve()
    for folder in folders:
        if real.is_relative_to(folder.resolve()):
            raise UsageError(
                f"lies in {folder}",
                where=str(path),
                fix="keys lie outside projects and evidence: both are copied and published",
            )


def _read(path: Path, *, private: bool = False) -> bytes:
    try:
        if private:
            _require_private(path, path.stat())
        return read_plain(path, _MAX_BYTES)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}", where=str(path), fix=_NEW_KEY
        ) from error


def _require_private(path: Path, info: os.stat_result) -> None:
    mode = stat.S_IMODE(info.st_mode)
    if info.st_uid not in (os.geteuid(), 0):
        raise UsageError(
            "belongs to another user, who can change it",
            where=str(path),
            fix="use a key of your own",
        )
    if mode & 0o077:
        raise UsageError(
            f"can be read or changed by others (mode {mode:04o})",
            where=str(path),
            fix=f"chmod 600 {path}; if others may have read it, hand over to a new key",
        )


def _require_strong(key: PublicKey, where: str) -> None:
    # The sign bit does not change the order.
    if key.raw[:31] + bytes([key.raw[31] & 0x7F]) in _SMALL_ORDER:
        raise UsageError("is a key that anybody can sign for (small order)", where=where)


def _kind(key: object) -> str:
    name = type(key).__name__.removesuffix("PublicKey").removesuffix("PrivateKey")
    return f"a key of another kind ({name})"
