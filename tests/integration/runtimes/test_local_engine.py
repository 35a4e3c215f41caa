"""Servers that fail to start, each in its own way: one reason code each, and nothing left."""

import os
import signal
import textwrap
import time

import pytest

from qualify.core.status import EngineKind
from qualify.runtimes.engine import EngineFacts, EngineFault
from qualify.runtimes.local import LocalEngine

SERVER = """
    import json, os, sys
    from http.server import BaseHTTPRequestHandler, HTTPServer

    order = json.load(sys.stdin)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            {behaviour}

        def give(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    address = "http://127.0.0.1:%d" % server.server_address[1]
    os.write(order["report"], json.dumps({{"address": address}}).encode() + b"\\n")
    server.serve_forever()
"""
GOOD = """self.give(200, b'{"choices": [{"message": {"content": "ready"}}]}')"""


class Made(LocalEngine):
    """An engine whose server is the test's script."""

    kind_name = "made"

    def __init__(self, folder, script, budget_s=20):
        super().__init__(folder, budget_s, "model")
        self._script = script

    def program(self):
        return [str(self._script)]

    def instructions(self):
        return {}

    def read_back(self, hello, deadline):
        return EngineFacts(EngineKind.SCRIPTED, None, None, None, None, 1, None, None, False, 0)


@pytest.fixture
def engine(tmp_path):
    """`engine(code)` starts an engine whose server runs `code`."""
    made = []

    def begin(code, budget_s=20):
        script = tmp_path / "server.py"
        script.write_text(textwrap.dedent(code))
        made.append(Made(tmp_path, script, budget_s))
        made[-1].start()
        return made[-1]

    yield begin
    for item in made:
        item.stop()


def fault_of(engine):
    with pytest.raises(EngineFault) as caught:
        engine.wait_ready()
    assert not engine.alive()
    return caught.value


def test_a_good_server_becomes_ready(engine):
    heard = []
    good = engine(SERVER.format(behaviour=GOOD))
    facts = good.wait_ready(heard.append)
    assert good.alive()
    assert facts.start_ms >= 0
    assert good.base_url.startswith("http://127.0.0.1:")
    assert heard[-1] == "asking it for a first completion"
    good.stop()
    assert not good.alive()


def test_it_can_be_started_again_with_another_key_and_another_log(engine, tmp_path):
    good = engine(SERVER.format(behaviour=GOOD))
    good.wait_ready()
    key = good.api_key
    good.stop()
    good.start()
    good.wait_ready()
    assert good.api_key != key
    assert sorted(path.name for path in tmp_path.glob("made-*.log")) == ["made-1.log", "made-2.log"]


def test_it_is_not_started_twice(engine):
    good = engine(SERVER.format(behaviour=GOOD))
    with pytest.raises(RuntimeError, match="already"):
        good.start()


def reports(line):
    """A server whose whole life is one report."""
    return (
        f"import json, os, sys\nos.write(json.load(sys.stdin)['report'], {line + '\n'!r}.encode())"
    )


FAILURES = [
    ("died-at-start", "import sys\nsys.stderr.write('no room\\n')\nsys.exit(3)"),
    ("died-at-start", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"),
    ("garbage", reports("hello there")),
    ("garbage", reports('{"address": "http://10.0.0.1:80"}')),
    ("garbage", reports('{"fault": "something new"}')),
    ("server-missing", reports('{"fault": "server-missing"}')),
    ("load-failed", reports('{"fault": "load-failed"}')),
    ("garbage", SERVER.format(behaviour="self.give(200, b'\\x00\\xff{]')")),
    ("garbage", SERVER.format(behaviour="self.wfile.write(b'SSH-2.0\\r\\n\\r\\n')")),
    ("garbage", SERVER.format(behaviour="self.give(200, b'{}')")),
    ("garbage", SERVER.format(behaviour='self.give(200, b\'{"choices": [{"message": {}}]}\')')),
    ("no-answer", SERVER.format(behaviour="self.give(503, b'{}')")),
    ("no-answer", SERVER.format(behaviour="self.give(307, b'')")),
    ("died-at-start", SERVER.format(behaviour="os._exit(4)")),
]


@pytest.mark.parametrize(("code", "script"), FAILURES)
def test_each_failure_has_its_reason(engine, code, script):
    fault = fault_of(engine(script))
    assert fault.reason_code == code
    assert fault.where.endswith("made-1.log")


@pytest.mark.parametrize(
    "script",
    [
        "import time\ntime.sleep(300)",
        SERVER.format(behaviour="__import__('time').sleep(300)"),
        SERVER.format(
            behaviour="self.send_response(200); self.end_headers()\n"
            "            while True: self.wfile.write(b' '); __import__('time').sleep(0.05)"
        ),
    ],
)
def test_a_server_that_hangs_or_trickles_is_given_up_in_time(engine, script):
    begun = time.monotonic()
    fault = fault_of(engine(script, budget_s=2))
    assert fault.reason_code == "not-ready-in-time"
    assert time.monotonic() - begun < 60


def test_the_last_words_of_a_server_that_died_are_shown(engine):
    fault = fault_of(engine("import sys\nsys.stderr.write('no room\\n')\nsys.exit(3)"))
    assert "exit code 3" in str(fault)
    assert "no room" in str(fault)


def test_a_missing_program_is_told_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr("qualify.runtimes.local.spawn", _spawn_without_python)
    with pytest.raises(EngineFault) as caught:
        Made(tmp_path, tmp_path / "server.py").start()
    assert caught.value.reason_code == "server-missing"


def _spawn_without_python(*arguments, **options):
    from qualify.runtimes.processes import spawn

    return spawn(*arguments, **{**options, "interpreter": "/nowhere/python"})


def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path):
    with pytest.raises(EngineFault) as caught:
        Made(tmp_path / "missing", tmp_path / "server.py").start()
    assert caught.value.reason_code in ("cannot-start", "server-missing")


def test_an_engine_that_dies_later_is_seen(engine):
    good = engine(SERVER.format(behaviour=GOOD))
    good.wait_ready()
    os.kill(good._child.pid, signal.SIGKILL)
    good._child.wait(10)
    assert not good.alive()
