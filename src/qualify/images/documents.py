"""The texts of an image outside of its layers: configuration, manifest, and the indexes above it.

Every string counts, wherever it stands, names as well as values: a registry keeps them all, and
shows most of them to whoever may pull.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from qualify.images.credentials import in_text, is_placeholder
from qualify.images.image import Image, read_blob_document, read_document

_SECRET_NAME = re.compile(
    r"(PASSWORD|PASSWD|SECRET|TOKEN|API[_-]?KEY|ACCESS[_-]?KEY|PRIVATE[_-]?KEY)$", re.IGNORECASE
)
_ASSIGNED = re.compile(
    r"(?<![A-Za-z0-9_])([A-Za-z][A-Za-z0-9_-]{0,80})=(?:\"([^\"]*)\"|'([^']*)'|(\S*))"
)
_INDEX = ("image.index.v1+json", "manifest.list.v2+json")
_LEAST = 8
"""Characters of a value under a name of secrets."""
_MOST_DOCUMENTS = 1000


def in_documents(image: Image) -> list[str]:
    """Where a credential stands in the documents of an image, and of what kind; each once."""
    found: dict[str, None] = {}
    for document, value in _documents(image):
        for place, text in _texts(value, ""):
            for what in _in_one(place, text):
                found[f"{document} {_shown(place)}: {what}"] = None
    return list(found)


def _documents(image: Image) -> Iterator[tuple[str, Any]]:
    yield "configuration", image.config
    yield "manifest", image.manifest
    if image.kind == "docker-archive":
        for name in ("manifest.json", "repositories"):
            if image.store.has(name):
                yield name, read_document(image.store, name)[0]
        return
    index, _ = read_document(image.store, "index.json")
    todo, seen = [index], set[str]()
    while todo:
        document = todo.pop()
        yield "index", document
        manifests = document.get("manifests") if isinstance(document, dict) else None
        for each in manifests if isinstance(manifests, list) else ():
            if isinstance(each, dict) and str(each.get("mediaType")).endswith(_INDEX):
                digest = str(each.get("digest"))
                if digest not in seen and len(seen) < _MOST_DOCUMENTS:
                    seen.add(digest)
                    todo.append(read_blob_document(image.store, each)[0])


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every string of a document, names too, with the names that lead there."""
    todo = [(place, value)]
    while todo:
        where, found = todo.pop()
        if isinstance(found, str):
            yield where, found
        elif isinstance(found, dict):
            for name, inner in found.items():
                yield where, name
                todo.append((f"{where}.{name}" if where else name, inner))
        elif isinstance(found, list):
            for index, inner in enumerate(found):
                option = found[index - 1] if index else None
                todo.append((_place(where, index, option, inner), inner))


def _place(where: str, index: int, option: Any, value: Any) -> str:
    """The place of an element; behind an option, such as `--api-key`, that option's."""
    of_option = isinstance(option, str) and option.startswith("-") and isinstance(value, str)
    if of_option and not value.startswith("-") and _SECRET_NAME.search(option):
        return f"{where} {option}"
    return f"{where}[{index}]"


def _in_one(place: str, text: str) -> Iterator[str]:
    yield from in_text(text.encode("utf-8", "replace"))
    if _SECRET_NAME.search(place) and _is_value(text):
        yield "a value under a name of secrets"
    for match in _ASSIGNED.finditer(text):
        value = next((each for each in match.groups()[1:] if each is not None), "")
        if _SECRET_NAME.search(match[1]) and _is_value(value):
            yield f"a value for {match[1][:60]}"


def _is_value(text: str) -> bool:
    return len(text) >= _LEAST and not is_placeholder(text.encode("utf-8", "replace"))


def _shown(place: str) -> str:
    """The place in small: a name may itself be what must not be shown."""
    if any(True for _ in in_text(place.encode("utf-8", "replace"))):
        return "(a name)"
    return place[:100]
