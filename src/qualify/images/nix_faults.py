"""What Nix and git say when a build cannot work, and what a person should do about it.

A table: a new case is one entry. What is not in it is passed on as Nix said it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from qualify.core.errors import EnvironmentFault, QualifyError, UsageError


@dataclass(frozen=True)
class NixFault:
    """One cause of failure. `said` is looked for in the output of Nix 2.8 to 2.26 and of git."""

    said: re.Pattern[str]
    kind: type[QualifyError]
    what: str
    fix: str


FAULTS = (
    NixFault(
        re.compile(r"No space left on device|disk quota exceeded", re.IGNORECASE),
        EnvironmentFault,
        "the disk is full",
        "free some space (`nix-collect-garbage` removes what no link holds) and build again: "
        "finished layers are kept",
    ),
    NixFault(
        re.compile(
            r"kernel namespaces|required for sandboxing|without a sandbox|"
            r"setting up the build environment.*not permitted",
            re.IGNORECASE,
        ),
        EnvironmentFault,
        "Nix cannot build in a sandbox here, and a build without one is not hermetic",
        "allow user namespaces, or set `sandbox = true` where the Nix daemon runs",
    ),
    NixFault(
        re.compile(r"dubious ownership|is not owned by current user"),
        UsageError,
        "git does not trust this checkout, because it belongs to another user",
        "git config --global --add safe.directory FOLDER",
    ),
    NixFault(
        re.compile(
            r"permission denied.*(/nix/|daemon)|(/nix/|big-lock|daemon-socket).*permission denied",
            re.IGNORECASE,
        ),
        EnvironmentFault,
        "this user may not use the Nix store",
        "start the Nix daemon (on Debian: apt-get install nix-setup-systemd), or build as the "
        "owner of /nix",
    ),
    NixFault(
        re.compile(r"preseed:"),
        UsageError,
        "a pinned file is not in the Nix store",
        "qualify depot fill SET --to DEPOT && qualify depot seed DEPOT",
    ),
)

_OURS = re.compile(r"^(?:[^\s>]+> )?error: (?!builder for|\d+ dependenc|some outputs)(.+)$", re.M)
_LAST_LINES = 8


def explained(said: str, where: str) -> QualifyError:
    """The error for what Nix or git has said on its way out."""
    for fault in FAULTS:
        if fault.said.search(said):
            return fault.kind(fault.what, where=where, fix=fault.fix)
    if ours := _OURS.search(said):
        return UsageError(ours[1], where=where, fix="mend what it names and build again")
    tail = "\n".join(said.strip().splitlines()[-_LAST_LINES:])
    return EnvironmentFault(f"Nix failed:\n{tail}", where=where, fix="`nix build -L` shows it all")
