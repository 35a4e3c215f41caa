"""What is installed in an image: Python distributions and Debian packages, and whether their files
are the ones that they list.

Distributions are found wherever they lie: a folder with `*.dist-info` in it is a place that Python
imports from. Those that a package carries inside itself (`_vendor`) are part of it and not counted.
`RECORD` is read as the specification of installed projects says (packaging.python.org, "Recording
installed projects"); rows without a hash are `RECORD` itself and compiled bytecode.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from qualify.images.allowed import allowed_files

if TYPE_CHECKING:
    from qualify.images.tree import Node, Tree

_INFO = re.compile(r"^(.*?/)?([^/]+\.(?:dist-info|egg-info))$")
_IMPORTED = (".py", ".so", ".pth", ".pyc")
_LEFT_OUT = re.compile(r"(^|/)bin/[^/]+$|(^|/)__pycache__/|\.py[co]$")
"""Listed files that an installer may leave out: console scripts and bytecode."""
_WITHOUT_HASH = re.compile(r"\.dist-info/RECORD(\.\w+)?$|(^|/)__pycache__/[^/]+\.pyc$")
"""Listed files whose row needs no hash."""


@dataclass(frozen=True)
class Distribution:
    """One installed distribution."""

    name: str
    """Normalised."""
    version: str
    site: str
    """The folder that Python imports it from."""
    info: str
    """Its folder of metadata."""
    record: bytes | None = field(repr=False)


@dataclass
class RecordCheck:
    """What comparing files with every RECORD gave."""

    verified: int = 0
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    """Importable files beside distributions that none of them lists."""
    without_record: list[str] = field(default_factory=list)
    """Distributions that have none, or one that cannot be read."""
    allowed: list[str] = field(default_factory=list)
    """Files whose RECORD is wrong where it was published, each with the reason."""
    owned: set[str] = field(default_factory=set)
    """Every path with the right bytes."""


def distributions(tree: Tree) -> list[Distribution]:
    """Every installed distribution, by name, version and place."""
    found = []
    for path, node in tree.walk():
        if node.kind == "folder" and (match := _INFO.match(path)):
            made = _distribution(tree, (match[1] or "").rstrip("/"), path)
            if made is not None:
                found.append(made)
    sites = {each.site for each in found}
    own = [each for each in found if not any(_inside(each.site, site) for site in sites)]
    return sorted(own, key=lambda each: (each.name, each.version, each.site))


def _inside(site: str, other: str) -> bool:
    return site != other and (site.startswith(f"{other}/") if other else bool(site))


def _distribution(tree: Tree, site: str, info: str) -> Distribution | None:
    for name in ("METADATA", "PKG-INFO"):
        node = tree.find(f"{info}/{name}")
        if node is not None and node.kind == "file" and node.text is None:
            # It was not read, and is a distribution for Python all the same: its folder names it.
            named, _, version = info.rpartition("/")[2].rpartition(".")[0].partition("-")
            return Distribution(canonicalize_name(named), version, site, info, None)
        if node is not None and node.text is not None:
            fields = _fields(node.text)
            if "name" in fields and "version" in fields:
                record = tree.find(f"{info}/RECORD")
                return Distribution(
                    canonicalize_name(fields["name"]),
                    fields["version"],
                    site,
                    info,
                    None if record is None else record.text,
                )
    return None


def _fields(text: bytes) -> dict[str, str]:
    """Name and version of the head of a metadata file.

    Lines end where a reader of e-mail ends them, not at every sign that Unicode calls a line's end.
    """
    found: dict[str, str] = {}
    for line in re.split(r"\r\n|\r|\n", text.split(b"\n\n", 1)[0].decode("utf-8", "replace")):
        key, colon, value = line.partition(":")
        if colon and key.lower() in ("name", "version", "package", "status"):
            found.setdefault(key.lower(), value.strip())
    return found


def debian_packages(tree: Tree) -> dict[str, str]:
    """Version by name of the installed Debian packages; empty where dpkg left no list."""
    found: dict[str, str] = {}
    texts = []
    if (status := tree.find("var/lib/dpkg/status")) is not None and status.text is not None:
        texts += status.text.split(b"\n\n")
    folder = tree.find("var/lib/dpkg/status.d")
    if folder is not None and folder.children is not None:
        texts += [node.text for node in folder.children.values() if node.text is not None]
    for text in texts:
        fields = _fields(text.strip() + b"\n\n")
        status_word = fields.get("status", "install ok installed")
        if "package" in fields and "version" in fields and status_word.endswith(" installed"):
            found[fields["package"]] = fields["version"]
    return dict(sorted(found.items()))


def check_records(tree: Tree, installed: list[Distribution]) -> RecordCheck:
    """Compare every listed file with its hash, and look for files that nobody lists."""
    result = RecordCheck()
    allowed = allowed_files("record-allowed.json")
    listed: set[str] = set()
    incomplete: set[str] = set()
    for each in installed:
        rows = None if each.record is None else _rows(each.site, each.record)
        if rows is None:
            result.without_record.append(each.name)
            incomplete.add(each.site)
            continue
        for path, digest in rows:
            if digest is None and not _WITHOUT_HASH.search(path):
                continue  # nothing vouches for it: as good as not listed
            listed.add(path)
            node = tree.find(path)
            if node is None or node.kind != "file":
                if digest is not None and not _LEFT_OUT.search(path):
                    result.missing.append(path)
            elif digest is not None:
                reason = None if node.digest == digest else allowed.get(node.digest.hex())
                if node.digest != digest and reason is None:
                    result.changed.append(path)
                    continue
                result.verified += 1
                result.owned.add(path)
                if reason is not None:
                    result.allowed.append(f"{path}: allowed, {reason}")
    for site in sorted({each.site for each in installed} - incomplete):
        result.unlisted += _unlisted(tree, site, listed)
    return result


def record_rows(record: bytes) -> list[list[str]] | None:
    """The rows of a RECORD that name a file; `None` when it is no CSV."""
    try:
        rows = list(csv.reader(io.StringIO(record.decode("utf-8", "replace"), newline="")))
    except csv.Error:
        return None
    return [row for row in rows if len(row) >= 2 and row[0]]


def _rows(site: str, record: bytes) -> list[tuple[str, bytes | None]] | None:
    """Path in the image and SHA-256 of each row; `None` for a row without one."""
    rows = record_rows(record)
    if rows is None:
        return None
    found = []
    for row in rows:
        parts = [] if row[0].startswith("/") else site.split("/") if site else []
        for part in row[0].split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        found.append(("/".join(parts), _sha256(row[1])))
    return found


def _sha256(text: str) -> bytes | None:
    """The digest of a row; an unknown algorithm or broken text is one that nothing matches."""
    if not text:
        return None
    algorithm, _, value = text.partition("=")
    try:
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return b"broken"
    return raw if algorithm == "sha256" else b"another algorithm"


def _unlisted(tree: Tree, site: str, listed: set[str]) -> Iterator[str]:
    folder = tree.find(site)
    stack: list[tuple[str, Node]] = [(site, folder)] if folder is not None else []
    while stack:
        path, node = stack.pop()
        for name, child in (node.children or {}).items():
            below = f"{path}/{name}" if path else name
            if child.kind == "folder":
                stack.append((below, child))
            elif name.endswith(_IMPORTED) and below not in listed and not _compiled(below, listed):
                yield below


def _compiled(path: str, listed: set[str]) -> bool:
    """Tell whether `path` is bytecode of a listed source file."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(".pyc") or not folder.endswith("/__pycache__"):
        return False
    return f"{folder.removesuffix('__pycache__')}{name.split('.', 1)[0]}.py" in listed or any(
        f"{folder.removesuffix('__pycache__')}{name.rsplit('.', back)[0]}.py" in listed
        for back in (2, 3)
    )
