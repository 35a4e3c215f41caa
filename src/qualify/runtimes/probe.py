"""What this machine is: processor, memory, accelerators, driver. Reads; changes nothing.

Promises: what a tool did not say is `None` or a state of its own, never a guess. No accelerator, an
accelerator without its tools, and a driver that does not answer are three different findings, and
only the first says that a row for an accelerator is on the wrong machine.
"""

from __future__ import annotations

import os
import platform as system
import re
import shutil
import subprocess
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import partial
from pathlib import Path

from qualify.manifests.kinds import Gpu, Platform

_MIB = 1 << 20
_TOOL_TIMEOUT_S = 30
_NVIDIA_VENDOR = "0x10de"
_UNLIMITED = 1 << 60
# Limit and use of memory, control groups version 2 and 1, as a container sees its own.
_MEMORY_GROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
# A card's usable memory is less than its name says: 46,068 MiB of an L40S's 48 GB (ECC, driver).
_GPU_MEMORY_SHARE = Decimal("0.9")


class GpuState(StrEnum):
    """What could be learnt about accelerators."""

    NONE = "none"
    """No NVIDIA device on the bus and no tool that knows of one."""
    NO_TOOL = "no-tool"
    """A device is there, nvidia-smi is not."""
    BROKEN = "broken"
    """nvidia-smi is there and fails, or lists nothing although a device is there."""
    WORKING = "working"


@dataclass(frozen=True)
class GpuFacts:
    """One accelerator as its driver describes it."""

    model: str
    memory_mib: int | None
    compute_capability: Decimal | None


@dataclass(frozen=True)
class MachineFacts:
    """The machine as this process may use it: affinity and control groups are respected.

    Memory in MiB; `None` where nothing could be read.
    """

    architecture: str
    cpu_model: str | None
    cores_physical: int | None
    cores_logical: int
    features: tuple[str, ...]
    memory_mib: int | None
    memory_available_mib: int | None
    disk_free_mib: int | None
    gpu_state: GpuState
    gpus: tuple[GpuFacts, ...] = ()
    gpu_remark: str | None = None
    """What the tool said when the state is `broken`."""
    driver: str | None = None
    cuda: str | None = None
    """The newest CUDA that the driver supports."""


def probe_machine(folder: Path | None = None, *, root: Path = Path("/")) -> MachineFacts:
    """Look at the machine; `folder` (default: the current one) is where disk space is measured.

    `root` is where `/proc` and `/sys` are found. Never raises for what a machine lacks.
    """
    cpu = _read(root / "proc/cpuinfo")
    total, available = _memory(root)
    state, gpus, remark, driver, cuda = _gpus(root)
    return MachineFacts(
        architecture=system.machine(),
        cpu_model=_field(cpu, "model name"),
        cores_physical=_physical_cores(cpu),
        cores_logical=_usable_cores(root),
        features=tuple(sorted((_field(cpu, "flags") or _field(cpu, "Features") or "").split())),
        memory_mib=total,
        memory_available_mib=available,
        disk_free_mib=disk_free_mib(folder or Path()),
        gpu_state=state,
        gpus=gpus,
        gpu_remark=remark,
        driver=driver,
        cuda=cuda,
    )


def disk_free_mib(folder: Path) -> int | None:
    """MiB free for this user on the disk of `folder` or of its nearest existing parent."""
    for place in (folder.absolute(), *folder.absolute().parents):
        try:
            return shutil.disk_usage(place).free // _MIB
        except OSError:
            continue
    return None


def matches(platform: Platform, machine: MachineFacts) -> list[str]:
    """Why `machine` is not `platform`, one sentence each; empty when it is.

    Minimums are minimums; architecture, accelerator model, compute capability and declared driver
    must agree. Where the accelerators could not be read (`gpu_unknown`), they give no reason: such
    a machine is not proven wrong.
    """
    found = []
    if machine.architecture != platform.architecture:
        found.append(f"the processor is {machine.architecture}, declared {platform.architecture}")
    if machine.cores_logical < platform.minimum_cores:
        found.append(
            f"{machine.cores_logical} usable cores, at least {platform.minimum_cores} needed"
        )
    if machine.memory_mib is not None and machine.memory_mib < platform.minimum_memory_mib:
        found.append(
            f"{machine.memory_mib} MiB memory, at least {platform.minimum_memory_mib} needed"
        )
    lacking = sorted(set(platform.cpu_features) - set(machine.features))
    if lacking:
        found.append(f"the processor lacks {', '.join(lacking)}")
    if platform.gpu is not None and not gpu_unknown(machine):
        found += _gpu_mismatches(platform.gpu, machine)
        if platform.driver and machine.driver and machine.driver != platform.driver:
            found.append(f"driver {machine.driver}, declared {platform.driver}")
    return found


def gpu_unknown(machine: MachineFacts) -> str | None:
    """Why the accelerators cannot be judged (a broken driver is inconclusive), or `None`."""
    if machine.gpu_state is GpuState.BROKEN:
        return f"the NVIDIA driver does not answer: {machine.gpu_remark}"
    if machine.gpu_state is GpuState.NO_TOOL:
        return "an NVIDIA device is present, but nvidia-smi is not on PATH"
    return None


def _gpu_mismatches(declared: Gpu, machine: MachineFacts) -> list[str]:
    if not machine.gpus:
        return [f"no GPU, declared {declared.count} × {declared.model}"]
    same = [gpu for gpu in machine.gpus if _is_model(declared.model, gpu.model)]
    if len(same) < declared.count:
        have = ", ".join(gpu.model for gpu in machine.gpus)
        return [f"GPUs: {have}; declared {declared.count} × {declared.model}"]
    found = []
    first = same[0]
    needed = int(declared.memory_mib * _GPU_MEMORY_SHARE)
    if first.memory_mib is not None and first.memory_mib < needed:
        found.append(f"{first.memory_mib} MiB GPU memory, declared {declared.memory_mib}")
    capability, wanted = first.compute_capability, Decimal(str(declared.compute_capability))
    if capability is not None and capability != wanted:
        found.append(f"compute capability {capability:.1f}, declared {wanted:.1f}")
    return found


def _is_model(declared: str, reported: str) -> bool:
    """`T4` is a `Tesla T4` and no `T400`: every declared word must be reported."""
    words = set(re.findall(r"[a-z0-9]+", reported.lower()))
    return set(re.findall(r"[a-z0-9]+", declared.lower())) - {"nvidia", "tesla"} <= words


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _field(cpuinfo: str, name: str) -> str | None:
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else None


def _physical_cores(cpuinfo: str) -> int | None:
    cores = set()
    for block in cpuinfo.split("\n\n"):
        socket, core = _field(block, "physical id"), _field(block, "core id")
        if core is not None:
            cores.add((socket, core))
    return len(cores) or None


def _usable_cores(root: Path) -> int:
    affinity = len(os.sched_getaffinity(0))
    quota = _read(root / "sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        return max(1, min(affinity, int(quota[0]) // int(quota[1])))
    return affinity


def _memory(root: Path) -> tuple[int | None, int | None]:
    """Total and available MiB, both within the control group's limit."""
    lines = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE))
    total = int(lines["MemTotal"]) // 1024 if "MemTotal" in lines else None
    available = int(lines["MemAvailable"]) // 1024 if "MemAvailable" in lines else None
    for limit_file, used_file in _MEMORY_GROUPS:
        limit = _read(root / "sys/fs/cgroup" / limit_file).strip()
        if not limit.isdigit() or int(limit) >= _UNLIMITED:
            continue
        limit_mib = int(limit) // _MIB
        used = _read(root / "sys/fs/cgroup" / used_file).strip()
        left = limit_mib - (int(used) // _MIB if used.isdigit() else 0)
        total = min(total or limit_mib, limit_mib)
        available = min(available or left, left)
    return total, available


def _gpus(
    root: Path,
) -> tuple[GpuState, tuple[GpuFacts, ...], str | None, str | None, str | None]:
    tool = shutil.which("nvidia-smi")
    devices = _nvidia_devices(root)
    if tool is None:
        return (GpuState.NO_TOOL if devices else GpuState.NONE), (), None, None, None
    ask = partial(_ask, tool)
    code, text = ask("--query-gpu=name,memory.total,driver_version,compute_cap")
    if code != 0 and "compute_cap" in text:
        # Drivers before 510 do not know the field.
        code, text = ask("--query-gpu=name,memory.total,driver_version")
    if code != 0:
        return GpuState.BROKEN, (), _first_line(text) or f"exit code {code}", None, None
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if "," in line]
    gpus = tuple(
        GpuFacts(row[0], _integer(row[1]), _decimal(row[3]) if len(row) > 3 else None)
        for row in rows
    )
    if not gpus:
        if devices:
            return GpuState.BROKEN, (), _first_line(text) or "it lists no device", None, None
        return GpuState.NONE, (), None, None, None
    _, banner = ask()
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*([\d.]+)", banner)
    return GpuState.WORKING, gpus, None, rows[0][2], cuda[1] if cuda else None


def _ask(tool: str, *query: str) -> tuple[int, str]:
    form = ("--format=csv,noheader,nounits",) if query else ()
    try:
        done = subprocess.run(
            [tool, *query, *form],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {_TOOL_TIMEOUT_S} s"
    except OSError as error:
        return 1, str(error)
    return done.returncode, done.stdout + done.stderr


def _nvidia_devices(root: Path) -> bool:
    for device in (root / "sys/bus/pci/devices").glob("*"):
        kind = _read(device / "class")
        if _read(device / "vendor").strip() == _NVIDIA_VENDOR and kind.startswith("0x03"):
            return True
    return False


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _integer(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None
