"""The child process of the llama.cpp engine: llama.cpp's own server, in a process of its own.

Started as a script by `watched`; imports nothing but `xllamacpp`, because a person waits for it.
Instructions come as JSON on standard input (the key with them); one JSON line on the descriptor
`report` says the address, or the fault. The port is chosen by the kernel. SIGTERM ends it at once,
also while llama.cpp holds the interpreter: the handler is the system's own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def main() -> int:
    """Serve until a signal comes. Returns 1 when nothing could be served."""
    order = json.load(sys.stdin)
    report = order["report"]
    try:
        import xllamacpp
    except ImportError:
        return _tell(report, fault="server-missing")
    try:
        server = xllamacpp.Server(parameters(xllamacpp, order))
    except (RuntimeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _tell(report, fault="load-failed")
    _tell(
        report,
        address=server.listening_address.replace("//0.0.0.0:", "//127.0.0.1:"),
        version=xllamacpp.__version__,
        revision=xllamacpp._version.get_versions().get("full-revisionid"),
        build=dict(xllamacpp.BUILD_INFO),
    )
    while True:
        threading.Event().wait()


def parameters(library: Any, order: dict[str, Any]) -> Any:
    """llama.cpp's parameters for our instructions; everything else stays at its default."""
    made = library.CommonParams()
    made.model.path = order["model"]
    made.model_alias = {order["name"]}
    made.hostnames = [order.get("host", "127.0.0.1")]
    made.port = order.get("port", 0)
    made.api_keys = [order["key"]]
    made.n_ctx = order["context_tokens"] * order["slots"]
    made.n_parallel = order["slots"]
    made.n_batch = order["batch_tokens"]
    made.n_ubatch = min(order["batch_tokens"], 512)
    made.n_gpu_layers = order["gpu_layers"]
    for processor in (made.cpuparams, made.cpuparams_batch):
        processor.n_threads = order["threads"]
        # Threads that spin while they wait take the cores from the agent that shares them.
        processor.poll = 0
    made.cache_ram_mib = order["prompt_cache_mib"]
    made.use_jinja = True
    # What is asked for is what must run: nothing is fitted to the memory behind the row's back.
    made.fit_params = False
    made.ctx_shift = False
    made.warmup = False  # the readiness completion warms it up
    made.ui = False
    made.endpoint_slots = True
    made.endpoint_props = False
    made.endpoint_metrics = False
    made.offline = True
    made.cors_origins = ""
    made.cors_credentials = False
    return made


def _tell(report: int, **message: Any) -> int:
    os.write(report, json.dumps(message).encode() + b"\n")
    return 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main())
