"""in-toto statements (Statement v1): what is said, about which digests.

Our own statements are canonical JSON (RFC 8785), so that equal content has equal bytes, and they
are read back only as the exact bytes that this module would write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from qualify.core.canonical import NotCanonical, canonical_json
from qualify.core.digests import is_digest

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
MAX_BYTES = 8 << 20


class NotAStatement(ValueError):
    """The bytes are no statement of the kind that was asked for; the message says why."""


class Predicate(BaseModel):
    """Base of our predicates: frozen, strict, no unknown fields; names are written as declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def make_statement(
    subjects: Sequence[tuple[str, str]], predicate_type: str, predicate: Predicate | dict[str, Any]
) -> bytes:
    """The canonical bytes of a statement about `subjects`, (name, `sha256:…`) each."""
    body = predicate.model_dump(mode="json") if isinstance(predicate, Predicate) else predicate
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
                for name, digest in subjects
            ],
            "predicateType": predicate_type,
            "predicate": body,
        }
    )


def subjects_of(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, `sha256:…`) of each subject. Raises `NotAStatement`."""
    found = []
    for each in document["subject"]:
        if not isinstance(each, dict) or set(each) != {"name", "digest"}:
            raise NotAStatement("has a subject that is not a name and a digest")
        name, digest = each["name"], each["digest"]
        if not isinstance(name, str) or not isinstance(digest, dict) or set(digest) != {"sha256"}:
            raise NotAStatement("has a subject without a SHA-256 digest")
        if not is_digest(f"sha256:{digest['sha256']}"):
            raise NotAStatement("has a subject whose digest is none")
        found.append((name, f"sha256:{digest['sha256']}"))
    return found


def read_document(data: bytes) -> dict[str, Any]:
    """The statement in canonical bytes, with all four parts. Raises `NotAStatement`."""
    if len(data) > MAX_BYTES:
        raise NotAStatement(f"has more than {MAX_BYTES} bytes")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise NotAStatement("is not JSON") from error
    if not isinstance(document, dict) or set(document) != {
        "_type",
        "subject",
        "predicateType",
        "predicate",
    }:
        raise NotAStatement("is no in-toto statement")
    if document["_type"] != STATEMENT_TYPE:
        raise NotAStatement("is a statement of another version")
    if not isinstance(document["subject"], list) or not document["subject"]:
        raise NotAStatement("is about nothing")
    try:
        canonical = canonical_json(document)
    except NotCanonical as error:
        raise NotAStatement(f"cannot be one of ours: {error}") from error
    if canonical != data:
        raise NotAStatement("is not in canonical form, so it was not made like this")
    return document


def read_predicate[P: Predicate](
    data: bytes, predicate_type: str, kind: type[P]
) -> tuple[list[tuple[str, str]], P]:
    """(subjects, predicate) of a statement of ours. Raises `NotAStatement`."""
    document = read_document(data)
    if document["predicateType"] != predicate_type:
        raise NotAStatement(f"is no {predicate_type}")
    try:
        predicate = kind.model_validate_json(canonical_json(document["predicate"]))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise NotAStatement(f"is not as the format says ({place}: {first['msg']})") from error
    return subjects_of(document), predicate
