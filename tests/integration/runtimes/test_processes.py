"""Children leave nothing behind, on every path on which they or their parent can end."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from qualify.runtimes.processes import Ended, spawn
from support.children import until

SOURCES = Path(__file__).parents[3] / "src"

OBEDIENT = """
    import json, os, sys, threading
    order = json.load(sys.stdin)
    os.write(order["report"], json.dumps({"pid": os.getpid()}).encode() + b"\\n")
    threading.Event().wait()
"""
STUBBORN = """
    import json, os, signal, sys, threading
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    order = json.load(sys.stdin)
    os.write(order["report"], json.dumps({"pid": os.getpid()}).encode() + b"\\n")
    while True:
        threading.Event().wait(1)
"""
FAMILY = """
    import json, os, signal, subprocess, sys, threading
    order = json.load(sys.stdin)
    sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    inner = subprocess.Popen([sys.executable, "-c", sleep])
    message = {"pid": os.getpid(), "inner": inner.pid}
    os.write(order["report"], json.dumps(message).encode() + b"\\n")
    threading.Event().wait()
"""
DEAF = """
    # As a C library that holds the interpreter: no Python thread of this process ever runs again.
    import ctypes, json, os, sys
    order = json.load(sys.stdin)
    os.write(order["report"], json.dumps({"pid": os.getpid()}).encode() + b"\\n")
    ctypes.PyDLL(None).sleep(300)
"""


@pytest.fixture
def start(tmp_path):
    """`start(code)` spawns a child and returns it with its first message."""
    made = []

    def begin(code, **instructions):
        script = tmp_path / f"child-{len(made)}.py"
        script.write_text(textwrap.dedent(code))
        child = spawn(
            [str(script)],
            instructions=instructions,
            log=tmp_path / f"{len(made)}.log",
            home=tmp_path,
        )
        made.append(child)
        return child, child.message(time.monotonic() + 30)

    yield begin
    for child in made:
        child.stop(grace_s=0)


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def descriptors():
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_a_child_reports_and_stops(start):
    child, message = start(OBEDIENT)
    assert message == {"pid": child.pid}
    assert child.ended() is None
    child.stop()
    child.stop()
    assert not running(child.pid)
    assert child.ended() == Ended(-signal.SIGTERM)
    assert str(child.ended()) == "SIGTERM"


def test_a_child_that_ignores_sigterm_is_killed(start):
    child, message = start(STUBBORN)
    child.stop(grace_s=0.2)
    assert not running(message["pid"])
    assert child.ended() == Ended(-signal.SIGKILL)


def test_the_whole_group_is_gone_also_what_ignores_sigterm(start):
    child, message = start(FAMILY)
    assert running(message["inner"])
    child.stop()
    until(lambda: not running(message["inner"]))


def test_the_group_is_cleared_when_its_leader_has_died_by_itself(start):
    child, message = start(FAMILY)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(10) == Ended(-signal.SIGKILL)
    assert running(message["inner"])
    child.stop()
    until(lambda: not running(message["inner"]))


def test_an_exit_code_is_told(start):
    child, message = start("raise SystemExit(7)")
    assert message is None
    assert child.wait(10) == Ended(7)
    assert str(child.ended()) == "exit code 7"


def test_instructions_are_found_neither_on_the_command_line_nor_in_the_environment(start):
    secret = "s" * 40
    child, _ = start(OBEDIENT, key=secret)
    for name in ("cmdline", "environ"):
        assert secret.encode() not in Path(f"/proc/{child.pid}/{name}").read_bytes()


def test_long_instructions_do_not_block(start):
    child, message = start(
        """
        import json, os, sys
        order = json.load(sys.stdin)
        os.write(order["report"], json.dumps({"length": len(order["text"])}).encode() + b"\\n")
        """,
        text="x" * 3_000_000,
    )
    assert message == {"length": 3_000_000}
    assert child.wait(10) == Ended(0)


def test_the_environment_is_an_allow_list(start, monkeypatch, tmp_path):
    monkeypatch.setenv("A_SECRET_OF_MINE", "x")
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    _, message = start("""
        import json, os, sys
        order = json.load(sys.stdin)
        os.write(order["report"], json.dumps(dict(os.environ)).encode() + b"\\n")
    """)
    assert "A_SECRET_OF_MINE" not in message
    assert "PYTHONSTARTUP" not in message
    assert message["HOME"] == message["TMPDIR"] == str(tmp_path)
    assert message["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("said", ["no json", "[1]", '"text"', "\\xff", "x" * (2 << 20)])
def test_a_report_that_is_not_understood_is_garbage(start, said):
    _, message = start(f"""
        import json, os, sys
        order = json.load(sys.stdin)
        with os.fdopen(order["report"], "wb") as report:
            report.write({said!r}.encode("latin-1") + b"\\n")
    """)
    assert message == {"fault": "garbage"}


def test_waiting_for_a_report_ends_in_time(start, tmp_path):
    script = tmp_path / "quiet.py"
    script.write_text("import time\ntime.sleep(300)\n")
    child = spawn([str(script)], instructions={}, log=tmp_path / "q.log", home=tmp_path)
    try:
        assert child.message(time.monotonic() + 0.1) is None
        assert child.ended() is None
    finally:
        child.stop(grace_s=0)


def test_the_log_is_private_and_its_end_can_be_read(start):
    child, _ = start("import sys\nsys.stderr.write('first\\n' * 900 + 'the end\\n')")
    child.wait(10)
    assert child.log.stat().st_mode & 0o777 == 0o600
    assert child.log_tail().endswith("the end")
    assert len(child.log_tail()) <= 2000


def test_a_log_is_never_overwritten(tmp_path):
    (tmp_path / "log").write_text("earlier")
    with pytest.raises(FileExistsError):
        spawn(["x.py"], instructions={}, log=tmp_path / "log", home=tmp_path)
    assert (tmp_path / "log").read_text() == "earlier"


def test_a_missing_interpreter_is_an_error_and_leaks_nothing(tmp_path):
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        spawn(
            ["x.py"],
            instructions={},
            log=tmp_path / "log",
            home=tmp_path,
            interpreter=str(tmp_path / "no-python"),
        )
    assert descriptors() == before


def test_starting_and_stopping_leaks_no_descriptor(start):
    start(OBEDIENT)[0].stop()
    before = descriptors()
    for _ in range(3):
        start(OBEDIENT)[0].stop()
    assert descriptors() == before


def test_a_command_that_is_no_script_is_watched_too(tmp_path):
    child = spawn(["sleep", "300"], instructions={}, log=tmp_path / "log", home=tmp_path)
    until(lambda: Path(f"/proc/{child.pid}/comm").read_text().strip() == "sleep")
    os.close(child._watch)
    assert child.wait(10) == Ended(-signal.SIGKILL)
    child._watch = os.open("/dev/null", os.O_RDONLY)
    child.stop()


# ── the parent's ends ────────────────────────────────────────────────────────────────────────────

PARENT = """
    import os, sys, time
    from pathlib import Path
    from qualify.runtimes.processes import spawn
    folder = Path(sys.argv[1])
    child = spawn([sys.argv[2]], instructions=dict(), log=folder / "log", home=folder)
    message = child.message(time.monotonic() + 30)
    print(message["pid"], message.get("inner", 0), flush=True)
    sys.stdin.readline()
    {ending}
"""


def family(tmp_path, code, ending):
    """A parent process with a child: the parent, and the pids below it."""
    (tmp_path / "child.py").write_text(textwrap.dedent(code))
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(PARENT).format(ending=ending),
            str(tmp_path),
            str(tmp_path / "child.py"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        text=True,
    )
    pids = [int(pid) for pid in parent.stdout.readline().split() if int(pid)]
    assert pids
    assert all(running(pid) for pid in pids)
    parent.stdin.write("\n")
    parent.stdin.flush()
    return parent, pids


@pytest.mark.parametrize(
    "code", [OBEDIENT, STUBBORN, FAMILY, DEAF], ids=["obedient", "stubborn", "family", "deaf"]
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
def test_a_parent_that_is_ended_from_outside_takes_its_children_along(tmp_path, code, number):
    parent, pids = family(tmp_path, code, "time.sleep(300)")
    parent.send_signal(number)
    parent.wait(30)
    until(lambda: not any(running(pid) for pid in pids))


@pytest.mark.parametrize(
    "ending", ["sys.exit(0)", "raise RuntimeError", "os._exit(3)", "os.abort()"]
)
def test_a_parent_that_ends_by_itself_takes_its_children_along(tmp_path, ending):
    parent, pids = family(tmp_path, FAMILY, ending)
    parent.wait(30)
    until(lambda: not any(running(pid) for pid in pids))


def test_a_forked_copy_of_the_parent_does_not_keep_the_children_alive(tmp_path):
    ending = "copy = os.fork(); print(copy, flush=True); time.sleep(300)"
    parent, pids = family(tmp_path, OBEDIENT, ending)
    copy = max(int(parent.stdout.readline()), int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.wait(30)
        until(lambda: not any(running(pid) for pid in pids))
        assert running(copy)
    finally:
        os.kill(copy, signal.SIGKILL)


def test_children_survive_the_thread_that_started_them(start, tmp_path):
    import threading

    found = []
    thread = threading.Thread(target=lambda: found.append(start(OBEDIENT)[0]))
    thread.start()
    thread.join()
    assert found[0].wait(0.3) is None


def test_reports_after_the_first_are_read_in_order(start):
    child, first = start("""
        import json, os, sys
        order = json.load(sys.stdin)
        os.write(order["report"], b'{"n": 1}\\n{"n": 2}\\n{"n"')
        os.write(order["report"], b': 3}\\n')
    """)
    deadline = time.monotonic() + 10
    assert [first, child.message(deadline), child.message(deadline)] == [
        json.loads(f'{{"n": {n}}}') for n in (1, 2, 3)
    ]
    assert child.message(deadline) is None
