"""Passwords and secrets by what stands around them: assignments, options, headers, addresses, and
the files in which programs keep them.

Placeholders and names of variables are no passwords.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from qualify.scanning.entropy import looks_random
from qualify.scanning.kinds import Match, Sort, Subject

_STRONG = r"(?<!etc/)(?:pass(?:word|wd|phrase|code)|pwd|kennwort|passwort)"
"""Words behind which nearly anything is a password."""
_WEAK = (
    r"secret|token|credentials?|api[_-]?key|access[_-]?key|auth[_-]?key|private[_-]?key"
    r"|secret[_-]?key|signing[_-]?key|encryption[_-]?key|account[_-]?key|client[_-]?key|bearer"
)
"""Words behind which a value must look like a secret as well."""
_SUFFIX = (
    r"(?:[_-]?(?:value|text|string|plain|base64|b64|prod|dev|live|test|old|new|id[_-]?key"
    r"|\d{1,3}))?"
)
_ASSIGNED = re.compile(
    rf"(?:{_STRONG}|{_WEAK}){_SUFFIX}[\"'`\]]{{0,2}}[ \t]{{0,8}}"
    r"(?::[ \t]{0,8}[a-z]{2,12}[ \t]{0,8}=|:=|=>|={1,3}|:(?!:))[ \t]{0,8}(?=\S)"
)
_QUOTED = re.compile(r"[bruf]{0,2}([\"'`])((?:(?!\1)[^\n\\]|\\.){4,400})\1")
_BARE = re.compile(r"[^\s\"'`,;#<>(){}\[\]]{6,200}")
_OPTION = re.compile(
    rf"-(?<![\w-].)-?(?:[a-z0-9]{{1,24}}-){{0,4}}(?:{_STRONG}|{_WEAK})(?:=|[ \t]+)(?=[^\s-])"
)
_XML = re.compile(rf"<[\w:.-]*?(?:{_STRONG}|{_WEAK})(?: [^<>\n]{{0,80}})?>([^<>\s]{{6,200}})</")
_HEADER = re.compile(
    r"(?:authorization|proxy-authorization|x-[a-z-]{0,40}(?:key|token)|private-token|api-key"
    r"|apikey)[\"']?\s{0,2}[:=]\s{0,2}[\"']?(?:(basic|bearer|token|apikey|digest)\s{1,8})?"
    r"(?=[^\s\"'])"
)
_BEARER = re.compile(r"(?<![a-z])bearer\s+(?=[a-z0-9])")
_CURL = re.compile(
    r"(?<![\w-])(?:-u|--user|--proxy-user)[ =]+[\"']?([\w.@-]{1,60}):([^\s\"'@/]{4,100})"
)
_LOGIN = re.compile(
    r"(?<![\w])(?:machine\s+\S+|default)\s+login\s+\S+\s+password\s+(\S+)|^\s*password\s+(\S+)"
)
_IDENTIFIED = re.compile(r"identified\s+(?:with\s+\S+\s+)?by\s+(['\"])([^'\"\n]{4,100})\1")
_ADDRESS = re.compile(
    r"://([^\s:@/'\"<>\\]{0,200}):([^\s@/'\"<>\\]{1,300})@([^\s/'\"<>\\?#,)]{1,255})"
)
_NPM = re.compile(r"_(?:authToken|auth|password)[ \t]*=[ \t]*[\"']?([^\s\"'$]{6,})")
_DOCKER = re.compile(r"\"(?:auth|identitytoken|registrytoken)\"\s*:\s*\"([A-Za-z0-9+/=_.-]{8,})\"")
_PGPASS = re.compile(r"^[^\s:#]+:(?:\d+|\*):[^\s:]+:[^\s:]+:(\S{4,})$", re.MULTILINE)
_HASH = re.compile(
    r"\$(?:1|5|6|y|apr1|gy|2[abxy])\$[A-Za-z0-9./$=,]{20,}"
    r"|\$argon2(?:id|i|d)\$v=\d+\$[\w=,]+\$[A-Za-z0-9+/.]{8,}\$[A-Za-z0-9+/.]{16,}"
    r"|pbkdf2_sha\d+\$\d+\$\S{30,}|\{SSHA\d*\}[A-Za-z0-9+/=]{20,}"
)
_HARMLESS = re.compile(
    r"[x*.•#?_-]+|<.*|\$.*|%.*|\{.*|\[.*|.*\$\{.*|.*\{\{.*|.*[({].*[)}].*|@.*|!\w.*|/.*|\.{1,2}/.*"
    r"|\w+://.*|.*\.\.\..*|.*….*"
    r"|(?:your|my|the|some|an?|this|that|is|not|no|new|old|any|every|test|fake|dummy|sample|mock)"
    r"[-_ ].*"
    r"|change[-_ ]?(?:me|it|this).*|example.*|.*example|placeholder.*|redacted.*|masked|hidden"
    r"|dummy\w*|none|null|nil|true|false|undefined|optional|required|unset|empty|missing|unknown|string|text"
    r"|str|bytes|object|value|int|(?:os\.)?environ.*|env\b.*|self\..*|process\.env.*|config\..*"
    r"|settings\..*|args\..*|getenv.*|anon\w*|:?pserver:.*|input|prompt|random|file|default"
    r"|disabled|enabled|anonymous|never|always",
    re.IGNORECASE | re.DOTALL,
)
_SELF = re.compile(
    rf"(?:[a-z0-9]+[-_. ])*(?:{_STRONG}|{_WEAK}|pass|key|user(?:name)?|auth|login|pw)s?"
    r"(?:[-_. ][a-z]+|[a-z]{1,8})*+\d{0,2}",
    re.IGNORECASE,
)
_RESERVED_HOST = re.compile(
    r"(?:localhost|127\.\S*|\[::1\].*|0\.0\.0\.0.*|host(?:name)?|(?:.*\.)?(?:example|test|invalid|localhost)"
    r"(?:\.(?:com|org|net|edu))?)(?::.*)?",
    re.IGNORECASE,
)
_URL_HARMLESS = re.compile(
    r"(?:pass(?:word|wd|w)?\d*|pwd|secret|token|user(?:name)?|x|p|pw|foo|bar|test)", re.IGNORECASE
)


def is_placeholder(value: str) -> bool:
    """Tell whether a value only stands where a secret would."""
    value = value.strip()
    return bool(_HARMLESS.fullmatch(value) or _SELF.fullmatch(value)) or len(set(value)) < 3


def passwords(subject: Subject) -> Iterator[Match]:
    """Everything that stands where a password or a secret stands."""
    text, lower = subject.text, subject.lower
    if "://" in text and "@" in text:
        yield from _addresses(text)
    if "$" in text or "{SSHA" in text:
        for match in _HASH.finditer(text):
            yield Match("password-hash", *match.span())
    yield from _files(subject)
    yield from _sent(subject)
    yield from _logins(subject)
    if not _mentions(lower):
        return
    yield from _assigned(subject)
    if subject.sort != "code":
        yield from _options(subject)
    if "</" in text:
        for match in _XML.finditer(lower):
            if not is_placeholder(text[match.start(1) : match.end(1)]):
                yield Match("password", *match.span(1))


_WORDS = ("pass", "pwd", "secret", "token", "credential", "key", "kennwort", "bearer")


def _mentions(lower: str) -> bool:
    return any(word in lower for word in _WORDS)


def _addresses(text: str) -> Iterator[Match]:
    for match in _ADDRESS.finditer(text):
        harmless = _URL_HARMLESS.fullmatch(match[2]) or is_placeholder(match[2])
        if not harmless and not _RESERVED_HOST.fullmatch(match[3]):
            yield Match("address-password", match.start(1), match.end(2))


def _assigned(subject: Subject) -> Iterator[Match]:
    text = subject.text
    for match in _ASSIGNED.finditer(subject.lower):
        word = match[0]
        strong_word = bool(re.match(_STRONG, word))
        quoted = _QUOTED.match(text, match.end())
        if quoted is not None:
            value, start, end = quoted[2], quoted.start(2), quoted.end(2)
        else:
            bare = _BARE.match(text, match.end())
            if bare is None or not _may_be_bare(bare[0], subject.sort):
                continue
            value, (start, end) = bare[0], bare.span()
        if _is_secret(value, strong_word=strong_word):
            yield Match("password", start, end)


def _may_be_bare(value: str, sort: Sort) -> bool:
    """Tell whether a value without quotes is one: in code it is mostly an expression."""
    if sort == "code":
        return len(value) >= 20 and looks_random(value)
    return sort == "settings" or _is_mixed(value)


def _is_secret(value: str, *, strong_word: bool) -> bool:
    if is_placeholder(value) or (" " in value and not strong_word):
        return False
    if strong_word:
        if len(value) < 6:
            return len(value) >= 4 and _is_mixed(value)
        return " " not in value or any(c.isdigit() for c in value)
    if value.isdigit() or len(value) < 8:
        return False
    return _is_mixed(value) and not re.fullmatch(
        r"[a-z]+(?:[-_.:/][a-z0-9]{1,12})*|[A-Z]+(?:_[A-Z0-9]{1,12})*|[A-Za-z]+\d?", value
    )


def _is_mixed(value: str) -> bool:
    """Tell whether a value is no word: digits among letters, or signs among both cases."""
    digit = any(c.isdigit() for c in value)
    letter = any(c.isalpha() for c in value)
    sign = any(not c.isalnum() for c in value.strip(".,:;!?-_"))
    cases = any(c.isupper() for c in value) and any(c.islower() for c in value)
    return letter and (digit or (sign and cases))


def _options(subject: Subject) -> Iterator[Match]:
    for match in _OPTION.finditer(subject.lower):
        value = _QUOTED.match(subject.text, match.end())
        span = value.span(2) if value else None
        if span is None:
            bare = _BARE.match(subject.text, match.end())
            span = bare.span() if bare and _is_mixed(bare[0]) else None
        if span is not None and _is_secret(subject.text[slice(*span)], strong_word=True):
            yield Match("password", *span)


def _logins(subject: Subject) -> Iterator[Match]:
    """User and password on a command line, and in SQL."""
    for match in _IDENTIFIED.finditer(subject.lower) if "identified" in subject.lower else ():
        if not is_placeholder(subject.text[match.start(2) : match.end(2)]):
            yield Match("password", *match.span(2))
    for match in _CURL.finditer(subject.text) if subject.sort != "code" else ():
        if not is_placeholder(match[2]) and not match[2].isdigit():
            yield Match("password", *match.span(2))


def _sent(subject: Subject) -> Iterator[Match]:
    """Values of headers that carry a credential."""
    text, lower = subject.text, subject.lower
    if "key" in lower or "token" in lower or "authorization" in lower:
        for match in _HEADER.finditer(lower):
            value = _BARE.match(text, match.end())
            if value is None or is_placeholder(value[0]):
                continue
            if match[1] == "basic":
                if _is_login(value[0]):
                    yield Match("password", *value.span())
            elif len(value[0]) >= 12 and _is_mixed(value[0]):
                yield Match("password", *value.span())
    if "bearer" in lower:
        for match in _BEARER.finditer(lower):
            value = _BARE.match(text, match.end())
            if (
                value
                and len(value[0]) >= 16
                and _is_mixed(value[0])
                and not is_placeholder(value[0])
            ):
                yield Match("password", *value.span())


def _is_login(text: str) -> bool:
    try:
        user, colon, password = base64.b64decode(text, validate=True).partition(b":")
    except (ValueError, binascii.Error):
        return False
    return bool(colon and user.isascii() and password)


def _files(subject: Subject) -> Iterator[Match]:
    """What programs keep in files of their own."""
    text, name = subject.text, subject.name
    if "password" in text and ("login" in text or "netrc" in name):
        pattern = re.compile(_LOGIN.pattern, re.MULTILINE) if "netrc" in name else _LOGIN
        for match in pattern.finditer(text):
            group = 1 if match[1] else 2
            if match[group] and not is_placeholder(match[group]):
                yield Match("password", *match.span(group))
    if "_auth" in text or "_password" in text:
        for match in _NPM.finditer(text):
            if not is_placeholder(match[1]) and not match[1].endswith(("(", "_")):
                yield from [Match("registry-token", *match.span(1))] if _is_mixed(match[1]) else []
    if '"auth' in text or "token" in text:
        for match in _DOCKER.finditer(text):
            if _is_login(match[1]) or "identity" in match[0]:
                yield Match("registry-token", *match.span(1))
    if "pgpass" in name:
        for match in _PGPASS.finditer(text):
            yield Match("password", *match.span(1))
