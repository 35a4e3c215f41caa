"""The manifest kinds: what a file under `manifests/` may say.

One file holds one manifest; its folder gives the kind, its `id` equals the file's name. All models
are frozen, unknown keys are errors, every scalar arrives as text with its position and is typed by
the field (see `scalars`). Fields declared with `not_bound` stay out of the configuration, suite and
policy digests; everything else is bound, so a new field is bound unless somebody says otherwise.

Rules between fields of one manifest stand with its kind; rules between manifests in `references`.
The kinds are written in `system_kinds`, `agent_kinds` and `case_kinds`; this module names them all.
"""

from __future__ import annotations

from qualify.manifests.agent_kinds import (
    Agent,
    AgentLimits,
    AgentTool,
    Sampling,
    Script,
    ScriptedCall,
    ScriptedReply,
)
from qualify.manifests.case_kinds import (
    Budgets,
    Bundle,
    Corpus,
    ImportedOutcome,
    Policy,
    Row,
    Scenario,
    Suite,
)
from qualify.manifests.fields import (
    Manifest,
    Strict,
)
from qualify.manifests.system_kinds import (
    Architecture,
    BundleSource,
    EndpointLaunch,
    FileSource,
    Gpu,
    HubSource,
    Licence,
    LlamaCppLaunch,
    Model,
    ModelFile,
    Package,
    PackagePart,
    Platform,
    Prices,
    PythonPackagesSource,
    Runtime,
    Source,
    SupportedPrecision,
    VllmLaunch,
    WeightQuantization,
)

__all__ = [
    "KINDS",
    "Agent",
    "AgentLimits",
    "AgentTool",
    "Architecture",
    "Budgets",
    "Bundle",
    "BundleSource",
    "Corpus",
    "EndpointLaunch",
    "FileSource",
    "Gpu",
    "HubSource",
    "ImportedOutcome",
    "Licence",
    "LlamaCppLaunch",
    "Manifest",
    "Model",
    "ModelFile",
    "Package",
    "PackagePart",
    "Platform",
    "Policy",
    "Prices",
    "PythonPackagesSource",
    "Row",
    "Runtime",
    "Sampling",
    "Scenario",
    "Script",
    "ScriptedCall",
    "ScriptedReply",
    "Source",
    "Strict",
    "Suite",
    "SupportedPrecision",
    "VllmLaunch",
    "WeightQuantization",
]

KINDS: dict[str, type[Manifest]] = {
    "runtimes": Runtime,
    "models": Model,
    "platforms": Platform,
    "agents": Agent,
    "scripts": Script,
    "matrix": Row,
    "scenarios": Scenario,
    "suites": Suite,
    "corpora": Corpus,
    "policies": Policy,
    "bundles": Bundle,
}
"""Folder under `manifests/` (corpora: under `corpora/`) → kind."""
