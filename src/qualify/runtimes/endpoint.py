"""The endpoint engine: a declared OpenAI-compatible service that somebody else runs.

Nothing is started and nothing is stopped. That it answers is all that can be observed: server
software, weights, precision and hardware stay declared, and the facts say so (`remote`, `None`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify.core.errors import UsageError
from qualify.core.status import EngineKind
from qualify.runtimes.asking import READINESS, Unanswered, ask, completed
from qualify.runtimes.engine import EngineFacts, EngineFault, Progress

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration


class EndpointEngine:
    """A declared endpoint."""

    def __init__(
        self,
        configuration: Configuration,
        model_path: Path | None,
        private: Path,
        startup_budget_s: int,
    ) -> None:
        del model_path, private  # an endpoint loads no file and leaves no log
        launch = configuration.runtime.endpoint
        if launch is None:
            raise UsageError(
                "an endpoint row needs an endpoint section",
                where=f"runtime {configuration.runtime.id}",
            )
        self._launch = launch
        self._where = f"endpoint {launch.url}"
        self._row = configuration.row
        self._budget_s = startup_budget_s
        self._key = ""
        self._begun: float | None = None

    @property
    def base_url(self) -> str:
        """The declared address."""
        return self._launch.url.rstrip("/")

    @property
    def api_key(self) -> str:
        """The key from the declared environment variable."""
        return self._key

    @property
    def model_name(self) -> str:
        """The declared model name."""
        return self._launch.model_name

    @property
    def request_extras(self) -> Mapping[str, Any]:
        """Nothing: a service may refuse what it does not know."""
        return {}

    def start(self) -> None:
        """Read the key. Raises `EngineFault` when the declared variable is not set."""
        variable = self._launch.api_key_variable
        if variable is not None:
            self._key = os.environ.get(variable, "")
            if not self._key:
                raise EngineFault(
                    "key-missing",
                    f"the endpoint's key is expected in ${variable}, which is not set",
                    where=self._where,
                    fix=f"export {variable}",
                )
        self._begun = time.monotonic()

    def wait_ready(self, progress: Progress | None = None) -> EngineFacts:
        """Ask for one completion within the start-up budget."""
        if self._begun is None:
            raise RuntimeError("the engine is not started")
        if progress is not None:
            progress("asking the endpoint for a first completion")
        try:
            answer = ask(
                f"{self.base_url}/chat/completions",
                self._key,
                {**READINESS, "model": self.model_name},
                deadline=self._begun + self._budget_s,
            )
        except Unanswered as fault:
            self.stop()
            raise self._fault(fault) from fault
        if not completed(answer):
            self.stop()
            raise EngineFault(
                "garbage", "what the endpoint answered is no chat completion", where=self._where
            )
        return EngineFacts(
            kind=EngineKind.ENDPOINT,
            version=None,
            build=None,
            context_tokens_per_slot=None,
            slots=None,
            tensor_parallel=self._row.tensor_parallel,
            chat_template=None,
            tool_parser=self._row.tool_parser,
            remote=True,
            start_ms=int((time.monotonic() - self._begun) * 1000),
        )

    def _fault(self, fault: Unanswered) -> EngineFault:
        if fault.reason == "timeout":
            return EngineFault(
                "not-ready-in-time",
                f"the endpoint did not answer within {self._budget_s} s",
                where=self._where,
                fix="raise startup_budget_s, or ask whoever runs it",
            )
        if fault.status in (401, 403):
            return EngineFault(
                "key-refused",
                f"the endpoint refuses the key (status {fault.status})",
                where=self._where,
                fix=f"check ${self._launch.api_key_variable}",
            )
        code = "garbage" if fault.reason == "garbage" else "no-answer"
        return EngineFault(
            code,
            f"the endpoint gave no completion: {fault}",
            where=self._where,
            fix="check its address and that it offers the model",
        )

    def alive(self) -> bool:
        """Whether it has been started; a service that fails shows in the relay's calls."""
        return self._begun is not None

    def stop(self) -> None:
        """Forget the key."""
        self._key, self._begun = "", None
