"""Reads chosen files of an image: one pass over its layers, and only those files in memory.

What a later layer hides or replaces is not given. Every layer is verified on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qualify.images.errors import ImageTampered
from qualify.images.image import Image
from qualify.images.layers import Allowance, LayerReader, Progress
from qualify.images.limits import LIMITS, Limits
from qualify.images.tree import Tree


def read_files(
    image: Image,
    wanted: Callable[[str], bool],
    *,
    progress: Progress | None = None,
    limits: Limits = LIMITS,
) -> Iterator[tuple[str, bytes]]:
    """The files of the merged view for whose path (no leading slash) `wanted` holds, by path.

    A wanted file larger than `limits.text` is left out. Raises `ImageFault` for what cannot be
    read, `ImageTampered` when a layer is not what its digest says.
    """
    tree, allowance = Tree(image.where), Allowance(limits)
    for layer in image.layers:
        with LayerReader(image, layer, allowance, progress) as reader:
            for member in reader.members():
                placed = tree.add(member, layer.index)
                if (
                    placed is not None
                    and member.kind == "file"
                    and member.size <= limits.text
                    and wanted(member.path)
                ):
                    placed[1].text = b"".join(reader.chunks())
            if mismatches := reader.finish():
                raise ImageTampered(
                    mismatches[0], where=image.where, fix="get the image again from its builder"
                )
    for path, node in tree.walk():
        if node.text is not None and wanted(path):
            yield path, node.text
