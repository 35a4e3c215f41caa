"""The vLLM child's own parts: the topology that stands in for lscpu, and the port that it holds."""

import importlib.util
import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from qualify.runtimes.vllm import _SERVER


@pytest.fixture(scope="module")
def server():
    spec = importlib.util.spec_from_file_location("vllm_server", _SERVER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def system(folder, cpus):
    for number, (siblings, node) in cpus.items():
        place = folder / f"cpu/cpu{number}"
        (place / "topology").mkdir(parents=True)
        (place / "topology/thread_siblings_list").write_text(siblings + "\n")
        if node is not None:
            (place / f"node{node}").mkdir()
    (folder / "cpu/cpufreq").mkdir()
    return folder


def test_threads_of_a_core_and_nodes_are_told_apart(server, tmp_path):
    made = system(tmp_path, {0: ("0,2", 0), 1: ("1,3", 1), 2: ("0,2", 0), 10: ("10-11", None)})
    assert server.topology(made)["cpus"] == [
        {"cpu": 0, "core": 0, "node": 0},
        {"cpu": 1, "core": 1, "node": 1},
        {"cpu": 2, "core": 0, "node": 0},
        {"cpu": 10, "core": 10, "node": 0},
    ]


def test_a_processor_that_is_not_online_is_left_out(server, tmp_path):
    made = system(tmp_path, {0: ("0", 0), 1: ("1", 0)})
    shutil.rmtree(made / "cpu/cpu1/topology")
    assert [each["cpu"] for each in server.topology(made)["cpus"]] == [0]


def test_it_says_what_lscpu_says_of_this_machine(server):
    done = subprocess.run(
        ["lscpu", "--json", "--extended=CPU,CORE,NODE", "--online"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    real = {(each["cpu"], each["node"]) for each in json.loads(done.stdout)["cpus"]}
    assert {(each["cpu"], each["node"]) for each in server.topology()["cpus"]} == real


def test_nobody_else_is_given_the_port_that_is_held(server):
    held = server._reserve("127.0.0.1", 0)
    place = held.getsockname()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(place)
    with socket.socket() as vllm:
        vllm.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        vllm.bind(place)
        assert not server._listens(place)
        vllm.listen()
        assert server._listens(place)
    held.close()


def test_only_the_process_itself_counts_as_listening(server):
    held = server._reserve("127.0.0.1", 0)
    place = held.getsockname()
    code = (
        "import socket,sys,time\ns = socket.socket()\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        f"s.bind({place!r})\ns.listen()\nprint('listens', flush=True)\ntime.sleep(60)"
    )
    stranger = subprocess.Popen(["python3", "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert stranger.stdout.readline() == "listens\n"
        assert not server._listens(place)
    finally:
        stranger.kill()
        stranger.wait()
        held.close()


def test_the_script_needs_nothing_but_the_standard_library():
    text = Path(_SERVER).read_text()
    assert "import qualify" not in text
    assert "from qualify" not in text
