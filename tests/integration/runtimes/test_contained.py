"""A program in the root of an image: what it sees, what it cannot reach, and that it ends."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from qualify.core.errors import EnvironmentFault
from qualify.runtimes import contained
from qualify.runtimes.contained import ImageRoot, command, holds, require_bubblewrap
from qualify.runtimes.engine import EngineFault, make_engine
from support import rows
from support.roots import make_root

LOOK = """
    import json, os, pathlib, re, socket, sys
    def names(place):
        return sorted(os.listdir(place))
    def may_write(place):
        try:
            pathlib.Path(place, "x").write_text("x")
            return True
        except OSError as error:
            return error.strerror
    print(json.dumps({
        "root": names("/"), "model": names("/model"), "home": os.environ["HOME"],
        "environment": dict(os.environ), "user": os.getuid(),
        "writable": {p: may_write(p) for p in ("/tmp", os.environ["HOME"], "/", "/usr", "/model")},
        "processes": [n for n in names("/proc") if n.isdigit()],
        "capabilities": re.search("CapEff:\\s+(\\w+)", open("/proc/self/status").read())[1],
        "content": pathlib.Path("/model/weights").read_text(),
        "devices": names("/dev"), "executable": sys.executable,
    }))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    require_bubblewrap()
    return make_root(tmp_path_factory.mktemp("image") / "root", packages=("xllamacpp",))


def run(root, code, tmp_path, **options):
    (tmp_path / "weights").write_text("the weights")
    argv = command(
        root,
        [contained.PYTHON, "-I", "-c", textwrap.dedent(code)],
        environment=options.pop("environment", {}),
        readable={"/model/weights": tmp_path / "weights"},
    )
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, **options)


def test_it_sees_the_image_the_model_and_nothing_else(root, tmp_path):
    seen = json.loads(run(root, LOOK, tmp_path, environment={"MORE": "1"}).stdout)
    ours = {"proc", "dev", "sys", "tmp", "home", "model"}
    assert set(seen["root"]) == ours | {p.name for p in root.path.iterdir()} - {"run"}
    assert seen["model"] == ["weights"]
    assert seen["content"] == "the weights"
    assert seen["environment"]["FROM_THE_IMAGE"] == "yes"
    assert seen["environment"]["MORE"] == "1"
    assert not {"PYTHONPATH", "XDG_RUNTIME_DIR", "VIRTUAL_ENV"} & set(seen["environment"])
    assert not Path("/work").exists() or "work" not in seen["root"]


def test_it_can_write_to_its_private_places_only(root, tmp_path):
    seen = json.loads(run(root, LOOK, tmp_path).stdout)
    assert seen["writable"]["/tmp"] is True
    assert seen["writable"][seen["home"]] is True
    for place in ("/", "/usr", "/model"):
        assert seen["writable"][place] is not True, place
    assert not (root.path / "tmp/x").exists()
    assert not (tmp_path / "x").exists()


def test_it_has_no_right_no_other_process_and_no_accelerator(root, tmp_path):
    seen = json.loads(run(root, LOOK, tmp_path).stdout)
    assert int(seen["capabilities"], 16) == 0
    assert seen["user"] == contained.USER
    assert len(seen["processes"]) <= 2
    assert not [name for name in seen["devices"] if name.startswith("nvidia")]


def test_it_shares_the_callers_loopback(root, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        run(root, code, tmp_path)
        listening.settimeout(5)
        listening.accept()[0].close()


def test_links_of_the_image_are_followed_inside_it(tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3.13").write_text("")
    (tmp_path / "usr/bin/python3").symlink_to("python3.13")
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/absolute").symlink_to("/usr/bin/python3.13")
    (tmp_path / "usr/bin/outside").symlink_to("/etc/passwd")
    (tmp_path / "usr/bin/round").symlink_to("round")
    image = ImageRoot(tmp_path, "sha256:0")
    for path in ("/usr/bin/python3", "/bin/python3", "/bin/absolute"):
        assert holds(image, path), path
    for path in ("/usr/bin/outside", "/usr/bin/round", "/usr/bin", "/nothing"):
        assert not holds(image, path), path


def test_vllm_sees_the_listed_files_of_a_snapshot_and_no_other(root, tmp_path):
    (tmp_path / "snapshot/deep").mkdir(parents=True)
    (tmp_path / "blob").write_text("listed")
    (tmp_path / "snapshot/config.json").symlink_to("../blob")
    for name in ("deep/weights", "deep/unlisted", "chat_template.jinja"):
        (tmp_path / "snapshot" / name).write_text(name)
    listed = tuple(
        {"path": name, "size": 1, "sha256": "a" * 64} for name in ("config.json", "deep/weights")
    )
    engine = make_engine(
        rows.vllm(row={"placement": "image"}, model={"files": listed}),
        model_path=tmp_path / "snapshot",
        private=tmp_path,
        startup_budget_s=5,
        root=root,
    )
    argv = engine._program_here()
    look = """
        import json, pathlib
        found = [p for p in pathlib.Path("/model").rglob("*") if not p.is_dir()]
        print(json.dumps({str(p): p.read_text() for p in found}))
    """
    program = [contained.PYTHON, "-I", "-c", textwrap.dedent(look)]
    argv[argv.index("--") + 1 :] = program
    seen = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(seen) == {
        "/model/config.json": "listed",
        "/model/deep/weights": "deep/weights",
    }
    assert engine.instructions()["model"] == contained.MODEL


def test_an_image_without_our_servers_is_told(tmp_path):
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/usr/bin/python3").write_text("")
    (tmp_path / "small.gguf").write_bytes(b"x")
    engine = make_engine(
        rows.llama_cpp(),
        model_path=tmp_path / "small.gguf",
        private=tmp_path,
        startup_budget_s=5,
        root=ImageRoot(tmp_path / "root", "sha256:" + "0" * 64),
    )
    with pytest.raises(EngineFault, match="llama_cpp_server") as caught:
        engine.start()
    assert caught.value.reason_code == "server-missing"


def test_a_machine_without_bubblewrap_is_told(monkeypatch):
    require_bubblewrap.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentFault, match="bubblewrap"):
        require_bubblewrap()
    require_bubblewrap.cache_clear()


@pytest.fixture
def served(root, tmp_path, smollm2, catalog):
    """`served()` starts the real llama.cpp inside the image's root."""
    from dataclasses import replace

    from qualify.manifests.configuration import resolve

    made = resolve(catalog, "cpu-smollm2-135m")
    row = replace(made, row=made.row.model_copy(update={"placement": "image"}))
    engines = []

    def begin():
        private = tmp_path / "private"
        private.mkdir(mode=0o700, exist_ok=True)
        engines.append(
            make_engine(row, model_path=smollm2, private=private, startup_budget_s=90, root=root)
        )
        engines[-1].start()
        return engines[-1]

    yield begin
    for each in engines:
        each.stop()


@pytest.mark.real_model
def test_the_llama_cpp_server_runs_in_the_image_and_says_so(served, root):
    engine = served()
    facts = engine.wait_ready()
    assert facts.image == root.digest
    assert facts.network in ("open", "loopback-only")
    assert facts.context_tokens_per_slot is not None
    tree = inside(engine)
    assert tree
    engine.stop()
    assert gone(tree)


@pytest.mark.real_model
def test_nothing_in_the_image_outlives_a_server_that_is_killed(served):
    engine = served()
    engine.wait_ready()
    tree = inside(engine)
    os.kill(engine._child.pid, signal.SIGKILL)
    assert gone(tree)


def test_nothing_in_the_image_outlives_the_parent(root, tmp_path):
    code = f"""
        import sys, time
        from pathlib import Path
        from qualify.runtimes import contained
        from qualify.runtimes.contained import ImageRoot
        from qualify.runtimes.processes import spawn
        root = ImageRoot(Path({str(root.path)!r}), "sha256:0")
        sleep = [contained.PYTHON, "-I", "-c", "import time; time.sleep(600)"]
        argv = contained.command(root, sleep, environment={{}}, readable={{}})
        child = spawn(argv, instructions={{}}, log=Path({str(tmp_path / "log")!r}),
                      home=Path({str(tmp_path)!r}))
        print(child.pid, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    group = int(parent.stdout.readline())
    limit = time.monotonic() + 20
    while len(tree := descendants(group)) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    assert len(tree) >= 2
    parent.kill()
    parent.wait()
    assert gone({group, *tree})


def inside(engine):
    return {engine._child.pid, *descendants(engine._child.pid)}


def descendants(pid):
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found |= {int(child), *descendants(int(child))}
    return found


def gone(processes, timeout_s=10):
    """Whether all of them have ended within the time; what waits to be collected has ended."""
    limit = time.monotonic() + timeout_s
    while any(runs(pid) for pid in processes):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
