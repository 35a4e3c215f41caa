"""Configurations, suites and policies as digests: what exactly evidence belongs to.

A configuration is a row with everything it refers to written out; its digest binds every input.
The order of keys, comments, notes, ids, imported outcomes and suites do not change it, and neither
does the order of lists whose order means nothing. A field that is null is left out, so that a new
optional field does not change old digests.

Pure: knows manifests, not machines, and never looks at evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from qualify.core.canonical import canonical_json
from qualify.core.digests import digest_bytes, digest_json
from qualify.core.errors import Refusal
from qualify.core.status import EngineKind, EvidenceClass
from qualify.manifests.kinds import Agent, Model, Platform, Policy, Row, Runtime, Scenario, Script
from qualify.manifests.scalars import canonical_number

if TYPE_CHECKING:
    from qualify.manifests.catalog import Catalog

SCHEMA = "qualify-configuration/1"
SUITE_SCHEMA = "qualify-suite/1"
POLICY_SCHEMA = "qualify-policy/1"

REFERENCES = {"Row": ("runtime", "model", "script", "platform", "agent"), "Scenario": ("corpus",)}
"""Fields that name another manifest: its content is bound in their place."""
LOCKS = {"Runtime": "lock", "Agent": "lock"}
"""Fields that name a lock: its digest is bound in their place."""
_UNORDERED = {
    ("Runtime", "packages"), ("Platform", "cpu_features"), ("Model", "files"),
    ("Corpus", "files"), ("Scenario", "checks"),
}  # fmt: skip
"""Lists whose order means nothing."""
_SHOWN_ORDER = (
    "schema", "base_layer", "runtime", "model", "script", "platform", "agent", "row",
)  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """A resolved row. `bound` is plain JSON data; `digest` is the digest of it."""

    row: Row
    runtime: Runtime
    model: Model | None
    script: Script | None
    platform: Platform
    agent: Agent
    bound: dict[str, Any]
    digest: str
    evidence_class: EvidenceClass

    @property
    def startup_budget_s(self) -> int:
        """Seconds until the engine must be ready: the row's, else the runtime's."""
        return self.row.startup_budget_s or self.runtime.startup_budget_s

    @property
    def context_tokens(self) -> int:
        """Tokens of each slot. Raises `Refusal` when the row does not know it."""
        if self.row.context_tokens is None:
            raise Refusal(
                "its context window is not known",
                where=f"row {self.row.id}",
                fix="declare context_tokens in a row of your own",
            )
        return self.row.context_tokens

    @property
    def declared_only(self) -> tuple[str, ...]:
        """Why this row only stands for outcomes from elsewhere and cannot be run here; empty when
        everything that a run needs is declared.
        """
        self_contained = self.runtime.engine in (EngineKind.ENDPOINT, EngineKind.SCRIPTED)
        missing = {
            "the runtime has no lock": self.runtime.lock is None and not self_contained,
            "the agent has no lock": self.agent.lock is None,
            "the model has no files": self.model is not None
            and not self.model.files
            and self.runtime.engine is not EngineKind.ENDPOINT,
            "the context window is not known": self.row.context_tokens is None,
            "the graph mode is not known": self.row.graph_mode is None,
        }
        return tuple(reason for reason, holds in missing.items() if holds)


@dataclass(frozen=True)
class SuiteIdentity:
    """A suite with its scenarios and the digest of them, their corpora and check contracts."""

    id: str
    digest: str
    scenarios: tuple[Scenario, ...]


@dataclass(frozen=True)
class Difference:
    """A bound input in which two configurations differ; `None` where one has no such input."""

    path: str
    a: Any
    b: Any


def resolve(catalog: Catalog, row_id: str) -> Configuration:
    """Write a row out. Raises `UsageError` for an unknown row."""
    known = catalog.resolved.get(row_id)
    if known is not None:
        return known
    row = catalog.row(row_id)
    runtime = catalog.runtimes[row.runtime]
    model = catalog.models[row.model] if row.model is not None else None
    script = catalog.scripts[row.script] if row.script is not None else None
    platform = catalog.platforms[row.platform]
    agent = catalog.agents[row.agent]
    parts = {
        "runtime": _part(catalog, "runtimes", runtime),
        "model": _part(catalog, "models", model),
        "script": _part(catalog, "scripts", script),
        "platform": _part(catalog, "platforms", platform),
        "agent": _part(catalog, "agents", agent),
        "row": _encoded(bound_content(row)),
        "schema": _encoded(SCHEMA),
        "base_layer": _base_layer(catalog, row, runtime),
    }
    configuration = catalog.resolved[row_id] = Configuration(
        row, runtime, model, script, platform, agent,
        bound={name: parts[name].content for name in _SHOWN_ORDER},
        digest=digest_bytes(_object(parts)),
        evidence_class=_evidence_class(runtime, model),
    )  # fmt: skip
    return configuration


def _base_layer(catalog: Catalog, row: Row, runtime: Runtime) -> Part:
    """The digest of what an image row's image is built on; a row on the host has no base layer."""
    if row.placement != "image" or runtime.base_layer is None:
        return _NOTHING
    return _encoded(catalog.base_layers[runtime.base_layer])


def suite_identity(catalog: Catalog, suite_id: str) -> SuiteIdentity:
    """Resolve a suite. The ids of its scenarios are bound, because trials are kept by them; the
    order of the scenarios is not. Raises `UsageError` for an unknown suite.
    """
    suite = catalog.suite(suite_id)
    scenarios = tuple(catalog.scenarios[name] for name in suite.scenarios)
    cases = [
        {
            "id": scenario.id,
            **bound_content(scenario),
            "corpus": _part(catalog, "corpora", catalog.corpora[scenario.corpus]).content,
        }
        for scenario in sorted(scenarios, key=lambda scenario: scenario.id)
    ]
    return SuiteIdentity(
        suite.id, digest_json({"schema": SUITE_SCHEMA, "scenarios": cases}), scenarios
    )


@lru_cache(maxsize=16)
def policy_digest(policy: Policy) -> str:
    """Digest of a policy's numbers; its id and notes are not bound."""
    return digest_json({"schema": POLICY_SCHEMA, **bound_content(policy)})


def files_content(model: Model) -> list[dict[str, Any]]:
    """The files of a model as they are bound: path, size and SHA-256, sorted by path."""
    content: list[dict[str, Any]] = bound_content(model)["files"]
    return content


def diff(a: Configuration, b: Configuration) -> list[Difference]:
    """Every bound input in which two configurations differ, by path."""
    left, right = flat(a.bound), flat(b.bound)
    paths = [*left, *(path for path in right if path not in left)]
    return [
        Difference(path, left.get(path), right.get(path))
        for path in paths
        if left.get(path) != right.get(path)
        and not (_only_emptied(path, left, right) or _only_emptied(path, right, left))
    ]


def _only_emptied(path: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """An empty collection whose entries on the other side are listed one by one."""
    return one.get(path) in ([], {}) and any(
        name.startswith((f"{path}[", f"{path}.")) for name in other
    )


def bound_content(value: BaseModel, locks: dict[str, str] | None = None) -> dict[str, Any]:
    """The bound fields of a manifest as plain JSON data; nulls and references are left out."""
    kind = type(value)
    content: dict[str, Any] = {}
    for name, unordered in _bound_fields(kind):
        item = getattr(value, name)
        if item is None:
            continue
        if locks is not None and LOCKS.get(kind.__name__) == name:
            content[name] = locks[item]
            continue
        plain = _plain(item)
        content[name] = sorted(plain, key=_sort_key) if unordered else plain
    return content


@cache
def _bound_fields(kind: type[BaseModel]) -> tuple[tuple[str, bool], ...]:
    left_out = REFERENCES.get(kind.__name__, ())
    return tuple(
        (name, (kind.__name__, name) in _UNORDERED)
        for name, field in kind.model_fields.items()
        if name not in left_out and is_bound(field.json_schema_extra)
    )


def is_bound(extra: Any) -> bool:
    """Tell from a field's schema extras whether it is bound."""
    return not (isinstance(extra, dict) and extra.get("x-qualify-bound") is False)


def _sort_key(item: Any) -> str:
    return item if isinstance(item, str) else str(item.get("path") or item.get("name"))


_AS_THEY_ARE = frozenset((str, int, bool))


def _plain(value: Any) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, BaseModel):
        return bound_content(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Decimal):
        return canonical_number(value)
    return value.value if isinstance(value, Enum) else value


@dataclass(frozen=True)
class Part:
    """Plain JSON data together with its canonical encoding."""

    content: Any
    encoded: bytes


def _encoded(content: Any) -> Part:
    return Part(content, canonical_json(content))


def _object(parts: dict[str, Part]) -> bytes:
    """Canonical JSON of an object, put together from that of its members.

    Equal to `canonical_json` of the whole; a thousand rows share their parts, so this is what makes
    a large matrix quick.
    """
    members = (b'"%s":%s' % (name.encode(), parts[name].encoded) for name in sorted(parts))
    return b"{" + b",".join(members) + b"}"


def _part(catalog: Catalog, kind: str, manifest: Any) -> Part:
    """Bound content of a manifest that rows share, made once per catalog."""
    if manifest is None:
        return _NOTHING
    key = (kind, manifest.id)
    part = catalog.parts.get(key)
    if part is None:
        part = catalog.parts[key] = _encoded(bound_content(manifest, catalog.locks))
    return part


_NOTHING = _encoded(None)


def _evidence_class(runtime: Runtime, model: Model | None) -> EvidenceClass:
    if runtime.engine is EngineKind.SCRIPTED or model is None:
        return EvidenceClass.SCRIPTED
    return EvidenceClass.FIXTURE if model.purpose == "test" else EvidenceClass.REAL_MODEL


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested data as path → scalar (or empty collection): `agent.tools[0].name`."""
    if isinstance(value, dict) and value:
        parts = [flat(item, f"{path}.{key}" if path else key) for key, item in value.items()]
    elif isinstance(value, list) and value:
        parts = [flat(item, f"{path}[{index}]") for index, item in enumerate(value)]
    else:
        return {path: value}
    return {key: item for part in parts for key, item in part.items()}
