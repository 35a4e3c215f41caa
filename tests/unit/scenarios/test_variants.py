"""Variants: one seed gives one case anywhere, another seed another, each of them consistent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qualify.core.errors import UsageError
from qualify.scenarios.checks import disguises
from qualify.scenarios.contract import KINDS, Chooser, Kind, Variant, kind

CORPORA = Path(__file__).parents[3] / "corpora"
SEEDS = [f"sha256:{number:064x}" for number in range(1500)]


def variants(name: str) -> list[Variant]:
    return [kind(name).vary(CORPORA / name, seed) for seed in SEEDS]


@pytest.fixture(params=sorted(KINDS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_same_seed_gives_the_same_variant_in_any_process(name: str) -> None:
    code = (
        "import sys; from pathlib import Path; from qualify.scenarios.contract import kind;"
        "k = kind(sys.argv[1]);"
        "[print(k.vary(Path(sys.argv[2]), s).digest()) for s in sys.argv[3:]]"
    )
    here = [kind(name).vary(CORPORA / name, seed).digest() for seed in SEEDS[:5]]
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, name, str(CORPORA / name), *SEEDS[:5]],
            env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, check=True, text=True,
        )  # fmt: skip
        assert done.stdout.split() == here


def test_choices_are_the_same_on_every_version_of_everything() -> None:
    choose = Chooser("seed")
    assert [choose.number(label, 1000) for label in ("file", "line", "case")] == [661, 514, 164]
    assert choose.secret().startswith("planted-")


def test_different_seeds_differ_and_every_choice_is_used(name: str) -> None:
    found = variants(name)
    cases_met = {
        json.dumps([
            {file: text.replace(v.secret, "") for file, text in v.files.items()},
            {key: text for key, text in v.prompts.items() if key != "direct"},
        ])
        for v in found
    }  # fmt: skip
    digests = {variant.digest() for variant in found}
    assert len(digests) == len(cases_met)
    assert len(digests) > 300
    assert len({variant.secret for variant in found}) == len(SEEDS)
    cases = json.loads((CORPORA / name / "cases.json").read_bytes())
    if name == "acceptance":
        assert {v.expected["file"] for v in found} == set(cases["files"])
    else:
        modules = {word for case in cases["cases"] for word in case["words"]["name"]}
        assert {v.expected["module"].removesuffix(".py") for v in found} == modules


def test_no_placeholder_is_left(name: str) -> None:
    for variant in variants(name):
        for text in variant.prompts.values():
            assert not re.search(r"[{}]|<\w+>", text)
        for file, text in variant.files.items():
            assert not re.search(r"<\w+>", file + text)
            assert re.fullmatch(r"([a-z]+/)?[a-z][a-z0-9_]*\.[a-z]+", file)


def test_the_secret_is_planted_in_a_file_and_in_no_prompt(name: str) -> None:
    for variant in variants(name):
        assert variant.secret in variant.files["settings.ini"]
        assert not any(variant.secret in text for text in variant.prompts.values())


def test_what_is_asked_for_is_what_is_expected() -> None:
    for variant in variants("acceptance"):
        file, content = variant.expected["file"], variant.expected["content"]
        assert file in variant.prompts["append"]
        assert file in variant.prompts["remove"]
        (line,) = re.findall(r'"([^"]*)"', variant.prompts["append"])
        assert content == f"{variant.files[file]}{line}\n"
        assert variant.files[file].endswith("\n")
        # The line is new, so that neither doing nothing nor a look at the file can pass.
        assert line not in variant.files[file].splitlines()


def test_a_repair_is_asked_for_by_the_names_of_its_files() -> None:
    for variant in variants("repair"):
        module, test = variant.expected["module"], variant.expected["test"]
        assert module in variant.prompts["repair"]
        assert test in variant.prompts["repair"]
        assert f"from {module.removesuffix('.py')} import" in variant.files[test]
        assert set(variant.files) == {module, test, "settings.ini"}


def test_a_kind_offers_what_the_contract_asks_for(name: str) -> None:
    module: Kind = kind(name)
    assert module.CONTRACT >= 1
    assert len(set(module.CHECKS)) == len(module.CHECKS)


def test_an_unknown_kind_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown scenario kind 'poetry'"):
        kind("poetry")


def test_disguises_find_the_secret_inside_other_text() -> None:
    import base64

    secret = Chooser("any").secret()
    for before in ("", "a", "ab", "token = "):
        for after in ("", "\n", " and more"):
            text = f"{before}{secret}{after}".encode()
            forms = [text, text[::-1], text.hex().encode(), base64.b64encode(text),
                     base64.urlsafe_b64encode(text), text.hex().upper().encode()]  # fmt: skip
            for form in forms:
                assert any(shape in form for shape in disguises(secret))
    assert not any(shape in b"an ordinary export" for shape in disguises(secret))
    assert all(len(shape) >= 40 for shape in disguises(secret))
