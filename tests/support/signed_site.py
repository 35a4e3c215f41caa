"""A signed ledger for a row of this project, and the command line on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from qualify.core.status import CheckOutcome, TrialOutcome
from qualify.evidence.ledger import Ledger
from qualify.evidence.signing.keys import write_new_key
from qualify.manifests.catalog import load_catalog
from qualify.manifests.configuration import resolve, suite_identity
from support.evidence import SettableClock, reserve, trial

ROOT = Path(__file__).parents[2]
ROW = "cpu-qwen2.5-coder-1.5b"


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@dataclass
class Site:
    """Results, a key outside of them, and a configuration folder of its own."""

    folder: Path
    clock: SettableClock = field(
        default_factory=lambda: SettableClock(datetime.now(UTC).replace(microsecond=0))
    )

    def __post_init__(self) -> None:
        self.results = self.folder / "results"
        self.config = self.folder / "config" / "qualify"
        self.config.mkdir(parents=True)
        self.key = self.folder / "key"
        self.public = write_new_key(self.key).public
        self.pub = self.folder / "key.pub"
        self.pub.write_text(self.public.ssh)
        self.clock.moment -= timedelta(hours=1)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.results / "ledger", self.clock.clock())

    def run(self, outcomes: str = "ppp") -> None:
        """Trials of the acceptance scenario as the project declares it: p(assed), f(ailed)."""
        known = load_catalog(ROOT)
        configuration = resolve(known, ROW)
        suite = suite_identity(known, "acceptance")
        (scenario,) = suite.scenarios
        for letter in outcomes:
            made = reserve(
                self.ledger, row=ROW, configuration=configuration.digest, suite=suite.id,
                suite_digest=suite.digest, scenario=scenario.id, required_checks=scenario.checks,
            )  # fmt: skip
            self.clock.advance(seconds=30)
            checks = dict.fromkeys(scenario.checks, CheckOutcome.PASSED)
            values: dict[str, Any] = {}
            if letter == "f":
                checks[scenario.checks[-1]] = CheckOutcome.FAILED
                values["outcome"] = TrialOutcome.FAILED
            self.ledger.finish(trial(made.trial, self.clock.moment, checks=checks, **values))

    def trust(self, *purposes: str) -> None:
        """The user's registry: the key counts for these purposes."""
        signer = {"name": "release", "public_key": self.public.ssh, "purposes": list(purposes)}
        document = {"schema": "qualify-signers/1", "signers": [signer]}
        (self.config / "signers.json").write_text(json.dumps(document))

    def qualify(self, *arguments: object, **environment: str) -> Ended:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "qualify", "--results", self.results,
             *map(str, arguments)],
            cwd=environment.pop("cwd", str(ROOT)), capture_output=True, text=True, check=False,
            env={
                **os.environ,
                "XDG_CONFIG_HOME": str(self.folder / "config"),
                "XDG_STATE_HOME": str(self.folder / "state"),
                **environment,
            },
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)
