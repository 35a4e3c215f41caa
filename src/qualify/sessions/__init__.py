"""Floor 4: the owner of an OpenHands conversation: journal, approvals, replay.

`journal`, `projection` and `replay` import no agent SDK; `owner`, `agent` and `tools` do, and are the
only modules of Qualify that may.
"""
