"""Fetching pinned files with the clients this machine has: pip for Python packages, apt for Debian.

A client is given names, versions and hashes, never an address. It gets a folder of its own; what it
leaves there is looked at by the caller, file by file, whether the client succeeded or not. Nothing
is installed, and nothing of a package is run: for a source distribution pip wants metadata, which
it gets from the file's own PKG-INFO and not from the package's build script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from qualify.core.errors import EnvironmentFault
from qualify.pins.apt import PrivateApt, helper
from qualify.pins.clients import ClientError, client_environment, pip_commands, run_child
from qualify.pins.tags import parsed
from qualify.pins.wanted import WantedFile

type Stopped = Callable[[], bool]
type Progress = Callable[[int], None]

_PIP_OPTIONS = (
    "download", "--no-deps", "--no-cache-dir", "--require-hashes", "--no-input",
    "--disable-pip-version-check", "--progress-bar=off",
)  # fmt: skip
# Stands in the place of setuptools while pip looks at a source distribution.
_METADATA_ONLY = '''\
"""Answers pip's question for metadata from PKG-INFO; builds nothing, runs nothing."""
import pathlib


class __legacy__:
    @staticmethod
    def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
        folder = pathlib.Path(metadata_directory, "source.dist-info")
        folder.mkdir()
        (folder / "METADATA").write_bytes(pathlib.Path("PKG-INFO").read_bytes())
        return folder.name

    @staticmethod
    def build_wheel(*_arguments):
        raise RuntimeError("nothing is built here")


prepare_metadata_for_build_wheel = __legacy__.prepare_metadata_for_build_wheel
build_wheel = __legacy__.build_wheel
'''


class PipFetcher:
    """Fetches wheels and source distributions with pip."""

    def __init__(self, bytecode: Path) -> None:
        """Look for pip. Raises `EnvironmentFault` when this machine has none."""
        self._commands = pip_commands()
        self._bytecode = bytecode
        if not self._commands:
            raise EnvironmentFault(
                "there is no pip on this machine",
                fix="install pip, or carry a depot here: `qualify depot pack` on another machine",
            )

    @property
    def attempts(self) -> int:
        """How many clients can be asked for one file."""
        return len(self._commands)

    def fetch(
        self,
        files: Sequence[WantedFile],
        work: Path,
        attempt: int,
        stopped: Stopped,
        progress: Progress,
    ) -> None:
        """Fetch `files` (one of a package, all wheels of one Python, or one source) below `work`.

        Raises `ClientError` with pip's last lines.
        """
        target, scratch = work / "target", work / "scratch"
        target.mkdir()
        scratch.mkdir()
        listed = [f"{f.package}=={f.version} --hash=sha256:{f.sha256}\n" for f in files]
        (work / "requirements.txt").write_text("".join(listed), "utf-8")
        environment = client_environment(scratch, self._bytecode)
        if files[0].python is None:
            kind = ["--no-binary=:all:", "--no-build-isolation", "--use-pep517"]
            environment["PYTHONPATH"] = str(_metadata_only(work / "setuptools-double"))
        else:
            kind = ["--only-binary=:all:", *_platform_options(files, files[0].python)]
        command = [*self._commands[attempt][1], *_PIP_OPTIONS, *kind]
        run_child(
            [*command, "--dest", str(target), "--requirement", str(work / "requirements.txt")],
            work,
            environment,
            watched=(scratch, target),
            stopped=stopped,
            progress=progress,
        )


def _platform_options(files: Sequence[WantedFile], python: str) -> list[str]:
    """What pip needs to take wheels for the images' Python, whichever Python it runs on itself."""
    tags = {tag for file in files for tag in parsed(file.name)[3]}
    platforms = sorted({tag.platform for tag in tags} - {"any"})
    version = python.replace(".", "")
    options = ["--python-version", python, "--implementation", "cp"]
    options += [f"--abi={abi}" for abi in (f"cp{version}", "abi3", "none")]
    return options + [f"--platform={platform}" for platform in platforms]


def _metadata_only(folder: Path) -> Path:
    package = folder / "setuptools"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", "utf-8")
    (package / "build_meta.py").write_text(_METADATA_ONLY, "utf-8")
    return folder


class AptFetcher:
    """Fetches .debs with apt's own download helper."""

    def __init__(self, root: Path, release: str) -> None:
        """Ask apt where its archives are. Raises `EnvironmentFault` when there is no apt."""
        self._helper = helper()
        self._apt = PrivateApt(root, release)
        # Of an archive on this machine's own disk apt would only make a link.
        self._archives = [
            f"copy:{root.removeprefix('file:')}" if root.startswith("file:") else root
            for root in self._apt.archives()
        ]

    @property
    def attempts(self) -> int:
        """How many archives can be asked for one file."""
        return len(self._archives)

    def fetch(
        self,
        files: Sequence[WantedFile],
        work: Path,
        attempt: int,
        stopped: Stopped,
        progress: Progress,
    ) -> None:
        """Fetch `files` below `work`. Raises `ClientError` with apt's last lines."""
        target = work / "target"
        target.mkdir()
        rows = []
        for file in files:
            assert file.path is not None
            place = self._archives[attempt] + file.path.replace("%", "%25")
            rows += [place, str(target / file.name), f"SHA256:{file.sha256}"]
        run_child(
            [self._helper, "download-file", *rows],
            work,
            self._apt.environment(),
            watched=(target,),
            stopped=stopped,
            progress=progress,
        )


__all__ = ["AptFetcher", "ClientError", "PipFetcher", "Progress", "Stopped"]
