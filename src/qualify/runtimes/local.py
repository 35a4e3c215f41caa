"""An engine that is a server process of ours on loopback.

The process is told its key through an anonymous file, takes a port that the kernel chooses (no port
is ever picked first and bound later, so none can be taken in between), and reports its address when
it listens. Subclasses say which program it is, with which instructions, and read back what runs.
The program runs on the host with this interpreter, or inside the root of an image (`contained`).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qualify.runtimes import contained
from qualify.runtimes.asking import READINESS, Unanswered, ask, completed
from qualify.runtimes.contained import ImageRoot
from qualify.runtimes.engine import EngineFacts, EngineFault, Progress
from qualify.runtimes.processes import Child, Ended, spawn

_ADDRESS = re.compile(r"http://127\.0\.0\.1:[1-9][0-9]{0,4}")
_PATIENCE_S = 1.0
_LOG_LINES = 3


class LocalEngine(ABC):
    """What the engines that we start ourselves share."""

    kind_name = "engine"
    """Names the log: `<kind_name>-<start>.log` in the private folder."""
    interpreter = sys.executable
    """The Python that runs the program on the host."""
    listen = ("127.0.0.1", 0)
    """Host and port; port 0: one that the kernel chooses. We ask on 127.0.0.1 in any case."""
    own_key: str | None = None
    """A key that somebody gave; `None`: a random one for each start."""

    def __init__(
        self,
        private: Path,
        startup_budget_s: int,
        model_name: str,
        root: ImageRoot | None = None,
    ) -> None:
        self._private = private
        self._root = root
        self._budget_s = startup_budget_s
        self._model_name = model_name
        self._child: Child | None = None
        self._address: str | None = None
        self._key = ""
        self._begun = 0.0

    @property
    def base_url(self) -> str:
        """Address up to and including `/v1`."""
        if self._address is None:
            raise RuntimeError("the engine is not ready: its address is not known yet")
        return f"{self._address}/v1"

    @property
    def api_key(self) -> str:
        """The random key of this start."""
        return self._key

    @property
    def model_name(self) -> str:
        """The name under which the server offers its model."""
        return self._model_name

    @property
    def request_extras(self) -> Mapping[str, Any]:
        """Nothing, unless an engine has something."""
        return {}

    @abstractmethod
    def program(self) -> list[str]:
        """The program to start: a script of ours, or a command."""

    def environment(self) -> dict[str, str]:
        """Variables that the program needs besides those of `processes`. No secrets."""
        return {}

    def readable(self) -> Mapping[str, Path]:
        """Files and folders that the program must see in an image, by their path inside."""
        return {}

    @abstractmethod
    def instructions(self) -> dict[str, Any]:
        """What the program is told besides its key."""

    @abstractmethod
    def read_back(self, hello: Mapping[str, Any], deadline: float) -> EngineFacts:
        """Ask the listening server what it is and compare; `start_ms` is set later.

        Raises `EngineFault`, `Unanswered`.
        """

    def start(self) -> None:
        """Start the server process and return at once."""
        if self._child is not None:
            raise RuntimeError("the engine is already started")
        self._key = self.own_key or secrets.token_urlsafe(32)
        self._begun = time.monotonic()
        try:
            self._child = spawn(
                self._program_here(),
                instructions={
                    **self.instructions(),
                    "key": self._key,
                    "host": self.listen[0],
                    "port": self.listen[1],
                },
                log=self._next_log(),
                home=self._private,
                environment=self.environment() if self._root is None else None,
                interpreter=self.interpreter if self._root is None else sys.executable,
            )
        except FileNotFoundError as error:
            raise EngineFault(
                "server-missing",
                f"the server's program is missing: {error.filename or error}",
                fix="install the runtime's packages",
            ) from error
        except OSError as error:
            raise EngineFault(
                "cannot-start",
                f"the server could not be started: {error.strerror or error}",
                where=str(error.filename or self._private),
                fix="check free memory, processes and disk space",
            ) from error

    def _program_here(self) -> list[str]:
        """The program as it is started on the host, or in the image by its own Python."""
        program, root = self.program(), self._root
        if root is None:
            return program
        script = f"{contained.CODE}/{Path(program[0]).name}"
        for needed in (contained.PYTHON, script):
            if not contained.holds(root, needed):
                raise EngineFault(
                    "server-missing",
                    f"the image has no {needed}",
                    where=f"image {root.digest}",
                    fix="use an image that Qualify built for this runtime",
                )
        return contained.command(
            root,
            [contained.PYTHON, "-I", "-X", "utf8", script, *program[1:]],
            environment=self.environment(),
            readable=self.readable(),
        )

    def _next_log(self) -> Path:
        number = 1
        while (path := self._private / f"{self.kind_name}-{number}.log").exists():
            number += 1
        return path

    def wait_ready(self, progress: Progress | None = None) -> EngineFacts:
        """Wait for the address, read the facts back, and ask for a completion."""
        try:
            return self._wait_ready(progress or (lambda _text: None))
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self, progress: Progress) -> EngineFacts:
        deadline = self._begun + self._budget_s
        hello = self._hello(deadline, progress)
        progress("asking it for a first completion")
        try:
            facts = self.read_back(hello, deadline)
            answer = ask(
                f"{self.base_url}/chat/completions",
                self._key,
                {**READINESS, "model": self._model_name},
                deadline=deadline,
            )
        except Unanswered as fault:
            raise self._unanswered(fault) from fault
        if not completed(answer):
            raise self._fault("garbage", "what the server answered is no chat completion")
        return replace(
            facts,
            start_ms=self.elapsed_ms(),
            image=self._root.digest if self._root is not None else None,
            network=self._child.network() if self._child is not None else None,
        )

    def elapsed_ms(self) -> int:
        """Milliseconds since `start`."""
        return int((time.monotonic() - self._begun) * 1000)

    def _hello(self, deadline: float, progress: Progress) -> Mapping[str, Any]:
        """The child's first report, with its address."""
        child = self._child
        if child is None:
            raise RuntimeError("the engine is not started")
        while True:
            message = child.message(min(deadline, time.monotonic() + _PATIENCE_S))
            if message is not None:
                break
            ended = child.wait(0)
            if ended is not None:
                raise self._died(ended)
            if time.monotonic() >= deadline:
                raise self._late()
            progress(f"loading, {int(time.monotonic() - self._begun)} s")
        if "fault" in message:
            raise self._reported(message)
        address = message.get("address")
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            raise self._fault("garbage", "the server did not report a loopback address")
        self._address = address
        return message

    def _reported(self, message: Mapping[str, Any]) -> EngineFault:
        known = {
            "server-missing": ("the server's package is missing", "install the runtime's packages"),
            "load-failed": ("the server could not load the model", "verify the model's files"),
            "port-taken": ("the port is taken", "choose another port, or leave it to the kernel"),
        }
        code = message["fault"]
        if code not in known:
            return self._fault("garbage", "the server's report is not understood")
        what, fix = known[code]
        return self._fault(code, what + self._last_words(), fix)

    def _unanswered(self, fault: Unanswered) -> EngineFault:
        ended = self._child.wait(0.2) if self._child is not None else None
        if ended is not None:
            return self._died(ended)
        if fault.reason == "timeout":
            return self._late()
        if fault.reason == "garbage":
            return self._fault("garbage", "the server's answer is not JSON")
        return self._fault("no-answer", f"the server did not answer: {fault}")

    def _late(self) -> EngineFault:
        return self._fault(
            "not-ready-in-time",
            f"the server was not ready within its start-up budget of {self._budget_s} s"
            + self._last_words(),
            "raise startup_budget_s, or find out in the log what it waits for",
        )

    def _died(self, ended: Ended) -> EngineFault:
        return self._fault(
            "died-at-start", f"the server ended while starting ({ended}){self._last_words()}"
        )

    def _last_words(self) -> str:
        """The end of the log, for a person."""
        tail = self._child.log_tail().splitlines()[-_LOG_LINES:] if self._child else []
        return f"; its log ends with: {' | '.join(tail)}" if tail else ""

    def _fault(self, code: str, what: str, fix: str = "") -> EngineFault:
        """A fault that points a person to the log."""
        where = str(self._child.log) if self._child is not None else ""
        return EngineFault(code, what, where=where, fix=fix or "read its log")

    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._child is not None and self._child.ended() is None

    def stop(self) -> None:
        """Stop the server and everything in its process group."""
        child, self._child, self._address = self._child, None, None
        if child is not None:
            with contextlib.suppress(OSError):
                child.stop()
