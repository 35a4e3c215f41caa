"""One checkout and one depot for all tests of builds; each image is built once."""

from __future__ import annotations

import functools
import shutil

import pytest

from support.nix import Checkout, checkout, seeded_depot

PROGRAMS = ("nix", "nix-store", "skopeo", "umoci", "bwrap", "unshare")


@pytest.fixture(scope="session")
def depot():
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    assert not missing, f"not installed: {', '.join(missing)} (./test installs them)"
    return seeded_depot()


@pytest.fixture(scope="session")
def tree(depot, tmp_path_factory) -> Checkout:
    """A committed checkout in a folder with a space in its name."""
    return checkout(tmp_path_factory.mktemp("builds") / "a checkout")


@pytest.fixture(scope="session")
def image(tree):
    """A function that gives the document of an image, built at its first call."""
    return functools.cache(tree.image)
