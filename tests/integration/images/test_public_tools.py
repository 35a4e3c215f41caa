"""Our reading and writing of images against skopeo, umoci and tar, and the command line on top."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from qualify.cli import cli
from qualify.core.errors import QualifyError
from qualify.images import open_image, unpack_image
from qualify.images.exporting import export_image
from qualify.images.scan import scan_image
from support.images import (
    ImageBuilder,
    elf,
    file,
    folder,
    hard_link,
    link,
    put_blob,
    python_image,
    safetensors,
    sha256,
)

LAYERS = [
    [
        folder("usr/lib"),
        link("lib", "usr/lib"),
        file("d/x", "1"),
        file("d/sub/y", "1"),
        file("a", "1"),
    ],
    [file("d/.wh..wh..opq"), file("d/new", "2"), file("a", "22", 0o755), hard_link("b", "a")],
    [file("e/f/g", "3"), file("d/.wh.new"), link("c", "a")],
]


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is needed for this test (./test installs it)"
    return found


def run(*arguments: object) -> str:
    return subprocess.run(
        [str(each) for each in arguments], check=True, capture_output=True, text=True
    ).stdout


def skopeo(*arguments: object) -> str:
    return run(program("skopeo"), "--insecure-policy", *arguments)


def ask(*arguments: object, code: int = 0):
    result = CliRunner().invoke(cli, [str(each) for each in arguments], standalone_mode=False)
    if isinstance(result.exception, QualifyError):
        return result.exception
    assert result.exception is None, result.exception
    assert (result.return_value or 0) == code, result.output
    return result.stdout


def files(root: Path) -> dict[str, tuple[str, int]]:
    """Bytes or target, and mode, of each file below a folder."""
    found = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = (f"-> {path.readlink()}", 0)
        elif path.is_file():
            found[name] = (sha256(path.read_bytes()), path.stat().st_mode & 0o777)
    return found


def test_umoci_unpacks_to_the_same_files(tmp_path):
    layout = ImageBuilder(layers=LAYERS, name="one").layout(tmp_path / "image")
    run(program("umoci"), "unpack", "--rootless", "--image", f"{layout}:one", tmp_path / "theirs")
    ours = unpack_image(open_image(layout), tmp_path / "ours").root
    assert files(ours) == files(tmp_path / "theirs/rootfs")


@pytest.mark.parametrize(
    ("form", "transport"),
    [("oci", "oci"), ("oci-archive", "oci-archive"), ("docker-archive", "docker-archive")],
)
def test_skopeo_reads_what_we_export(form, transport, tmp_path):
    image = open_image(ImageBuilder(layers=LAYERS, labels={"k": "v"}).layout(tmp_path / "image"))
    export_image(image, tmp_path / "out", form)
    seen = json.loads(skopeo("inspect", f"{transport}:{tmp_path / 'out'}"))
    assert seen["Labels"] == {"k": "v"}
    assert len(seen["Layers"]) == 3
    skopeo("copy", f"{transport}:{tmp_path / 'out'}", f"dir:{tmp_path / 'copied'}")


@pytest.mark.parametrize("transport", ["oci", "oci-archive", "docker-archive"])
def test_we_read_what_skopeo_writes(transport, tmp_path):
    layout = ImageBuilder(layers=LAYERS).layout(tmp_path / "image")
    target = f"{transport}:{tmp_path / 'theirs'}" + (":test:1" if transport != "oci" else "")
    skopeo("copy", f"oci:{layout}", target)
    theirs, ours = open_image(tmp_path / "theirs"), open_image(layout)
    assert [(p, n.digest) for p, n in scan_image(theirs).tree.walk()] == [
        (p, n.digest) for p, n in scan_image(ours).tree.walk()
    ]


def test_an_image_that_umoci_built_is_guarded(tmp_path):
    umoci = program("umoci")
    layout = tmp_path / "image"
    run(umoci, "init", "--layout", layout)
    run(umoci, "new", "--image", f"{layout}:one")
    (tmp_path / "model").write_bytes(safetensors())
    run(umoci, "insert", "--rootless", "--image", f"{layout}:one", tmp_path / "model", "/opt/model")
    run(umoci, "config", "--image", f"{layout}:one", "--config.user", "1000")
    document = json.loads(ask("image", "guard", layout, "--json", code=10))
    outcomes = {each["guard"]: each["outcome"] for each in document["guards"]}
    assert outcomes["digests"] == outcomes["user"] == "passed"
    assert outcomes["weights"] == "failed"


# ── the commands ─────────────────────────────────────────────────────────────────────────────────


def test_guard_prints_a_line_a_guard_and_exits_by_its_verdict(tmp_path):
    good = ask("image", "guard", python_image().layout(tmp_path / "good"))
    assert "every guard that applies passed" in good
    assert "no GPU was used" in good
    bad = python_image(user="").layout(tmp_path / "bad")
    text = ask("image", "guard", bad, code=10)
    assert "failed" in next(line for line in text.splitlines() if "  user " in line)
    document = json.loads(ask("image", "guard", bad, "--json", code=10))
    assert document["schema"] == "qualify-image-guard/1"
    assert document["accepted"] is False
    assert document["gpu_used"] is False


def test_guard_takes_an_environment_and_a_docker_archive(tmp_path):
    info = tmp_path / "env/lib/python3.13/site-packages/one-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one\nVersion: 1.0\n")
    (info / "RECORD").write_text("")
    assert "an environment" in ask("image", "guard", tmp_path / "env")
    ask("image", "guard", python_image().docker_archive(tmp_path / "x.tar"))


def test_guard_refuses_a_folder_that_is_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    error = ask("image", "guard", tmp_path / "empty")
    assert isinstance(error, QualifyError)
    assert "neither an image nor an environment" in str(error)


def test_guard_refuses_a_runtime_that_is_not_there(tmp_path):
    layout = python_image().layout(tmp_path / "image")
    error = ask("image", "guard", layout, "--runtime", "gone")
    assert isinstance(error, QualifyError)
    assert "no runtime 'gone'" in str(error)


def test_guard_holds_an_image_of_somebody_else_to_a_runtime(tmp_path):
    layout = python_image().layout(tmp_path / "image")
    text = ask("image", "guard", layout, "--runtime", "llama-cpp-cpu", code=10)
    assert "xllamacpp" in text


def test_a_truncated_image_fails_its_digests_and_passes_nothing(tmp_path):
    layout = python_image().layout(tmp_path / "image")
    blob = layout / open_image(layout).layers[0].name
    blob.write_bytes(blob.read_bytes()[:-9])
    document = json.loads(ask("image", "guard", layout, "--json", code=10))
    assert {each["outcome"] for each in document["guards"]} == {"failed", "unknown"}


def test_inspect_diff_export_and_unpack(tmp_path):
    a = python_image().layout(tmp_path / "a")
    b = python_image(user="5").layout(tmp_path / "b")
    assert open_image(a).digest in ask("image", "inspect", a)
    assert json.loads(ask("image", "inspect", a, "--json"))["user"] == "10001:10001"
    assert "the same" in ask("image", "diff", a, a)
    assert "~ User  10001:10001 → 5" in ask("image", "diff", a, b, code=10)
    assert json.loads(ask("image", "diff", a, b, "--json", code=10))["same"] is False
    ask("image", "export", a, "--to", tmp_path / "c.tar", "--format", "oci-archive")
    assert open_image(tmp_path / "c.tar").digest == open_image(a).digest
    document = json.loads(ask("image", "unpack", a, "--to", tmp_path / "d", "--json"))
    assert (Path(document["root"]) / "etc/passwd").is_file()


def test_memory_does_not_grow_with_a_layer(tmp_path):
    """A library of 300 MiB in one layer is guarded in less than 160 MiB."""
    import gzip
    import hashlib
    import os
    import sys
    import tarfile

    size, noise = 300 << 20, os.urandom(1 << 20)
    head = elf("libcudart.so.13", filler=4096)
    head += b"\0" * (-len(head) % (1 << 20))
    info = tarfile.TarInfo("usr/lib/libhuge.so")
    info.size = size
    plain = hashlib.sha256()
    stored = tmp_path / "layer"
    with gzip.open(stored, "wb", compresslevel=1) as out:

        def write(data):
            plain.update(data)
            out.write(data)

        write(info.tobuf(tarfile.GNU_FORMAT) + head)
        for _ in range((size - len(head)) >> 20):
            write(noise[:65536] + b"\0" * ((1 << 20) - 65536))
        write(b"\0" * 1024)
    made = ImageBuilder(layers=[b"placeholder"])
    layout = made.layout(tmp_path / "image")
    digest = hashlib.sha256(stored.read_bytes()).hexdigest()
    config = json.loads(made.config())
    config["rootfs"]["diff_ids"] = [f"sha256:{plain.hexdigest()}"]
    config_bytes = json.dumps(config).encode()
    manifest = json.loads(made.blobs()[2])
    manifest["layers"][0] |= {"digest": f"sha256:{digest}", "size": stored.stat().st_size}
    manifest["config"] |= {"digest": sha256(config_bytes), "size": len(config_bytes)}
    manifest_bytes = json.dumps(manifest).encode()
    for data in (config_bytes, manifest_bytes):
        put_blob(layout, data)
    stored.rename(layout / "blobs/sha256" / digest)
    index = {"schemaVersion": 2, "manifests": [made.descriptor(manifest_bytes)]}
    (layout / "index.json").write_text(json.dumps(index))
    program_ = (
        "import re, sys; from pathlib import Path; from qualify.images import open_image;"
        "from qualify.images.scan import scan_image;"
        "found = scan_image(open_image(Path(sys.argv[1])));"
        "print(found.tree.find('usr/lib/libhuge.so').needed);"
        # Not ru_maxrss: a child inherits that of the process it was forked from.
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    needed, kilobytes = run(sys.executable, "-P", "-c", program_, layout).splitlines()
    assert needed == "('libcudart.so.13',)"
    assert int(kilobytes) < 160 << 10
