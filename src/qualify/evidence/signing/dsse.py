"""DSSE envelopes (Dead Simple Signing Envelope v1.0.2) through securesystemslib."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from securesystemslib.dsse import Envelope as _Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import (  # type: ignore[attr-defined]
    Key,
    SecretsHandler,
    Signature,
    Signer,
    SSlibKey,
)

from qualify.core.canonical import canonical_json
from qualify.evidence.signing.keys import PublicKey, SigningKey

MAX_BYTES = 32 << 20
IN_TOTO = "application/vnd.in-toto+json"
"""The payload type of in-toto statements."""


class NotAnEnvelope(ValueError):
    """The bytes are no DSSE envelope; the message says why."""


class _Signature(BaseModel):
    model_config = ConfigDict(strict=True)
    sig: str = Field(min_length=1, max_length=20_000)
    keyid: str = Field("", max_length=1000)


class _Document(BaseModel):
    model_config = ConfigDict(strict=True)
    payload: str
    payload_type: str = Field(alias="payloadType", max_length=1000)
    signatures: list[_Signature] = Field(min_length=1, max_length=100)


class _Signer(Signer):
    """A key of ours as the library wants it."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    @property
    def public_key(self) -> Key:
        return SSlibKey.from_crypto(self._key.public.key, keyid=self._key.public.id)

    def sign(self, payload: bytes) -> Signature:
        return Signature(self._key.public.id, self._key.sign(payload).hex())

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: SecretsHandler | None = None
    ) -> Signer:
        raise NotImplementedError("keys are read by qualify.evidence.signing.keys")


@dataclass(frozen=True)
class Envelope:
    """An envelope that was read; nothing in it is believed until a key verifies it."""

    payload: bytes
    payload_type: str
    signatures: tuple[tuple[str, bytes], ...]
    """(key id as the envelope claims it, signature)."""

    def signed_by(self, keys: Iterable[PublicKey]) -> list[PublicKey]:
        """Those of `keys` that signed this payload and type. The claimed key ids are hints only:
        every key is tried on every signature, as the specification wants.
        """
        signed = _Envelope(self.payload, self.payload_type, {}).pae()
        found = []
        for key in keys:
            library_key = SSlibKey.from_crypto(key.key, keyid=key.id)
            for _, signature in self.signatures:
                try:
                    library_key.verify_signature(Signature(key.id, signature.hex()), signed)
                except UnverifiedSignatureError:
                    continue
                found.append(key)
                break
        return found


def sign_envelope(
    payload: bytes,
    keys: Sequence[SigningKey],
    payload_type: str = IN_TOTO,
    before: Sequence[tuple[str, bytes]] = (),
) -> bytes:
    """The envelope with one signature of each key, after those of `before`, as canonical JSON."""
    signatures = {name: Signature(name, signature.hex()) for name, signature in before}
    envelope = _Envelope(payload, payload_type, signatures)
    for key in keys:
        envelope.sign(_Signer(key))
    return canonical_json(envelope.to_dict())


def read_envelope(data: bytes) -> Envelope:
    """Read an envelope. Raises `NotAnEnvelope`."""
    if len(data) > MAX_BYTES:
        raise NotAnEnvelope(f"has more than {MAX_BYTES} bytes")
    try:
        document = _Document.model_validate(orjson.loads(data))
        payload = _bytes(document.payload)
        signatures = tuple((each.keyid, _bytes(each.sig)) for each in document.signatures)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise NotAnEnvelope(f"is no DSSE envelope ({place}: {first['msg']})") from error
    except orjson.JSONDecodeError as error:
        raise NotAnEnvelope("is not JSON") from error
    return Envelope(payload, document.payload_type, signatures)


def _bytes(text: str) -> bytes:
    """Base64, standard or URL-safe, as the specification lets readers accept."""
    try:
        return base64.b64decode(text.translate(_STANDARD), validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotAnEnvelope("holds something that is not Base64") from error


_STANDARD = str.maketrans("-_", "+/")
