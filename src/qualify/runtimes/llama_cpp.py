"""The llama.cpp engine: one server process for one model file.

Its facts are read back from the running server and compared with the row: context of each slot,
number of slots, model name, package version, and the chat template, whose text is compared with the
model's own. A model without a template is refused, because llama.cpp would silently use another
one. Conversations that take turns keep their prompts: llama.cpp holds what a slot had computed in
host memory (`PROMPT_CACHE_MIB`) and puts it back when a prompt begins the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify.core.digests import digest_bytes
from qualify.core.errors import UsageError
from qualify.core.status import EngineKind
from qualify.runtimes.asking import Unanswered, ask
from qualify.runtimes.contained import MODEL, ImageRoot
from qualify.runtimes.engine import EngineFacts, EngineFault
from qualify.runtimes.local import LocalEngine

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration

PACKAGE = "xllamacpp"
TOOL_PARSER = "llama-cpp-jinja"
"""What turns the model's text into tool calls: llama.cpp's own, chosen by the chat template."""
TEMPLATE_KEY = "tokenizer.chat_template"
PROMPT_CACHE_MIB = 512
"""Host memory for prompts that are not in a slot. With one slot, a short question between two
agent requests would otherwise cost the whole system prompt again."""
_SERVER = Path(__file__).with_name("llama_cpp_server.py")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def launch_arguments(configuration: Configuration) -> dict[str, Any]:
    """What the server is told, without key and model path. Pure but for the default of `threads`,
    which is the number of physical cores that this process may use.
    """
    launch = configuration.runtime.llama_cpp
    if launch is None or configuration.model is None:
        raise UsageError(
            "a llama.cpp row needs a llama_cpp section and a model",
            where=f"row {configuration.row.id}",
        )
    return {
        "name": configuration.model.id,
        "context_tokens": configuration.context_tokens,
        "slots": configuration.row.slots,
        "batch_tokens": launch.batch_tokens,
        "gpu_layers": launch.gpu_layers,
        "threads": launch.threads or physical_cores(),
        "prompt_cache_mib": PROMPT_CACHE_MIB,
    }


def physical_cores() -> int:
    """Physical cores that this process may use: affinity and the control group's quota count."""
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        place = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(place.read_text())
        except OSError:
            siblings.add(str(cpu))
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, min(len(siblings), int(quota) // int(period)))
    except (OSError, ValueError):
        return len(siblings)


class LlamaCppEngine(LocalEngine):
    """A llama.cpp server of ours."""

    kind_name = "llama-cpp"

    def __init__(
        self,
        configuration: Configuration,
        model_path: Path | None,
        private: Path,
        startup_budget_s: int,
        root: ImageRoot | None = None,
    ) -> None:
        self._arguments = launch_arguments(configuration)
        super().__init__(private, startup_budget_s, self._arguments["name"], root)
        self._configuration = configuration
        self._model_path = model_path

    @property
    def request_extras(self) -> Mapping[str, Any]:
        """Ask for progress while the prompt is read: on a CPU that is most of the wait."""
        return {"return_progress": True}

    def program(self) -> list[str]:
        """The server script."""
        return [str(_SERVER)]

    def instructions(self) -> dict[str, Any]:
        """Launch arguments and the model's path."""
        path = self._model_path if self._root is None else next(iter(self.readable()))
        return {**self._arguments, "model": str(path)}

    def readable(self) -> Mapping[str, Path]:
        """The model's file."""
        assert self._model_path is not None
        return {f"{MODEL}/{self._model_path.name}": self._model_path}

    def start(self) -> None:
        """Start the server. Raises `EngineFault` when the model's file is not there."""
        path = self._model_path
        if path is None or not path.is_file():
            raise EngineFault(
                "model-missing",
                "the model's file is not there",
                where=str(path) if path is not None else f"model {self.model_name}",
                fix=f"run: qualify model acquire {self.model_name}",
            )
        super().start()

    def read_back(self, hello: Mapping[str, Any], deadline: float) -> EngineFacts:
        """Properties and slots of the server, compared with the row and the model's own file."""
        root = self.base_url.removesuffix("/v1")
        self._require_key(root, deadline)
        properties = ask(f"{root}/props", self.api_key, deadline=deadline)
        slots = ask(f"{root}/slots", self.api_key, deadline=deadline)
        try:
            contexts = {int(slot["n_ctx"]) for slot in slots}
            count, alias = len(slots), str(properties["model_alias"])
            template = properties.get("chat_template") or None
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise self._fault("garbage", "the server's description is not understood") from error
        self._compare(hello, contexts, count, alias)
        effective = self._compare_template(template)
        return EngineFacts(
            kind=EngineKind.LLAMA_CPP,
            version=str(hello.get("version")),
            build=_build(hello),
            context_tokens_per_slot=contexts.pop(),
            slots=count,
            tensor_parallel=1,
            chat_template=digest_bytes(effective.encode()) if effective else None,
            tool_parser=TOOL_PARSER,
            remote=False,
            start_ms=0,
        )

    def _require_key(self, root: str, deadline: float) -> None:
        """A server that answers without the key would answer anybody on this machine."""
        try:
            ask(f"{root}/slots", "", deadline=deadline)
        except Unanswered as refusal:
            if refusal.status == 401:
                return
            raise
        raise self._fault("server-open", "the server answers without its key")

    def _compare(
        self, hello: Mapping[str, Any], contexts: set[int], count: int, alias: str
    ) -> None:
        row = self._configuration.row
        expected = self._configuration.context_tokens
        if contexts != {expected}:
            found = ", ".join(map(str, sorted(contexts))) or "none"
            raise self._fault(
                "wrong-context",
                f"each slot has {found} tokens of context, the row says {expected}",
                "declare the context that the server gives (a multiple of 256, at most the "
                "model's trained context)",
            )
        if count != row.slots:
            raise self._fault("wrong-slots", f"{count} slots, the row says {row.slots}")
        if alias != self.model_name:
            raise self._fault("wrong-model", "the server offers another model than the row's")
        if row.tool_parser not in (None, TOOL_PARSER):
            raise self._fault(
                "wrong-parser", f"the parser is {TOOL_PARSER}, the row says {row.tool_parser}"
            )
        for package in self._configuration.runtime.packages:
            if package.name == PACKAGE and package.version != hello.get("version"):
                raise self._fault(
                    "wrong-version",
                    f"{PACKAGE} is {hello.get('version')}, the runtime says {package.version}",
                    "install the runtime's lock",
                )

    def _compare_template(self, served: str | None) -> str | None:
        """The served chat template must be the model's own. Returns the text in force."""
        from qualify.runtimes.gguf import GgufError, read_metadata

        assert self._model_path is not None
        try:
            own = read_metadata(self._model_path, {TEMPLATE_KEY}).get(TEMPLATE_KEY)
        except (GgufError, OSError) as error:
            raise self._fault("model-unreadable", f"the model's header: {error}") from error
        launch = self._configuration.runtime.llama_cpp
        if own is None and launch is not None and launch.chat_template_required:
            raise self._fault(
                "no-chat-template",
                "the model has no chat template and llama.cpp would use another one silently",
                "choose an instruction-tuned model",
            )
        if own is not None and _as_jinja_reads(str(own)) != _as_jinja_reads(served or ""):
            raise self._fault(
                "template-substituted",
                "the server uses another chat template than the model's own",
            )
        return served if own is None else str(own)


def _as_jinja_reads(template: str) -> str:
    """Jinja reads every line end as a newline and drops one at the very end."""
    return template.replace("\r\n", "\n").removesuffix("\n")


def _build(hello: Mapping[str, Any]) -> str | None:
    """llama.cpp's build where the wheel knows it, else the wheel's own revision."""
    build = hello.get("build")
    if isinstance(build, dict) and build.get("build_number"):
        return f"b{build['build_number']}-{build.get('commit', 'unknown')}"[:80].lower()
    revision = hello.get("revision")
    return f"{PACKAGE}-{revision[:12]}" if isinstance(revision, str) and revision else None
