"""Sigstore bundles: verified without a network against a pinned trust root, by sigstore-python.

Who signed is a certificate's identity and issuer, both compared whole. The trust root is the file
that the registry names, or else the public instance's that comes with the pinned library: nothing
is fetched, and no cache of the user is believed. Signing is keyless: it needs an identity of the
place where it runs (a CI job) and the network, and is refused where there is none.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from qualify.core.digests import digest_bytes
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.evidence.signing.dsse import IN_TOTO
from qualify.evidence.statements import NotAStatement, subjects_of

if TYPE_CHECKING:
    from sigstore.models import TrustedRoot

MAX_BYTES = 16 << 20


class NotABundle(ValueError):
    """The bundle does not show that the identity signed these bytes; the message says why."""


@dataclass(frozen=True)
class Identity:
    """Whose certificates are accepted."""

    identity: str
    """The certificate's subject alternative name: an address or a workflow."""
    issuer: str
    """The OpenID issuer that vouched for it."""
    trusted_root: Path | None = None
    """The trust root; `None`: the public instance's."""


def verify_bundle(bundle: bytes, data: bytes, signer: Identity) -> None:
    """Verify that `signer` signed exactly `data`, or an in-toto statement about `data` or that is
    `data`. Raises `NotABundle`, and `UsageError` for a trust root that cannot be used.
    """
    from sigstore.errors import Error
    from sigstore.models import Bundle
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity as Policy

    if len(bundle) > MAX_BYTES:
        raise NotABundle(f"has more than {MAX_BYTES} bytes")
    root = trusted_root(signer.trusted_root)
    policy = Policy(identity=signer.identity, issuer=signer.issuer)
    try:
        with _silent():
            read = Bundle.from_json(bundle)
            verifier = Verifier(trusted_root=root)
            if "dsseEnvelope" not in orjson.loads(bundle):
                verifier.verify_artifact(data, read, policy)
                return
            kind, payload = verifier.verify_dsse(read, policy)
    except Error as error:
        raise NotABundle(_sentence(error)) from error
    # The library promises its own errors and lets others through for malformed bundles.
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise NotABundle("is no Sigstore bundle") from error
    if kind != IN_TOTO:
        raise NotABundle(f"signs something of the type {kind[:60]!a}")
    if payload != data and digest_bytes(data) not in _subjects(payload):
        raise NotABundle("signs a statement about something else")


def _subjects(payload: bytes) -> list[str]:
    try:
        document = orjson.loads(payload)
        return [digest for _, digest in subjects_of(document)]
    except (orjson.JSONDecodeError, NotAStatement, KeyError, TypeError):
        return []


@cache
def trusted_root(path: Path | None) -> TrustedRoot:
    """A trust root from a file, or the public instance's that the library brings along.

    Raises `UsageError`.
    """
    from sigstore.errors import Error
    from sigstore.models import TrustedRoot

    try:
        if path is not None:
            return TrustedRoot.from_file(str(path))
        with as_file(_embedded()) as file:
            return TrustedRoot.from_file(str(file))
    except (OSError, ValueError, TypeError, Error) as error:
        raise UsageError(
            "is no trust root of Sigstore",
            where=str(path or "sigstore"),
            fix="give a trusted_root.json as the instance publishes it",
        ) from error


def _embedded() -> Traversable:
    stores = files("sigstore") / "_store"
    for folder in stores.iterdir():
        if "sigstore.dev" in folder.name:
            return folder / "trusted_root.json"
    raise UsageError("brings no trust root along", where="sigstore", fix="name a trusted_root")


def sign_bundle(statement: bytes) -> bytes:
    """Sign a statement keyless, and return the bundle.

    Raises `UsageError` where no identity exists, `EnvironmentFault` when a service does not answer.
    """
    from sigstore.dsse import Statement
    from sigstore.errors import Error
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential
    from sigstore.sign import SigningContext

    try:
        token = detect_credential()
    except IdentityError as error:
        raise UsageError(
            f"the identity of this place cannot be used: {_sentence(error)}",
            where="--sigstore",
            fix="let the job write identity tokens, or sign with --key FILE",
        ) from error
    if token is None:
        raise UsageError(
            "there is no identity here to sign with",
            where="--sigstore",
            fix="keyless signing works in a CI job that may write identity tokens; "
            "elsewhere sign with --key FILE",
        )
    try:
        with _silent():
            context = SigningContext.from_trust_config(ClientTrustConfig.production())
            with context.signer(IdentityToken(token)) as signer:
                return signer.sign_dsse(Statement(statement)).to_json().encode("utf-8")
    except (Error, OSError, ValueError) as error:
        raise EnvironmentFault(
            f"Sigstore did not sign: {_sentence(error)}",
            where="--sigstore",
            fix="check the network; a key (--key FILE) needs none",
        ) from error


def _sentence(error: Exception) -> str:
    """The first line of another library's message, bounded."""
    lines = str(error).strip().splitlines()
    return ascii(lines[0][:200])[1:-1] if lines else type(error).__name__


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The library logs what it also raises."""
    logger = logging.getLogger("sigstore")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
