"""What the probe says of machines that are not at hand: their /proc and /sys, and their tools."""

import platform as system
from dataclasses import replace
from decimal import Decimal

import pytest

from qualify.manifests.kinds import Platform
from qualify.runtimes.probe import (
    GpuFacts,
    GpuState,
    MachineFacts,
    disk_free_mib,
    gpu_unknown,
    matches,
    probe_machine,
)

CPUINFO = """processor\t: 0
model name\t: Example CPU
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 sse4_2

processor\t: 1
model name\t: Example CPU
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 sse4_2
"""
MEMINFO = "MemTotal:       16384000 kB\nMemFree:  1 kB\nMemAvailable:    8192000 kB\n"
BANNER = "| NVIDIA-SMI 590.48.01   Driver Version: 590.48.01   CUDA Version: 13.1 |\n"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    (folder / "proc").mkdir(parents=True)
    (folder / "sys/fs/cgroup").mkdir(parents=True)
    (folder / "proc/cpuinfo").write_text(CPUINFO)
    (folder / "proc/meminfo").write_text(MEMINFO)
    return folder


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """An empty PATH; the returned function puts an nvidia-smi on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(query, *, code=0, banner=BANNER, old=False):
        unknown = "Field compute_cap is not a valid field to query."
        refuse = f'case "$*" in *compute_cap*) echo "{unknown}"; exit 2;; esac'
        script = folder / "nvidia-smi"
        script.write_text(
            "#!/bin/sh\n"
            + (refuse + "\n" if old else "")
            + f"if [ $# -gt 0 ]; then printf '%s\\n' '{query}'; exit {code}; fi\n"
            + f"printf '%s' '{banner}'\n"
        )
        script.chmod(0o755)

    return install


def plug_in_a_device(root, vendor="0x10de", kind="0x030200"):
    device = root / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text(kind + "\n")


def test_processor_and_memory_are_read(root, tools):
    facts = probe_machine(root=root)
    assert facts.architecture == system.machine()
    assert (facts.cpu_model, facts.cores_physical) == ("Example CPU", 1)
    assert set(facts.features) == {"fpu", "avx2", "sse4_2"}
    assert (facts.memory_mib, facts.memory_available_mib) == (16000, 8000)
    assert facts.disk_free_mib > 0


def test_a_control_group_limits_memory_and_cores(root, tools):
    (root / "sys/fs/cgroup/memory.max").write_text(f"{4000 << 20}\n")
    (root / "sys/fs/cgroup/memory.current").write_text(f"{1000 << 20}\n")
    (root / "sys/fs/cgroup/cpu.max").write_text("100000 100000\n")
    facts = probe_machine(root=root)
    assert (facts.memory_mib, facts.memory_available_mib) == (4000, 3000)
    assert facts.cores_logical == 1


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_a_control_group_without_a_limit_limits_nothing(root, tools, limit):
    (root / "sys/fs/cgroup/memory.max").write_text(limit)
    assert probe_machine(root=root).memory_mib == 16000


def test_what_cannot_be_read_is_unknown_not_guessed(tmp_path, tools):
    facts = probe_machine(tmp_path / "no/such/folder", root=tmp_path / "nowhere")
    assert facts.cpu_model is None
    assert facts.cores_physical is None
    assert facts.memory_mib is None
    assert facts.features == ()
    assert facts.disk_free_mib == disk_free_mib(tmp_path)


def test_no_device_and_no_tool_is_no_gpu(root, tools):
    facts = probe_machine(root=root)
    assert (facts.gpu_state, facts.gpus) == (GpuState.NONE, ())
    assert gpu_unknown(facts) is None


def test_a_device_without_the_tool_is_not_no_gpu(root, tools):
    plug_in_a_device(root)
    facts = probe_machine(root=root)
    assert facts.gpu_state is GpuState.NO_TOOL
    assert "nvidia-smi" in gpu_unknown(facts)


@pytest.mark.parametrize(("vendor", "kind"), [("0x1002", "0x030000"), ("0x10de", "0x020000")])
def test_other_devices_on_the_bus_are_no_nvidia_gpu(root, tools, vendor, kind):
    plug_in_a_device(root, vendor, kind)
    assert probe_machine(root=root).gpu_state is GpuState.NONE


def test_a_working_driver_is_read(root, tools):
    tools("Tesla T4, 15360, 535.154.05, 7.5\nTesla T4, 15360, 535.154.05, 7.5")
    facts = probe_machine(root=root)
    assert facts.gpu_state is GpuState.WORKING
    assert facts.gpus == (GpuFacts("Tesla T4", 15360, Decimal("7.5")),) * 2
    assert (facts.driver, facts.cuda) == ("535.154.05", "13.1")


def test_an_old_driver_that_does_not_know_compute_capability_still_works(root, tools):
    tools("Tesla T4, 15360, 470.57.02", old=True)
    facts = probe_machine(root=root)
    assert facts.gpus == (GpuFacts("Tesla T4", 15360, None),)


def test_memory_that_the_driver_does_not_tell_is_unknown(root, tools):
    tools("NVIDIA GB10, [N/A], 580.95.05, 12.1")
    assert probe_machine(root=root).gpus == (GpuFacts("NVIDIA GB10", None, Decimal("12.1")),)


def test_a_broken_driver_is_a_finding_of_its_own(root, tools):
    tools("Failed to initialize NVML: Driver/library version mismatch", code=18)
    facts = probe_machine(root=root)
    assert facts.gpu_state is GpuState.BROKEN
    assert "version mismatch" in facts.gpu_remark
    assert "version mismatch" in gpu_unknown(facts)


def test_a_driver_that_lists_nothing_although_a_device_is_there_is_broken(root, tools):
    tools("No devices were found")
    assert probe_machine(root=root).gpu_state is GpuState.NONE
    plug_in_a_device(root)
    assert probe_machine(root=root).gpu_state is GpuState.BROKEN


CPU_MACHINE = MachineFacts(
    architecture="x86_64",
    cpu_model="Example CPU",
    cores_physical=4,
    cores_logical=8,
    features=("avx2", "fma"),
    memory_mib=16000,
    memory_available_mib=8000,
    disk_free_mib=100_000,
    gpu_state=GpuState.NONE,
)
TWO_T4 = replace(
    CPU_MACHINE,
    gpu_state=GpuState.WORKING,
    gpus=(GpuFacts("Tesla T4", 15360, Decimal("7.5")),) * 2,
    driver="535.154.05",
)


def platform_of(**changes):
    base = {"id": "place", "provider": "local", "architecture": "x86_64"}
    return Platform.model_validate({**base, **changes})


def t4_platform(**changes):
    gpu = {"model": "Tesla T4", "count": 2, "memory_mib": 16384, "compute_capability": "7.5"}
    return platform_of(gpu={**gpu, **changes.pop("gpu", {})}, **changes)


def test_a_machine_that_has_what_is_declared_matches():
    declared = platform_of(minimum_cores=8, minimum_memory_mib=16000, cpu_features=["avx2"])
    assert matches(declared, CPU_MACHINE) == []
    assert matches(t4_platform(driver="535.154.05"), TWO_T4) == []
    assert matches(platform_of(), TWO_T4) == []


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"architecture": "aarch64"}, "declared aarch64"),
        ({"minimum_cores": 9}, "at least 9"),
        ({"minimum_memory_mib": 16001}, "at least 16001"),
        ({"cpu_features": ["avx2", "avx512f"]}, "lacks avx512f"),
    ],
)
def test_each_declared_minimum_is_held_against_the_machine(declared, reason):
    (found,) = matches(platform_of(**declared), CPU_MACHINE)
    assert reason in found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": {"model": "L40S"}}, "declared 2 × L40S"),
        ({"gpu": {"model": "T400"}}, "declared 2 × T400"),
        ({"gpu": {"count": 4}}, "declared 4 × Tesla T4"),
        ({"gpu": {"memory_mib": 24576}}, "declared 24576"),
        ({"gpu": {"compute_capability": "8.0"}}, "declared 8.0"),
        ({"driver": "590.48.01"}, "declared 590.48.01"),
    ],
)
def test_each_declared_fact_of_an_accelerator_is_held_against_the_machine(changes, reason):
    (found,) = matches(t4_platform(**changes), TWO_T4)
    assert reason in found


def test_no_gpu_is_the_wrong_machine_but_an_unreadable_one_proves_nothing():
    assert matches(t4_platform(), CPU_MACHINE) == ["no GPU, declared 2 × Tesla T4"]
    for state in (GpuState.BROKEN, GpuState.NO_TOOL):
        unreadable = replace(CPU_MACHINE, gpu_state=state)
        assert matches(t4_platform(), unreadable) == []
        assert gpu_unknown(unreadable)


def test_a_card_has_a_little_less_memory_than_its_name_says():
    card = GpuFacts("NVIDIA L40S", 46068, Decimal("8.9"))
    machine = replace(CPU_MACHINE, gpu_state=GpuState.WORKING, gpus=(card,))
    gpu = {"model": "L40S", "count": 1, "memory_mib": 49152, "compute_capability": "8.9"}
    assert matches(platform_of(gpu=gpu), machine) == []
