"""Approvals of licences that a person must have read before the weights are used.

An approval names the SPDX identifier, so that nobody approves what they did not name; it is kept in
the store with its time and holds for that model and that licence only.
"""

from __future__ import annotations

import json
from datetime import datetime

from qualify.core.canonical import canonical_json
from qualify.core.clock import format_time
from qualify.core.errors import UsageError
from qualify.manifests.kinds import Model
from qualify.models.errors import LicenceNotApproved
from qualify.models.layout import Layout
from qualify.storage.folders import write_atomic

_SCHEMA = "qualify-licence-approval/1"


def approval_missing(layout: Layout, model: Model) -> bool:
    """Tell whether somebody must still approve the licence. An unreadable record is none."""
    if model.licence.approval != "explicit":
        return False
    try:
        record = json.loads(layout.approval(model).read_bytes()[:4096])
        return (record["schema"], record["model"], record["spdx"]) != (
            _SCHEMA,
            str(model.id),
            str(model.licence.spdx),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return True


def settle_licence(layout: Layout, model: Model, approved: str | None, now: datetime) -> None:
    """Record `approved` (an SPDX identifier) when it is needed.

    Raises `UsageError` when it names another licence, `LicenceNotApproved` when it is needed and
    missing, `OSError` when it cannot be written.
    """
    spdx = str(model.licence.spdx)
    if approved is not None and approved != spdx:
        raise UsageError(
            f"the licence of {model.id} is {spdx}, not {approved}",
            where="--approve-licence",
            fix=f"read it, then give --approve-licence {spdx}",
        )
    if not approval_missing(layout, model):
        return
    if approved is None:
        raise LicenceNotApproved(
            f"the licence {spdx} must be approved by a person before the first use",
            where=f"model {model.id}",
            fix=f"read it, then run `qualify model acquire {model.id} --approve-licence {spdx}`",
        )
    record = {
        "schema": _SCHEMA,
        "model": str(model.id),
        "spdx": spdx,
        "approved_at": format_time(now),
    }
    path = layout.approval(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, canonical_json(record) + b"\n")
