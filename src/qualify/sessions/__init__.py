"""Floor 4: the owner of an OpenHands conversation: journal, approvals, replay.

`journal`, `projection`, `replay` and `audit` import no agent SDK; `owner`, `agent`, `tools` and
`construction` do, and are the only modules of Qualify that may.
"""
