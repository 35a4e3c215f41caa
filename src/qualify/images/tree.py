"""The merged view: what a container would see after all layers, as a tree in memory.

Layers are applied lowest first, with whiteouts. A path whose parent is a link is entered where the
link leads *inside* the image, so `lib/x` over `lib -> usr/lib` becomes `usr/lib/x`; no link leads
out of the root, as in a container. Pure: nothing here touches a disk.

Promises: the tree is no deeper than the longest permitted path, though links may add up to more,
and has no more nodes and names than the limits say. Nodes are small (some hundred bytes), because a
CUDA image has a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from qualify.images.errors import ImageFault, damaged
from qualify.images.layers import OPAQUE, WHITEOUT, Member
from qualify.images.limits import LIMITS, Limits

_MAX_LINKS = 40


class Node:
    """One file, folder, link or device. Hard links share one node."""

    __slots__ = (
        "capability", "children", "digest", "gid", "kind", "layer", "mode", "mtime", "needed",
        "size", "sort", "target", "text", "uid",
    )  # fmt: skip

    def __init__(self, kind: str, mode: int, layer: int) -> None:
        self.kind = kind
        """`file`, `folder`, `link`, `device`, `pipe`."""
        self.mode = mode
        self.layer = layer
        """The layer that put it there, counted from 0."""
        self.uid = 0
        self.gid = 0
        self.mtime = 0
        self.size = 0
        self.target = ""
        self.capability = False
        self.children: dict[str, Node] | None = {} if kind == "folder" else None
        self.digest = b""
        """SHA-256 of a file's bytes."""
        self.text: bytes | None = None
        """A file's bytes, where somebody wanted to read them."""
        self.needed: tuple[str, ...] | None = None
        """Libraries that an ELF file asks for; `None` for other files."""
        self.sort = ""
        """What a file's first bytes say it is."""


class Tree:
    """The merged view of the layers applied so far."""

    def __init__(self, where: str, limits: Limits = LIMITS) -> None:
        self.root = Node("folder", 0o755, 0)
        self.where = where
        self._limits = limits
        self._nodes = 0
        self._names = 0
        self._last: tuple[str, Node, int] | None = None
        """Where the last member lay: path, folder, depth."""

    def add(self, member: Member, layer: int) -> tuple[str, Node] | None:
        """Apply one member; its path as written and its node, or `None` for a whiteout.

        Raises `ImageFault` for a path below a file, a loop of links, a hard link to nothing,
        and for a tree that is deeper or larger than the limits say.
        """
        if not member.path:
            _describe(self.root, member)
            return None
        folder, _, name = member.path.rpartition("/")
        parent, depth = self._folder(folder, layer)
        children = parent.children
        assert children is not None
        if name.startswith(WHITEOUT):
            self._last = None
            self._white_out(parent, name, layer)
            return None
        if member.kind == "hardlink":
            node = self._linked(member)
            # Some readers give the file what the link's own header says.
            node.mode |= member.mode & 0o6002
            node.capability |= member.capability
        elif member.kind == "folder" and (old := children.get(name)) and old.kind == "folder":
            node = old
            node.layer = layer
            _describe(node, member)
            return member.path, node
        else:
            self._names += len(member.target)
            node = self._new(member.kind, name, layer, depth)
            _describe(node, member)
        if name in children:
            self._last = None
        children[name] = node
        return member.path, node

    def _linked(self, member: Member) -> Node:
        node = self.find(member.target, follow_last=False)
        if node is None or node.kind == "folder":
            raise damaged(
                f"{member.path[:200]!a} is a hard link to {member.target[:200]!a}, "
                "which is no file of the image",
                self.where,
            )
        return node

    def _new(self, kind: str, name: str, layer: int, depth: int) -> Node:
        """A node `depth` folders below the root, for a new name or instead of an old one."""
        limits = self._limits
        self._nodes += 1
        self._names += len(name)
        if depth >= limits.depth:
            raise self._hostile(f"{name[:100]!a} lies more than {limits.depth} folders deep")
        if self._nodes > limits.nodes or self._names > limits.names:
            raise self._hostile(
                f"more than {limits.nodes:,} files, or {limits.names >> 20} MiB of their names"
            )
        return Node(kind, 0o755, layer)

    def _hostile(self, what: str) -> ImageFault:
        return ImageFault(what, where=self.where, fix="do not use this image")

    def _folder(self, path: str, layer: int) -> tuple[Node, int]:
        """The folder at `path`, made where it is missing, and how deep it really lies."""
        if self._last is not None and self._last[0] == path:
            return self._last[1:]
        trail: list[str] = []
        node = self._walk(path.split("/") if path else [], make=layer, trail=trail)
        if node is None or node.kind != "folder":
            raise damaged(f"{path[:200]!a} is a file, and something lies below it", self.where)
        self._last = (path, node, len(trail))
        return self._last[1:]

    def make_folder(self, path: str, layer: int) -> str:
        """Make the folder at `path` where it is missing; where it really lies.

        Raises `ImageFault` when a file is in the way.
        """
        self._folder(path, layer)
        real = self.real_path(path)
        assert real is not None
        return real

    def find(self, path: str, *, follow_last: bool = True) -> Node | None:
        """The node at a path, links followed inside the image; `None` when there is none."""
        return self._walk([p for p in path.split("/") if p], follow_last=follow_last)

    def real_path(self, path: str) -> str | None:
        """Where a path leads, all links followed; `None` when nowhere."""
        trail: list[str] = []
        node = self._walk([p for p in path.split("/") if p], trail=trail)
        return None if node is None else "/".join(trail)

    def _walk(
        self,
        parts: list[str],
        *,
        make: int | None = None,
        follow_last: bool = True,
        trail: list[str] | None = None,
    ) -> Node | None:
        stack = [self.root]
        names: list[str] = [] if trail is None else trail
        todo = parts[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if names:
                    names.pop()
                    stack.pop()
                continue
            children = stack[-1].children
            if children is None:
                return None
            node = children.get(part)
            if node is None:
                if make is None:
                    return None
                node = children[part] = self._new("folder", part, make, len(names))
            if node.kind == "link" and (todo or follow_last):
                links += 1
                if links > _MAX_LINKS:
                    raise self._hostile(f"links without end at {part[:100]!a}")
                if node.target.startswith("/"):
                    del stack[1:], names[:]
                todo += node.target.split("/")[::-1]
                continue
            stack.append(node)
            names.append(part)
        return stack[-1]

    def _white_out(self, parent: Node, name: str, layer: int) -> None:
        children = parent.children
        assert children is not None
        if name == OPAQUE:
            _prune(parent, layer)
            return
        hidden = name.removeprefix(WHITEOUT)
        if hidden in (".", ".."):
            raise self._hostile(f"the mark {name!a} would remove a folder from within")
        if hidden.startswith(WHITEOUT) or not hidden:
            return  # other marks that the format reserves
        node = children.get(hidden)
        if node is None:
            return
        if _outlived(node, layer):
            del children[hidden]

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Every path with its node, folders before what they hold, sorted."""
        stack: list[tuple[str, Node]] = [("", self.root)]
        while stack:
            path, node = stack.pop()
            if path:
                yield path, node
            if node.children:
                prefix = f"{path}/" if path else ""
                stack += [
                    (prefix + name, node.children[name])
                    for name in sorted(node.children, reverse=True)
                ]


def _describe(node: Node, member: Member) -> None:
    node.mode, node.uid, node.gid, node.mtime = member.mode, member.uid, member.gid, member.mtime
    node.size, node.target, node.capability = member.size, member.target, member.capability


def _prune(folder: Node, layer: int) -> None:
    """Remove what layers below `layer` put into `folder`."""
    assert folder.children is not None
    for name, node in list(folder.children.items()):
        if _outlived(node, layer):
            del folder.children[name]


def _outlived(node: Node, layer: int) -> bool:
    """Whether nothing of `layer` is left of a node; what is older goes.

    A folder that a layer does not list itself, but puts something into, stays.
    """
    if node.children is not None:
        _prune(node, layer)
        return node.layer < layer and not node.children
    return node.layer < layer
