"""Ways to bring something into an image past the guards, each with what looks alike and is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qualify.images import open_image
from qualify.images.expectations import Expectations
from qualify.images.guards import Outcome, Subject, guard
from qualify.images.scan import scan_image
from support.images import (
    ImageBuilder,
    distribution,
    elf,
    file,
    folder,
    link,
    put_blob,
    python_image,
    sha256,
    tarred,
)

SITE = "usr/lib/python3.13/site-packages"
OURS = Expectations(image="runner")
TOKEN = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
URL = "https://ci:s3cretw0rd@mirror.corp.net/simple"
SECRETS = (TOKEN, "s3cretw0rd", "0123456789abcdef")


def judge(made: ImageBuilder | Path, tmp_path: Path, expected: Expectations | None = None):
    place = made if isinstance(made, Path) else made.layout(tmp_path / "image")
    image = open_image(place)
    subject = Subject(scan_image(image, tolerant=True), expected or Expectations(), image)
    return {each.guard: each for each in guard(subject)}


# ── credentials outside of the layers ────────────────────────────────────────────────────────────


def settings(**more):
    """The image, with more keys in the `config` of its configuration."""
    made = python_image()
    document = json.loads(made.config())["config"] | more
    made.changes = {"config": document}
    return made


PLACES = {
    "health check": settings(Healthcheck={"Test": ["CMD-SHELL", f"curl {URL}"]}),
    "on build": settings(OnBuild=[f"RUN pip install -i {URL} x"]),
    "stop signal": settings(StopSignal=TOKEN),
    "a shell": settings(Shell=["/bin/sh", "-c", f"TOKEN={TOKEN}"]),
    "a volume": settings(Volumes={f"/{TOKEN}": {}}),
    "a label's name": settings(Labels={TOKEN: "x"}),
    "a label's value": settings(Labels={"note": URL}),
    "a label under a name of secrets": settings(Labels={"api_key": "0123456789abcdef"}),
    "the author": python_image(changes={"author": URL}),
    "an unknown key": python_image(changes={"x": [{"y": {"z": TOKEN}}]}),
    "history": python_image(history=[{"created_by": f"RUN x {URL}"}]),
    "a build argument": python_image(history=[{"created_by": "|1 HF_TOKEN=0123456789abcdef x"}]),
    "a quoted variable": python_image(history=[{"comment": 'ENV DB_PASSWORD="0123456789abcdef"'}]),
    "a comment": python_image(history=[{"comment": TOKEN}]),
    "an argument": settings(Cmd=["--api-key=0123456789abcdef"]),
    "the next argument": settings(Cmd=["--api-key", "0123456789abcdef"]),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_credential_anywhere_in_the_configuration_is_found(place, tmp_path):
    found = judge(PLACES[place], tmp_path)["credentials"]
    assert found.outcome is Outcome.FAILED
    assert found.details[0].startswith("configuration ")
    shown = found.summary + "".join(found.details)
    assert not any(secret in shown for secret in SECRETS)


class Annotated(ImageBuilder):
    """An image whose manifest says more."""

    said: str = URL

    def blobs(self):
        stored, config, manifest = super().blobs()
        document = json.loads(manifest) | {"annotations": {"note": self.said}}
        return stored, config, json.dumps(document).encode()


@pytest.mark.parametrize("packed", [False, True])
def test_a_credential_in_an_annotation_of_the_manifest_is_found(packed, tmp_path):
    layout = Annotated(layers=python_image().layers).layout(tmp_path / "image")
    found = judge(tarred(layout, tmp_path / "x.tar") if packed else layout, tmp_path)["credentials"]
    assert (found.outcome, len(found.details)) == (Outcome.FAILED, 1)
    assert found.details[0].startswith("manifest annotations.note: ")


def with_index(tmp_path, change, nested=False):
    layout = python_image().layout(tmp_path / "image")
    index = json.loads((layout / "index.json").read_text())
    change(index)
    if nested:
        data = json.dumps(index).encode()
        put_blob(layout, data)
        descriptor = {"mediaType": index["mediaType"], "digest": sha256(data), "size": len(data)}
        index = {"schemaVersion": 2, "manifests": [descriptor]}
    (layout / "index.json").write_text(json.dumps(index))
    return layout


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.update(annotations={"note": TOKEN}),
        lambda index: index["manifests"][0].update(annotations={"url": URL}),
        lambda index: index["manifests"][0].update(urls=[URL]),
    ],
)
def test_a_credential_in_an_index_is_found(change, nested, tmp_path):
    found = judge(with_index(tmp_path, change, nested), tmp_path)["credentials"]
    assert (found.outcome, len(found.details)) == (Outcome.FAILED, 1)
    assert found.details[0].startswith("index ")


def test_a_credential_in_the_name_of_a_docker_archive_is_found(tmp_path):
    made = python_image(name=f"registry.corp.net/{TOKEN}:1")
    found = judge(made.docker_archive(tmp_path / "x.tar"), tmp_path)["credentials"]
    assert found.outcome is Outcome.FAILED
    assert TOKEN not in found.summary + "".join(found.details)


@pytest.mark.parametrize(
    "made",
    [
        settings(Healthcheck={"Test": ["CMD", "curl", "https://mirror.corp.net/"]}),
        settings(Cmd=["--print-token", "--verbose", "--tokens", "0123456789abcdef"]),
        settings(OnBuild=["RUN --mount=type=secret,id=HF_TOKEN x"], StopSignal="SIGTERM"),
        settings(Labels={"token": "none", "api_key": "<your-key>"}),
        python_image(history=[{"created_by": "ARG HF_TOKEN="}, {"comment": "TOKEN=$HF_TOKEN"}]),
        python_image(env={"PATH": "/usr/bin", "GPG_KEY": "A035C8C19219BA821ECEA86B64E628F8D684"}),
    ],
)  # fmt: skip
def test_settings_that_name_a_secret_and_hold_none_pass(made, tmp_path):
    assert judge(made, tmp_path)["credentials"].outcome is Outcome.PASSED


def test_the_hash_of_a_password_is_a_credential(tmp_path):
    shadow = "root:$y$j9T$abcdefghij$0123456789abcdef:19000:0:99999:7:::\n"
    found = judge(python_image(more=[file("etc/shadow", shadow)]), tmp_path / "a")["credentials"]
    assert found.outcome is Outcome.FAILED
    assert "etc/shadow: the hash of a password" in found.summary
    made = python_image(more=[file("etc/shadow", "root:*:1:0:9:7:::\nqualify:!:1:0:9:7:::\n")])
    assert judge(made, tmp_path / "b")["credentials"].outcome is Outcome.PASSED


# ── code that starts before the program ──────────────────────────────────────────────────────────

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin", "PYTHONPATH": "/opt/qualify/src", "LANG": "C.UTF-8",
    "QUALIFY_PROJECT": "/opt/qualify", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/opt/x.so"), ("LD_AUDIT", "/opt/x.so"), ("GLIBC_TUNABLES", "x"),
        ("PYTHONSTARTUP", "/opt/x.py"), ("PYTHONHOME", "/opt"), ("PYTHONPYCACHEPREFIX", "/opt"),
        ("PYTHONPATH", "/opt/other:/opt/qualify/src"), ("QUALIFY_PROJECT", "/opt/other"),
        ("LD_LIBRARY_PATH", "/usr/lib"), ("LD_LIBRARY_PATH", ""), ("BASH_ENV", "/opt/x"),
    ],
)  # fmt: skip
def test_a_variable_that_puts_code_first_is_found(name, value, tmp_path):
    made = python_image(env={**ENVIRONMENT, name: value})
    found = judge(made, tmp_path, OURS)["preloads"]
    assert found.outcome is Outcome.FAILED
    assert name in found.summary


@pytest.mark.parametrize(
    "entry",
    [
        file("etc/ld.so.preload", "/opt/x.so\n"),
        file("usr/bin/pyvenv.cfg", "home = /opt\n"),
        file("usr/bin/python3._pth", "/opt\n"),
        file("usr/lib/python313.zip", b"PK"),
        file("usr/local/lib/python3.13/dist-packages/x.pth", "import os\n"),
        file("usr/local/lib/python3.13/dist-packages/usercustomize.py", "x = 1\n"),
        folder("usr/local/lib/python3.13/dist-packages/sitecustomize"),
        file("usr/lib/python3/dist-packages/json.py", "x = 1\n"),
        file("home/qualify/.local/lib/python3.13/site-packages/x.py", "x = 1\n"),
        file("root/.pythonrc.py", "x = 1\n"),
        link("etc/ld.so.preload", "/opt/x"),
    ],
)
def test_a_file_that_is_read_at_every_start_is_found(entry, tmp_path):
    found = judge(python_image(more=[entry]), tmp_path, OURS)["preloads"]
    assert found.outcome is Outcome.FAILED
    assert entry.path.rpartition("/")[2] in "".join(found.details)


def test_the_command_cannot_move_bytecode_elsewhere(tmp_path):
    made = python_image(entrypoint=["/usr/bin/python3", "-Xpycache_prefix=/opt", "-m", "alpha"])
    assert judge(made, tmp_path, OURS)["preloads"].outcome is Outcome.FAILED


def test_an_ordinary_image_and_a_package_s_own_path_file_pass(tmp_path):
    made = python_image(env=ENVIRONMENT, more=[folder("home/qualify"), folder("root")])
    made.layers.append(distribution("beta", "1", {"beta.pth": "import beta\n", "beta.py": ""}))
    assert judge(made, tmp_path / "a", OURS)["preloads"].outcome is Outcome.PASSED
    theirs = python_image(env={"LD_PRELOAD": "/usr/lib/libjemalloc.so"})
    assert judge(theirs, tmp_path / "b")["preloads"].outcome is Outcome.NOT_APPLICABLE


# ── permissions, libraries, broken views ─────────────────────────────────────────────────────────


def test_a_world_writable_root_is_found(tmp_path):
    found = judge(python_image(more=[folder("./", 0o777)]), tmp_path / "a")["writable"]
    assert (found.outcome, found.details) == (Outcome.FAILED, ("/ is world-writable",))
    made = python_image(more=[folder("./", 0o755)])
    assert judge(made, tmp_path / "b")["writable"].outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "entry",
    [
        file("opt/qualify/src/x.py", "", uid=10001),
        folder("opt/qualify/src", uid=10001, gid=10001),
        file("etc/passwd2", "", 0o664, gid=10001),
    ],
)
def test_a_file_that_the_user_could_change_is_found(entry, tmp_path):
    found = judge(python_image(more=[entry]), tmp_path / "a", OURS)["writable"]
    assert found.outcome is Outcome.FAILED
    assert "belongs to" in found.summary
    own = [folder("home/qualify", 0o700, uid=10001, gid=10001), folder("tmp", 0o1777, uid=10001)]
    assert judge(python_image(more=own), tmp_path / "b", OURS)["writable"].outcome == "passed"


def test_a_second_cuda_runtime_that_no_library_asks_for_is_found(tmp_path):
    entries = [
        file("usr/lib/libengine.so", elf("libcudart.so.13", "libc.so.6")),
        file("usr/lib/libcudart.so.13", elf("libc.so.6")),
        file("usr/lib/libcupti.so.2025.3", elf("libc.so.6")),
    ]
    assert judge(python_image(more=entries), tmp_path / "a")["cuda-major"].outcome == "passed"
    entries.append(file("opt/libcudart-0123abcd.so.12", elf("libc.so.6")))
    found = judge(python_image(more=entries), tmp_path / "b")["cuda-major"]
    assert found.outcome is Outcome.FAILED
    assert "CUDA 12 by opt/libcudart-0123abcd.so.12" in found.summary


def test_links_without_end_leave_a_guard_unknown_and_no_traceback(tmp_path):
    made = python_image(more=[link("usr/bin/qualify", "qualify"), link("etc/x", "/etc/x")])
    made.entrypoint = ["/etc/x"]
    found = judge(made, tmp_path, OURS)
    assert found["launcher"].outcome is Outcome.UNKNOWN
    assert "links without end" in found["launcher"].summary
    assert found["weights"].outcome is Outcome.PASSED
