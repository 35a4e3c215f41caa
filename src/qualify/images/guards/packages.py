"""Guards over what is installed: exact versions, files as their wheels had them, one CUDA major,
tool parsers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from packaging.version import InvalidVersion, Version

from qualify.images.guards.result import (
    GuardResult,
    Subject,
    counted,
    failed,
    first_of,
    not_applicable,
    passed,
    unknown,
)
from qualify.images.wheels import check_wheels
from qualify.pins.cuda import cuda_majors, mixture
from qualify.pins.locks import Lock


def versions(subject: Subject) -> GuardResult:
    """Exactly what the locks hold is installed: nothing else, nothing less, no other version."""
    name, expected = "versions", subject.expected
    missing = [each for each in (expected.runtime_missing, *expected.locks_missing) if each]
    missing += _debian_unknown(subject)
    if missing:
        return unknown(name, missing[0], missing)
    if not expected.locks and not (expected.runtime and expected.runtime.packages):
        if expected.ours:
            return failed(name, "it says that this project built it, and not from which locks")
        return not_applicable(name, f"no lock or runtime is named; {_told(subject)}")
    wrong = [*_lock_digests(subject), *_python_differences(subject), *_debian_differences(subject)]
    if wrong:
        return failed(name, f"{counted(len(wrong), 'difference')}: {wrong[0]}", wrong)
    sets = ", ".join(expected.locks) or "the runtime's packages"
    debian = f", {counted(len(subject.debian), 'Debian package')}" if subject.debian else ""
    return passed(name, f"{_told(subject)} as in {sets}{debian}")


def _debian_unknown(subject: Subject) -> Iterator[str]:
    """Why Debian packages that a label speaks of cannot be compared."""
    expected = subject.expected
    if "debian" not in expected.label_digests:
        return
    if expected.debian is None:
        yield "the project's lock of Debian packages cannot be read"
    elif expected.closure is None:
        yield "no label names the closure of Debian packages"


def _told(subject: Subject) -> str:
    return counted(len(subject.installed), "Python distribution")


def _lock_digests(subject: Subject) -> Iterator[str]:
    expected = subject.expected
    for set_name, lock in expected.locks.items():
        labelled = expected.label_digests.get(set_name)
        if labelled is not None and labelled != lock.digest:
            yield f"built from another lock {set_name} ({labelled[:19]}…, not {lock.digest[:19]}…)"
    labelled = expected.label_digests.get("debian")
    if labelled is not None and expected.debian and labelled != expected.debian.digest:
        yield f"built from another Debian lock ({labelled[:19]}…)"


def _python_differences(subject: Subject) -> Iterator[str]:
    expected = subject.expected
    wanted = _merged(expected.locks.values())
    if expected.runtime is not None:
        wanted |= {each.name: each.version for each in expected.runtime.packages}
    allowed = _merged(expected.optional.values())
    seen: dict[str, str] = {}
    for each in subject.installed:
        other = seen.setdefault(each.name, each.version)
        if other != each.version:
            yield f"{each.name} is there in {other} and in {each.version}"
        right = wanted.get(each.name, allowed.get(each.name))
        if right is None and expected.locks:
            yield f"{each.name} {each.version} is in no lock of it"
        elif right is not None and not _same(right, each.version):
            yield f"{each.name} is {each.version}, not {right}"
    for missing in sorted(wanted.keys() - seen.keys()):
        yield f"{missing} {wanted[missing]} is missing"


def _same(locked: str, installed: str) -> bool:
    """Equal as packaging compares versions: 1.0 and 1.0.0 are one."""
    try:
        return Version(locked) == Version(installed)
    except InvalidVersion:
        return locked == installed


def _merged(locks: Iterable[Lock]) -> dict[str, str]:
    found: dict[str, str] = {}
    for lock in locks:
        found |= lock.versions
    return found


def _debian_differences(subject: Subject) -> Iterator[str]:
    expected = subject.expected
    if expected.ours and subject.debian and "debian" not in expected.label_digests:
        yield f"{counted(len(subject.debian), 'Debian package')}, and no label names their lock"
    if expected.debian is None or expected.closure is None:
        return
    if expected.closure not in expected.debian.closures:
        yield f"the Debian closure {expected.closure[:64]!a} is not in the lock"
        return
    wanted = {each.name: each.version for each in expected.debian.closure(expected.closure)}
    for package in sorted(wanted.keys() | subject.debian.keys()):
        there, right = subject.debian.get(package), wanted.get(package)
        if there != right:
            yield f"Debian's {package} is {there or 'missing'}, not {right or 'there at all'}"


def wheel_contents(subject: Subject) -> GuardResult:
    """Every file of every distribution has the bytes that its RECORD lists."""
    name = "wheel-contents"
    if not subject.installed:
        return not_applicable(name, "no Python distribution is installed")
    check = subject.records
    wrong = [
        *(f"changed: {path}" for path in check.changed),
        *(f"missing: {path}" for path in check.missing),
        *(f"listed by no distribution: {path}" for path in sorted(check.unlisted)),
    ]
    if wrong:
        return failed(
            name,
            f"{len(check.changed)} changed, {len(check.missing)} missing, "
            f"{len(check.unlisted)} unlisted: {first_of(w.split(': ')[1] for w in wrong)}",
            wrong,
        )
    if check.without_record:
        return unknown(
            name,
            f"{counted(len(check.without_record), 'distribution')} without RECORD: "
            f"{first_of(check.without_record)}",
            check.without_record,
        )
    told = f"{check.verified:,} files have the bytes that their RECORDs list"
    if check.allowed:
        told += f", {len(check.allowed)} allowed by digest"
    if subject.expected.depot is None:
        return passed(name, told, check.allowed)
    return _as_locked(subject, told)


def _as_locked(subject: Subject, told: str) -> GuardResult:
    """Each RECORD is the one in the locked wheel of the depot."""
    expected = subject.expected
    assert expected.depot is not None
    locked = [package for lock in expected.locks.values() for package in lock.packages]
    check = check_wheels(subject.installed, locked, expected.depot)
    if check.differing:
        what = f"{counted(len(check.differing), 'file')} not as in the locked wheel"
        return failed("wheel-contents", f"{what}: {check.differing[0]}", check.differing)
    if check.unknown or not check.compared:
        first = check.unknown[0] if check.unknown else "no lock is named"
        return unknown("wheel-contents", f"not compared with wheels: {first}", check.unknown)
    wheels = counted(check.compared, "locked wheel")
    source = f" ({first_of(check.built)} built from source)" if check.built else ""
    return passed("wheel-contents", f"{told}, and those are the ones of {wheels}{source}")


_SONAME = re.compile(
    r"^lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti)(?:[-.][0-9a-f]{8})?\.so\.(\d+)"
)
"""Names of libraries that carry CUDA's major, also as wheels rename the copies they carry."""
_YEARS = 1000
"""Some libraries have a year in place of a version (`libcupti.so.2025.3`)."""
OTHER_MAJOR: dict[str, str] = {
    "nvidia_cutlass_dsl/": "the CuTe DSL has libraries for both majors and loads one",
    "pynvvideocodec": "a video decoder with a runtime of its own; text models never load it",
    "torchvision": "image operators; text models never load them",
    "triton/backends/nvidia/lib/cupti": "Triton's profiler, which loads it only while it profiles",
}
"""Parts of paths (in small letters) whose libraries may ask for another major, and why."""


def cuda_major(subject: Subject) -> GuardResult:
    """One CUDA major, by package names and versions and by what the libraries ask for."""
    name = "cuda-major"
    by_library, allowed, unread = _library_majors(subject)
    by_package = cuda_majors(subject.versions)
    majors = sorted({*by_package, *by_library})
    facts = tuple(_cuda_facts(subject, by_library))
    if not majors and not unread:
        return not_applicable(name, "no CUDA package and no library that asks for CUDA")
    if (mixed := mixture(subject.versions)) is not None:
        return failed(name, f"mixed: {mixed}", (*_places(by_library), *facts))
    if len(majors) > 1:
        text = "; ".join(
            f"CUDA {m} by {first_of(by_library.get(m, by_package.get(m, ())))}" for m in majors
        )
        return failed(name, f"mixed: {text}", (*_places(by_library), *facts))
    if unread:
        return unknown(name, f"what {first_of(unread)} asks for could not be read", unread)
    wrong = _cuda_version(subject)
    if wrong is not None:
        return failed(name, wrong, facts)
    said = [fact for fact in facts if not fact.endswith(f"asks for CUDA {majors[0]}")]
    told = f" ({'; '.join(said)})" if said else ""
    summary = f"CUDA {majors[0]} alone{told}; nothing was started"
    return passed(name, summary, (*facts, *allowed))


def _library_majors(subject: Subject) -> tuple[dict[int, list[str]], list[str], list[str]]:
    """CUDA major → libraries that ask for it or are of it, by their names; the ones allowed to
    differ; the ones not readable.
    """
    found: dict[int, list[str]] = {}
    allowed: list[str] = []
    unread: list[str] = []
    packages = set(cuda_majors(subject.versions))
    for path, node in subject.scan.tree.walk():
        if node.sort != "elf":
            continue
        if node.needed is None:
            if path.endswith(".so") or ".so." in path:
                unread.append(path)
            continue
        names = (*node.needed, path.rpartition("/")[2])
        majors = {int(m[1]) for each in names if (m := _SONAME.match(each))}
        for major in (each for each in majors if each < _YEARS):
            reason = next((why for part, why in OTHER_MAJOR.items() if part in path.lower()), None)
            if reason is not None and packages and major not in packages:
                allowed.append(f"{path} asks for CUDA {major}: allowed, {reason}")
            else:
                found.setdefault(major, []).append(path)
    return found, allowed, unread


def _places(by_library: dict[int, list[str]]) -> Iterator[str]:
    for major, paths in sorted(by_library.items()):
        yield f"{counted(len(paths), 'ELF file')} for CUDA {major}: {first_of(paths)}"


def _cuda_facts(subject: Subject, by_library: dict[int, list[str]]) -> Iterator[str]:
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        if name in subject.versions:
            yield f"{name} {subject.versions[name]}"
    for path, node in subject.scan.tree.walk():
        if path.endswith("torch/version.py") and node.text is not None:
            match = re.search(rb"^cuda(?::[^=]*)?\s*=\s*(.+)$", node.text, re.MULTILINE)
            said = match[1].decode("utf-8", "replace").strip() if match else "nothing"
            yield f"torch.version.cuda says {said}"
    engine = [
        p for paths in by_library.values() for p in paths if re.search(r"(^|/)vllm/_C[^/]*$", p)
    ]
    for path in engine:
        major = next(m for m, paths in by_library.items() if path in paths)
        yield f"{path} asks for CUDA {major}"


def _cuda_version(subject: Subject) -> str | None:
    """The runtime library is of the version that the runtime manifest declares."""
    runtime = subject.expected.runtime
    if runtime is None or runtime.cuda is None:
        return None
    names = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
    found = next((subject.versions[n] for n in names if n in subject.versions), None)
    if found is None:
        return f"{runtime.id} needs CUDA {runtime.cuda}, and no CUDA runtime library is installed"
    if found.split(".")[:2] != runtime.cuda.split(".")[:2]:
        return f"the CUDA runtime library is {found}, and {runtime.id} needs {runtime.cuda}"
    return None


_REGISTRY = re.compile(r"(^|/)vllm/tool_parsers/__init__\.py$")
_OLD_PARSER = re.compile(r"(^|/)vllm/entrypoints/openai/tool_parsers/[^/]+\.py$")


def tool_parsers(subject: Subject) -> GuardResult:
    """Every tool parser that the runtime declares is registered, by reading the source."""
    name, expected = "tool-parsers", subject.expected
    if expected.runtime_missing:
        return unknown(name, expected.runtime_missing)
    registered, unreadable = _registered(subject)
    wanted = set(expected.runtime.tool_parsers) if expected.runtime is not None else set()
    if not wanted:
        told = f"; {len(registered)} are registered" if registered else ""
        return not_applicable(name, f"no runtime that declares tool parsers{told}")
    if missing := sorted(wanted - registered):
        if unreadable:
            return unknown(name, f"{unreadable[0]} cannot be read as Python", unreadable)
        what = f"{counted(len(missing), 'parser')} not registered: {first_of(missing)}"
        return failed(name, what, missing)
    return passed(name, f"all {len(wanted)} declared parsers are among {len(registered)}")


def _registered(subject: Subject) -> tuple[set[str], list[str]]:
    found: set[str] = set()
    unreadable = []
    for path, node in subject.scan.tree.walk():
        if node.text is None or not (_REGISTRY.search(path) or _OLD_PARSER.search(path)):
            continue
        try:
            module = ast.parse(node.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            unreadable.append(path)
            continue
        found |= set(_table_keys(module)) | set(_decorated(module))
    return found, unreadable


def _table_keys(module: ast.Module) -> Iterator[str]:
    """Keys of `_TOOL_PARSERS_TO_REGISTER` (vLLM 0.12 and later)."""
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [each.id for each in targets if isinstance(each, ast.Name)]
        value = getattr(node, "value", None)
        if "_TOOL_PARSERS_TO_REGISTER" in names and isinstance(value, ast.Dict):
            yield from (
                k.value
                for k in value.keys
                if isinstance(k, ast.Constant) and isinstance(k.value, str)
            )


def _decorated(module: ast.Module) -> Iterator[str]:
    """Names in `@ToolParserManager.register_module(…)` (before vLLM 0.12)."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "register_module":
            for value in (*node.args, *(k.value for k in node.keywords if k.arg == "name")):
                for leaf in ast.walk(value):
                    if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                        yield leaf.value
