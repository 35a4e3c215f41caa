"""The model that a trial names is the file that was there when the engine opened it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from qualify.runner.identity import file_stamp
from qualify.runner.trial import Bench

DIGEST = "sha256:" + "a" * 64


def bench(model: Path | None) -> Bench:
    """A bench of which only the model counts here."""
    absent = dict.fromkeys(field.name for field in fields(Bench))
    return Bench(
        **{
            **absent,
            "verified_files": DIGEST,
            "model_file": model,
            "model_stamp": file_stamp(model),
        }
    )  # type: ignore[arg-type]


def _replace(path: Path) -> None:
    (path.parent / "other").write_bytes(path.read_bytes())
    (path.parent / "other").replace(path)


def _write(path: Path) -> None:
    path.write_bytes(b"other")
    os.utime(path, ns=(1, 1))


def _truncate(path: Path) -> None:
    os.truncate(path, 1)


@pytest.mark.parametrize("change", [_replace, _write, _truncate, Path.unlink])
def test_a_model_that_was_changed_during_the_run_is_no_longer_known(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    ready = bench(model)
    assert ready.model_files() == DIGEST
    change(model)
    assert ready.model_files() is None


def test_a_link_to_the_model_is_followed(tmp_path: Path) -> None:
    model, link = tmp_path / "model.gguf", tmp_path / "link"
    model.write_bytes(b"weights")
    link.symlink_to(model)
    ready = bench(link)
    assert ready.model_files() == DIGEST
    _replace(model)
    assert ready.model_files() is None


def test_a_row_without_a_model_has_none_to_change() -> None:
    assert bench(None).model_files() == DIGEST
