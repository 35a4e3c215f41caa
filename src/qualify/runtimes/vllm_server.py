"""The child process of the vLLM engine: vLLM's own OpenAI-compatible server, unchanged.

Started as a script by `watched`, on the host or inside an image; imports nothing but the standard
library and vLLM. Instructions come as JSON on standard input (the key with them); one JSON line on
the descriptor `report` says the address and the versions, or the fault. The port is one that the
kernel chose, and the address is reported only once this process itself listens there.

vLLM asks for its key under `/v1` alone and leaves `/invocations`, `/metrics` and others open; the
key here guards every path, and stands neither on a command line nor in an environment.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import runpy
import shlex
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import types
from importlib import metadata, util
from pathlib import Path
from typing import Any

_MODULE = "vllm.entrypoints.openai.api_server"
_GUARD = "qualify_key"
_REFUSED = 401
_SYSTEM = Path("/sys/devices/system")


def main() -> int:
    """Serve until a signal comes. Returns 1 when nothing could be served."""
    order = json.load(sys.stdin)
    report = order["report"]
    if util.find_spec("vllm") is None:
        return _tell(report, fault="server-missing")
    versions = {name: found for name in order["packages"] if (found := _version(name))}
    host = order.get("host", "127.0.0.1")
    try:
        reserved = _reserve(host, order.get("port", 0))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return _tell(report, fault="port-taken")
    port = reserved.getsockname()[1]
    _provide_lscpu()
    _guard_every_path(order["key"])
    threading.Thread(target=_announce, args=(report, (host, port), versions), daemon=True).start()
    sys.argv = [
        _MODULE,
        *("--model", order["model"]),
        *("--host", host, "--port", str(port)),
        *("--middleware", f"{_GUARD}.RequireKey"),
        *order["arguments"],
    ]
    runpy.run_module(_MODULE, run_name="__main__")
    return 0


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _reserve(host: str, port: int) -> socket.socket:
    """Hold the port (0: one that the kernel chooses) for as long as this process lives.

    vLLM binds it with SO_REUSEADDR, which Linux allows while nobody listens there; nobody else is
    given it by the kernel meanwhile.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, port))
    return held


def _announce(report: int, place: tuple[str, int], versions: dict[str, str]) -> None:
    """Report the address as soon as this very process listens there."""
    while not _listens(place):
        time.sleep(0.1)
    _tell(report, address=f"http://127.0.0.1:{place[1]}", versions=versions)


def _listens(place: tuple[str, int]) -> bool:
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as found:
                listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if listening and found.getsockname() == place:
                    return True
    return False


def _provide_lscpu() -> None:
    """The processor build asks the command `lscpu` for the topology; an image need not have it.

    What stands in for it is this file (see `topology`), found by a path that ends with it.
    """
    if shutil.which("lscpu") is not None:
        return
    folder = Path(tempfile.mkdtemp(prefix="lscpu-"))
    command = folder / "lscpu"
    command.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {shlex.quote(__file__)} lscpu\n"
    )
    command.chmod(0o755)
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{folder}"


def topology(system: Path = _SYSTEM) -> dict[str, list[dict[str, int]]]:
    """What `lscpu --json --extended=CPU,CORE,NODE --online` says, from the kernel's own files.

    A core is named by the lowest of the processors that share it; without NUMA the node is 0.
    """
    cpus = []
    for place in sorted(system.glob("cpu/cpu[0-9]*"), key=lambda each: int(each.name[3:])):
        number = int(place.name[3:])
        try:
            siblings = (place / "topology/thread_siblings_list").read_text()
        except OSError:
            continue  # not online
        core = int(siblings.replace("-", ",").split(",")[0])
        nodes = [each.name.removeprefix("node") for each in place.glob("node[0-9]*")]
        cpus.append({"cpu": number, "core": core, "node": int(nodes[0]) if nodes else 0})
    return {"cpus": cpus}


def _guard_every_path(key: str) -> None:
    """Make the module that vLLM's option --middleware names; it exists in this process only."""
    expected = f"Bearer {key}".encode()

    class RequireKey:
        """Refuses every request without the key, whatever its path."""

        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            given = dict(scope.get("headers") or ()).get(b"authorization", b"")
            if scope["type"] not in ("http", "websocket") or hmac.compare_digest(given, expected):
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await send({"type": "http.response.start", "status": _REFUSED, "headers": []})
                await send({"type": "http.response.body", "body": b""})

    module = types.ModuleType(_GUARD)
    module.RequireKey = RequireKey  # type: ignore[attr-defined]
    sys.modules[_GUARD] = module


def _tell(report: int, **message: Any) -> int:
    os.write(report, json.dumps(message).encode() + b"\n")
    return 1


if __name__ == "__main__":
    if sys.argv[1:] == ["lscpu"]:
        sys.stdout.write(json.dumps(topology()))
        sys.exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main())
