"""A signed ledger for a row of this project."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.signed_site import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("QUALIFY_SIGNERS", "QUALIFY_SIGNING_KEY", "QUALIFY_PUBLISH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Site(tmp_path)
