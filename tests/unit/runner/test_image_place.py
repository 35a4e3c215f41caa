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


def test_metadata_is_found_whatever_the_case_of_its_name(root: Path) -> None:
    """As Python finds it."""
    (root / SITE).mkdir()
    (root / SITE / "thing-9.Dist-Info").symlink_to(root.parent / "host/thing-9.dist-info")
    with pytest.raises(UsageError, match="leads out of the image"):
        version(root)


def test_a_link_within_the_image_is_followed(root: Path) -> None:
    installed(root / "opt/kept", "1")
    (root / SITE / "thing-1.dist-info").mkdir(parents=True)
    kept = "/opt/kept/thing-1.dist-info/METADATA"
    assert not Path(kept).exists()
    (root / SITE / "thing-1.dist-info/METADATA").symlink_to(kept)
    assert version(root) == "1"


@pytest.mark.parametrize("place", ["tmp/site", "model/site", "home/qualify/site"])
def test_what_the_image_has_where_the_program_finds_another_folder_does_not_count(
    root: Path, place: str
) -> None:
    installed(root / place, "1")
    installed(root / SITE, "2")
    local = root / "usr/local/lib/python3.13"
    local.mkdir(parents=True)
    (local / "dist-packages").symlink_to(f"/{place}")
    assert version(root) == "2"


@pytest.mark.parametrize("name", ["usr/lib", "usr/local/lib", "usr/lib/python3.14"])
def test_links_that_never_end_have_no_packages(root: Path, name: str) -> None:
    installed(root / SITE, "1")
    place = root / name
    place.parent.mkdir(exist_ok=True)
    if place.exists():
        place.rename(place.with_name("moved"))
    place.symlink_to(place.name)
    assert version(root) == (None if name == "usr/lib" else "1")


def test_two_versions_side_by_side_are_both_told(root: Path) -> None:
    installed(root / SITE, "1")
    installed(root / SITE, "2")
    assert version(root) == "1 and 2"


def test_a_copy_that_says_nothing_hides_a_later_one_all_the_same(root: Path) -> None:
    (root / "usr/local/lib/python3.13/dist-packages/thing-1.dist-info").mkdir(parents=True)
    installed(root / SITE, "1")
    assert version(root) == "without metadata"


def test_an_egg_is_read_too(root: Path) -> None:
    (root / SITE).mkdir()
    (root / SITE / "thing.egg-info").write_text("Metadata-Version: 1.0\nName: thing\nVersion: 3\n")
    assert version(root) == "3"
