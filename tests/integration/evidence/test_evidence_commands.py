"""`qualify evidence` as people use it: signing, verifying without a project, keys, hand-overs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.signed_site import Site


def test_sign_verify_and_freshness_in_a_folder_without_a_project(site: Site) -> None:
    site.run("pp")
    done = site.qualify("evidence", "sign", "--key", site.key, "--json")
    assert done.code == 0, done.err
    first = f"{done.document['entries']}:{done.document['head']}"
    site.run("p")
    assert site.qualify("evidence", "sign", "--key", site.key).code == 0
    copy = site.folder / "elsewhere" / "results"
    shutil.copytree(site.results, copy)
    for place in (copy, copy / "ledger"):
        done = site.qualify(
            "evidence", "verify", place, "--signer", site.pub, "--at-least", first,
            cwd=str(site.folder),
        )  # fmt: skip
        assert done.code == 0, done.out + done.err
        assert "continues the checkpoint of 5 entries" in done.out


def test_without_a_signer_nothing_is_accepted(site: Site) -> None:
    site.run("p")
    assert site.qualify("evidence", "sign", "--key", site.key).code == 0
    done = site.qualify("evidence", "verify")
    assert done.code == 10
    assert "give --signer KEY" in done.out
    site.trust("checkpoints")
    assert site.qualify("evidence", "verify").code == 0


def test_a_folder_from_elsewhere_does_not_say_who_is_to_be_believed(site: Site) -> None:
    site.run("p")
    assert site.qualify("evidence", "sign", "--key", site.key).code == 0
    site.trust("checkpoints")
    project = site.folder / "project"
    (project / "manifests").mkdir(parents=True)
    shutil.move(site.config / "signers.json", project / "signers.json")
    shutil.copytree(site.results, project / "results")
    done = site.qualify("evidence", "verify", project / "results", cwd=str(project))
    assert done.code == 10
    # The project's own results and its own registry: accepted, and said how little that is.
    done = site.qualify("--results", project / "results", "evidence", "verify", cwd=str(project))
    assert done.code == 0, done.out + done.err
    assert "whoever can change the project chose them" in done.out


def test_a_key_in_the_project_or_the_results_signs_nothing(site: Site) -> None:
    site.run("p")
    inside = site.results / "key"
    shutil.copy(site.key, inside)
    done = site.qualify("evidence", "sign", "--key", inside)
    assert done.code == 2
    assert "lies in" in done.err
    assert not (site.results / "ledger" / "checkpoints").exists()


def test_signing_keyless_without_an_identity_is_refused_clearly(site: Site) -> None:
    site.run("p")
    done = site.qualify("evidence", "sign", "--sigstore")
    assert done.code == 2
    assert "there is no identity here to sign with" in done.err
    assert not list((site.results / "ledger" / "checkpoints").glob("0*"))


def test_a_hand_over_from_the_command_line(site: Site) -> None:
    site.run("p")
    assert site.qualify("evidence", "sign", "--key", site.key).code == 0
    new = site.folder / "new"
    done = site.qualify("evidence", "keys", "new", "--to", new, "--json")
    assert done.code == 0
    (site.folder / "new.pub").write_text(done.document["ssh"])
    done = site.qualify("evidence", "keys", "hand-over", "--from", site.key, "--to", new)
    assert done.code == 0, done.err
    site.run("p")
    assert site.qualify("evidence", "sign", "--key", new).code == 0
    for public in (site.pub, site.folder / "new.pub"):
        assert site.qualify("evidence", "verify", "--signer", public).code == 0
    site.run("p")
    assert site.qualify("evidence", "sign", "--key", site.key).code == 0
    done = site.qualify("evidence", "verify", "--signer", site.pub)
    assert done.code == 10
    assert "retired-key" in done.out


@pytest.mark.skipif(os.geteuid() != 0, reason="a tmpfs of its own needs root")
def test_a_full_disk_leaves_no_half_of_a_checkpoint_and_the_ledger_as_it_was(
    site: Site, tmp_path: Path
) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=True)
    try:
        site.results = place / "results"
        site.run("p")
        before = site.ledger.verify()
        filler = place / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
        done = site.qualify("evidence", "sign", "--key", site.key)
        assert done.code == 1
        assert "No space left" in done.err
        folder = site.results / "ledger" / "checkpoints"
        assert not [path for path in folder.glob("*") if path.name != ".lock"]
        assert site.ledger.verify() == before
        done = site.qualify("evidence", "export", "--to", place / "out", "--key", site.key)
        assert done.code == 1
        assert not (place / "out").exists()
        filler.unlink()
        assert site.qualify("evidence", "sign", "--key", site.key).code == 0
        assert site.qualify("evidence", "verify", "--signer", site.pub).code == 0
    finally:
        subprocess.run(["umount", place], check=True)


def test_merged_sites_are_verified_each_by_its_own_signers(site: Site, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Site(tmp_path / "other")
    for each in (site, other):
        each.run("p")
        assert each.qualify("evidence", "sign", "--key", each.key).code == 0
    done = site.qualify("results", "merge", other.results)
    assert done.code == 0, done.err
    both = ("evidence", "verify", "--signer", site.pub, "--signer", other.pub)
    newest = next((other.results / "ledger" / "checkpoints").glob("0*[0-9].json"))
    done = site.qualify(*both, "--at-least", newest, "--json")
    assert done.code == 0, done.out
    assert [each["freshness"] for each in done.document["ledgers"]] == ["unknown", "at-least"]
    done = site.qualify("evidence", "verify", "--signer", site.pub, "--json")
    assert done.code == 10
    assert [each["accepted"] for each in done.document["ledgers"]] == [True, False]
