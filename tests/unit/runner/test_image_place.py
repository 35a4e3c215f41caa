"""Which packages an image has is read in the image, however its links stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.core.errors import UsageError
from qualify.runner.image_place import _versions_in, site_folders
from qualify.runtimes.contained import ImageRoot

SITE = "usr/lib/python3.13/site-packages"


def installed(site: Path, version: str) -> Path:
    info = site / f"thing-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n")
    return info


def version(root: Path) -> str | None:
    return _versions_in(ImageRoot(root, "sha256:" + "0" * 64, {}, {}))("Thing")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image's root; beside it lies a host that has another version."""
    installed(tmp_path / "host", "9")
    (tmp_path / "root/usr/lib/python3.13").mkdir(parents=True)
    return tmp_path / "root"


def test_the_version_of_the_image_is_found(root: Path) -> None:
    installed(root / SITE, "1")
    assert version(root) == "1"


def test_a_link_means_the_images_own_root(root: Path) -> None:
    installed(root / "opt/site", "1")
    (root / SITE).symlink_to("/opt/site")
    assert site_folders(root) == [root / "opt/site"]
    assert version(root) == "1"


def test_a_link_to_the_hosts_packages_finds_nothing_there(root: Path) -> None:
    (root / SITE).symlink_to(root.parent / "host")
    assert site_folders(root) == []
    (root / SITE).unlink()
    (root / SITE).symlink_to("../../../../../../host")
    assert version(root) is None


@pytest.mark.parametrize("what", ["folder", "file"])
def test_metadata_behind_a_link_to_the_host_is_refused(root: Path, what: str) -> None:
    host = root.parent / "host/thing-9.dist-info"
    place = root / SITE / "thing-9.dist-info"
    if what == "folder":
        place.parent.mkdir()
        place.symlink_to(host)
    else:
        place.mkdir(parents=True)
        (place / "METADATA").symlink_to(host / "METADATA")
    with pytest.raises(UsageError, match="leads out of the image"):
        version(root)
