r"""Text as it stands inside JSON, programs, addresses and HTML: with its escapes undone.

A token behind `\n` or with `\u002d` in it is the same token. Escapes that decide nothing here are
left as they are.
"""

from __future__ import annotations

import bisect
import re

ESCAPE = re.compile(
    r"\\\\?(?:[nrt\"'/]|u00[2-7][0-9A-Fa-f]|x[2-7][0-9A-Fa-f])"
    r"|%(?:2[BbDdEeFf]|3[AaDd]|40|5[CcFf])"
    r"|&(?:amp|quot|lt|gt|#(?:4[0-9]|6[0-4]|x2[0-9A-Fa-f]|x40));"
)
_NAMED = {"amp": "&", "quot": '"', "lt": "<", "gt": ">", "n": "\n", "r": "\n", "t": "\t"}


class Unescaped:
    """A text without its escapes, which knows where each character came from."""

    def __init__(self, escaped: str) -> None:
        pieces: list[str] = []
        self._now: list[int] = []
        self._then: list[int] = []
        done = length = 0
        for match in ESCAPE.finditer(escaped):
            pieces += (escaped[done : match.start()], _meaning(match[0]))
            length += match.start() - done + 1
            done = match.end()
            self._now.append(length)
            self._then.append(done)
        pieces.append(escaped[done:])
        self.text = "".join(pieces)

    def place(self, position: int) -> int:
        """Where the character at `position` of `text` starts in the text with escapes."""
        index = bisect.bisect_right(self._now, position) - 1
        if index < 0:
            return position
        return self._then[index] + position - self._now[index]


def _meaning(escape: str) -> str:
    """The one character that an escape stands for."""
    if escape[0] == "%":
        return chr(int(escape[1:], 16))
    body = escape.strip("&;\\#")
    if escape[0] == "&" and body.isdigit():
        return chr(int(body))
    if body[0] in "ux" and len(body) > 1:
        return chr(int(body[1:], 16))
    return _NAMED.get(body, body or "\\")
