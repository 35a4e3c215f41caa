"""The doctor's questions about one row: the machine it needs, its packages, its model, its key.

Every requirement becomes a finding, met or not, so that a reader sees what was looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from qualify.core.errors import QualifyError
from qualify.core.status import EngineKind
from qualify.manifests.catalog import Catalog
from qualify.manifests.configuration import Configuration, resolve
from qualify.manifests.kinds import Model, Runtime
from qualify.models.errors import ModelFileMismatch, bytes_text
from qualify.models.store import StoreState, space_needed, state_of, verify
from qualify.runner.findings import Finding, Hashing, Level, installed_version
from qualify.runner.image_place import VARIABLE as IMAGE_VARIABLE
from qualify.runner.installed import compare_with_lock, how_to_install
from qualify.runtimes.admission import admit
from qualify.runtimes.contained import require_bubblewrap
from qualify.runtimes.cuda_drivers import Support, cuda_support
from qualify.runtimes.locked import locked_versions
from qualify.runtimes.memory import estimate_memory
from qualify.runtimes.probe import MachineFacts, gpu_unknown, matches
from qualify.runtimes.probe_engine import installed_vllm


def row_findings(
    catalog: Catalog, row_id: str, machine: MachineFacts, hashing: Hashing | None = None
) -> list[Finding]:
    """What the row needs, and whether it is there. Raises `UsageError` for an unknown row."""
    configuration = resolve(catalog, row_id)
    return [
        Finding(f"row {row_id}", *rest)
        for rest in (
            *_platform(configuration, machine),
            *_admission(catalog.project, configuration, machine),
            *_driver(configuration, machine),
            *_installed_parser(configuration),
            *_runtime(catalog.project, configuration),
            *_model(configuration, machine, hashing),
            *_memory(configuration, machine),
            *_endpoint(configuration.runtime),
        )
    ]


type _Rest = tuple[str, Level, str, str]


def _platform(configuration: Configuration, machine: MachineFacts) -> Iterator[_Rest]:
    platform = configuration.platform
    unknown = gpu_unknown(machine) if platform.gpu is not None else None
    if unknown:
        yield "platform", Level.LACKING, f"{platform.id}: {unknown}", "make nvidia-smi work"
    reasons = matches(platform, machine)
    for reason in reasons:
        yield "platform", Level.LACKING, f"{platform.id}: {reason}", "run the row on its platform"
    if not reasons and not unknown:
        yield "platform", Level.OK, f"this machine is a {platform.id}", ""


def _admission(
    project: Path, configuration: Configuration, machine: MachineFacts
) -> Iterator[_Rest]:
    if configuration.declared_only:
        text = f"only carries outcomes from elsewhere: {', '.join(configuration.declared_only)}"
        yield "manifest", Level.LACKING, text, "declare what is missing in a row of your own"
    try:
        locked = locked_versions(project, configuration.runtime)
    except QualifyError:
        locked = None  # a bad lock is a finding of its own
    said_elsewhere = {"declared-only", "machine-driver-unknown"}
    reasons = [r for r in admit(configuration, machine, locked) if r.code not in said_elsewhere]
    for reason in reasons:
        yield "admission", Level.LACKING, reason.text, reason.fix
    parser = configuration.row.tool_parser
    if parser is not None and "parser-not-in-runtime" not in {reason.code for reason in reasons}:
        yield "tool parser", Level.OK, f"{parser} is offered by {configuration.runtime.id}", ""


def _driver(configuration: Configuration, machine: MachineFacts) -> Iterator[_Rest]:
    """How the driver runs the runtime's CUDA; that it is too old has been said by admission."""
    cuda = configuration.runtime.cuda
    if configuration.platform.gpu is None or cuda is None or machine.driver is None:
        return
    found = cuda_support(machine.driver, cuda)
    if found.support in (Support.NATIVE, Support.MINOR):
        text = f"{machine.driver} runs CUDA {cuda} ({found.support.value})"
        yield "driver", Level.OK, text, ""


def _installed_parser(configuration: Configuration) -> Iterator[_Rest]:
    """Whether the vLLM that is installed has the row's parser, whatever the manifest lists."""
    row, runtime = configuration.row, configuration.runtime
    if runtime.engine is not EngineKind.VLLM or runtime.lock is None or row.tool_parser is None:
        return
    engine = installed_vllm() if row.placement == "host" else None
    if engine is None:
        return
    name = f"{engine.distribution} {engine.version}"
    if engine.tool_parsers is None:
        yield "tool parser", Level.WARNING, f"parsers of {name}: {engine.remark}", "install it anew"
    elif row.tool_parser not in engine.tool_parsers:
        text = f"{name} as installed has no tool parser {row.tool_parser}"
        yield "tool parser", Level.LACKING, text, how_to_install(runtime.lock)


def _runtime(project: Path, configuration: Configuration) -> Iterator[_Rest]:
    runtime = configuration.runtime
    if configuration.row.placement == "image":
        yield from _image(configuration)
        if configuration.agent.lock is not None:
            yield _lock(project, "agent", configuration.agent.lock)
        return
    # Without a lock nothing is installed here on purpose: admission has said so.
    for package in runtime.packages if runtime.lock is not None else ():
        if (version := installed_version(package.name)) != package.version:
            text = (
                f"{package.name} is {version or 'not installed'}, the row needs {package.version}"
            )
            yield "runtime", Level.LACKING, text, "set the environment up again with ./qualify"
    for subject, name in (("runtime", runtime.lock), ("agent", configuration.agent.lock)):
        if name is not None:
            yield _lock(project, subject, name)


def _image(configuration: Configuration) -> Iterator[_Rest]:
    """What a row that runs in an image needs here: bubblewrap, and an image that a run is given."""
    named = os.environ.get(IMAGE_VARIABLE, "")
    if named and not Path(named).exists():
        text = f"${IMAGE_VARIABLE} names {named}, which does not exist"
        yield "image", Level.LACKING, text, "name an image, or unset it"
    else:
        where = f"${IMAGE_VARIABLE}" if named else "`qualify run --image PATH`"
        text = f"its runtime {configuration.runtime.id} is in an image, which {where} names"
        yield "image", Level.OK if named else Level.NOTE, text, "make one: `qualify image build`"
    try:
        require_bubblewrap()
    except QualifyError as error:
        yield "bubblewrap", Level.LACKING, error.what, error.fix
    else:
        yield "bubblewrap", Level.OK, "runs images here", ""


def _lock(project: Path, subject: str, name: str) -> _Rest:
    try:
        match = compare_with_lock(project, name)
    except QualifyError as error:
        return subject, Level.LACKING, str(error), error.fix
    if not match.wrong:
        plural = "s" if match.wanted != 1 else ""
        return subject, Level.OK, f"{match.wanted} package{plural} as locked in {name}", ""
    text = f"not as locked in {name}: {match.shown}"
    return subject, Level.LACKING, text, how_to_install(name)


def _model(
    configuration: Configuration, machine: MachineFacts, hashing: Hashing | None
) -> Iterator[_Rest]:
    model = configuration.model
    if model is None or not model.files or configuration.runtime.engine is EngineKind.ENDPOINT:
        return
    state, have = state_of(model)
    total = sum(file.size for file in model.files)
    command = f"qualify model acquire {model.id}"
    if state is StoreState.UNAPPROVED or (
        state is not StoreState.PRESENT and model.licence.approval == "explicit"
    ):
        spdx = model.licence.spdx
        text = f"{model.id}: its licence {spdx} must be approved once"
        yield "model", Level.LACKING, text, f"{command} --approve-licence {spdx}"
    elif state in (StoreState.ABSENT, StoreState.UNFINISHED):
        text = f"{model.id} is not acquired ({bytes_text(have)} of {bytes_text(total)} there)"
        yield "model", Level.LACKING, text, command
        needed = space_needed(model)
        free = machine.disk_free_mib
        if free is not None and needed > free << 20:
            text = f"acquiring needs {bytes_text(needed)}, {bytes_text(free << 20)} are free"
            yield "disk", Level.LACKING, text, "free some space"
    else:
        yield _verified(model, total, command, hashing)


def _verified(model: Model, total: int, command: str, hashing: Hashing | None) -> _Rest:
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if hashing is not None:
            hashing(done, total)

    try:
        verify(model, count)
    except ModelFileMismatch as error:
        text = f"{error.file} is damaged: expected {error.expected}, found {error.found}"
        return "model", Level.LACKING, text, command
    except QualifyError as error:
        return "model", Level.LACKING, f"{model.id}: {error.what}", command
    return "model", Level.OK, f"{model.id}: {bytes_text(total)} verified", ""


def _memory(configuration: Configuration, machine: MachineFacts) -> Iterator[_Rest]:
    if configuration.platform.gpu is not None:
        return
    estimate = estimate_memory(configuration)
    needed = estimate.total_mib if estimate is not None else None
    available = machine.memory_available_mib
    if needed is None or available is None:
        return
    text = f"about {needed} MiB needed, {available} MiB available"
    if needed > available:
        yield "memory", Level.LACKING, text, "stop other programs, or use a machine with more"
    else:
        yield "memory", Level.OK, text, ""


def _endpoint(runtime: Runtime) -> Iterator[_Rest]:
    if runtime.endpoint is None or runtime.endpoint.api_key_variable is None:
        return
    name = runtime.endpoint.api_key_variable
    if os.environ.get(name):
        yield "endpoint", Level.OK, f"${name} is set", ""
    else:
        yield "endpoint", Level.LACKING, f"${name} is not set", f"export {name} with the key"
