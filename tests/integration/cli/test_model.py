"""`qualify model` on a small project."""

import hashlib
import json

import pytest
from click.testing import CliRunner

from qualify.cli import cli

WEIGHTS = b"GGUF" + bytes(3000)


@pytest.fixture
def qualify(tmp_path, monkeypatch):
    folder = tmp_path / "project" / "manifests" / "models"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    about = "repository: example/tiny\nformat: gguf\nlicence: {spdx: MIT}\n"
    files = f"files:\n  - path: tiny.gguf\n    size: {len(WEIGHTS)}\n    sha256: {digest}\n"
    (folder / "tiny.yaml").write_text("id: tiny\n" + about + files)
    (folder / "elsewhere.yaml").write_text("id: elsewhere\n" + about)
    (tmp_path / "weights").write_bytes(WEIGHTS)
    monkeypatch.setenv("QUALIFY_MODEL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        project = str(tmp_path / "project")
        return CliRunner().invoke(cli, ["--project", project, *arguments], standalone_mode=False)

    return run


def states(result):
    return {entry["id"]: entry["state"] for entry in json.loads(result.stdout)["models"]}


def test_list_shows_every_model_and_what_the_store_has(qualify, tmp_path):
    assert states(qualify("model", "list", "--json")) == {"elsewhere": "declared", "tiny": "absent"}
    assert "not acquired" in qualify("model", "list").stdout
    qualify("model", "acquire", "tiny", "--from", str(tmp_path / "weights"))
    assert states(qualify("model", "list", "--json"))["tiny"] == "present"
    table = qualify("model", "list").stdout
    assert "3.0 kB" in table
    assert max(map(len, table.splitlines()[:-1])) <= 80


def test_acquire_says_what_it_did_and_progress_stays_on_stderr(qualify, tmp_path):
    first = qualify("model", "acquire", "tiny", "--from", str(tmp_path / "weights"))
    assert first.stdout.startswith("tiny: acquired and verified (3.0 kB")
    assert "copying tiny.gguf" in first.stderr
    again = qualify("model", "acquire", "tiny")
    assert "already there, verified again" in again.stdout


def test_show_gives_the_digest_and_the_place_of_each_file(qualify, tmp_path):
    before = qualify("model", "show", "tiny").stdout
    assert hashlib.sha256(WEIGHTS).hexdigest() in before
    qualify("model", "acquire", "tiny", "--from", str(tmp_path / "weights"))
    after = json.loads(qualify("model", "show", "tiny", "--json").stdout)
    assert after["files"][0]["location"].endswith("tiny.gguf")


def test_verify_gives_exit_10_for_a_damaged_file_and_names_it(qualify, tmp_path):
    assert "no model of this project" in qualify("model", "verify").stdout
    qualify("model", "acquire", "tiny", "--from", str(tmp_path / "weights"))
    assert "verified, sha256:" in qualify("model", "verify").stdout
    blob = next((tmp_path / "store" / "blobs").iterdir())
    blob.chmod(0o644)
    blob.write_bytes(WEIGHTS[:10])
    result = qualify("model", "verify", "tiny")
    assert result.exception.exit_code == 10
    assert "tiny.gguf of model tiny is not what its manifest says" in str(result.exception)
    assert "found 10 bytes" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["acquire", "tinny"], "did you mean 'tiny'?"),
        (["acquire", "elsewhere"], "lists no files"),
        (["acquire", "tiny", "--from", "no-such-file"], "cannot be read"),
        (["acquire", "tiny", "--approve-licence", "GPL-3.0-only"], "is MIT"),
        (["verify", "tiny"], "is not in the model store"),
    ],
)
def test_what_cannot_be_used_is_one_usage_error(qualify, arguments, text):
    result = qualify("model", *arguments)
    assert result.exception.exit_code == 2
    assert text in str(result.exception)


def test_a_snapshot_of_several_files_is_acquired_from_its_folder(tmp_path, monkeypatch):
    from pathlib import Path

    from click.testing import CliRunner

    from qualify.cli import cli

    root = Path(__file__).parents[3]
    monkeypatch.setenv("QUALIFY_MODEL_STORE", str(tmp_path / "store"))
    source = root / "tests/fixtures/models/fixture-tools"
    command = ["--project", str(root), "model", "acquire", "fixture-tools", "--from"]
    done = CliRunner().invoke(cli, [*command, str(source)])
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "store/snapshots/fixture-tools").iterdir()
    for path in source.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    one = CliRunner().invoke(cli, [*command, str(source / "config.json")])
    assert one.exit_code in (0, 2)
