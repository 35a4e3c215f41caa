"""One CUDA major in a set of packages: what names and versions say, and what is allowed."""

from pathlib import Path

import pytest

from qualify.pins.cuda import ALLOWED, cuda_majors, mixture, package_major
from qualify.pins.locks import read_lock

LOCKS = Path(__file__).parents[3] / "locks"


@pytest.mark.parametrize(
    ("name", "version", "major"),
    [
        ("nvidia-cuda-runtime-cu12", "12.9.79", 12),
        ("nvidia-cudnn-cu13", "9.24.0.43", 13),
        ("cupy-cuda12x", "13.6.0", 12),
        ("nvidia-cuda-runtime", "13.0.96", 13),
        ("cuda-bindings", "12.9.4", 12),
        ("cuda-toolkit", "13.0.3.0", 13),
        ("torch", "2.11.0+cu129", 12),
        ("torch", "2.14.0+cu130", 13),
        ("torch", "2.14.0", None),
        ("torch", "2.13.0+cpu", None),
        ("nvidia-cufft", "12.0.0.61", 13),
        ("nvidia-cufile", "1.15.1.6", 13),
        ("nvidia-ml-py", "13.615.71", None),
        ("nvidia-cudnn-frontend", "1.32.0", None),
        ("nvidia-cutlass-dsl", "4.8.0", None),
        ("numpy", "2.3.0", None),
    ],
)
def test_the_major_of_a_package_is_told_by_suffix_version_or_build(name, version, major):
    assert package_major(name, version) == major


@pytest.mark.parametrize(("name", "major"), [("vllm-cu129", 12), ("vllm-cu130", 13)])
def test_each_shipped_lock_for_cuda_has_one_major(name, major):
    versions = read_lock(LOCKS / f"{name}.json").versions
    assert list(cuda_majors(versions)) == [major]
    assert len(cuda_majors(versions)[major]) >= 10
    assert mixture(versions) is None


def test_a_foreign_major_is_found_and_the_packages_that_bring_it_are_named():
    versions = read_lock(LOCKS / "vllm-cu129.json").versions
    mixed = versions | {"nvidia-cudnn-cu13": "9.24.0.43"}
    text = mixture(mixed)
    assert text is not None
    assert "CUDA 13 by nvidia-cudnn-cu13" in text


def test_only_what_is_allowed_by_name_may_bring_another_major_and_says_why():
    versions = read_lock(LOCKS / "vllm-cu130.json").versions
    assert set(ALLOWED) <= set(versions)
    assert all(len(reason) > 20 for reason in ALLOWED.values())
    unexplained = versions | {"nvidia-other-libs-cu12": "1.0"}
    assert "nvidia-other-libs-cu12" in mixture(unexplained)


def test_an_environment_without_cuda_has_no_major():
    assert cuda_majors({"numpy": "2.3.0", "torch": "2.13.0+cpu"}) == {}
    assert mixture({}) is None
