"""The version of records, apart from them: who only looks whether a ledger is newer needs no model
of its records, whose import takes a third of a second.
"""

from __future__ import annotations

from typing import Literal

SCHEMA: Literal[2] = 2
"""The newest schema of records. In 1 the end of a trial did not name its client."""
