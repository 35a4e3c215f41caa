"""Credentials in text: addresses with a password, tokens by their public prefixes, private keys,
and the files in which programs keep passwords.

Says what kind of credential stands where, never the credential. Text is searched whatever its name;
files of a few names are also read for what only stands in them. Placeholders, such as the ones that
documentation uses, are no credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

OVERLAP = 512
"""Bytes of one piece of a file that are searched again with the next."""

_PLACEHOLDER = re.compile(
    rb"^(pass(word|wd|phrase|w)?\d*|pwd|secret|token|user(name)?|xxx+|\*+|\.+|x|p|pw|foo|bar|test"
    rb"|example|changeme|anon\w*|(pserver:.*)|your[-_].*|my[-_].*|none|null|redacted|hunter2|<.*|\$.*|%.*|\{.*|\[.*)$",
    re.IGNORECASE,
)
_RESERVED_HOST = re.compile(
    rb"^(localhost|127\.|\[::1\]|0\.0\.0\.0|host(name)?$|(.*\.)?(example|test|invalid|localhost)"
    rb"(\.(com|org|net|edu))?(:|$))",
    re.IGNORECASE,
)
_ADDRESS = re.compile(rb"://([^\s:@/'\"<>\\]{0,200}):([^\s@/'\"<>\\]{1,300})@"
                      rb"([^\s/'\"<>\\?#]{1,255})", re.IGNORECASE)  # fmt: skip
_TOKENS: tuple[tuple[bytes, str, re.Pattern[bytes]], ...] = tuple(
    (prefix, name, re.compile(rb"(?<![A-Za-z0-9_-])" + pattern))
    for prefix, name, pattern in (
        (b"hf_", "a model hub token", rb"hf_[A-Za-z]{34}(?![A-Za-z0-9])"),
        (b"ghp_", "a forge token", rb"ghp_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
        (b"ghs_", "a forge token", rb"ghs_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
        (b"github_pat_", "a forge token", rb"github_pat_[A-Za-z0-9_]{40,}"),
        (b"glpat-", "a forge token", rb"glpat-[A-Za-z0-9_-]{20}"),
        (b"pypi-AgE", "a package index token", rb"pypi-AgE[A-Za-z0-9_-]{50,}"),
        (b"npm_", "a package registry token", rb"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
        (b"AKIA", "a cloud access key", rb"AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
        (b"xox", "a chat token", rb"xox[abprs]-[0-9]{8,}-[A-Za-z0-9-]{10,}"),
        (b"sk-ant-", "a provider key", rb"sk-ant-[a-z0-9]+-[A-Za-z0-9_-]{40,}"),
        (b"sk-proj-", "a provider key", rb"sk-proj-[A-Za-z0-9_-]{40,}"),
        (b"nvapi-", "a provider key", rb"nvapi-[A-Za-z0-9_-]{40,}"),
        (b"PRIVATE KEY-----", "a private key",
         rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s]{60}"),
    )
)  # fmt: skip
_KNOWN_EXAMPLES = (b"EXAMPLE",)

_NETRC = re.compile(rb"(^|\s)password\s+(\S+)")
_DOCKER = re.compile(rb'"(?:auth|identitytoken|password)"\s*:\s*"([^"]{4,})"')
_NPMRC = re.compile(rb"_(?:authToken|auth|password)\s*=\s*(\S{4,})")
_INI = re.compile(rb"^\s*(?:password|aws_secret_access_key)\s*[=:]\s*(\S+)", re.MULTILINE)
_SHADOW = re.compile(rb"^[^:\n]+:!?\$[^:$\s]+\$([^:\s]{8,})", re.MULTILINE)
_ANY = re.compile(rb"(\S{8,})")
_FILES: tuple[tuple[re.Pattern[str], str, re.Pattern[bytes]], ...] = tuple(
    (re.compile(rf"(^|/){path}$"), what, pattern)
    for path, what, pattern in (
        (r"[._]netrc", "a password in a netrc file", _NETRC),
        (r"\.pypirc", "a password for a package index", _INI),
        (r"\.npmrc", "a token for a package registry", _NPMRC),
        (r"(\.docker|docker|kaniko/\.docker)/config\.json", "a registry login", _DOCKER),
        (r"\.dockercfg", "a registry login", _DOCKER),
        (r"(containers|run/[^/]*)/auth\.json", "a registry login", _DOCKER),
        (r"\.git-credentials", "a Git password", _ANY),
        (r"\.aws/credentials", "a cloud secret", _INI),
        (r"(\.huggingface|huggingface)/(token|stored_tokens)", "a model hub token", _ANY),
        (r"\.config/gh/hosts\.yml", "a forge token", re.compile(rb"oauth_token:\s*(\S{8,})")),
        (r"^etc/g?shadow-?", "the hash of a password", _SHADOW),
        (r"(var/)?run/secrets/[^/].*", "a build secret", _ANY),
    )
)
_NAMES = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _, _ in _FILES))
_INDEX_SETTING = re.compile(rb"index[-_]url|find[-_]links|index-servers", re.IGNORECASE)


def is_placeholder(value: bytes) -> bool:
    """Tell whether a value only stands where a credential would."""
    return _PLACEHOLDER.match(value) is not None


def is_text(head: bytes) -> bool:
    """Tell whether a file's first bytes are those of a text: no NUL among them."""
    return b"\0" not in head[:4096]


def wants_whole(path: str) -> bool:
    """Tell whether `path` is one of the files that `in_named_file` reads."""
    return _NAMES.search(path) is not None


def in_named_file(path: str, data: bytes) -> Iterator[str]:
    """Kinds of credentials in a file whose name says that it may hold them."""
    for pattern, what, content in _FILES:
        if pattern.search(path):
            for match in content.finditer(data):
                if not _PLACEHOLDER.match(match[match.lastindex or 0]):
                    yield what
                    break


def in_text(data: bytes) -> Iterator[str]:
    """Kinds of credentials in a piece of text, each once."""
    if b"://" in data and b"@" in data and _has_password(data):
        index = " of a package index" if _INDEX_SETTING.search(data) else ""
        yield f"an address{index} with user and password"
    seen = set()
    for prefix, name, pattern in _TOKENS:
        if prefix in data and name not in seen:
            for match in pattern.finditer(data):
                if not any(example in match[0] for example in _KNOWN_EXAMPLES):
                    seen.add(name)
                    yield name
                    break


def _has_password(data: bytes) -> bool:
    for match in _ADDRESS.finditer(data):
        _, password, host = match.groups()
        if not _PLACEHOLDER.match(password) and not _RESERVED_HOST.match(host):
            return True
    return False
