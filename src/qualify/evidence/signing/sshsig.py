"""SSH signatures of files, as `ssh-keygen -Y sign` and `-Y verify` make and take them.

The format is OpenSSH's PROTOCOL.sshsig, version 1: an armoured blob that holds the public key, a
namespace (ours is `qualify`: a signature made for mail or for git counts for nothing here), the
hash and the signature over all of these. Only Ed25519 keys are accepted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from qualify.evidence.signing.keys import PublicKey, SigningKey

NAMESPACE = "qualify"
_MAGIC = b"SSHSIG"
_VERSION = 1
_HASHES = (b"sha512", b"sha256")
_KEY_TYPE = b"ssh-ed25519"
_BEGIN = b"-----BEGIN SSH SIGNATURE-----"
_END = b"-----END SSH SIGNATURE-----"
_LINE = 70
_MAX_BYTES = 16 << 10


class NotASignature(ValueError):
    """The bytes are no SSH signature of a kind that is accepted; the message says why."""


def sign_ssh(key: SigningKey, data: bytes, namespace: str = NAMESPACE) -> bytes:
    """The armoured signature of `data`."""
    public = public_blob(key.public)
    inner = key.sign(_signed(namespace.encode("ascii"), b"sha512", data))
    blob = (
        _MAGIC
        + _VERSION.to_bytes(4, "big")
        + ssh_string(public)
        + ssh_string(namespace.encode("ascii"))
        + ssh_string(b"")
        + ssh_string(b"sha512")
        + ssh_string(ssh_string(_KEY_TYPE) + ssh_string(inner))
    )
    text = base64.b64encode(blob)
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return b"\n".join([_BEGIN, *lines, _END]) + b"\n"


def verify_ssh(armoured: bytes, data: bytes, namespace: str = NAMESPACE) -> PublicKey:
    """The key that signed `data`; whether it is anybody's that counts, the caller decides.

    Raises `NotASignature` when the bytes are damaged, of another namespace or kind, or when the
    signature is not one of `data`.
    """
    found = Fields(_unarmoured(armoured))
    if found.take(len(_MAGIC)) != _MAGIC:
        raise NotASignature("it does not begin as an SSH signature does")
    version = int.from_bytes(found.take(4), "big")
    if version != _VERSION:
        raise NotASignature(f"its version is {version}, only {_VERSION} is known")
    public, said, reserved, hash_name, signature = (found.string() for _ in range(5))
    found.require_end()
    if said != namespace.encode("ascii"):
        raise NotASignature(f"it was made for the namespace {said[:40]!a}, not {namespace!r}")
    if reserved:
        raise NotASignature("it uses a reserved field")
    if hash_name not in _HASHES:
        raise NotASignature(f"its hash is {hash_name[:40]!a}")
    key = _public_key(public)
    inner = Fields(signature)
    kind, raw = inner.string(), inner.string()
    inner.require_end()
    if kind != _KEY_TYPE:
        raise NotASignature(f"it is of the kind {kind[:40]!a}, only Ed25519 is accepted")
    if not key.verifies(raw, _signed(said, hash_name, data)):
        raise NotASignature("it is not a signature of these bytes")
    return key


def allowed_signers(keys: list[tuple[str, PublicKey]], namespace: str = NAMESPACE) -> str:
    """The file that `ssh-keygen -Y verify -f` wants: (name, key) each on a line."""
    return "".join(f'{name} namespaces="{namespace}" {key.ssh}\n' for name, key in keys)


def _signed(namespace: bytes, hash_name: bytes, data: bytes) -> bytes:
    digest = hashlib.new(hash_name.decode("ascii"), data).digest()
    return (
        _MAGIC
        + ssh_string(namespace)
        + ssh_string(b"")
        + ssh_string(hash_name)
        + ssh_string(digest)
    )


def ssh_string(data: bytes) -> bytes:
    """A field with its length before it (RFC 4251, section 5)."""
    return len(data).to_bytes(4, "big") + data


def public_blob(key: PublicKey) -> bytes:
    """The key as SSH writes it on the wire (RFC 8709)."""
    return base64.b64decode(key.ssh.split(" ")[1])


def _public_key(blob: bytes) -> PublicKey:
    fields = Fields(blob)
    kind = fields.string()
    if kind != _KEY_TYPE:
        raise NotASignature(f"its key is of the kind {kind[:40]!a}, only Ed25519 is accepted")
    try:
        found = load_ssh_public_key(kind + b" " + base64.b64encode(blob))
    except ValueError as error:
        raise NotASignature("its key is damaged") from error
    if not isinstance(found, Ed25519PublicKey):
        raise NotASignature("its key is of another kind than it says")
    return PublicKey(found.public_bytes(Encoding.Raw, PublicFormat.Raw))


def _unarmoured(armoured: bytes) -> bytes:
    if len(armoured) > _MAX_BYTES:
        raise NotASignature(f"it has more than {_MAX_BYTES} bytes")
    lines = armoured.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n")
    if len(lines) < 3 or lines[0] != _BEGIN or lines[-1] != _END:
        raise NotASignature("it does not stand between the lines of an SSH signature")
    try:
        return base64.b64decode(b"".join(lines[1:-1]), validate=True)
    except binascii.Error as error:
        raise NotASignature("it is not Base64") from error


class Fields:
    """Reads length-prefixed fields; never beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """So many bytes. Raises `NotASignature` when there are fewer."""
        if self._at + count > len(self._data):
            raise NotASignature("it ends too early")
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]

    def string(self) -> bytes:
        """One field with its length before it."""
        return self.take(int.from_bytes(self.take(4), "big"))

    def require_end(self) -> None:
        """Raises `NotASignature` when something is left."""
        if self._at != len(self._data):
            raise NotASignature("it has bytes after its end")
