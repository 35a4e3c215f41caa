"""A run signs the ledger at its end when there is a key, and costs no verdict when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qualify.core.clock import Clock
from qualify.evidence.ledger import open_ledger
from qualify.evidence.signing.keys import write_new_key
from qualify.evidence.signing.registry import Registry, Signer
from qualify.evidence.verification import verify_ledger
from support import commands
from support.commands import Ended

ROOT = Path(__file__).parents[3]
RUN = ("run", "scripted-passes", "--trials", "1")


@pytest.fixture
def qualify(tmp_path: Path) -> Callable[..., Ended]:
    from qualify.sessions.construction import preload

    preload()
    places = {
        "QUALIFY_RESULTS": str(tmp_path / "results"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "QUALIFY_SIGNING_KEY": "",
    }

    def run(*arguments: str, **more: str) -> Ended:
        options = {"folder": tmp_path / "said", "cwd": tmp_path, "environment": {**places, **more}}
        return commands.run("--project", str(ROOT), *arguments, **options)

    return run


def test_a_run_signs_with_the_users_key_and_says_what_to_remember(
    qualify: Callable[..., Ended], tmp_path: Path
) -> None:
    place = tmp_path / "config" / "qualify"
    place.mkdir(parents=True)
    key = write_new_key(place / "signing-key")
    done = qualify(*RUN, "--json")
    assert done.code == 10  # scripted evidence qualifies nothing
    ledger = open_ledger(tmp_path / "results")
    registry = Registry("caller", "test", (Signer("me", key.public),))
    found = verify_ledger(ledger, registry, Clock().now())
    assert found.accepted
    assert done.document["checkpoint"] == f"{found.count}:{found.head}"
    assert "remember" in qualify(*RUN).out


def test_without_a_key_nothing_is_signed_and_nothing_is_said_of_it(
    qualify: Callable[..., Ended], tmp_path: Path
) -> None:
    done = qualify(*RUN, "--json")
    assert done.document["checkpoint"] is None
    assert done.document["note"] is None
    assert not (tmp_path / "results" / "ledger" / "checkpoints").exists()


def test_a_key_that_must_not_be_used_costs_the_checkpoint_and_not_the_evidence(
    qualify: Callable[..., Ended], tmp_path: Path
) -> None:
    write_new_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    done = qualify(*RUN, "--json", QUALIFY_SIGNING_KEY=str(tmp_path / "key"))
    assert done.code == 10
    assert "no checkpoint was signed, the evidence is safe" in done.document["note"]
    assert "chmod 600" in done.document["note"]
    assert done.document["checkpoint"] is None
    assert open_ledger(tmp_path / "results").verify().count == 3
