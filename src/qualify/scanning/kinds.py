"""The kinds of findings, and what a detector gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KINDS: dict[str, str] = {
    "cloud-key": "an access key or secret of a cloud provider",
    "forge-token": "a token of a code forge",
    "chat-token": "a token or web hook of a chat service",
    "provider-key": "a key of a model provider or hub",
    "payment-key": "a key of a payment service",
    "registry-token": "a token or login of a package or image registry",
    "service-token": "a token of another service",
    "json-web-token": "a signed JSON web token",
    "address-password": "an address with user and password",
    "password": "a password, secret or token that is assigned, sent or given on a command line",
    "password-hash": "the salted hash of a password",
    "private-key": "a private key, as text or as bytes",
    "local-path": "a place on somebody's machine",
    "e-mail": "an e-mail address",
    "telephone": "a telephone number",
    "bank-account": "an IBAN with a sound checksum",
    "payment-card": "a payment card number with a sound checksum",
    "national-id": "a social security number, or another national number with a sound checksum",
    "high-entropy": "a string that looks random and stands where no digest is expected",
    "unread": "content that was not looked into",
}
"""Every kind and what it means. Part of the interface (docs/reference/scan.md)."""

type Sort = Literal["code", "settings", "text", "binary"]
"""What a text is, as far as it decides what an assignment looks like."""


@dataclass(frozen=True, slots=True)
class Match:
    """Something in a text: its kind and where it starts and ends, in characters."""

    kind: str
    start: int
    end: int
    wrapped: bool = False
    """It is inside the base64 text that stands there."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A text with what its detectors want to know of it."""

    text: str
    name: str
    """Name of the file, in lower case."""
    sort: Sort
    lower: str
    """The text in lower case, position by position the same."""


def words(text: str) -> frozenset[str]:
    """The words of a list that is written as one text."""
    return frozenset(text.split())


_CODE = words(
    "c cc cpp cs css cu go h hpp html java js jsx kt lua m mjs nix php pl py pyi r rb rs scala sql"
    " swift ts tsx vue"
)
_SETTINGS = words(
    "cfg cnf conf config credentials env envrc htpasswd ini json json5 jsonl netrc npmrc properties"
    " pypirc tf tfvars toml xml yaml yml"
)


def subject(text: str, name: str, *, binary: bool = False) -> Subject:
    """What detectors get of a text that is called `name`."""
    name = name.lower()
    ending = name.rpartition(".")[2]
    sort: Sort = "text"
    if binary:
        sort = "binary"
    elif ending in _CODE:
        sort = "code"
    elif ending in _SETTINGS or name.startswith(".env") or "." not in name:
        sort = "settings"
    # Some letters grow in lower case; then only the ASCII ones are lowered.
    lower = text.lower()
    if len(lower) != len(text):
        lower = (
            text.encode("utf-32-le", "surrogatepass").lower().decode("utf-32-le", "surrogatepass")
        )
    return Subject(text, name, sort, lower)
