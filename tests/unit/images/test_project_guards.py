"""Guards that compare an image of ours with the project: versions, declarations, launcher, claims.

The image holds what `locks/llama-cpp-cpu.json` and the manifests of this project say, in small.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.images import open_image
from qualify.images.declarations import declarations_digest
from qualify.images.expectations import expectations
from qualify.images.guards import Outcome, Subject, accepts, guard
from qualify.images.project_source import project_source
from qualify.images.scan import scan_image
from qualify.manifests.kinds import Runtime
from qualify.pins.locks import read_lock
from support.images import ImageBuilder, distribution, file, folder, link

ROOT = Path(__file__).parents[3]
SITE = "usr/local/lib/python3.13/dist-packages"
LOCK = read_lock(ROOT / "locks/llama-cpp-cpu.json")
RUNTIME = Runtime.model_validate(
    {
        "id": "small",
        "engine": "llama-cpp",
        "lock": "llama-cpp-cpu",
        "packages": [{"name": "xllamacpp", "version": LOCK.versions["xllamacpp"]}],
        "llama_cpp": {},
    }
)


def project_image(project: Path = ROOT) -> ImageBuilder:
    """A whole image of ours."""
    content: dict[str, bytes | str] = {
        "locks/llama-cpp-cpu.json": "{}",
        "src/qualify/__init__.py": "",
        "src/qualify/runtimes/launcher.py": "",
    }
    content |= {path: (project / path).read_bytes() for path in project_source(project, None).files}
    return ImageBuilder(
        layers=[
            [folder("usr/bin"), file("usr/bin/python3", b"\x7fELF", 0o755)],
            [
                e
                for n, v in LOCK.versions.items()
                for e in distribution(n, v, {f"{n}/x.py": n}, SITE)
            ],
            [file(f"opt/qualify/{path}", data) for path, data in content.items()],
        ],
        env={"PATH": "/usr/local/bin:/usr/bin", "PYTHONPATH": "/opt/qualify/src"},
        entrypoint=["/usr/bin/python3", "-P", "-m", "qualify.runtimes.launcher"],
        labels={
            "qualify.image": "llama-cpp-cpu",
            "qualify.runtime": "small",
            "qualify.declarations": declarations_digest(project),
            "qualify.lock.llama-cpp-cpu": LOCK.digest,
        },
    )


def judge(made: ImageBuilder, tmp_path: Path, project: Path | None = ROOT, runtime=None):
    image = open_image(made.layout(tmp_path / "image"))
    runtimes = {"small": RUNTIME} if project else {}
    expected = expectations(image.labels, project, runtimes, runtime)
    results = guard(Subject(scan_image(image, tolerant=True), expected, image))
    return {each.guard: each for each in results}


def test_an_image_of_ours_passes_every_guard(tmp_path):
    results = judge(project_image(), tmp_path)
    assert accepts(tuple(results.values())), [r for r in results.values() if r.outcome != "passed"]
    applied = {name for name, each in results.items() if each.outcome is Outcome.PASSED}
    assert applied >= {
        "digests", "versions", "wheel-contents", "launcher", "declarations", "source", "preloads",
        "weights", "writable", "credentials", "user", "no-shell", "no-driver", "no-build-paths",
        "no-claims",
    }  # fmt: skip


# ── versions ─────────────────────────────────────────────────────────────────────────────────────


def test_another_version_an_extra_and_a_missing_package_are_named(tmp_path):
    made = project_image()
    first = next(iter(LOCK.versions))
    made.layers[1] = [
        e for n, v in LOCK.versions.items() if n != first for e in distribution(n, v, {}, SITE)
    ] + distribution("stranger", "1", {}, SITE)
    found = judge(made, tmp_path)["versions"]
    assert found.outcome is Outcome.FAILED
    assert any(f"{first} " in each and "missing" in each for each in found.details)
    assert any("stranger 1 is in no lock" in each for each in found.details)


def test_another_version_of_a_package_is_named(tmp_path):
    made = project_image()
    first = next(iter(LOCK.versions))
    made.layers[1] = [
        e
        for n, v in LOCK.versions.items()
        for e in distribution(n, "0.0.1" if n == first else v, {}, SITE)
    ]
    found = judge(made, tmp_path)["versions"]
    assert found.outcome is Outcome.FAILED
    assert f"{first} is 0.0.1, not {LOCK.versions[first]}" in found.details


def test_a_package_that_is_there_twice_is_named(tmp_path):
    made = project_image()
    first = next(iter(LOCK.versions))
    made.layers.append(distribution(first, "0.0.1", {}, "opt/other/site-packages"))
    found = judge(made, tmp_path)["versions"]
    assert found.outcome is Outcome.FAILED
    assert any("is there in" in each for each in found.details)


def test_an_image_of_another_lock_is_found(tmp_path):
    made = project_image()
    made.labels["qualify.lock.llama-cpp-cpu"] = "sha256:" + "0" * 64
    found = judge(made, tmp_path)["versions"]
    assert found.outcome is Outcome.FAILED
    assert "another lock" in found.summary


@pytest.mark.parametrize(
    "change", [{"qualify.lock.gone": "sha256:" + "0" * 64}, {"qualify.runtime": "gone"}]
)
def test_what_the_project_does_not_have_is_unknown(change, tmp_path):
    made = project_image()
    made.labels |= change
    assert judge(made, tmp_path)["versions"].outcome is Outcome.UNKNOWN


def test_an_image_of_ours_that_names_no_lock_is_refused(tmp_path):
    made = project_image()
    for label in ("qualify.lock.llama-cpp-cpu", "qualify.runtime"):
        made.labels.pop(label, None)
    found = judge(made, tmp_path)["versions"]
    assert found.outcome is Outcome.FAILED
    assert "not from which locks" in found.summary


def test_debian_packages_without_a_label_for_their_lock_are_found(tmp_path):
    made = project_image()
    made.layers.append([file("var/lib/dpkg/status.d/odd", "Package: odd\nVersion: 1\n")])
    found = judge(made, tmp_path)["versions"]
    assert found.outcome is Outcome.FAILED
    assert "1 Debian package, and no label names their lock" in found.details


def test_debian_packages_that_cannot_be_compared_are_unknown(tmp_path):
    made = project_image()
    made.labels["qualify.lock.debian"] = "sha256:" + "0" * 64
    found = judge(made, tmp_path / "a")["versions"]
    assert (found.outcome, "no label names the closure" in found.summary) == (Outcome.UNKNOWN, True)
    made.labels["qualify.closure"] = "base"
    project = small_project(tmp_path / "project")
    found = judge(made, tmp_path / "b", project)["versions"]
    assert (found.outcome, "cannot be read" in found.summary) == (Outcome.UNKNOWN, True)


def test_without_a_project_nothing_of_ours_passes(tmp_path):
    results = judge(project_image(), tmp_path, project=None)
    assert results["versions"].outcome is Outcome.UNKNOWN
    assert results["declarations"].outcome is Outcome.UNKNOWN
    assert not accepts(tuple(results.values()))


def test_an_image_of_somebody_else_is_held_to_a_named_runtime(tmp_path):
    made = project_image()
    made.labels = {}
    assert judge(made, tmp_path / "a", runtime="small")["versions"].outcome is Outcome.PASSED
    made.layers[1] = []
    assert judge(made, tmp_path / "b", runtime="small")["versions"].outcome is Outcome.FAILED


def test_debian_packages_are_held_to_the_closure(tmp_path, monkeypatch):
    from qualify.images import expectations as module
    from qualify.pins.debian import read_debian_lock

    lock = read_debian_lock(ROOT / "locks/debian.json")
    made = project_image()
    made.labels |= {"qualify.lock.debian": lock.digest, "qualify.closure": "base"}
    status = [
        file(f"var/lib/dpkg/status.d/{p.name}", f"Package: {p.name}\nVersion: {p.version}\n")
        for p in lock.closure("base")
    ]
    made.layers.append(status)
    assert judge(made, tmp_path / "a")["versions"].outcome is Outcome.PASSED
    made.layers[-1] = [*status[1:], file("var/lib/dpkg/status.d/odd", "Package: odd\nVersion: 1\n")]
    found = judge(made, tmp_path / "b")["versions"]
    assert found.outcome is Outcome.FAILED
    assert "Debian's odd is 1, not there at all" in found.details
    assert len(found.details) == 2
    assert module.locks_debian(None) is None


# ── declarations ─────────────────────────────────────────────────────────────────────────────────


def small_project(folder_: Path) -> Path:
    for name, text in {
        "manifests/matrix/one.yaml": "id: one\n",
        "corpora/a/card.yaml": "id: a\n",
    }.items():
        path = folder_ / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (folder_ / "locks").mkdir()
    (folder_ / "locks/llama-cpp-cpu.json").write_bytes(
        (ROOT / "locks/llama-cpp-cpu.json").read_bytes()
    )
    return folder_


def test_an_old_matrix_is_found_and_named(tmp_path):
    project = small_project(tmp_path / "project")
    made = project_image(project)
    assert judge(made, tmp_path / "a", project)["declarations"].outcome is Outcome.PASSED
    (project / "manifests/matrix/one.yaml").write_text("id: one\nnotes: newer\n")
    found = judge(made, tmp_path / "b", project)["declarations"]
    assert found.outcome is Outcome.FAILED
    assert found.details == ("differs: manifests/matrix/one.yaml",)


def test_declarations_that_are_not_the_label_s_are_found(tmp_path):
    made = project_image()
    made.layers.append([file("opt/qualify/manifests/matrix/extra.yaml", "id: extra\n")])
    found = judge(made, tmp_path)["declarations"]
    assert found.outcome is Outcome.FAILED
    assert "label" in found.summary


def test_an_image_without_declarations_is_found(tmp_path):
    made = project_image()
    made.layers.append([file("opt/qualify/.wh.manifests"), file("opt/qualify/.wh.corpora")])
    assert judge(made, tmp_path)["declarations"].outcome is Outcome.FAILED


def test_the_digest_binds_paths_and_bytes_and_nothing_else(tmp_path):
    project = small_project(tmp_path / "p")
    before = declarations_digest(project)
    (project / "manifests/matrix/one.yaml").chmod(0o600)
    (project / "corpora/a/__pycache__").mkdir()
    (project / "corpora/a/__pycache__/x.pyc").write_bytes(b"x")
    (project / "docs").mkdir()
    (project / "docs/page.md").write_text("x")
    assert declarations_digest(project) == before
    (project / "corpora/a/card.yaml").rename(project / "corpora/a/cards.yaml")
    assert declarations_digest(project) != before


def test_a_link_among_declarations_is_refused(tmp_path):
    from qualify.core.errors import UsageError

    project = small_project(tmp_path / "p")
    (project / "manifests/link.yaml").symlink_to("matrix/one.yaml")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        declarations_digest(project)


def test_the_builder_s_copy_of_the_rule_is_the_same_rule(tmp_path):
    from qualify.images.building.declared import declarations_digest as built

    for project in (ROOT, small_project(tmp_path / "p")):
        parts = {name: project / name for name in ("corpora", "manifests")}
        assert built(parts) == declarations_digest(project)


# ── launcher, claims ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("part", ["src/qualify/runtimes/launcher.py", "opt/qualify/locks/"])
def test_a_missing_launcher_is_found(part, tmp_path):
    made = project_image()
    made.layers[2] = [e for e in made.layers[2] if part not in e.path]
    found = judge(made, tmp_path)["launcher"]
    assert found.outcome is Outcome.FAILED
    assert "not in the image" in found.summary


def test_an_image_of_ours_that_starts_nothing_is_refused(tmp_path):
    made = project_image()
    made.entrypoint = []
    assert judge(made, tmp_path)["launcher"].outcome is Outcome.FAILED


@pytest.mark.parametrize(
    "command",
    [
        ["/usr/bin/python3", "-P", "-c", "import os"],
        ["/usr/bin/python3", "-m", "qualify.runtimes.launcher"],
        ["/usr/bin/python3", "-P", "-m", "http.server"],
        ["/opt/qualify/src/run"],
    ],
)
def test_an_image_of_ours_that_starts_something_else_is_refused(command, tmp_path):
    made = project_image()
    made.entrypoint = command
    found = judge(made, tmp_path)["launcher"]
    assert found.outcome is Outcome.FAILED
    assert "not of ours" in found.summary


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.labels.update({"qualify.status": "qualified"}),
        lambda made: made.labels.update({"qualify.closure": "gpu-tested"}),
        lambda made: made.layers.append([file("opt/qualify/results/ledger/1.jsonl", "{}")]),
        lambda made: made.layers.append([file("opt/qualify/results/qualify.duckdb", "x")]),
    ],
)
def test_an_image_that_carries_a_verdict_is_refused(change, tmp_path):
    made = project_image()
    change(made)
    assert judge(made, tmp_path)["no-claims"].outcome is Outcome.FAILED


# ── against the locked wheels ────────────────────────────────────────────────────────────────────


def locked_wheel(tmp_path, files):
    """A depot with the wheel of `gamma`, and a lock that names it."""
    import hashlib
    import zipfile

    from qualify.pins.locks import LockedFile, LockedPackage

    wheel = tmp_path / "depot/files/gamma-1-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for entry in distribution("gamma", "1", files, ""):
            archive.writestr(entry.path.lstrip("/"), entry.data)
    data = wheel.read_bytes()
    locked = LockedFile(file=wheel.name, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    return wheel, LockedPackage(name="gamma", version="1", files=(locked,))


def installed(tmp_path, files, name="i"):
    from qualify.images.distributions import distributions

    made = ImageBuilder(layers=[distribution("gamma", "1", files, SITE)])
    return distributions(scan_image(open_image(made.layout(tmp_path / name))).tree)


def test_a_wheel_changed_together_with_its_record_is_found(tmp_path):
    from qualify.images.wheels import check_wheels

    wheel, locked = locked_wheel(tmp_path, {"gamma/a.py": "x = 1"})
    depot = tmp_path / "depot"
    same = check_wheels(installed(tmp_path, {"gamma/a.py": "x = 1"}, "a"), [locked], depot)
    assert (same.compared, same.differing, same.unknown) == (1, [], [])
    for number, files in enumerate(
        [{"gamma/a.py": "x = 2"}, {"gamma/a.py": "x = 1", "gamma/b.py": ""}]
    ):
        found = check_wheels(installed(tmp_path, files, f"b{number}"), [locked], depot)
        assert len(found.differing) == 1
    wheel.write_bytes(wheel.read_bytes() + b"x")
    found = check_wheels(installed(tmp_path, {}, "c"), [locked], depot)
    assert "is not the locked file" in found.unknown[0]
    wheel.unlink()
    found = check_wheels(installed(tmp_path, {}, "d"), [locked], depot)
    assert "is not in the depot" in found.unknown[0]


def test_the_guard_with_a_depot_that_lacks_the_wheels_is_unknown(tmp_path):
    image = open_image(project_image().layout(tmp_path / "image"))
    expected = expectations(image.labels, ROOT, {"small": RUNTIME}, None, tmp_path)
    subject = Subject(scan_image(image), expected, image)
    results = {each.guard: each for each in guard(subject)}
    assert results["wheel-contents"].outcome is Outcome.UNKNOWN
    assert "not in the depot" in results["wheel-contents"].summary


def test_a_link_among_the_declarations_is_no_declaration(tmp_path):
    made = project_image()
    made.layers.append([link("opt/qualify/manifests/matrix/more.yaml", "/tmp/more.yaml")])
    assert judge(made, tmp_path)["declarations"].outcome is Outcome.FAILED
