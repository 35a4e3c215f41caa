"""Errors come out of another process as they were raised."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from qualify.core.errors import QualifyError, UsageError
from qualify.storage.appendlog import ChainBroken
from qualify.storage.locks import LockHeld


@pytest.mark.parametrize(
    "error",
    [
        UsageError("is wrong", where="a:1", fix="change it"),
        ChainBroken("is no line", where="ledger.log:3"),
        LockHeld(Path("lock"), 7),
    ],
)
def test_an_error_survives_the_way_between_processes(error: QualifyError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
