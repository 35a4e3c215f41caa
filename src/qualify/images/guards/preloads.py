"""The guard over what runs before the program that an image names: libraries that the loader adds,
and code and folders that Python takes in by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qualify.images.guards.project import HOME
from qualify.images.guards.result import (
    GuardResult,
    Subject,
    counted,
    failed,
    first_of,
    not_applicable,
    passed,
)

_VARIABLES = re.compile(
    r"^(LD_(?!LIBRARY_PATH$).*|GLIBC_TUNABLES|GCONV_PATH|BASH_ENV|ENV"
    r"|PYTHON(?!PATH$|DONTWRITEBYTECODE$|NOUSERSITE$|UNBUFFERED$|HASHSEED$|UTF8$|SAFEPATH$).*)$"
)
"""Variables that put code before the program, or Python's own elsewhere."""
_FILES = re.compile(
    r"^etc/ld\.so\.preload$"
    r"|(^|/)pyvenv\.cfg$"
    r"|\._pth$"
    r"|^usr(/local)?/lib/python3\d*\.zip$"
    r"|(^|/)(dist|site)-packages/[^/]+\.(pth|egg-link)$"
    r"|(^|/)(dist|site)-packages/(sitecustomize|usercustomize)(\.[^/]+)?$"
)
"""What the loader and Python read at every start. An installed package's own are let pass."""
_BEYOND = re.compile(r"^(usr/lib/python3/dist-packages|home|root)/[^/]+/?")
"""Folders that Python may import from, or starts in, and that no layer of ours fills."""
_HOME_FOLDER = re.compile(r"^home/[^/]+$")


def preloads(subject: Subject) -> GuardResult:
    """Nothing runs before the program: no preloaded library, no code that Python starts with."""
    if subject.image is None or not subject.expected.ours:
        return not_applicable("preloads", "not built by this project")
    wrong = [*_variables(subject), *_files(subject)]
    if wrong:
        return failed("preloads", f"{counted(len(wrong), 'place')}: {first_of(wrong)}", wrong)
    return passed("preloads", "no preloaded library, no code that Python takes in by itself")


def _variables(subject: Subject) -> Iterator[str]:
    assert subject.image is not None
    for name, value in subject.image.environment.items():
        if _VARIABLES.match(name):
            yield f"variable {name[:60]}"
        elif name == "PYTHONPATH" and value != f"/{HOME}/src":
            yield f"variable PYTHONPATH names more than /{HOME}/src"
        elif name == "QUALIFY_PROJECT" and value != f"/{HOME}":
            yield f"variable QUALIFY_PROJECT is not /{HOME}"
        elif name == "LD_LIBRARY_PATH":
            for folder in value.split(":"):
                if not folder.startswith("/") or subject.scan.tree.find(folder) is not None:
                    yield f"variable LD_LIBRARY_PATH names {folder[:80] or '.'}"
    for word in subject.image.command:
        if "pycache_prefix" in word:
            yield "the command moves Python's bytecode elsewhere"


def _files(subject: Subject) -> Iterator[str]:
    owned = subject.records.owned
    for path, node in subject.scan.tree.walk():
        if node.kind == "folder" and _HOME_FOLDER.match(path):
            continue
        if (_FILES.search(path) or _BEYOND.match(path)) and path not in owned:
            yield path
