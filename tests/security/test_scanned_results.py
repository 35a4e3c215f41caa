"""`qualify scan` over what every scripted row leaves: the planted canaries are in reach of the run
and in no byte of the results.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import date
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from qualify.cli import cli
from qualify.manifests.catalog import load_catalog
from qualify.results.strings import table_strings
from qualify.runner.progress import Silent
from qualify.runner.run import Request, execute
from qualify.scanning.scan import scan
from qualify.scanning.selection import named
from support.forked import fork_worker
from support.planted import SHAPES

ROOT = Path(__file__).parents[2]
ROWS = sorted(path.stem for path in (ROOT / "manifests/matrix").glob("scripted-*.yaml"))
CANARIES = {"GitHub", "Hugging Face", "AWS key", "mail", "telephone", "home", "IBAN", "random"}
KINDS = {SHAPES[what][0] for what in CANARIES}


@pytest.fixture(scope="module")
def agent_sdk() -> None:
    from qualify.sessions.construction import preload

    preload()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose acceptance corpus has canaries in its lines and its files."""
    project = tmp_path_factory.mktemp("canaries") / "project"
    for part in ("manifests", "corpora", "locks"):
        shutil.copytree(ROOT / part, project / part)
    corpus = project / "corpora" / "acceptance"
    rng = Random(7)
    values = [SHAPES[what][1](rng) for what in sorted(CANARIES)]
    cases = json.loads((corpus / "cases.json").read_text())
    cases["lines"] = [" ".join(["canary", *values])]
    cases["existing"] = [[f"note {value}" for value in values]]
    data = json.dumps(cases).encode()
    digest = hashlib.sha256((corpus / "cases.json").read_bytes()).hexdigest()
    size = (corpus / "cases.json").stat().st_size
    (corpus / "cases.json").write_bytes(data)
    card = (corpus / "card.yaml").read_text()
    card = card.replace(digest, hashlib.sha256(data).hexdigest())
    (corpus / "card.yaml").write_text(card.replace(f"size: {size}", f"size: {len(data)}"))
    return project


@pytest.mark.parametrize("row", ROWS)
def test_nothing_is_found_in_the_results_of_a_scripted_row(
    row: str, agent_sdk: None, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("QUALIFY_TEST_TOKEN", SHAPES["GitLab"][1](Random(8)))
    results = tmp_path / "results"
    catalog = load_catalog(project)
    suite = catalog.rows[row].suites[0]
    execute(
        catalog, Request(row=row, suite=suite, trials=1, results=results), Silent(),
        acquire=lambda *_: None, verify=lambda *_: None, start_worker=fork_worker,
    )  # fmt: skip
    outer = ["--project", str(project), "--results", str(results)]
    CliRunner().invoke(cli, [*outer, "results", "rebuild"], standalone_mode=False)
    assert list(results.rglob("*.duckdb")), "the database is looked at too"
    done = CliRunner().invoke(cli, [*outer, "scan", str(results), "--json"], standalone_mode=False)
    document = json.loads(done.stdout)
    assert document["findings"] == []
    assert (done.return_value, document["clean"]) == (0, True)
    assert document["files"] > 2
    # The positive control: the same scan finds the canaries in what stays private.
    private = scan(named(tmp_path / "state", None), today=date(2026, 12, 1), tables=table_strings)
    assert suite != "acceptance" or set(private.kinds) >= KINDS


def test_a_canary_in_the_results_would_be_found(tmp_path: Path) -> None:
    import duckdb

    value = SHAPES["Hugging Face"][1](Random(9))
    with duckdb.connect(str(tmp_path / "qualify.duckdb")) as connection:
        connection.execute("CREATE TABLE trials (note VARCHAR)")
        connection.execute("INSERT INTO trials VALUES (?)", [f"line {value}"])
    done = CliRunner().invoke(
        cli, ["--project", str(ROOT), "scan", str(tmp_path), "--json"], standalone_mode=False
    )
    assert done.return_value == 10
    assert set(json.loads(done.stdout)["kinds"]) == {"provider-key"}
    assert value not in done.output
