"""Who took part in a trial, as observed: harness, machine, engine, model, agent.

Turns what other packages observed into the record's parts. Nothing is copied from a manifest that
could have been observed; what was not observed is `None`.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import qualify
from qualify.evidence.records import (
    AgentIdentity,
    Client,
    Engine,
    Harness,
    Machine,
    ModelIdentity,
    is_hardware_name,
)
from qualify.manifests.configuration import Configuration
from qualify.runtimes.engine import EngineFacts
from qualify.runtimes.probe import MachineFacts
from qualify.sessions.replay import Replay

_HARDWARE = re.compile(r"[^A-Za-z0-9 ()@.,+_-]")


@cache
def harness() -> Harness:
    """This Qualify: version, commit and whether its checkout is modified (`None`: no checkout)."""
    commit, modified = _checkout(Path(qualify.__file__).resolve().parent)
    return Harness(
        version=qualify.__version__,
        commit=commit,
        modified=modified,
        python=platform.python_version(),
    )


def _checkout(folder: Path) -> tuple[str | None, bool | None]:
    """Commit and state of our own checkout; an installed package may lie in somebody else's."""
    try:
        top = _git(folder, "rev-parse", "--show-toplevel").strip()
        if Path(top).resolve() / "src" / "qualify" != folder:
            return None, None
        head = _git(folder, "rev-parse", "HEAD")
        status = _git(folder, "status", "--porcelain", ":/src", ":/locks")
    except (OSError, subprocess.SubprocessError):
        return None, None
    commit = head.strip()
    return (commit, bool(status.strip())) if re.fullmatch(r"[0-9a-f]{40}", commit) else (None, None)


def _git(folder: Path, *arguments: str) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True, capture_output=True, text=True, timeout=20, env=plain,
    ).stdout  # fmt: skip


def machine_identity(facts: MachineFacts) -> Machine:
    """The machine of the record."""
    first = facts.gpus[0] if facts.gpus else None
    return Machine(
        architecture=facts.architecture,
        cpu_model=_hardware(facts.cpu_model),
        logical_cores=facts.cores_logical,
        memory_mib=facts.memory_mib,
        gpu_model=_hardware(first.model) if first else None,
        gpu_count=len(facts.gpus),
        driver=facts.driver,
    )


def _hardware(text: str | None) -> str | None:
    if not text:
        return None
    cleaned = " ".join(_HARDWARE.sub(" ", text).split())[:64].strip()
    named = bool(cleaned) and cleaned[0].isalnum() and is_hardware_name(cleaned)
    return cleaned if named else None


def engine_record(facts: EngineFacts, configuration: Configuration) -> Engine:
    """The engine of the record, as read back from the running server."""
    return Engine(
        kind=facts.kind,
        version=facts.version,
        build=facts.build,
        context_tokens_per_slot=facts.context_tokens_per_slot,
        slots=facts.slots,
        tensor_parallel=configuration.row.tensor_parallel,
        chat_template=facts.chat_template,
        tool_parser=facts.tool_parser,
        remote=facts.remote,
        image=facts.image,
        network=facts.network,
    )


def file_stamp(path: Path | None) -> tuple[int, ...] | None:
    """What changes when a file, or a file below a folder, is replaced or written to.

    `None`: there is none.
    """
    if path is None:
        return None
    try:
        files = sorted(each for each in path.rglob("*") if each.is_file()) or [path]
        found = [each.stat() for each in files]
    except OSError:
        return None
    return tuple(n for each in found for n in _stamped(each))


def _stamped(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def model_identity(configuration: Configuration, verified: str | None) -> ModelIdentity | None:
    """The model of the record; `verified` is the digest of the files that were read and hashed."""
    model = configuration.model
    if model is None:
        return None
    return ModelIdentity(id=model.id, revision=model.revision, files=verified)


def agent_identity(
    configuration: Configuration,
    *,
    fingerprint: str | None,
    modes: frozenset[str],
    temperatures: frozenset[int | None],
    names_match: bool | None,
) -> AgentIdentity:
    """The agent of the record, with what its requests said."""
    mode = next(iter(modes)) if len(modes) == 1 else None
    temperature = next(iter(temperatures)) if len(temperatures) == 1 else None
    return AgentIdentity.model_validate(
        {
            "id": configuration.agent.id,
            "sdk_version": _version("openhands-sdk"),
            "fingerprint": fingerprint,
            "tool_mode_requested": configuration.row.tool_mode,
            "tool_mode_observed": mode,
            "temperature_milli_observed": temperature,
            "model_name_matches": names_match,
            "skills": 0,
        },
        strict=False,
    )


def client_identity(replay: Replay | None) -> Client | None:
    """The client of the record, as the session's owner bound it and read it again.

    From the replayed journal, not from the worker's word; `None`: nothing was bound.
    """
    if replay is None or replay.client is None:
        return None
    return Client.model_validate(
        {
            **replay.client,
            "readings": replay.client_readings,
            "read_at_end": replay.client_read_at_end,
            "changed": tuple(replay.client_changed),
        }
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
