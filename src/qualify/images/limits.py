"""How much an image may ask of this machine before it is refused as hostile.

The defaults are some ten times what the largest CUDA images need.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one image. Sizes in bytes."""

    document: int = 8 * MIB
    """An index, a manifest, a configuration."""
    layers: int = 512
    members: int = 4_000_000
    """Entries of all layers together."""
    unpacked: int = 256 * GIB
    """All layers together, decompressed."""
    ratio: int = 150
    """A layer may grow by this factor …"""
    ratio_from: int = GIB
    """… once it has given this many bytes (deflate packs zeros a thousandfold)."""
    header: int = 4 * MIB
    """One header of a tar member, long names and extended attributes included."""
    path: int = 4096
    depth: int = 128
    """Components of a path, as written and where it really lies."""
    text: int = 32 * MIB
    """A file whose text a guard reads (RECORD, METADATA, …)."""
    texts: int = 512 * MIB
    """All such texts of an image that are kept, and the names of libraries."""
    nodes: int = 4_000_000
    """Files, folders and links of the merged view, folders that no layer lists included."""
    names: int = 512 * MIB
    """Characters of all their names and of the targets of links."""


LIMITS = Limits()
