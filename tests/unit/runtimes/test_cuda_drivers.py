"""Drivers against CUDA, by NVIDIA's tables, and what the reference says of them."""

from pathlib import Path

import pytest
from packaging.version import Version

from qualify.runtimes.cuda_drivers import (
    FIRST_OF_MAJOR,
    RELEASED_WITH,
    Support,
    cuda_support,
    driver_ceiling,
    minimum_driver,
    older,
)

PAGE = Path(__file__).parents[3].joinpath("docs/reference/admission.md").read_text()


@pytest.mark.parametrize(
    ("driver", "cuda", "support", "ceiling"),
    [
        ("590.48.01", "12.9", Support.NATIVE, "13.1"),
        ("575.51.03", "12.9", Support.NATIVE, "12.9"),
        ("535.154.05", "12.9", Support.MINOR, "12.2"),
        ("525.60.13", "12.9", Support.MINOR, "12.0"),
        ("520.61.05", "12.9", Support.NONE, "11.8"),
        ("470.256.02", "12.9", Support.NONE, None),
        ("535.154.05", "13.0", Support.NONE, "12.2"),
        ("580.65.06", "13.0", Support.NATIVE, "13.0"),
        ("580.65.06", "13.2", Support.MINOR, "13.0"),
        ("999.1", "14.0", Support.UNKNOWN, "13.2"),
        ("open-module", "12.9", Support.UNKNOWN, None),
        ("535.154.05", "unknown", Support.UNKNOWN, None),
    ],
)
def test_a_driver_runs_a_cuda_version_natively_or_by_its_major(driver, cuda, support, ceiling):
    found = cuda_support(driver, cuda)
    assert (found.support, found.ceiling) == (support, ceiling)


def test_the_ceiling_is_the_newest_toolkit_that_a_driver_is_as_new_as():
    for cuda, driver in RELEASED_WITH.items():
        assert driver_ceiling(driver) == cuda


def test_the_tables_agree_with_each_other():
    versions = [Version(driver) for driver in RELEASED_WITH.values()]
    assert versions == sorted(versions)
    for cuda, driver in RELEASED_WITH.items():
        assert Version(driver) >= Version(FIRST_OF_MAJOR[Version(cuda).major])
        assert not older(driver, minimum_driver(cuda))
    assert minimum_driver("14.0") is None


def test_the_reference_prints_the_tables():
    for cuda, driver in RELEASED_WITH.items():
        assert f"| {cuda} | {driver} | {minimum_driver(cuda)} |" in PAGE
    assert PAGE.count("\n| 1") == len(RELEASED_WITH)
