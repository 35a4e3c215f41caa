"""Paths of an image as a process inside of it would find them: the image's root is `/`.

`inside` follows the links of an unpacked image and never reaches the host's files, whatever the
links say. `require_links_inside` refuses an image of which a reader outside, who has another root,
would be led out by a relative link. An absolute link means the image's root; it is no way out.
"""

from __future__ import annotations

from pathlib import Path

from qualify.images.errors import ImageFault
from qualify.images.tree import Node, Tree

_LINKS = 40
"""As many links as Linux follows in one path."""
_STEPS = 20_000_000
"""Parts of targets that are followed for all links of an image: seconds; real ones need a 100th."""


def inside(root: Path, path: str) -> Path | None:
    """Where `path` lies below `root` when links are followed with `root` as `/`.

    No part of the answer is a link. What does not exist is taken literally. `None` for a path that
    goes through more links than Linux follows, as one does that never ends.
    """
    found: list[str] = []
    waiting = path.split("/")[::-1]
    links = 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del found[-1:]
            continue
        try:
            target = str(root.joinpath(*found, part).readlink())
        except OSError:
            found.append(part)
            continue
        links += 1
        if links > _LINKS:
            return None
        if target.startswith("/"):
            found.clear()
        waiting += target.split("/")[::-1]
    return root.joinpath(*found)


def require_links_inside(tree: Tree) -> None:
    """Every link, a hard link to one included, stays in the root for a reader from outside.

    Each is followed from where it really lies, part by part and through other links; what is not
    there is taken literally, and so is a link that leads back to itself. To be asked of a finished
    tree, because a later layer may put a link where a folder was. Raises `ImageFault` for the first
    that leads out, and when following them takes too long.
    """
    steps = _STEPS
    for path, node in tree.walk():
        if node.kind == "link":
            followed = _Followed(tree, path, steps)
            if followed.climbs:
                raise ImageFault(
                    f"{path[:200]!a} is a link that climbs out of the root: {node.target[:200]!a}",
                    where=f"{tree.where}: layer {node.layer + 1}",
                    fix="do not use this image",
                )
            steps = followed.steps


class _Followed:
    """Follows one link as far as it leads, or out."""

    def __init__(self, tree: Tree, path: str, steps: int) -> None:
        self.steps = steps
        """How many more parts may be followed."""
        *folders, name = path.split("/")
        stack: list[Node | None] = [tree.root]
        for each in folders:
            stack.append(_child(stack[-1], each))
        self._where = tree.where
        self._stack = stack
        self._waiting: list[str | tuple[int, str]] = []
        """Parts to come; a pair marks the end of the link that lies in that folder."""
        self._within: set[tuple[int, str]] = set()
        self._enter(name)
        self.climbs = not self._stays()

    def _enter(self, name: str) -> None:
        """Go on with the target of a link of the present folder."""
        folder = self._stack[-1]
        link = _child(folder, name)
        assert link is not None
        key = (id(folder), name)
        if key in self._within:
            self._stack.append(None)
            return
        self._within.add(key)
        self._waiting.append(key)
        self._waiting += link.target.split("/")[::-1]
        if link.target.startswith("/"):
            del self._stack[1:]

    def _stays(self) -> bool:
        """Whether every part was followed without leaving the root."""
        while self._waiting:
            part = self._waiting.pop()
            self.steps -= 1
            if self.steps < 0:
                raise ImageFault(
                    "its links lead through too many others",
                    where=self._where,
                    fix="do not use this image",
                )
            if isinstance(part, tuple):
                self._within.discard(part)
            elif part == "..":
                if len(self._stack) == 1:
                    return False
                self._stack.pop()
            elif part not in ("", "."):
                child = _child(self._stack[-1], part)
                if child is not None and child.kind == "link":
                    self._enter(part)
                else:
                    self._stack.append(child)
        return True


def _child(folder: Node | None, name: str) -> Node | None:
    if folder is None or folder.children is None:
        return None
    return folder.children.get(name)
