"""Leading a session of the real agent SDK to where a test begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qualify.sessions.owner import PendingGroup, Session


def waiting(session: Session) -> PendingGroup:
    """Ask for something; the group that waits for a decision then."""
    session.send("Do it.")
    assert session.run() == "waiting"
    group = session.pending_group()
    assert group is not None
    return group
