"""Ledgers of other sites, kept whole beside the local one: `<results>/sites/<site id>/ledger/`.

They are evidence of those sites, numbered from 1 in the database in the order of their ids, and
never evidence for a verdict here. `ledger.next` is a newer copy on its way to become `ledger`: it
is complete from the moment it has this name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from qualify.evidence.ledger import InvalidRecord, Ledger

NEXT = "ledger.next"
_ID = re.compile(r"[0-9a-f]{32}")
_AGAIN = "remove this folder and merge the site again"


@dataclass(frozen=True)
class Site:
    """A ledger of another site."""

    id: str
    ledger: Ledger

    def position(self) -> tuple[str, int, str]:
        """Id, entries and last digest, as in the table `sites`. Raises as the ledger's `head`, and
        `InvalidRecord` when the ledger is that of another site.
        """
        head = self.ledger.head()
        if not head.count or self.ledger.site() != self.id:
            raise InvalidRecord(
                "does not hold the ledger of the site whose name it has",
                where=str(self.ledger.folder),
                fix=_AGAIN,
            )
        return self.id, head.count, f"sha256:{head.digest}"


def sites_folder(results: Path) -> Path:
    """Where ledgers of other sites are kept."""
    return results / "sites"


def kept_ledger(results: Path, site: str) -> Ledger | None:
    """The kept ledger of another site; `None` when there is none."""
    folder = sites_folder(results) / site
    # Between its two names a ledger is for an instant under neither: then it has got the first one.
    for name in ("ledger", NEXT, "ledger"):
        if (folder / name).is_dir():
            return Ledger(folder / name)
    return None


def kept_sites(results: Path) -> list[Site]:
    """The ledgers of other sites that are kept here, in the order of their ids."""
    try:
        names = sorted(path.name for path in sites_folder(results).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(name, kept_ledger(results, name)) for name in names if _ID.fullmatch(name)]
    return [Site(name, ledger) for name, ledger in found if ledger is not None]
