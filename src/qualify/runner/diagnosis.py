"""The doctor: what this machine has, and what a row needs and lacks, each finding with a fix.

Looks only: starts no engine, writes nothing, downloads nothing, imports no engine and no agent SDK
(versions come from package metadata). A model of the row is hashed, because only that says it is
there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from qualify import __version__
from qualify.core.errors import QualifyError
from qualify.evidence.places import results_folder
from qualify.manifests.catalog import Catalog, find_project, load_catalog
from qualify.models.errors import bytes_text
from qualify.models.layout import STORE_VARIABLE, store_root
from qualify.models.sources import kept_bytes
from qualify.runner.findings import Finding, Hashing, Level, installed_version
from qualify.runner.row_diagnosis import row_findings
from qualify.runtimes.probe import GpuState, MachineFacts, disk_free_mib, gpu_unknown, probe_machine
from qualify.runtimes.probe_engine import installed_vllm

_ENGINES = {
    "llama.cpp": ("xllamacpp", "pip install 'qualify[run]'"),
    "agent SDK": ("openhands-sdk", "pip install 'qualify[run]'"),
}
_LITTLE_DISK_MIB = 5000


def diagnose(
    project: Path | None, results: str | None, row: str | None, hashing: Hashing | None = None
) -> tuple[Finding, ...]:
    """Examine the machine and the project; with `row`, what that row needs as well.

    Raises `UsageError` for an unknown row, or when a row is asked for and the project cannot be
    read.
    """
    machine = probe_machine(store_root())
    found = [*_machine(machine), _gpu(machine), *_engines(), _sandbox()]
    folder, catalog, project_findings = _project(project, required=row is not None)
    found += project_findings
    found += _places(folder, results)
    if row is not None and catalog is not None:
        found += row_findings(catalog, row, machine, hashing)
    return tuple(found)


def _machine(machine: MachineFacts) -> list[Finding]:
    cores = f"{machine.cores_logical} usable cores"
    if machine.cores_physical is not None:
        cores += f" of {machine.cores_physical} physical"
    name = machine.cpu_model or "processor of unknown name"
    wide = [word for word in ("avx2", "avx512f", "amx_tile", "asimd") if word in machine.features]
    text = f"{name} ({machine.architecture}), {cores}; {', '.join(wide) or 'no AVX2'}"
    found = [Finding("machine", "processor", Level.OK, text)]
    if machine.memory_mib is None:
        found.append(Finding("machine", "memory", Level.WARNING, "unknown", "mount /proc"))
    else:
        text = f"{machine.memory_mib} MiB"
        if machine.memory_available_mib is not None:
            text += f", {machine.memory_available_mib} MiB available"
        found.append(Finding("machine", "memory", Level.OK, text))
    version = ".".join(map(str, sys.version_info[:3]))
    found.append(Finding("machine", "Python", Level.OK, f"{version}, Qualify {__version__}"))
    return found


def _gpu(machine: MachineFacts) -> Finding:
    if machine.gpu_state is GpuState.WORKING:
        cards = ", ".join(
            f"{gpu.model} ({gpu.memory_mib or '?'} MiB, "
            f"compute capability {gpu.compute_capability or '?'})"
            for gpu in machine.gpus
        )
        text = f"{cards}; driver {machine.driver}, CUDA up to {machine.cuda or 'unknown'}"
        return Finding("machine", "GPU", Level.OK, text)
    if machine.gpu_state is GpuState.NONE:
        return Finding("machine", "GPU", Level.NOTE, "none found; nvidia-smi is not installed")
    fix = "install the driver's nvidia-smi, or mount it into the container"
    if machine.gpu_state is GpuState.BROKEN:
        fix = "restart after a driver update, or reinstall the driver; then `nvidia-smi` must work"
    return Finding("machine", "GPU", Level.WARNING, gpu_unknown(machine) or "unknown", fix)


def _engines() -> list[Finding]:
    found = []
    for name, (package, fix) in _ENGINES.items():
        version = installed_version(package)
        if version is None:
            found.append(Finding("engines", name, Level.NOTE, f"{package} is not installed", fix))
        else:
            found.append(Finding("engines", name, Level.OK, f"{package} {version}"))
    return [*found, _vllm()]


def _vllm() -> Finding:
    engine = installed_vllm()
    if engine is None:
        fix = "it comes in the vLLM images; see docs/reference/images.md"
        return Finding("engines", "vLLM", Level.NOTE, "vllm is not installed", fix)
    text = f"{engine.distribution} {engine.version}"
    if engine.tool_parsers is None:
        text = f"{text}, tool parsers unknown: {engine.remark}"
        return Finding("engines", "vLLM", Level.WARNING, text, "install it anew from its lock")
    return Finding("engines", "vLLM", Level.OK, f"{text}, {len(engine.tool_parsers)} tool parsers")


def _sandbox() -> Finding:
    from qualify.sandbox.isolation import available

    if available().kind == "bubblewrap":
        text = "bubblewrap: own file system view, no network, no other processes"
        return Finding("sandbox", "commands", Level.OK, text)
    if shutil.which("bwrap") is None:
        text = "none enforced: bubblewrap is not installed; records say `none`"
        return Finding("sandbox", "commands", Level.WARNING, text, "install the package bubblewrap")
    said = _bubblewrap_says()
    fix = "allow unprivileged user namespaces (sysctl, AppArmor or the container's settings)"
    text = f"none enforced: bubblewrap is installed and does not work: {said}; records say `none`"
    return Finding("sandbox", "commands", Level.WARNING, text, fix)


def _bubblewrap_says() -> str:
    argv = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else "its probe saw more than it should"


def _project(
    start: Path | None, *, required: bool
) -> tuple[Path | None, Catalog | None, list[Finding]]:
    try:
        folder = find_project(start)
    except QualifyError as error:
        if required or start is not None:
            raise
        return None, None, [Finding("project", "manifests", Level.NOTE, error.what, error.fix)]
    try:
        catalog = load_catalog(folder)
    except QualifyError as error:
        if required:
            raise
        fix = "run `qualify manifest check` and correct them"
        first, *others = str(error).splitlines()
        text = f"{folder}: {first}" + (f" and {len(others)} more" if others else "")
        return folder, None, [Finding("project", "manifests", Level.LACKING, text, fix)]
    text = f"{folder}: {len(catalog.rows)} rows, {len(catalog.models)} models, all valid"
    return folder, catalog, [Finding("project", "manifests", Level.OK, text)]


def _places(project: Path | None, option: str | None) -> list[Finding]:
    found = []
    try:
        results = results_folder(project, option)
    except QualifyError as error:
        found.append(Finding("project", "results", Level.LACKING, str(error), error.fix))
    else:
        found.append(_results(results))
    return [*found, *_store()]


def _store() -> list[Finding]:
    store = store_root()
    free = disk_free_mib(store)
    size = sum(path.lstat().st_size for path in (store / "blobs").glob("*"))
    text, level, fix = f"{store}: {bytes_text(size)} of models", Level.OK, ""
    if free is None:
        text, level, fix = f"{text}, free space unknown", Level.WARNING, "check its disk"
    elif free < _LITTLE_DISK_MIB:
        text, level = f"{text}, only {bytes_text(free << 20)} free", Level.WARNING
        fix = f"free some, or set {STORE_VARIABLE} to a larger disk"
    else:
        text = f"{text}, {bytes_text(free << 20)} free"
    found = [Finding("project", "model store", level, text, fix)]
    unfinished = sum(kept_bytes(folder) for folder in (store / "partial").glob("*"))
    if unfinished:
        text = (
            f"{bytes_text(unfinished)} of unfinished downloads; `qualify model acquire` uses them"
        )
        fix = f"or remove {store / 'partial'} while nothing is being acquired"
        found.append(Finding("project", "downloads", Level.NOTE, text, fix))
    return found


def _results(folder: Path) -> Finding:
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    if not _writable(nearest):
        fix = "choose another with --results or QUALIFY_RESULTS, or correct its permissions"
        return Finding("project", "results", Level.LACKING, f"{folder}: cannot be written to", fix)
    if (folder / "ledger" / "ledger.log").exists() and _ignored_by_git(folder):
        return Finding(
            *("project", "results", Level.WARNING),
            f"{folder}: this evidence sits in an ignored folder of a checkout; `git clean -x` "
            "would remove it",
            "move it outside and set QUALIFY_RESULTS to the new place",
        )
    return Finding("project", "results", Level.OK, str(folder))


def _writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _ignored_by_git(folder: Path) -> bool:
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return False
    argv = ["git", "-C", str(folder), "check-ignore", "--quiet", "ledger/ledger.log"]
    try:
        return subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
