"""The acceptance conversation on the agent SDK alone: no journal, relay, replay or record."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qualify.manifests.catalog import Catalog
from qualify.manifests.configuration import resolve
from qualify.runtimes.engine import make_engine
from qualify.scenarios import acceptance


class BareConversation:
    """A scripted engine, and the SDK driven directly against it."""

    def __init__(self, catalog: Catalog, place: Path) -> None:
        self._place = place / "bare-conversations"
        self._place.mkdir()
        self._corpus = catalog.project / "corpora" / "acceptance"
        self._configuration = resolve(catalog, "scripted-passes")
        self._engine = make_engine(
            self._configuration, model_path=None, private=self._place, startup_budget_s=60
        )
        self._count = 0

    def __enter__(self) -> BareConversation:
        from qualify.sessions.construction import offer_example

        # The same text as ours: the example would also confuse the script's captures.
        offer_example(wanted=False)
        self._engine.start()
        self._engine.wait_ready()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._engine.stop()

    def five(self) -> None:
        """Five conversations."""
        for _ in range(5):
            self._one()

    def _one(self) -> None:
        from openhands.sdk import LLM, Agent, Conversation, Tool
        from openhands.sdk.security import AlwaysConfirm
        from pydantic import SecretStr

        self._count += 1
        variant = acceptance.vary(self._corpus, f"bench-{self._count}")
        folder = self._place / str(self._count)
        workspace = folder / "workspace"
        workspace.mkdir(parents=True)
        for name, text in variant.files.items():
            (workspace / name).parent.mkdir(exist_ok=True)
            (workspace / name).write_text(text)
        options: dict[str, Any] = {"system_prompt": self._configuration.agent.system_prompt}
        llm = LLM(
            model=f"openai/{self._engine.model_name}", base_url=self._engine.base_url,
            api_key=SecretStr(self._engine.api_key), native_tool_calling=False, num_retries=1,
            usage_id="bare",
        )  # fmt: skip
        params = {
            "description": None, "offered": None, "isolation": "none", "readable": [],
            "home": str(folder), "temporary": str(folder), "timeout_s": 60, "output_bytes": 4000,
        }  # fmt: skip
        agent = Agent(
            llm=llm,
            tools=[
                Tool(name="terminal", params=params),
                Tool(name="finish", params={"description": None, "offered": None}),
            ],
            include_default_tools=[],
            **options,
        )
        conversation = Conversation(
            agent=agent, workspace=str(workspace), persistence_dir=str(folder / "store"),
            conversation_id=uuid.uuid4(), visualizer=None, delete_on_close=False,
        )  # fmt: skip
        conversation.set_confirmation_policy(AlwaysConfirm())
        conversation.send_message(variant.prompts["append"])
        conversation.run()
        conversation.run()
        conversation.send_message(variant.prompts["remove"])
        conversation.run()
        conversation.reject_pending_actions("no")
        conversation.close()
        expected = asdict(variant)["expected"]
        assert (workspace / expected["file"]).read_text() == expected["content"]
        shutil.rmtree(folder)
