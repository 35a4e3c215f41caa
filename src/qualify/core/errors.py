"""Errors that a person can act on.

Every error that Qualify raises on purpose is a `QualifyError`: it says what is wrong, where, and
what to do next, and it carries the exit code of the command that ends with it. The command line
prints `str(error)` and nothing else; a traceback appears only with `--debug`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every command (docs/reference/exit-codes.md)."""

    OK = 0
    """Success, ready or qualified."""
    FAILURE = 1
    """Internal failure: a defect of Qualify or of the machine."""
    USAGE = 2
    """The caller's input cannot be used; nothing was written."""
    NOT_A_PASS = 10
    """A valid result that is not a pass."""
    INTERRUPTED = 130
    """Ctrl-C; what was reserved stays recorded."""
    READER_GONE = 141
    """Nobody reads the output any more (`| head`): no answer was given, so it is no pass."""
    TERMINATED = 143
    """SIGTERM; what was reserved stays recorded."""


class QualifyError(Exception):
    """Base of all errors that Qualify raises on purpose.

    `what` is the fault in one sentence, `where` the file, row or field it concerns, `fix` what the
    reader should do next.
    """

    exit_code: ExitCode = ExitCode.FAILURE

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors come whole out of another process, whatever their own constructor asks for."""
        return _bare, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f" ({self.fix})" if self.fix else ""
        return f"{place}{self.what}{advice}"


def _bare(kind: type[QualifyError], args: tuple[Any, ...]) -> QualifyError:
    return kind.__new__(kind, *args)


class UsageError(QualifyError):
    """What the caller gave cannot be used. Nothing was started and nothing was written."""

    exit_code = ExitCode.USAGE


class Refusal(QualifyError):
    """A valid question whose answer is no: refused admission, tampered evidence, failing doctor."""

    exit_code = ExitCode.NOT_A_PASS


class EnvironmentFault(QualifyError):
    """The machine does not do what it should: disk full, folder read-only, program missing."""


class ErrorList(QualifyError):
    """Several errors reported in one go, so that a person repairs them in one go."""

    def __init__(self, errors: Iterable[QualifyError]) -> None:
        self.errors = tuple(errors)
        if not self.errors:
            raise ValueError("an ErrorList needs at least one error")
        super().__init__(f"{len(self.errors)} mistakes")
        self.exit_code = max(self.errors, key=lambda e: e.exit_code).exit_code

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)
