"""What changed between two images: configuration, labels, layers, packages, files.

Both are streamed once; files are compared by what a container would see (type, mode, owner, bytes,
target), not by times. Pure once the scans are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from qualify.images.distributions import debian_packages, distributions
from qualify.images.image import Image
from qualify.images.scan import Scan
from qualify.images.tree import Node


@dataclass(frozen=True)
class Change:
    """One thing that differs. `None`: it is not there."""

    topic: str
    """`configuration`, `label`, `layer`, `python`, `debian`, `file`."""
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Difference:
    """Everything that differs, in the order of the topics above."""

    changes: tuple[Change, ...]
    same_layers: int
    """Layers that both have, by diff_id."""

    def of(self, topic: str) -> tuple[Change, ...]:
        """The changes of one topic."""
        return tuple(each for each in self.changes if each.topic == topic)


def difference(a: Image, scan_a: Scan, b: Image, scan_b: Scan) -> Difference:
    """What changed from `a` to `b`."""
    layers_a, layers_b = ([each.diff_id for each in image.layers] for image in (a, b))
    changes = [
        *_compare("configuration", _settings(a), _settings(b)),
        *_compare("label", a.labels, b.labels),
        *_layers(layers_a, layers_b, {each.diff_id: each.size for each in (*a.layers, *b.layers)}),
        *_compare("python", _python(scan_a), _python(scan_b)),
        *_compare("debian", debian_packages(scan_a.tree), debian_packages(scan_b.tree)),
        *_compare("file", _files(scan_a), _files(scan_b)),
    ]
    return Difference(tuple(changes), len(set(layers_a) & set(layers_b)))


def _compare(topic: str, a: Mapping[str, str], b: Mapping[str, str]) -> Iterable[Change]:
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            yield Change(topic, name, a.get(name), b.get(name))


def _layers(a: list[str], b: list[str], sizes: Mapping[str, int]) -> Iterable[Change]:
    for index in range(max(len(a), len(b))):
        before = a[index] if index < len(a) else None
        after = b[index] if index < len(b) else None
        if before != after:
            yield Change("layer", f"{index + 1}", _layer(before, sizes), _layer(after, sizes))


def _layer(diff_id: str | None, sizes: Mapping[str, int]) -> str | None:
    return None if diff_id is None else f"{diff_id} ({sizes[diff_id]:,} bytes)"


def _settings(image: Image) -> dict[str, str]:
    """What a run depends on, each setting as text; variables one by one."""
    found = {"platform": image.platform}
    for key, value in image.run_settings.items():
        if key not in ("Env", "Labels") and value not in (None, "", [], {}):
            found[key] = value if isinstance(value, str) else orjson.dumps(value).decode()
    for name, value in image.environment.items():
        found[f"Env {name}"] = value
    return found


def _python(scan: Scan) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in distributions(scan.tree):
        found[each.name] = (
            f"{found[each.name]}, {each.version}" if each.name in found else each.version
        )
    return found


def _files(scan: Scan) -> dict[str, str]:
    return {path: _described(node) for path, node in scan.tree.walk()}


def _described(node: Node) -> str:
    parts: list[Any] = [node.kind, f"{node.mode:04o}", f"{node.uid}:{node.gid}"]
    if node.kind == "file":
        parts += [f"{node.size} bytes", node.digest.hex()[:16]]
    elif node.kind == "link":
        return f"link to {node.target}"
    return " ".join([*parts, *(["with file capabilities"] if node.capability else [])])
