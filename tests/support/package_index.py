"""A package index on loopback: serves given files, counts what is asked, can stall or lie."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PackageIndex:
    """A simple index (PEP 503). `stalled` names files that are sent only in half, and then not."""

    def __init__(self, files: dict[str, tuple[str, bytes]]) -> None:
        """`files`: package → name and bytes of its one file."""
        self.files = files
        self.asked: Counter[str] = Counter()
        self.stalled: set[str] = set()
        self.half_sent = threading.Event()
        self.release = threading.Event()
        self.address = ""

    @property
    def environment(self) -> dict[str, str | None]:
        """Variables that make this the only index of a machine's pip; None removes one."""
        return {
            "PIP_INDEX_URL": f"{self.address}/simple",
            "PIP_EXTRA_INDEX_URL": None,
            "PIP_FIND_LINKS": None,
            "PIP_NO_INDEX": None,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_RETRIES": "0",
            "PIP_CONSTRAINT": None,
            "no_proxy": "127.0.0.1",
            "NO_PROXY": "127.0.0.1",
        }

    def answer(self, path: str) -> tuple[str, bytes, str] | None:
        """Type, body and file name for a path; None for 404."""
        if match := re.fullmatch(r"/simple/([a-z0-9-]+)/", path):
            if match[1] not in self.files:
                return None
            name = self.files[match[1]][0]
            return "text/html", f'<a href="/file/{name}">{name}</a>'.encode(), ""
        for name, data in self.files.values():
            if path == f"/file/{name}":
                return "application/octet-stream", data, name
        return None


@contextmanager
def serving(index: PackageIndex) -> Iterator[PackageIndex]:
    """Serve `index` on a free port of loopback while the block runs."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = index.answer(self.path)
            if found is None:
                self.send_error(404)
                return
            kind, body, name = found
            if name:
                index.asked[name] += 1
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if name in index.stalled:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                index.half_sent.set()
                index.release.wait(60)
                return
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    index.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
