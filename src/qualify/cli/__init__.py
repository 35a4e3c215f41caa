"""The command line: parsing and printing only, one module per command group.

Groups are imported when they are used, so that `qualify --help` costs little more than Python and
click. A module `qualify.cli.NAME` holds the command or group for each name in `COMMANDS`; its
heavy imports stand inside its functions.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from typing import Any

import click

from qualify import __version__
from qualify.core.errors import ExitCode, QualifyError

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run trials of a matrix row and give a verdict."),
    "assess": ("assess", "Judge the evidence of a row against a policy."),
    "plan": ("plan", "Show how a row would be launched; starts nothing."),
    "doctor": ("doctor", "Tell what this machine has, and what a row lacks."),
    "matrix": ("matrix", "The compatibility matrix with its derived status."),
    "manifest": ("manifest", "Check manifests and export their schemas."),
    "model": ("model", "Acquire, verify and list model snapshots."),
    "trial": ("trial", "List, show and purge trials."),
    "results": ("results", "Evidence and its database: status, rebuild, merge, export."),
    "query": ("query", "Ask the results database."),
    "evidence": ("evidence", "Sign, verify, export and publish the evidence; keys and signers."),
    "scan": ("scan", "Look for secrets and personal data in files and results."),
    "lock": ("lock", "Make and check the pin sets under locks/."),
    "depot": ("depot", "Fill, verify, seed and carry the pinned files."),
    "image": ("image", "Build, look at, guard, compare and export images."),
    "bundle": ("bundle", "Make and check offline bundles of images."),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported only when they run; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"qualify.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from qualify.core.identifiers import nearest

            hint = nearest(args[0], list(COMMANDS)) if args else ""
            if not hint:
                raise
            raise click.UsageError(f"{error.message} ({hint})", ctx) from None


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success or qualified, 10 a valid result that is not a pass, "
    "2 usage or input error, 1 internal failure, 130 interrupted, 141 output closed, "
    "143 terminated.",
)
@click.version_option(__version__, prog_name="qualify")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--project",
    type=click.Path(),
    metavar="FOLDER",
    help="Folder that holds manifests/ (default: found by walking up).",
)
@click.option(
    "--results",
    type=click.Path(),
    metavar="FOLDER",
    help="Where evidence lives (default: $QUALIFY_RESULTS, the project's results/).",
)
@click.pass_context
def cli(ctx: click.Context, debug: bool, project: str | None, results: str | None) -> None:
    """Tells whether an exact combination of image, model, hardware and agent may be released.

    Qualify answers by running it, and keeps evidence that nobody can quietly improve later.
    """
    ctx.obj = {"project": project, "results": results}


class _Terminated(BaseException):
    """SIGTERM arrived."""


def _on_sigterm(_signal: int, _frame: Any) -> None:
    raise _Terminated


def main() -> None:
    """Run the command line and exit with its code."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    _open_streams()
    debug = "--debug" in sys.argv[1:]
    try:
        code = _run()
        sys.stdout.flush()
    except (BrokenPipeError, _ReaderGone):
        # The reader has gone (`qualify matrix | head`): nothing to report, nothing to flush. Not 0:
        # a verdict that nobody has read is no pass.
        _discard_output()
        code = ExitCode.READER_GONE
    except click.exceptions.Exit as request:
        code = request.exit_code
    except click.ClickException as error:
        error.show()
        code = ExitCode.USAGE
    except QualifyError as error:
        if debug:
            raise
        click.echo(f"error: {error}", err=True)
        code = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("interrupted; what was reserved stays recorded", err=True)
        code = ExitCode.INTERRUPTED
    except _Terminated:
        click.echo("terminated; what was reserved stays recorded", err=True)
        code = ExitCode.TERMINATED
    except OSError as error:
        if debug:
            raise
        click.echo(f"error: {_system_error(error)}", err=True)
        _discard_output()
        code = ExitCode.FAILURE
    except Exception as error:
        if debug:
            raise
        click.echo(
            f"internal error: {type(error).__name__}: {error}"
            " (run again with --debug and report it)",
            err=True,
        )
        code = ExitCode.FAILURE
    sys.exit(code)


def _run() -> int:
    try:
        code = cli.main(prog_name="qualify", standalone_mode=False)
    except SystemExit as request:
        # click turns a broken pipe into an exit; nothing else of ours or of click does.
        raise _ReaderGone from request
    return code if isinstance(code, int) else ExitCode.OK


class _ReaderGone(Exception):
    """Nobody reads standard output any more."""


def _open_streams() -> None:
    """Give closed standard streams to the null device: a ledger must never become descriptor 1."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _discard_output() -> None:
    """Keep Python from complaining at its end about output that could not be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _system_error(error: OSError) -> str:
    """What the system refused, where, and what to do."""
    place = f"{error.filename}: " if error.filename else ""
    advice = "check the free space and the permissions; what was recorded stays recorded"
    return f"{place}{error.strerror or error} ({advice})"
