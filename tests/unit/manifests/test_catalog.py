"""A project is read whole: every mistake of every file at once, each at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.core.errors import ErrorList, ExitCode, UsageError
from qualify.manifests.catalog import Catalog, find_project, load_catalog
from support.projects import SOUND, edited, write_project

ROW = "manifests/matrix/one.yaml"
MODEL = "manifests/models/small.yaml"
AGENT = "manifests/agents/coder.yaml"
RUNTIME = "manifests/runtimes/engine.yaml"

type Changes = dict[str, str | bytes | None]


def load(folder: Path, changes: Changes | None = None) -> Catalog:
    return load_catalog(write_project(folder, changes), cache_folder=folder / "cache")


def mistakes(folder: Path, changes: Changes) -> list[str]:
    with pytest.raises(ErrorList) as caught:
        load(folder, changes)
    assert caught.value.exit_code is ExitCode.USAGE
    return str(caught.value).split("\n")


def test_a_sound_project_loads_with_every_kind(tmp_path: Path) -> None:
    catalog = load(tmp_path)
    assert sorted(catalog.rows) == ["double", "one"]
    assert catalog.row("one").context_tokens == 4096
    assert catalog.model("small").files[0].path == "b.gguf"
    assert catalog.files["matrix", "one"] == ROW
    assert set(catalog.locks) == {"engine", "agent"}
    assert [len(getattr(catalog, k)) for k in ("scripts", "suites", "corpora", "bundles")] == [
        1
    ] * 4


MISTAKES: dict[str, tuple[Changes, str]] = {
    "unknown key": (
        edited(ROW, "precision:", "precison:"),
        f"{ROW}:6:1: unknown key 'precison' (did you mean 'precision'?)",
    ),
    "missing key": (
        edited(ROW, "precision: q4\n", ""),
        f"{ROW}:1:1: precision is missing (add `precision: …`)",
    ),
    "unknown key deep inside": (
        edited(MODEL, "member: carrier/a.gguf", "member: carrier/a.gguf, size: 1"),
        f"{MODEL}:13:68: unknown key 'size' (remove it)",
    ),
    "misspelt key of a source": (
        edited(MODEL, "    parts:", "    prats:"),
        f"{MODEL}:12:5: unknown key 'prats' (did you mean 'parts'?)",
    ),
    "unknown word": (
        edited(ROW, "tool_mode: prompt", "tool_mode: promt"),
        f"{ROW}:8:12: tool_mode: is not one of the words known here (write 'native' or 'prompt')",
    ),
    "unknown kind of source": (
        edited(MODEL, "kind: hub", "kind: torrent"),
        f"{MODEL}:14:5: sources[1]: has an unknown kind",
    ),
    "number too small": (
        edited(ROW, "4096", "16"),
        f"{ROW}:7:17: context_tokens: is too small (at least 256)",
    ),
    "negative minimum in a nullable field": (
        edited(AGENT, "temperature: 0.5", "temperature: 2.5"),
        f"{AGENT}:11:25: sampling.temperature: is too large (at most 2)",
    ),
    "quoted number": (
        edited(ROW, "context_tokens: 4096", 'context_tokens: "4096"'),
        f"{ROW}:7:17: context_tokens: must be a whole number, not text (remove the quotes)",
    ),
    "typing trap": (
        edited(ROW, "precision: q4", "precision: 0123"),
        f"{ROW}:6:12: precision: '0123' is read as a number by some YAML readers (quote it)",
    ),
    "list where a text belongs": (
        edited(ROW, "platform: here", "platform: [here]"),
        f"{ROW}:5:11: platform: must be an id, not a list",
    ),
    "text where a list belongs": (
        edited(ROW, "suites: [acceptance]", "suites: acceptance"),
        f"{ROW}:10:9: suites: must be a list (write one entry a line, each after `- `)",
    ),
    "a list as document": ({ROW: "- a\n"}, f"{ROW}:1:1: must be a mapping"),
    "syntax": ({ROW: "id: one\n\tx: y\n"}, f"{ROW}:2:1: a tab where blanks are needed"),
    "id and file name differ": (
        edited(ROW, "id: one", "id: two"),
        f"{ROW}:1:5: id 'two' is not the name of its file (write id: one, or rename the file)",
    ),
    "declared twice": (
        {"manifests/matrix/more/one.yaml": SOUND[ROW].replace("4096", "8192")},
        f"{ROW}:1:5: row 'one' is declared twice (the other one is manifests/matrix/more/one.yaml)",
    ),
    "dangling reference": (
        edited(ROW, "model: small", "model: smal"),
        f"{ROW}:4:8: there is no model 'smal' (did you mean 'small'?)",
    ),
    "dangling reference in a list": (
        edited(ROW, "[acceptance]", "[acceptance, speed]"),
        f"{ROW}:10:22: there is no suite 'speed' (add manifests/suites/speed.yaml)",
    ),
    "suite without its scenario": (
        {"manifests/suites/acceptance.yaml": "id: acceptance\nscenarios: [edits]\n"},
        (
            "manifests/suites/acceptance.yaml:2:13: there is no scenario 'edits' "
            "(did you mean 'edit'?)"
        ),
    ),
    "scenario without its corpus": (
        edited("manifests/scenarios/edit.yaml", "corpus: letters", "corpus: numbers"),
        (
            "manifests/scenarios/edit.yaml:4:9: there is no corpus 'numbers' "
            "(add corpora/numbers/card.yaml)"
        ),
    ),
    "bundle without its row": (
        edited("manifests/bundles/offline.yaml", "rows: [one]", "rows: [oen]"),
        "manifests/bundles/offline.yaml:4:8: there is no row 'oen' (did you mean 'one'?)",
    ),
    "lock that is not there": (
        edited(RUNTIME, "lock: engine", "lock: engines"),
        f"{RUNTIME}:3:7: there is no lock 'engines' (did you mean 'engine'?)",
    ),
    "section of another engine": (
        edited("manifests/runtimes/double.yaml", "scripted\n", "scripted\nllama_cpp: {}\n"),
        (
            "manifests/runtimes/double.yaml:3:12: llama_cpp: the section llama_cpp does not "
            "belong to engine scripted (remove it)"
        ),
    ),
    "engine without its section": (
        edited(RUNTIME, "llama_cpp: {threads: 2}\n", ""),
        f"{RUNTIME}:2:9: engine: engine llama-cpp needs the section llama_cpp",
    ),
    "model and script": (
        edited(ROW, "model: small", "model: small\nscript: nod"),
        f"{ROW}:4:8: model: needs either a model or a script",
    ),
    "neither model nor script": (
        edited(ROW, "model: small\n", ""),
        f"{ROW}:1:1: needs either a model or a script",
    ),
    "script on a real engine": (
        edited(ROW, "model: small", "script: nod"),
        f"{ROW}:4:9: runtime 'engine' is no scripted one and plays no script",
    ),
    "model on a scripted engine": (
        edited("manifests/matrix/double.yaml", "script: nod", "model: small"),
        "manifests/matrix/double.yaml:3:8: runtime 'double' is scripted and plays no model",
    ),
    "part of an undeclared file": (
        edited(MODEL, "file: a.gguf", "file: c.gguf"),
        f"{MODEL}:11:11: sources[0].file: 'c.gguf' is not among the model's files",
    ),
    "the same file twice": (
        edited(MODEL, "path: b.gguf", "path: a.gguf"),
        f"{MODEL}:8:12: files[1].path: 'a.gguf' stands twice in files (remove one)",
    ),
    "the same tool twice": (
        edited(AGENT, "name: finish", "name: terminal"),
        f"{AGENT}:9:11: tools[1].name: 'terminal' stands twice in tools (remove one)",
    ),
    "a no without a reason": (
        edited(ROW, "    reason: it was too slow\n", ""),
        f"{ROW}:12:14: imported[0].outcome: unsupported needs a reason (add reason:)",
    ),
    "an address with a password": (
        {
            "manifests/runtimes/far.yaml": "id: far\nengine: endpoint\nendpoint:\n"
            "  url: https://user:secret@example.org/v1\n  provider: x\n  model_name: z\n"
        },
        "manifests/runtimes/far.yaml:4:8: endpoint.url: 'https://user:",
    ),
    "two rows that say the same": (
        {
            "manifests/matrix/twin.yaml": SOUND[ROW]
            .replace("id: one", "id: twin")
            .replace("The first row.", "Another note.")
            .replace("suites: [acceptance]\n", "")
        },
        "manifests/matrix/twin.yaml:1:5: row 'twin' says the same as row 'one' (remove one; ",
    ),
    "a data file that changed": (
        {"corpora/letters/cases.json": '{"cases": ["two"]}\n'},
        "corpora/letters/card.yaml:7:11: files[0]: cases.json has SHA-256 ",
    ),
    "a data file of another size": (
        {"corpora/letters/cases.json": "{}"},
        "corpora/letters/card.yaml:7:11: files[0]: cases.json has 2 bytes, not 19",
    ),
    "a data file that is gone": (
        {"corpora/letters/cases.json": None},
        "corpora/letters/card.yaml:7:11: files[0]: cases.json cannot be read",
    ),
    "a data file that nobody described": (
        {"corpora/letters/more/extra.json": "{}"},
        "corpora/letters/card.yaml:7:3: 'more/extra.json' lies in the folder",
    ),
    "a corpus without a card": (
        {"corpora/numbers/cases.json": "{}"},
        "corpora/numbers: has no card.yaml (describe the corpus)",
    ),
    "a file that would not be read": (
        {"manifests/matrix/two.yml": "id: two\n"},
        "manifests/matrix/two.yml: would not be read (rename it to two.yaml)",
    ),
    "a folder of no kind": (
        {"manifests/modles/x.yaml": "id: x\n"},
        "manifests/modles: is not a kind of manifest (did you mean 'models'?)",
    ),
    "a file outside the kinds": (
        {"manifests/row.yaml": "id: row\n"},
        "manifests/row.yaml: is not a kind of manifest (use one of runtimes, models,",
    ),
    "an upper-case id": (
        {"manifests/policies/Strict.yaml": SOUND["manifests/policies/release.yaml"]},
        "manifests/policies/Strict.yaml:1:5: id 'release' is not the name of its file",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_once_at_its_place_with_advice(tmp_path: Path, name: str) -> None:
    changes, expected = MISTAKES[name]
    found = mistakes(tmp_path, changes)
    matching = [line for line in found if line.startswith(expected)]
    assert len(matching) == 1, found
    allowed = 2 if name in ("misspelt key of a source", "unknown key") else 1
    assert len(found) == allowed, found


def test_a_manifest_that_is_a_folder_or_a_dead_link_is_told(tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "manifests/matrix/folder.yaml").mkdir()
    (tmp_path / "manifests/matrix/dead.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "manifests/matrix/elsewhere").symlink_to(tmp_path / "manifests/models")
    found = mistakes(tmp_path, {})
    assert found == [
        (
            "manifests/matrix/dead.yaml:1:1: cannot be read: No such file or directory "
            "(check the file and its permissions)"
        ),
        "manifests/matrix/elsewhere: is a link to a folder, or nested too deeply (move it)",
        "manifests/matrix/folder.yaml:1:1: is a folder, not a manifest (rename or remove it)",
    ]


def test_all_mistakes_of_all_files_come_at_once(tmp_path: Path) -> None:
    changes = {
        **edited(ROW, "precision: q4\ncontext_tokens: 4096", "precision: no\ncontext_tokens: 1"),
        **edited(AGENT, "lock: agent", "lock: agents"),
        **edited(RUNTIME, "threads: 2", "threads: two"),
        "manifests/models/huge.yaml": b"a" * 1_000_001,
        "manifests/scripts/empty.yaml": "",
    }
    found = mistakes(tmp_path, changes)
    assert [line.split(": ")[0] for line in found] == [
        "manifests/agents/coder.yaml:3:7",
        f"{ROW}:6:12",
        f"{ROW}:7:17",
        "manifests/models/huge.yaml:1:1",
        f"{RUNTIME}:7:22",
        "manifests/scripts/empty.yaml:1:1",
    ]


def test_a_file_with_mistakes_is_not_also_reported_as_missing(tmp_path: Path) -> None:
    found = mistakes(tmp_path, edited(MODEL, "format: gguf", "format: zip"))
    assert len(found) == 1
    assert found[0].startswith(f"{MODEL}:4:9: format: ")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("row", "onee", "there is no row 'onee' (did you mean 'one'?)"),
        ("suite", "x", "there is no suite 'x' (known: acceptance)"),
        ("policy", "relaese", "there is no policy 'relaese' (did you mean 'release'?)"),
        ("model", "\x1b[31m", "there is no model '\\x1b[31m' (known: small)"),
    ],
)
def test_an_unknown_name_brings_the_nearest_one(
    tmp_path: Path, kind: str, name: str, message: str
) -> None:
    catalog = load(tmp_path)
    with pytest.raises(UsageError) as caught:
        getattr(catalog, kind)(name)
    assert str(caught.value) == message


def test_a_project_is_found_by_walking_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write_project(tmp_path / "project")
    (project / "a/b").mkdir(parents=True)
    monkeypatch.delenv("QUALIFY_PROJECT", raising=False)
    monkeypatch.chdir(project / "a/b")
    assert find_project() == project
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no project here"):
        find_project()
    monkeypatch.setenv("QUALIFY_PROJECT", str(project))
    assert find_project() == project
    with pytest.raises(UsageError, match="--project names no project"):
        find_project(tmp_path)
    assert find_project(project) == project
