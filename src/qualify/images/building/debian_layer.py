"""Makes a layer out of Debian packages, and out of what their maintainer scripts would have made.

The specification, as JSON in the file that `specPath` names:

    {"title": …, "base": true, "packages": [{"name": …, "version": …, "path": …}, …]}

With `base` the layer is the lowest one: it gets the accounts, the certificates' bundle, the
temporary folders and the `python3` link. Without, it only adds packages.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qualify.images.building.bytecode import bytecode_path, with_bytecode
from qualify.images.building.debian_package import control_text, member, placed
from qualify.images.building.layer_writer import BuildError, LayerWriter
from qualify.images.building.step import Step, run

USER = 10001
"""User and group id of `qualify`, the account that images run as."""

_PASSWD = f"""\
root:x:0:0:root:/root:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
qualify:x:{USER}:{USER}:qualify:/home/qualify:/usr/sbin/nologin
"""
_GROUP = f"root:x:0:\nnogroup:x:65534:\nqualify:x:{USER}:\n"
_NSSWITCH = """\
passwd: files
group: files
hosts: files dns
networks: files
protocols: files
services: files
"""
_CERTIFICATES = "usr/share/ca-certificates/mozilla/"
_OURS = "qualify"


@dataclass(frozen=True)
class _Item:
    owner: str
    entry: tarfile.TarInfo
    path: str
    data: bytes


def main(step: Step) -> None:
    """Write the layer."""
    with LayerWriter(step.out, title=step.spec["title"], threads=step.cores) as layer:
        if step.spec["base"]:
            _folders(layer)
        packages = sorted(step.spec["packages"], key=_base_files_first)
        certificates = _packages(layer, packages, step.cores)
        if step.spec["base"]:
            _accounts(layer, certificates)


def _base_files_first(package: dict[str, str]) -> tuple[bool, str]:
    return package["name"] != "base-files", package["name"]


def _folders(layer: LayerWriter) -> None:
    for path in ("tmp", "var/tmp"):
        layer.folder(path, _OURS, mode=0o1777)
    layer.folder("root", _OURS, mode=0o700)
    layer.folder("home/qualify", _OURS, mode=0o700, uid=USER, gid=USER)


def _accounts(layer: LayerWriter, certificates: list[bytes]) -> None:
    """What Debian's maintainer scripts make on an ordinary machine."""
    layer.file("etc/passwd", _PASSWD.encode(), _OURS)
    layer.file("etc/group", _GROUP.encode(), _OURS)
    layer.file("etc/nsswitch.conf", _NSSWITCH.encode(), _OURS)
    if certificates:
        bundle = b"".join(text.rstrip(b"\n") + b"\n" for text in certificates)
        layer.file("etc/ssl/certs/ca-certificates.crt", bundle, _OURS)
    layer.link("usr/bin/python3", "python3.13", _OURS)
    layer.link("var/run", "/run", _OURS)
    layer.link("var/lock", "/run/lock", _OURS)


def _packages(layer: LayerWriter, packages: list[dict[str, Any]], cores: int) -> list[bytes]:
    """Write every package; returns the certificates among their files, by path."""
    certificates: dict[str, bytes] = {}
    for item, bytecode in with_bytecode(_items(packages), _source, cores):
        _write(layer, item)
        if bytecode is not None:
            layer.file(bytecode_path(item.path), bytecode, item.owner)
        if item.path.startswith(_CERTIFICATES) and item.path.endswith(".crt"):
            certificates[item.path] = item.data
    return [certificates[path] for path in sorted(certificates)]


def _items(packages: list[dict[str, Any]]) -> Iterator[_Item]:
    for package in packages:
        owner = f"{package['name']} {package['version']}"
        deb = Path(package["path"])
        control = control_text(deb)
        status = tarfile.TarInfo(f"var/lib/dpkg/status.d/{package['name']}")
        yield _Item(owner, status, status.name, control)
        with member(deb, "data.tar") as archive:
            for entry in archive:
                path = placed(entry.name)
                if path is None:
                    continue
                file = archive.extractfile(entry) if entry.isreg() else None
                yield _Item(owner, entry, path, file.read() if file else b"")


def _source(item: _Item) -> tuple[str, bytes] | None:
    if item.entry.isreg() and item.path.startswith("usr/lib/python3") and item.path.endswith(".py"):
        return f"/{item.path}", item.data
    return None


def _write(layer: LayerWriter, item: _Item) -> None:
    entry, path, owner = item.entry, item.path, item.owner
    if entry.isdir():
        # Set-group-id folders of /usr/local and /var belong to groups that an image does not have.
        layer.folder(path, owner, mode=0o700 if path == "root" else 0o755)
    elif entry.issym():
        layer.link(path, entry.linkname, owner)
    elif entry.islnk():
        first = placed(entry.linkname)
        if first is None:
            raise BuildError(f"{path} of {owner} is a hard link to a file that is left out")
        layer.same_file(path, first, owner)
    elif entry.isreg():
        layer.file(path, item.data, owner, mode=entry.mode & 0o7777)
    else:
        raise BuildError(f"{path} of {owner} is neither file, folder nor link")


if __name__ == "__main__":
    run(main)
