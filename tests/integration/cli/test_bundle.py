"""`qualify bundle` and `qualify image sbom|provenance` as a build sandbox runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.bundles import LOCKS, REVISION, Layout, two_layouts, write_attested_project


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    two_layouts(folder, write_attested_project(folder / "project"))
    return folder


BARE = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
"""Nothing that a build sandbox would not have."""


def command(place: Path, *arguments: str) -> list[str]:
    project = [] if arguments[:2] == ("bundle", "verify") else ["--project", str(place / "project")]
    return [sys.executable, "-P", "-m", "qualify", *project, *arguments]


def qualify(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In an empty folder, without home, network and proxy settings."""
    (place / "empty").mkdir(exist_ok=True)
    return subprocess.run(
        command(place, *arguments),
        cwd=place / "empty", env=BARE, text=True, capture_output=True, check=False,
    )  # fmt: skip


def make(place: Path, target: Path, *more: str) -> subprocess.CompletedProcess[str]:
    images = [f"--image={place}/image-{name}" for name in ("runner", "engine")]
    return qualify(place, "bundle", "make", *images, "--to", str(target), *more)


def test_make_prints_the_digest_that_verify_accepts(place: Path, tmp_path: Path) -> None:
    made = make(place, tmp_path / "bundle", "--json")
    assert made.returncode == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["schema"] == "qualify-bundle-make/1"
    assert [each["name"] for each in document["images"]] == ["engine", "runner"]
    folder = str(tmp_path / "bundle")
    accepted = qualify(place, "bundle", "verify", folder, "--digest", document["digest"])
    assert (accepted.returncode, accepted.stderr) == (0, "")
    assert "accepted: " in accepted.stdout
    assert "established: it is the bundle with the announced digest" in accepted.stdout
    assert "not established: who made it: nothing in it is signed" in accepted.stdout
    untold = qualify(place, "bundle", "verify", folder).stdout
    assert "announced digest" not in untold
    assert "not established: that nobody changed files and lists together" in untold
    assert "not established: who made it: nothing in it is signed" in untold
    told = make(place, tmp_path / "again").stdout
    assert f"bundle digest: {document['digest']}" in told


def test_verify_needs_no_network(place: Path, tmp_path: Path) -> None:
    make(place, tmp_path / "bundle")
    call = command(place, "bundle", "verify", str(tmp_path / "bundle"))
    alone = subprocess.run(
        ["unshare", "--map-root-user", "--net", *call], env=BARE, cwd="/", check=False
    )
    assert alone.returncode == 0


def test_verify_names_the_first_ten_and_counts_the_rest(place: Path, tmp_path: Path) -> None:
    make(place, tmp_path / "bundle")
    for number in range(14):
        (tmp_path / "bundle" / f"more-{number:02}").write_text("")
    found = qualify(place, "bundle", "verify", str(tmp_path / "bundle"))
    assert found.returncode == 10
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["extra", "more-00:", "not", "part", "of", "the", "bundle"]
    assert lines[9].split()[1] == "more-09:"
    assert lines[10] == "and 4 more (--json lists them)"
    assert lines[11].startswith("NOT ACCEPTED: 14 things wrong")
    document = json.loads(
        qualify(place, "bundle", "verify", str(tmp_path / "bundle"), "--json").stdout
    )
    assert document["accepted"] is False
    assert document["findings_total"] == len(document["findings"]) == 14


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "\udcff"])
def test_a_name_cannot_play_with_the_terminal(place: Path, tmp_path: Path, name: str) -> None:
    make(place, tmp_path / "bundle")
    (tmp_path / "bundle" / name).write_text("")
    for more in ([], ["--json"]):
        found = qualify(place, "bundle", "verify", str(tmp_path / "bundle"), *more)
        assert found.returncode == 10
        assert found.stdout.replace("\n", "").isprintable()


def checked(place: Path, folder: Path, *more: str) -> tuple[int, dict[str, object]]:
    done = qualify(place, "bundle", "verify", str(folder), "--json", *more)
    return done.returncode, json.loads(done.stdout)


def test_the_document_says_what_is_established_and_what_is_not(place: Path, tmp_path: Path) -> None:
    make(place, tmp_path / "bundle")
    code, found = checked(place, tmp_path / "bundle")
    assert (code, found["accepted"], len(found["established"])) == (0, True, 2)  # type: ignore[arg-type]
    assert found["revision"] == "unknown"
    assert [each["revision"] for each in found["images"]] == [REVISION, REVISION]  # type: ignore[attr-defined]
    code, told = checked(place, tmp_path / "bundle", "--digest", str(found["digest"]))
    assert (code, len(told["established"])) == (0, 3)  # type: ignore[arg-type]
    assert "who made it: nothing in it is signed" in told["not_established"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "attack", ["changed", "missing", "extra", "link", "case", "sums", "list", "another digest"]
)
def test_what_was_tampered_with_ends_with_10(place: Path, tmp_path: Path, attack: str) -> None:
    bundle = tmp_path / "bundle"
    make(place, bundle)
    more = []
    match attack:
        case "changed":
            (bundle / "LICENSE").write_text("x")
        case "missing":
            (bundle / "LICENSE").unlink()
        case "extra":
            (bundle / "more").write_text("x")
        case "link":
            (bundle / "LICENSE").unlink()
            (bundle / "LICENSE").symlink_to("README.md")
        case "case":
            (bundle / "license").write_text("x")
        case "sums":
            sums = (bundle / "SHA256SUMS").read_bytes()
            (bundle / "SHA256SUMS").write_bytes(sums.replace(b"\n", b"\r\n"))
        case "list":
            (bundle / "bundle.json").write_text("{}")
        case _:
            more = ["--digest", "sha256:" + "0" * 64]
    code, found = checked(place, bundle, *more)
    assert (code, found["accepted"], found["established"]) == (10, False, [])
    assert found["findings"]
    assert "NOT ACCEPTED" in qualify(place, "bundle", "verify", str(bundle), *more).stdout


def test_changed_files_of_a_checkout_are_carried_only_with_the_option(
    place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place, tmp_path / "place")
    copy = tmp_path / "place"
    identity = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=copy / "project", check=True)
    clean = make(copy, tmp_path / "clean", "--json")
    assert (clean.returncode, clean.stderr) == (0, "")
    head = json.loads(clean.stdout)["revision"]
    assert len(head) == 40
    (copy / "project/LICENSE").write_text("changed")
    (copy / "project/locks/note").write_text("mine")
    told = make(copy, tmp_path / "bundle")
    assert (told.returncode, told.stdout) == (2, "")
    assert "LICENSE" in told.stderr
    assert "--with-changes" in told.stderr
    assert not (tmp_path / "bundle").exists()
    made = make(copy, tmp_path / "bundle", "--with-changes", "--json")
    assert made.returncode == 0
    assert json.loads(made.stdout)["revision"] == f"{head}-dirty"
    assert "not as in the commit: LICENSE" in made.stderr
    assert "not in the bundle, because git does not track it: locks/note" in made.stderr
    code, found = checked(place, tmp_path / "bundle")
    assert (code, found["revision"]) == (0, f"{head}-dirty")


def test_what_is_no_bundle_ends_with_2(place: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone", place / "project"):
        told = qualify(place, "bundle", "verify", str(folder))
        assert told.returncode == 2
        assert told.stderr.startswith("error: ")
    told = qualify(place, "bundle", "verify", str(tmp_path), "--digest", "abc")
    assert (told.returncode, "is no digest" in told.stderr) == (2, True)


def test_an_unknown_bundle_ends_with_2_and_a_hint(place: Path, tmp_path: Path) -> None:
    images = [f"--image={place}/image-runner"]
    told = qualify(place, "bundle", "make", "offlin", *images, "--to", str(tmp_path / "b"))
    assert told.returncode == 2
    assert "did you mean 'offline'?" in told.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_half_written(
    place: Path, tmp_path: Path, number: signal.Signals
) -> None:
    target = tmp_path / "bundle"
    images = [f"--image={place}/image-{name}" for name in ("runner", "engine")]
    script = (
        "import sys, time, qualify.images.bundle as b, qualify.cli as c\n"
        "b.readme_bytes = lambda *a: (print('half', flush=True), time.sleep(60))\n"
        "c.main()\n"
    )
    call = [sys.executable, "-P", "-c", script, "--project", str(place / "project")]
    call += ["bundle", "make", *images, "--to", str(target)]
    process = subprocess.Popen(call, env=BARE, cwd=place, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    assert list(tmp_path.iterdir()) != []
    process.send_signal(number)
    start = time.monotonic()
    assert process.wait(20) == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert time.monotonic() - start < 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["sbom", "provenance"])
def test_an_attestation_is_the_same_in_a_file_and_on_stdout(
    place: Path, tmp_path: Path, name: str
) -> None:
    image = str(place / "image-runner")
    printed = qualify(place, "image", name, image)
    assert printed.returncode == 0, printed.stderr
    written = qualify(place, "image", name, image, "--out", str(tmp_path / "out"))
    assert (written.returncode, written.stdout) == (0, "")
    assert (tmp_path / "out").read_text() == printed.stdout
    assert json.loads(printed.stdout)


@pytest.mark.parametrize("name", ["sbom", "provenance"])
def test_one_of_several_images_is_chosen_by_name(place: Path, tmp_path: Path, name: str) -> None:
    make(place, tmp_path / "bundle")
    images = str(tmp_path / "bundle/images")
    assert qualify(place, "image", name, images).returncode == 2
    chosen = qualify(place, "image", name, images, "--ref", "engine")
    assert chosen.stdout == qualify(place, "image", name, str(place / "image-engine")).stdout


@pytest.mark.parametrize("name", ["sbom", "provenance"])
def test_an_image_of_another_lock_ends_with_2_and_what_to_do(
    place: Path, tmp_path: Path, name: str
) -> None:
    other = "sha256:" + "0" * 64
    labels: dict[str, str | None] = {"qualify.lock.runner": other}
    Layout("runner", ("runner",), labels=labels).write(tmp_path / "image", place / "project")
    told = qualify(place, "image", name, str(tmp_path / "image"))
    assert (told.returncode, told.stdout) == (2, "")
    assert other in told.stderr
    assert LOCKS["runner"].digest in told.stderr
    assert "build it again" in told.stderr


def test_help_does_not_import_the_library(place: Path) -> None:
    code = "import sys; from qualify.cli import image_attest, bundle; "
    code += "print([m for m in sys.modules if m.startswith(('cyclonedx', 'pydantic'))])"
    told = subprocess.check_output([sys.executable, "-P", "-c", code], text=True, env=BARE)
    assert told == "[]\n"
