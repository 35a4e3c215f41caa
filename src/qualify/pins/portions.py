"""How missing files are divided among clients: big ones alone, small ones a handful at a time.

A client costs a second to start, and what it fetched counts only once it has ended; so portions are
neither single small files nor long lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qualify.pins.wanted import WantedFile

_ALONE_BYTES = 32 << 20
_MOST_BYTES = 48 << 20
_MOST_FILES = 16


@dataclass(frozen=True)
class Portion:
    """Files for one client: `kind` is `python` or `deb`.

    Wheels of one portion are for one Python and of different packages; a source stands alone.
    """

    kind: str
    files: tuple[WantedFile, ...]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)


def portions(missing: Sequence[WantedFile]) -> list[Portion]:
    """Divide `missing`, biggest portions first."""
    done: list[Portion] = []
    open_portions: dict[tuple[str, str], list[list[WantedFile]]] = {}
    for file in sorted(missing, key=lambda file: (-file.size, file.name)):
        kind = "deb" if file.path else "python"
        if file.size >= _ALONE_BYTES or (kind == "python" and file.python is None):
            done.append(Portion(kind, (file,)))
            continue
        lists = open_portions.setdefault((kind, file.python or ""), [])
        for listed in lists:
            if _takes(listed, file):
                listed.append(file)
                break
        else:
            lists.append([file])
    for (kind, _), lists in open_portions.items():
        done += [Portion(kind, tuple(listed)) for listed in lists]
    return sorted(done, key=lambda portion: (-portion.size, portion.files[0].name))


def _takes(listed: Sequence[WantedFile], file: WantedFile) -> bool:
    return (
        len(listed) < _MOST_FILES
        and sum(other.size for other in listed) + file.size <= _MOST_BYTES
        and all(other.package != file.package for other in listed)
    )
