"""Guards over what makes an image one of ours, and over what a GPU image must bring: digests, the
launcher, the declarations, what Triton needs, and that nothing is claimed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from qualify.images.declarations import FOLDERS, digest_of_files
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
from qualify.images.guards.surface import program
from qualify.pins.cuda import cuda_majors

HOME = "opt/qualify"
"""Where the project lies in its images."""
COMMAND = "usr/bin/qualify"
"""The program of images that carry the command."""


def digests(subject: Subject) -> GuardResult:
    """Every blob has the digest that names it, and every layer unpacks to its diff_id."""
    if subject.image is None:
        return not_applicable("digests", "an environment has no digests")
    scan, layers = subject.scan, len(subject.image.layers)
    if scan.mismatches:
        return failed("digests", scan.mismatches[0], scan.mismatches)
    if scan.broken is not None:
        return failed("digests", scan.broken)
    summary = f"manifest, configuration and {counted(layers, 'layer')} match"
    return passed("digests", f"{summary}; {scan.unpacked:,} bytes unpacked")


def launcher(subject: Subject) -> GuardResult:
    """What the image starts is in it."""
    image, expected = subject.image, subject.expected
    if image is None:
        return not_applicable("launcher", "an environment starts nothing by itself")
    command = image.command
    if not command:
        said = failed if expected.ours else not_applicable
        return said("launcher", "the image names nothing to start")
    place = _program_place(subject, command[0])
    module = _module_of(command)
    if expected.ours and not _is_ours(command, module):
        return failed(
            "launcher", f"it starts {command[0][:80]!a} with a command that is not of ours"
        )
    missing = _missing_parts(subject) if expected.ours else []
    if place is None:
        missing.insert(0, f"{command[0][:80]} (as an executable file)")
    if module is not None and not _module_there(subject, module):
        missing.insert(0, f"the module {module[:80]} that it starts")
    if missing:
        return failed("launcher", f"not in the image: {first_of(missing)}", missing)
    return passed("launcher", f"{place}{f' -m {module}' if module else ''} is there")


def _is_ours(command: tuple[str, ...], module: str | None) -> bool:
    """Whether an image of ours starts with our code: the command, or a module of the project."""
    if command[0] == f"/{COMMAND}":
        return True
    python = re.fullmatch(r"/usr/bin/python3(\.\d+)?", command[0]) is not None
    return python and command[1:3] == ("-P", "-m") and (module or "").startswith("qualify.")


def _program_place(subject: Subject, name: str) -> str | None:
    if "/" not in name:
        return program(subject, name)
    node = subject.scan.tree.find(name)
    executable = node is not None and node.kind == "file" and node.mode & 0o111
    return name.lstrip("/") if executable else None


def _module_of(command: tuple[str, ...]) -> str | None:
    if not re.search(r"(^|/)python[0-9.]*$", command[0]):
        return None
    for index, word in enumerate(command[1:], 1):
        if word == "-m" and index + 1 < len(command):
            return command[index + 1]
        if not word.startswith("-"):
            break
    return None


def _module_there(subject: Subject, module: str) -> bool:
    assert subject.image is not None
    named = subject.image.environment.get("PYTHONPATH", "").split(":")
    places = [each.strip("/") for each in named if each]
    places += sorted({each.site for each in subject.installed})
    path = module.replace(".", "/")
    tree = subject.scan.tree
    if any(tree.find(f"{p}/{path}{end}") for p in places for end in (".py", "/__main__.py")):
        return True
    # Of the standard library, wherever this Python has it.
    return any(
        name.endswith((f"/{path}.py", f"/{path}/__main__.py"))
        and re.search(r"lib/python3\.\d+/", name)
        for name, _ in tree.walk()
    )


def _missing_parts(subject: Subject) -> list[str]:
    parts = [f"{HOME}/{name}" for name in ("src/qualify/__init__.py", "manifests", "locks")]
    if subject.expected.runtime is not None:
        parts.append(f"{HOME}/src/qualify/runtimes/launcher.py")
    else:
        parts.append(COMMAND)
    return [part for part in parts if subject.scan.tree.find(part) is None]


def declarations(subject: Subject) -> GuardResult:
    """The embedded declarations are the ones of the label, and the project's."""
    name, expected = "declarations", subject.expected
    if not expected.ours:
        return not_applicable(name, "not built by this project")
    embedded = dict(_embedded(subject))
    others = sorted(_no_files(subject))
    if others or not embedded:
        what = f"neither file nor folder: {first_of(others)}" if others else "no declarations"
        return failed(name, f"{HOME} holds {what}", others)
    found = digest_of_files(embedded)
    if expected.declarations_label != found:
        label = expected.declarations_label or "none"
        return failed(name, f"the label says {label[:19]}…, the files are {found[:19]}…")
    if expected.declarations is None:
        return unknown(name, f"{len(embedded)} files as labelled; no project here to compare with")
    if differing := sorted(_differences(embedded, expected.declarations)):
        what = f"not the project's: {counted(len(differing), 'file')}, {first_of(differing)}"
        return failed(name, what, differing)
    return passed(name, f"{len(embedded)} files as labelled and as in the project")


def _embedded(subject: Subject) -> Iterator[tuple[str, str]]:
    prefixes = tuple(f"{HOME}/{folder}/" for folder in FOLDERS)
    for path, node in subject.scan.tree.walk():
        if node.kind == "file" and path.startswith(prefixes):
            yield path.removeprefix(f"{HOME}/"), node.digest.hex()


def _no_files(subject: Subject) -> Iterator[str]:
    """Links and the like among the declarations: a digest over files does not see them."""
    prefixes = tuple(f"{HOME}/{folder}/" for folder in FOLDERS)
    for path, node in subject.scan.tree.walk():
        if node.kind not in ("file", "folder") and path.startswith(prefixes):
            yield path


def _differences(image: Mapping[str, str], known: Mapping[str, str]) -> Iterator[str]:
    for path in image.keys() | known.keys():
        if path not in known:
            yield f"only in the image: {path}"
        elif path not in image:
            yield f"only in the project: {path}"
        elif image[path] != known[path]:
            yield f"differs: {path}"


_TRITON = "Triton compiles its launcher at run time"


def triton_needs(subject: Subject) -> GuardResult:
    """What Triton runs and reads when it compiles: C compiler, headers, `ldconfig`."""
    name, runtime = "triton-needs", subject.expected.runtime
    on_gpu = (
        runtime.cuda is not None if runtime is not None else bool(cuda_majors(subject.versions))
    )
    if "triton" not in subject.versions or not on_gpu:
        return not_applicable(name, "no Triton for a GPU")
    if subject.image is None:
        return not_applicable(name, "an environment uses the machine's compiler")
    missing = []
    if not any(program(subject, each) for each in ("cc", "gcc", "clang")):
        missing.append("a C compiler (cc, gcc or clang)")
    missing += [each for each in ("as", "ld") if program(subject, each) is None]
    if subject.scan.tree.find("sbin/ldconfig") is None:
        missing.append("/sbin/ldconfig")
    paths = [path for path, _ in subject.scan.tree.walk() if path.endswith(".h")]
    if not any(re.search(r"(^|/)include/python3\.\d+/Python\.h$", path) for path in paths):
        missing.append("Python.h")
    if not any(path.endswith("include/stdio.h") for path in paths):
        missing.append("stdio.h")
    if missing:
        return failed(name, f"{_TRITON}, and lacks {first_of(missing)}", missing)
    return passed(name, "C compiler, assembler, linker, headers and ldconfig are there")


_CLAIM = re.compile(r"qualified|ci-validated|live-synthetic|institution-approved|gpu-tested", re.I)
_KNOWN_LABELS = re.compile(r"^qualify\.(image|runtime|declarations|closure|lock\.[a-z0-9.-]+)$")
_EVIDENCE = re.compile(r"(^|/)(qualify\.duckdb|results/(ledger|sites)(/|$))")


def no_claims(subject: Subject) -> GuardResult:
    """The image carries declarations, no verdicts; and this table claims no GPU."""
    if not subject.expected.ours or subject.image is None:
        return not_applicable("no-claims", "not built by this project")
    wrong = [
        f"label {key}"
        for key, value in subject.image.labels.items()
        if key.startswith("qualify.") and (not _KNOWN_LABELS.fullmatch(key) or _CLAIM.search(value))
    ]
    wrong += [
        f"{path} is evidence" for path, _ in subject.scan.tree.walk() if _EVIDENCE.search(path)
    ]
    if wrong:
        return failed("no-claims", f"it carries verdicts or evidence: {first_of(wrong)}", wrong)
    return passed("no-claims", "declarations only; no GPU was used here and CUDA was not started")
