"""The builders stand alone, and Nix hands each of them what it imports."""

import ast
import re
import sys
from pathlib import Path

import pytest

from qualify.images.building.declared import declarations_digest as in_the_sandbox
from qualify.images.declarations import declarations_digest

ROOT = Path(__file__).parents[4]
BUILDING = ROOT / "src/qualify/images/building"
PACKAGE = "qualify.images.building."
MODULES = sorted(path for path in BUILDING.glob("*.py") if path.name != "__init__.py")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def needed(name: str) -> set[str]:
    """The files that a builder imports, itself too."""
    found, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if f"{module}.py" not in found:
            found.add(f"{module}.py")
            ours = [n for n in imported(BUILDING / f"{module}.py") if n.startswith(PACKAGE)]
            waiting += [each.removeprefix(PACKAGE) for each in ours]
    return found


def handed(builder: str) -> set[str]:
    """What nix/step.nix gives a builder."""
    text = (ROOT / "nix/step.nix").read_text()
    shared = re.search(r"layerModules = \[(.*?)\]", text, re.DOTALL)
    own = re.search(rf"\n    {builder} = (.*?);\n", text, re.DOTALL)
    assert shared is not None
    assert own is not None, f"nix/step.nix knows no {builder}"
    names = set(re.findall(r'"([a-z_]+\.py)"', own[1]))
    return names | (
        set(re.findall(r'"([a-z_]+\.py)"', shared[1])) if "layerModules" in own[1] else set()
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_builder_imports_the_standard_library_and_its_siblings(path):
    foreign = {
        name
        for name in imported(path)
        if not name.startswith(PACKAGE) and name.split(".")[0] not in sys.stdlib_module_names
    }
    assert foreign == set()


@pytest.mark.parametrize(
    "builder", [path.stem for path in MODULES if "__main__" in path.read_text()]
)
def test_nix_hands_a_builder_what_it_imports_and_no_more(builder):
    assert handed(builder) == needed(builder)


def test_both_copies_of_the_declarations_digest_agree(tmp_path):
    for path in ("manifests/a/one.yaml", "manifests/two.yaml", "corpora/x/card.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    folders = {name: tmp_path / name for name in ("corpora", "manifests")}
    assert in_the_sandbox(folders) == declarations_digest(tmp_path)
    here = {name: ROOT / name for name in ("corpora", "manifests")}
    assert in_the_sandbox(here) == declarations_digest(ROOT)
