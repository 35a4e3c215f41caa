"""Paths of an unpacked image as a process inside of it would find them: the image's root is `/`.

Never follows a link to the host's files, whatever an image's links say.
"""

from __future__ import annotations

import os
from pathlib import Path

_LINKS = 40
"""As many links as Linux follows in one path."""


class LeadsOut(Exception):
    """A link that, read from outside of the image, leads out of it; or that never ends."""


def inside(root: Path, path: str, *, strict: bool = False) -> Path:
    """Where `path` lies below `root` when links are followed with `root` as `/`.

    What does not exist is taken literally. `strict` asks for more: that nobody who reads a link
    from outside gets out by its `..`. Raises `LeadsOut` then, and for a link that never ends.
    """
    found: list[str] = []
    waiting = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    links = 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            if not found and strict:
                raise LeadsOut(path)
            del found[-1:]
            continue
        try:
            target = str(root.joinpath(*found, part).readlink())
        except OSError:
            found.append(part)
            continue
        links += 1
        if links > _LINKS:
            raise LeadsOut(path)
        if target.startswith("/"):
            found = []
        waiting += [each for each in reversed(target.split("/")) if each not in ("", ".")]
    return root.joinpath(*found)


def link_that_leads_out(root: Path) -> str | None:
    """The first link below `root` that leads out of it when it is read from outside, or `None`.

    Every link of it is looked at where it really lies, and through the links that it goes through.
    An absolute link means the image's root and is no way out; one that never ends leads nowhere.
    """
    for folder, folders, files in os.walk(root):
        place = os.path.relpath(folder, root)
        for name in (*folders, *files):
            if not Path(folder, name).is_symlink():
                continue
            path = name if place == "." else f"{place}/{name}"
            try:
                inside(root, path, strict=True)
            except LeadsOut:
                if not _never_ends(root, path):
                    return path
    return None


def _never_ends(root: Path, path: str) -> bool:
    try:
        inside(root, path)
    except LeadsOut:
        return True
    return False
