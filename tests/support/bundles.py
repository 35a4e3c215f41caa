"""Small images of a small project, as a build leaves them: layouts, locks and labels agree."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qualify.images.declarations import declarations_digest
from qualify.pins.debian import (
    Bootstrap,
    Busybox,
    Closure,
    DebianLock,
    DebianPackage,
    Release,
    debian_lock_bytes,
)
from qualify.pins.locks import Lock, LockedFile, LockedPackage, LockPlatform, lock_bytes
from support.projects import write_project

REVISION = "1234567890" * 4

METADATA = "usr/lib/python3/dist-packages/{}-1.0.dist-info/METADATA"
COPYRIGHT = "usr/share/doc/{}/copyright"
DEP5 = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"

FILES: dict[str, str] = {
    METADATA.format(
        "alpha"
    ): "Metadata-Version: 2.4\nName: Alpha\nLicense-Expression: MIT OR 0BSD\n",
    METADATA.format("beta"): "Metadata-Version: 2.1\nName: beta\nLicense: BSD, as in the file\n",
    METADATA.format("gamma"): "Metadata-Version: 2.1\nName: gamma\nLicense: UNKNOWN\n",
    COPYRIGHT.format("libc6"): DEP5
    + "Files: *\nLicense: LGPL-2.1+\n\nFiles: x\nLicense: MIT\n\nLicense: GPL-3\n text\n",
    COPYRIGHT.format("python3.13-minimal"): "Some words about licences, in no fixed form.\n",
}
"""Files of every image: `gamma` and `python3.13-minimal` state no licence."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def python_lock(name: str, *packages: str) -> Lock:
    """An image set; a package's digest follows from its name."""
    return Lock(
        set=name,
        purpose="for a test",
        cutoff="2026-11-30T00:00:00Z",
        inputs=tuple(sorted(packages)),
        platform=LockPlatform(
            glibc="2.41", libc="glibc", machine="x86_64", pythons=("3.13",), system="linux"
        ),
        packages=tuple(
            LockedPackage(
                name=package,
                version="1.0",
                files=(
                    LockedFile(
                        file=f"{package}-1.0-py3-none-any.whl",
                        sha256=sha256(package.encode()),
                        size=9,
                    ),
                ),
            )
            for package in sorted(packages)
        ),
    )


def debian_lock() -> DebianLock:
    versions = {
        "busybox-static": "1:1.37.0-6",
        "libc6": "2.41-12",
        "libstdc++6": "2:14.2.0-19",
        "python3.13-minimal": "3.13.5-2+b1",
    }
    packages = tuple(
        DebianPackage(
            file=f"{name}_{version.split(':')[-1]}_amd64.deb",
            name=name,
            path=f"pool/main/x/{name}/{name}_{version.split(':')[-1]}_amd64.deb",
            sha256=sha256(name.encode()),
            size=9,
            version=version,
        )
        for name, version in versions.items()
    )
    held = ("libc6", "libstdc++6", "python3.13-minimal")
    return DebianLock(
        set="debian",
        purpose="for a test",
        architecture="amd64",
        release=Release(codename="trixie", date="Sat, 06 Sep 2025 09:00:00 UTC", version="13.1"),
        bootstrap=Bootstrap(busybox=Busybox(nar_sha256="b" * 64)),
        closures={
            "base": Closure(packages=held, seeds=("python3.13-minimal",)),
            "build": Closure(packages=("busybox-static", "libc6"), seeds=("busybox-static",)),
        },
        packages=packages,
    )


LOCKS = {
    "runner": python_lock("runner", "alpha", "beta", "gamma"),
    "tools": python_lock("tools", "alpha"),
    "nix-build": python_lock("nix-build", "installer"),
}


def write_attested_project(folder: Path) -> Path:
    """`SOUND` with the locks that images are made from, a licence and a page of documentation."""
    changes: dict[str, str | bytes | None] = {
        f"locks/{name}.json": lock_bytes(lock) for name, lock in LOCKS.items()
    }
    changes["locks/debian.json"] = debian_lock_bytes(debian_lock())
    changes["LICENSE"] = "do as you like\n"
    changes["docs/reference/bundles.md"] = "# Bundles\n"
    return write_project(folder, changes)


@dataclass
class Layout:
    """One image to be written as an OCI layout."""

    name: str
    sets: tuple[str, ...]
    runtime: str | None = None
    labels: dict[str, str | None] = field(default_factory=dict)
    """Changes to the labels; `None` leaves one out."""
    files: dict[str, str] = field(default_factory=lambda: dict(FILES))
    upper: dict[str, str] = field(default_factory=dict)
    """Files of the second layer, besides its own one."""
    linked_blobs: bool = False
    """Blobs are links to another folder, as Nix leaves them."""

    def write(self, folder: Path, project: Path) -> Path:
        """Write it to the new folder and return that."""
        blobs = folder / "blobs/sha256"
        blobs.mkdir(parents=True)
        own = f"{self.name} only\n"
        layers = [layer_bytes(self.files), layer_bytes({**self.upper, f"opt/{self.name}": own})]
        tars = [gzip.decompress(layer) for layer in layers]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": self._labels(project)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(tar)}" for tar in tars]},
        }
        config_bytes = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config_bytes),
            "layers": [
                _descriptor("application/vnd.oci.image.layer.v1.tar+gzip", layer)
                for layer in layers
            ],
        }
        manifest_bytes = json.dumps(manifest).encode()
        for data in (*layers, config_bytes, manifest_bytes):
            self._blob(blobs, data)
        index = {
            "schemaVersion": 2,
            "manifests": [_descriptor(str(manifest["mediaType"]), manifest_bytes)],
        }
        (folder / "index.json").write_text(json.dumps(index))
        (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        return folder

    def _blob(self, blobs: Path, data: bytes) -> None:
        path = blobs / sha256(data)
        if not self.linked_blobs:
            path.write_bytes(data)
            return
        store = blobs.parents[2] / "store"
        store.mkdir(exist_ok=True)
        (store / path.name).write_bytes(data)
        path.symlink_to(store / path.name)

    def _labels(self, project: Path) -> dict[str, str]:
        labels: dict[str, str | None] = {
            "org.opencontainers.image.revision": REVISION,
            "org.opencontainers.image.version": "0.1.0",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "qualify.image": self.name,
            "qualify.runtime": self.runtime,
            "qualify.closure": "base",
            "qualify.lock.debian": debian_lock().digest,
            "qualify.declarations": declarations_digest(project),
            **{f"qualify.lock.{name}": LOCKS[name].digest for name in self.sets},
            **self.labels,
        }
        return {key: value for key, value in labels.items() if value is not None}


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256(data)}", "size": len(data)}


def layer_bytes(files: dict[str, str]) -> bytes:
    """A layer of plain files, the same every time."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, text in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(stream.getvalue(), mtime=0)


RUNNER = Layout("runner", ("runner",))
ENGINE = Layout("engine", ("tools",), runtime="engine")


def two_layouts(folder: Path, project: Path) -> list[Path]:
    """The images that the bundle of `SOUND` declares."""
    return [
        RUNNER.write(folder / "image-runner", project),
        ENGINE.write(folder / "image-engine", project),
    ]
