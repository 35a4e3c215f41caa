"""This machine's own apt, used for another Debian release and without touching the machine.

apt is run with a root of our own: lists, cache and status lie in a scratch folder, and of the
machine's settings only those for fetching (proxies, certificates, logins) and the place of its
Debian archive are taken, at run time. Nothing is installed and no list of the machine is changed.

Every index has to be signed: what a machine sets to accept unsigned, weakly signed or expired ones
is left behind, and a sources list that marks an archive as trusted without a signature is refused,
unless the archive is a folder of this machine (`file:`).

`QUALIFY_APT_SOURCES=FILE` puts a sources list of the user's own in place of the machine's, for a
machine that is no Debian or has a mirror for this purpose.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from qualify.core.errors import EnvironmentFault, UsageError

SOURCES_VARIABLE = "QUALIFY_APT_SOURCES"
_DEADLINE_SECONDS = 600
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LEFT_BEHIND = re.compile(
    r"Acquire::(IndexTargets|Allow|Check-|Max-ValidTime|Min-ValidTime|gpgv)"
    r"|Acquire::.*(Verify-(Peer|Host)|ValidTime)",
    re.IGNORECASE,
)
"""Settings of the machine that do not come along: what is fetched, and which checks may fail."""
_SECURE = {
    "Acquire::AllowInsecureRepositories": "false",
    "Acquire::AllowWeakRepositories": "false",
    "Acquire::AllowDowngradeToInsecureRepositories": "false",
    "Acquire::AllowReleaseInfoChange": "false",
    "Acquire::Check-Valid-Until": "true",
    "Acquire::Check-Date": "true",
    "APT::Get::AllowUnauthenticated": "false",
    "APT::Get::Force-Yes": "false",
}
_UNCHECKED = re.compile(
    r"\b(trusted|allow-insecure|allow-weak|allow-downgrade-to-insecure)\+?\s*=\s*"
    r"(?!no\b|false\b|0\b|off\b|without\b|disable\b)",
    re.IGNORECASE,
)
"""Options of a source that let apt take an index without a good signature."""
_SOURCE = re.compile(r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s", re.MULTILINE)
"""A line of a one-line-style sources list: its options and its archive's root."""
_SUITE_OF_ARCHIVE = re.compile(r"^[a-z]+$")
_NO_APT = "on a machine without apt, carry a depot here: `qualify depot pack` on another"


class PrivateApt:
    """apt with a root of its own below `root`, for `release` of Debian on amd64."""

    def __init__(self, root: Path, release: str) -> None:
        """Prepare the root. Raises `EnvironmentFault` when there is no apt or no archive."""
        self.root = root
        self.release = release
        for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        _run(["apt-config", "--version"], None)
        (root / "etc/apt.conf").write_text(self._settings(), "utf-8")
        self.write_status({})

    def write_status(self, assumed: Mapping[str, Sequence[str]]) -> None:
        """Let apt believe that only `assumed` is installed; each with the names it provides."""
        stanzas = []
        for name, provided in assumed.items():
            provides = f"Provides: {', '.join(provided)}\n" if provided else ""
            stanzas.append(
                f"Package: {name}\nStatus: install ok installed\nVersion: 999:0\n"
                f"Architecture: amd64\nMulti-Arch: foreign\n{provides}"
                "Maintainer: none\nDescription: left out on purpose\n"
            )
        (self.root / "status").write_text("\n".join(stanzas), "utf-8")

    def write_sources(self) -> None:
        """Write the sources list for the release: the user's own file, or the machine's archive."""
        (self.root / "etc/sources.list").write_text(self._sources(), "utf-8")

    def run(self, *arguments: str) -> str:
        """Run one apt program in this root and return what it prints.

        Raises `UsageError` with apt's last lines when it fails.
        """
        return _run(list(arguments), self.environment())

    def archives(self) -> list[str]:
        """Roots of the archive, best first; for one process's use and never to be stored."""
        own = os.environ.get(SOURCES_VARIABLE)
        if own:
            return _roots_in(Path(own))
        return _machine_archives()

    def index_field(self, name: str) -> str:
        """A field of the release's index, such as `Date`, after `apt-get update`."""
        for path in sorted((self.root / "state/lists").glob("*Release")):
            for line in path.read_text("utf-8", "replace").splitlines():
                if line.startswith(f"{name}: "):
                    return line.split(": ", 1)[1].strip()
        raise UsageError(f"the index of {self.release} states no {name}", fix="is it a Debian?")

    def environment(self) -> dict[str, str]:
        """What apt's programs see so that they work in this root."""
        return {**os.environ, "APT_CONFIG": str(self.root / "etc/apt.conf"), "LC_ALL": "C.UTF-8"}

    def _settings(self) -> str:
        """What the machine sets for fetching, and our own root in place of its folders."""
        dumped = _run(["apt-config", "dump"], None).splitlines()
        kept = [
            line for line in dumped if line.startswith("Acquire::") and not _LEFT_BEHIND.match(line)
        ]
        root = str(self.root)
        ours = {
            "Dir::State": f"{root}/state",
            "Dir::State::status": f"{root}/status",
            "Dir::Cache": f"{root}/cache",
            "Dir::Etc::sourcelist": f"{root}/etc/sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "root",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            **_SECURE,
        }
        lines = [f'{key} "{value}";' for key, value in ours.items()]
        return "\n".join([*kept, *lines, 'APT::Architectures { "amd64"; };']) + "\n"

    def _sources(self) -> str:
        own = os.environ.get(SOURCES_VARIABLE)
        if own:
            text = _own_text(Path(own))
            _refuse_unchecked(text, own)
            return text
        if not _KEYRING.is_file():
            raise EnvironmentFault(
                "Debian's archive keys are not on this machine",
                where=str(_KEYRING),
                fix="apt-get install debian-archive-keyring",
            )
        root = _machine_archives()[0]
        return f"deb [signed-by={_KEYRING}] {root} {self.release} main\n"


def _machine_archives() -> list[str]:
    """Roots of the Debian archive that the machine's apt is set to (not updates, not security)."""
    form = "$(CREATED_BY)|$(ORIGIN)|$(RELEASE)|$(COMPONENT)|$(REPO_URI)"
    rows = [
        line.split("|") for line in _run(["apt-get", "indextargets", "--format", form]).splitlines()
    ]
    found = [
        row[4]
        for row in rows
        if len(row) == 5
        and row[0] == "Packages"
        and row[1] in ("Debian", "")
        and _SUITE_OF_ARCHIVE.match(row[2])
        and row[3] == "main"
    ]
    if not found:
        raise EnvironmentFault(
            "this machine's apt is set to no Debian archive",
            fix=f"set {SOURCES_VARIABLE} to a sources list with one, or carry a depot here",
        )
    return list(dict.fromkeys(found))


def _own_text(sources: Path) -> str:
    try:
        return sources.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"cannot be read: {reason}", where=str(sources), fix=f"unset {SOURCES_VARIABLE}"
        ) from error


def _refuse_unchecked(text: str, where: str) -> None:
    """Raise `UsageError` for a source whose index apt would take without a good signature."""
    for number, line in enumerate(text.splitlines(), 1):
        # apt ends a line at `#`; what it cannot read as a source is its own error.
        option = _UNCHECKED.search(line.partition("#")[0])
        source = _SOURCE.match(f"{line} ")
        if option is not None and (source is None or not source[2].startswith("file:")):
            raise UsageError(
                f"line {number} says {option[1].lower()}: an index without a good signature would "
                "be taken",
                where=where,
                fix=f"remove that option and name the archive's key with signed-by={_KEYRING}",
            )


def _roots_in(sources: Path) -> list[str]:
    """The archive roots of a one-line-style sources list."""
    found = [match[2] for match in _SOURCE.finditer(_own_text(sources))]
    if not found:
        raise UsageError("names no archive", where=str(sources), fix="write `deb ROOT SUITE main`")
    return [root if root.endswith("/") else f"{root}/" for root in found]


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    if shutil.which(command[0]) is None and not Path(command[0]).is_file():
        raise EnvironmentFault(f"{command[0]} is not installed here", fix=_NO_APT)
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"{command[0]} did not answer within {_DEADLINE_SECONDS} s",
            fix="is the archive reachable?",
        ) from error
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
        raise UsageError(f"{command[0]} failed: {tail}", fix="is the archive reachable?")
    return done.stdout


def helper() -> str:
    """Path of apt's download helper. Raises `EnvironmentFault` when it is not installed."""
    path = Path("/usr/lib/apt/apt-helper")
    if not path.is_file():
        raise EnvironmentFault("apt is not installed here", fix=_NO_APT)
    return str(path)
