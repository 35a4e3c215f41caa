"""Guards over what an image exposes: privileges, credentials, weights, the user, a shell, driver
libraries, paths of the build.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qualify.core.status import EngineKind
from qualify.images.documents import in_documents
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
from qualify.images.image import strings
from qualify.images.scan import Finding


def weights(subject: Subject) -> GuardResult:
    """No layer holds model weights, by content, also none that a later layer deletes."""
    found = [each for each in subject.scan.findings if each.topic == "weights"]
    wrong = [each for each in found if each.allowed is None]
    if wrong:
        lines = [_line(subject, each) for each in wrong]
        return failed("weights", f"{counted(len(wrong), 'file')}: {first_of(lines)}", lines)
    allowed = tuple(f"{each.path}: allowed, {each.allowed}" for each in found)
    note = f", {len(allowed)} allowed by digest" if allowed else ""
    return passed("weights", f"none in {subject.scan.files:,} files{note}", allowed)


def _line(subject: Subject, finding: Finding) -> str:
    there = subject.scan.tree.find(finding.path, follow_last=False) is finding.node
    hidden = "" if there else f" (in layer {finding.layer + 1}, hidden by a later one)"
    return f"{finding.path}: {finding.what}{hidden}"


def writable(subject: Subject) -> GuardResult:
    """No setuid or setgid program, no file capability, no world-writable file, no device; in our
    images nothing that belongs to the user it runs as, but a home and temporary files.
    """
    wrong = [*_writable(subject), *_owned(subject)]
    if wrong:
        return failed("writable", f"{counted(len(wrong), 'path')}: {first_of(wrong)}", wrong)
    return passed("writable", "nothing setuid, setgid or world-writable, no devices")


def _writable(subject: Subject) -> Iterator[str]:
    tree = subject.scan.tree
    for path, node in (("/", tree.root), *tree.walk()):
        if node.kind == "link":
            continue
        if node.kind in ("device", "pipe"):
            yield f"{path} is a {node.kind}"
        if node.kind == "file" and node.mode & 0o6000:
            yield f"{path} is {'setuid' if node.mode & 0o4000 else 'setgid'}"
        if node.capability:
            yield f"{path} has file capabilities"
        if node.mode & 0o002 and not (node.kind == "folder" and node.mode & 0o1000):
            yield f"{path} is world-writable"


_OWN_FOLDERS = re.compile(r"^(home/[^/]+|tmp|var/tmp)(/|$)")


def _owned(subject: Subject) -> Iterator[str]:
    """What a process of the image could change although nobody else may."""
    if not subject.expected.ours:
        return
    for path, node in subject.scan.tree.walk():
        if (node.uid or (node.gid and node.mode & 0o020)) and not _OWN_FOLDERS.match(path):
            yield f"{path} belongs to {node.uid}:{node.gid}"


def credentials(subject: Subject) -> GuardResult:
    """No credential in any layer, nor anywhere in the configuration, the manifest or the index."""
    owned = subject.records.owned
    wrong, public = [], 0
    for each in subject.scan.findings:
        if each.topic != "credentials":
            continue
        # Only the file that is there is the published one, not what lay there in a lower layer.
        there = subject.scan.tree.find(each.path, follow_last=False) is each.node
        if there and each.path in owned and not each.path.endswith("direct_url.json"):
            public += 1
        else:
            wrong.append(_line(subject, each))
    wrong += [] if subject.image is None else in_documents(subject.image)
    if wrong:
        summary = f"{counted(len(wrong), 'place')}: {first_of(wrong)}"
        return failed("credentials", summary, wrong)
    if subject.scan.too_large:
        large = subject.scan.too_large
        return unknown("credentials", f"too large to read: {first_of(large)}", large)
    note = f" ({counted(public, 'example')} in files of published packages)" if public else ""
    places = "files" if subject.image is None else "files, configuration, manifest or index"
    return passed("credentials", f"none in {places}{note}")


def user(subject: Subject) -> GuardResult:
    """The image starts as somebody who is not root."""
    if subject.image is None:
        return not_applicable("user", "an environment has no user of its own")
    value = subject.image.run_settings.get("User")
    text = value if isinstance(value, str) else ""
    name = text.partition(":")[0]
    if name in ("", "root") or (name.isdecimal() and int(name) == 0):
        return failed("user", "it starts as root" + ("" if name else " (no user is set)"))
    if name.isdigit():
        return passed("user", f"it starts as {text[:60]}")
    uid = _uid_of(subject, name)
    if uid is None:
        return unknown("user", f"its user {name[:60]!a} is not in etc/passwd")
    if uid == 0:
        return failed("user", f"its user {name[:60]!a} is number 0, root")
    return passed("user", f"it starts as {text[:60]} ({uid})")


def _uid_of(subject: Subject, name: str) -> int | None:
    passwd = subject.scan.tree.find("etc/passwd")
    for line in (passwd.text or b"").splitlines() if passwd is not None else ():
        fields = line.decode("utf-8", "replace").split(":")
        if len(fields) > 2 and fields[0] == name and fields[2].isdigit():
            return int(fields[2])
    return None


_SHELLS = frozenset(
    {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox", "rbash"}
)
_PROGRAM_FOLDERS = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")


def no_shell(subject: Subject) -> GuardResult:
    """An engine that starts no compiler and no command needs no shell, and has none."""
    runtime = subject.expected.runtime
    if not subject.expected.ours or subject.image is None:
        return not_applicable("no-shell", "it is not known whether it needs one")
    if runtime is None:
        return not_applicable("no-shell", "its commands need one")
    if runtime.engine is EngineKind.VLLM:
        return not_applicable("no-shell", "the engine compiles at run time, and compilers use one")
    found = sorted({place for name in _SHELLS if (place := program(subject, name)) is not None})
    if found:
        return failed("no-shell", f"it has {first_of(found)}, and needs no shell", found)
    return passed("no-shell", "there is none")


def program(subject: Subject, name: str) -> str | None:
    """Path of an executable file of that name, looked for where programs lie."""
    folders = list(_PROGRAM_FOLDERS)
    if subject.image is not None:
        named = subject.image.environment.get("PATH", "").split(":")
        folders = list(dict.fromkeys([*(each.strip("/") for each in named if each), *folders]))
    for folder in folders:
        node = subject.scan.tree.find(f"{folder}/{name}")
        if node is not None and node.kind == "file" and node.mode & 0o111:
            return f"{folder}/{name}"
    return None


_DRIVER = re.compile(
    r"(^|/)(libcuda(?:[-.][0-9a-f]{8})?\.so|libcudadebugger\.so|libnvidia-[a-z0-9-]+\.so|libnvcuvid\.so|libvdpau_nvidia\.so"
    r"|libGLX_nvidia\.so|libEGL_nvidia\.so|nvidia-smi$|nvidia-persistenced$|[^/]*nvidia[^/]*\.ko)"
)
OWN_DRIVER: dict[str, str] = {
    "pynvvideocodec./libcuda-": "a renamed copy in the wheel, which no library of it asks for",
}
"""Parts of paths (in small letters) of driver libraries that do no harm, and why."""
_STUBS = re.compile(r"(^|/)stubs/")


def no_driver(subject: Subject) -> GuardResult:
    """No library of the NVIDIA driver: the machine's own is mounted, another one breaks it."""
    found, allowed = [], []
    for path, node in subject.scan.tree.walk():
        if node.kind in ("file", "link") and _DRIVER.search(path) and not _STUBS.search(path):
            reason = next((why for part, why in OWN_DRIVER.items() if part in path.lower()), None)
            if reason is None:
                found.append(path)
            else:
                allowed.append(f"{path}: allowed, {reason}")
    if found:
        summary = f"{counted(len(found), 'part')} of a driver: {first_of(found)}"
        return failed("no-driver", summary, found)
    told = "none is shipped; the container toolkit mounts the machine's"
    return passed("no-driver", told, allowed)


def no_build_paths(subject: Subject) -> GuardResult:
    """No path of a Nix store, which would mean nothing on another machine."""
    if not subject.expected.ours:
        return not_applicable("no-build-paths", "not built by this project")
    found = [_line(subject, each) for each in subject.scan.findings if each.topic == "build-paths"]
    if subject.image is not None:
        settings = [*subject.image.command, *strings(subject.image.run_settings.get("Env"))]
        found += [f"configuration: {text[:80]}" for text in settings if "/nix/store/" in text]
    if found:
        return failed("no-build-paths", f"{counted(len(found), 'file')}: {first_of(found)}", found)
    return passed("no-build-paths", "no file names a place of the build")
