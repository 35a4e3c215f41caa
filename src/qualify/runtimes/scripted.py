"""The scripted engine: a double of a model that plays a script manifest over HTTP.

It exercises the harness through the same relay, in both tool modes. It can never qualify anything:
its evidence class is `scripted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify import __version__
from qualify.core.errors import UsageError
from qualify.core.status import EngineKind
from qualify.runtimes.engine import EngineFacts
from qualify.runtimes.local import LocalEngine

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration

_SERVER = Path(__file__).with_name("scripted_server.py")
_PACKAGES = Path(__file__).parents[2]
MODEL_NAME = "scripted"


class ScriptedEngine(LocalEngine):
    """A scripted double of ours."""

    kind_name = "scripted"

    def __init__(
        self,
        configuration: Configuration,
        model_path: Path | None,
        private: Path,
        startup_budget_s: int,
    ) -> None:
        del model_path  # a script needs no model
        if configuration.script is None:
            raise UsageError("a scripted row needs a script", where=f"row {configuration.row.id}")
        super().__init__(private, startup_budget_s, MODEL_NAME)
        self._configuration = configuration
        self._script = configuration.script

    def program(self) -> list[str]:
        """The server script."""
        return [str(_SERVER)]

    def instructions(self) -> dict[str, Any]:
        """The script as plain data."""
        return {
            "name": self.model_name,
            "script": self._script.model_dump(mode="json"),
            "packages": str(_PACKAGES),
        }

    def read_back(self, hello: Mapping[str, Any], deadline: float) -> EngineFacts:
        """A double has nothing to read back: what the row declares is what it pretends to be."""
        del hello, deadline
        return EngineFacts(
            kind=EngineKind.SCRIPTED,
            version=__version__,
            build=None,
            context_tokens_per_slot=None,
            slots=None,
            tensor_parallel=1,
            chat_template=None,
            tool_parser=None,
            remote=False,
            start_ms=0,
        )
