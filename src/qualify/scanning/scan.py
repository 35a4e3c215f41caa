"""A scan of many files: what was found, what was not looked into, what was allowed.

A finding never holds the value. It has its length and the start of an HMAC with a key that lives as
long as the scan, so that equal values can be told within one report and nothing can be guessed.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import multiprocessing
import os
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import IO

from qualify.core.errors import EnvironmentFault
from qualify.scanning.allowed import Allowance, unused
from qualify.scanning.contents import NotRead, Part, TableReader, parts
from qualify.scanning.keys import key_in_bytes
from qualify.scanning.selection import Chosen
from qualify.scanning.texts import find
from qualify.scanning.windows import Piece, Places, Raw

_MARK = 12
"""Hex digits of the HMAC that are shown."""
_PARALLEL = 400
"""Files from which on a second process is worth its start."""
_FATAL = ("cannot be read",)
_MOST = 1_000
"""Findings of one file after which it is left: nobody reads more."""


@dataclass(frozen=True)
class Finding:
    """Something that must not be published, without the thing itself."""

    place: str
    """Path as shown; inside an archive `ARCHIVE!MEMBER`. What was found in a path is masked."""
    kind: str
    line: int | None = None
    column: int | None = None
    offset: int | None = None
    """Byte in a binary file, where there are no lines."""
    characters: int | None = None
    mark: str | None = None
    """Equal for equal values of one scan."""
    wrapped: bool = False
    """It stands inside base64."""
    in_name: bool = False
    """It is in the path, or in the target of a link."""
    why: str | None = None
    """For `unread`: why it was not looked into."""

    @property
    def position(self) -> str:
        """`PLACE:LINE:COLUMN`, or what there is of it."""
        if self.line is not None:
            return f"{self.place}:{self.line}:{self.column}"
        return f"{self.place}:+{self.offset}" if self.offset is not None else self.place


@dataclass
class Report:
    """The result of a scan."""

    findings: list[Finding] = field(default_factory=list)
    """What is not allowed, by place; `unread` among them."""
    allowed: list[Finding] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Places that are not files, and what they are."""
    files: int = 0
    unused: list[Allowance] = field(default_factory=list)
    expired: list[Allowance] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was found and everything was read."""
        return not self.findings

    @property
    def kinds(self) -> dict[str, int]:
        """Number of findings by kind."""
        return dict(sorted(Counter(finding.kind for finding in self.findings).items()))


@dataclass(frozen=True)
class _Seen:
    """A finding, and the file it is in."""

    finding: Finding
    file: str


def scan(
    files: Sequence[Chosen],
    *,
    today: date,
    allowances: Sequence[Allowance] = (),
    tables: TableReader | None = None,
    progress: Callable[[int], None] | None = None,
    processes: int | None = None,
) -> Report:
    """Look at every file. `progress` is called with the number of files done."""
    report = Report()
    examine = partial(_examine, key=secrets.token_bytes(32), tables=tables)
    wanted = []
    for chosen in files:
        if chosen.sort in ("file", "link") or chosen.sort.startswith(_FATAL):
            wanted.append(chosen)
        else:
            report.left_out.append((chosen.shown, chosen.sort))
    for seen in _each(examine, wanted, processes):
        report.files += 1
        for one in seen:
            _file(report, one, allowances, today)
        if progress is not None:
            progress(report.files)
    report.findings.sort(key=_order)
    report.allowed.sort(key=_order)
    report.expired = [each for each in allowances if today > each.until]
    report.unused = [each for each in unused(allowances) if each not in report.expired]
    return report


def _each(
    examine: Callable[[Chosen], list[_Seen]], files: Sequence[Chosen], processes: int | None
) -> Iterator[list[_Seen]]:
    count = processes or min(4, len(os.sched_getaffinity(0)))
    if count == 1 or len(files) < _PARALLEL:
        yield from map(examine, files)
        return
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        try:
            yield from pool.map(examine, files, chunksize=32)
        except BrokenProcessPool as error:
            raise EnvironmentFault(
                "a process that looks at files was killed, so not all were looked at",
                fix="see whether memory is short; name fewer folders",
            ) from error


def _file(report: Report, seen: _Seen, allowances: Iterable[Allowance], today: date) -> None:
    for allowance in allowances:
        if allowance.covers(seen.file, seen.finding.kind, today):
            allowance.uses += 1
            report.allowed.append(seen.finding)
            return
    report.findings.append(seen.finding)


def _order(finding: Finding) -> tuple[str, int, int, int, str]:
    return finding.place, finding.line or 0, finding.column or 0, finding.offset or 0, finding.kind


def _examine(chosen: Chosen, *, key: bytes, tables: TableReader | None) -> list[_Seen]:
    marks = partial(_mark, key)
    place, found = _masked(chosen.shown, marks)
    seen = [_Seen(finding, chosen.shown) for finding in found]
    if chosen.sort == "link":
        try:
            target = str(chosen.path.readlink())
        except OSError:
            target = ""
        for finding in _masked(target, marks)[1]:
            seen.append(_Seen(replace(finding, place=place), chosen.shown))
        return seen
    if chosen.sort != "file":
        return [*seen, _Seen(Finding(place, "unread", why=chosen.sort), chosen.shown)]
    try:
        with _opened(chosen.path) as stream:
            for one in _content(stream, chosen, place, marks, tables):
                seen.append(one)
                if len(seen) >= _MOST:
                    why = f"has more than {_MOST:,} findings; the rest was not looked into"
                    seen.append(_Seen(Finding(place, "unread", why=why), chosen.shown))
                    break
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        seen.append(_Seen(Finding(place, "unread", why=why), chosen.shown))
    return seen


def _opened(path: Path) -> IO[bytes]:
    """A regular file. A pipe that took its place meanwhile does not make us wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no file any more")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _content(
    stream: IO[bytes],
    chosen: Chosen,
    place: str,
    marks: Callable[[str], str],
    tables: TableReader | None,
) -> Iterator[_Seen]:
    named: dict[str, str] = {"": place}
    for part in parts(stream, tables):
        if part.inside not in named:
            inner, found = _masked(part.inside, marks)
            named[part.inside] = place + inner
            for finding in found:
                yield _Seen(replace(finding, place=place + inner), chosen.shown)
        where = named[part.inside]
        name = chosen.path.name
        if part.inside:
            name = part.inside.rpartition("!")[2].rpartition("/")[2]
        for finding in _in_part(part, where, name, marks):
            yield _Seen(finding, chosen.shown)


def _in_part(part: Part, where: str, name: str, marks: Callable[[str], str]) -> Iterator[Finding]:
    if isinstance(part, NotRead):
        yield Finding(where, "unread", why=part.why)
    elif isinstance(part, Raw):
        span = key_in_bytes(part.data)
        if span is not None:
            mark = marks(part.data[slice(*span)].hex())
            size = span[1] - span[0]
            yield Finding(where, "private-key", offset=span[0], characters=size, mark=mark)
    else:
        yield from _in_piece(part, where, name, marks)


def _in_piece(part: Piece, where: str, name: str, marks: Callable[[str], str]) -> Iterator[Finding]:
    binary = part.offsets is not None
    places = Places(part)
    for match in find(part.text, name, binary=binary):
        if not part.first <= match.start < part.last:
            continue
        mark = marks(part.text[match.start : match.end])
        found = Finding(
            where, match.kind, characters=match.end - match.start, mark=mark, wrapped=match.wrapped
        )
        if binary:
            yield replace(found, offset=part.byte_at(match.start))
        elif part.lines:
            line, column = places.at(match.start)
            yield replace(found, line=line, column=column)
        else:
            yield found


def _masked(path: str, marks: Callable[[str], str]) -> tuple[str, list[Finding]]:
    """A path without what must not be shown of it, and what that is."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    found = []
    for match in reversed(find(text, "path.txt")):
        value = text[match.start : match.end]
        found.append((match, marks(value)))
        text = f"{text[: match.start]}‹{match.kind}›{text[match.end :]}"
    return text, [
        Finding(text, match.kind, characters=match.end - match.start, mark=mark, in_name=True)
        for match, mark in found
    ]


def _mark(key: bytes, value: str) -> str:
    data = value.encode("utf-8", "surrogatepass")
    return hmac.new(key, data, hashlib.sha256).hexdigest()[:_MARK]
