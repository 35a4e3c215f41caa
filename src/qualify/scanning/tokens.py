"""Tokens that are known by their public prefixes or their shape.

Sources: what each issuer documents of its tokens' form, and the public rules of secret scanners.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from qualify.scanning.kinds import Match, Subject


class _Shape(NamedTuple):
    kind: str
    needles: tuple[str, ...]
    """One of them starts every such token, or stands in it."""
    pattern: re.Pattern[str]
    leads: bool
    """The needles are prefixes."""


def _shape(kind: str, needles: str, pattern: str, *, leads: bool = True) -> _Shape:
    return _Shape(kind, tuple(needles.split()), re.compile(pattern), leads)


_END = r"(?![A-Za-z0-9])"
_SHAPES = (
    _shape("cloud-key", "AKIA ASIA ABIA ACCA AROA",
           rf"A(?:KIA|SIA|BIA|CCA|ROA)[A-Z0-9]{{16}}{_END}"),
    _shape("cloud-key", "AccountKey= SharedAccessKey=",
           r"(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40,90}={0,2}"),
    _shape("cloud-key", "AIza", rf"AIza[A-Za-z0-9_-]{{35}}{_END}"),
    _shape("cloud-key", "GOCSPX-", r"GOCSPX-[A-Za-z0-9_-]{20,}"),
    _shape("cloud-key", "ya29.", r"ya29\.[A-Za-z0-9_-]{30,}"),
    _shape("cloud-key", "dop_v1_ doo_v1_ dor_v1_", r"do[por]_v1_[a-f0-9]{64}"),
    _shape("cloud-key", "LTAI", rf"LTAI[A-Za-z0-9]{{16,20}}{_END}"),
    _shape("forge-token", "ghp_ gho_ ghu_ ghs_ ghr_", rf"gh[pousr]_[A-Za-z0-9]{{36,251}}{_END}"),
    _shape("forge-token", "github_pat_", r"github_pat_[A-Za-z0-9_]{40,}"),
    _shape("forge-token", "glpat- gldt- glrt- glcbt- glptt- glsoat- glft- glimt- glagent- gloas-",
           r"gl(?:pat|dt|rt|cbt|ptt|soat|ft|imt|agent|oas)-[A-Za-z0-9_.-]{20,}"),
    _shape("forge-token", "GR1348941", r"GR1348941[A-Za-z0-9_-]{20}"),
    _shape("forge-token", "ATBB ATATT3", r"AT(?:BB[A-Za-z0-9]{28,}|ATT3[A-Za-z0-9_=-]{40,})"),
    _shape("chat-token", "xox", r"xox[abeoprs](?:-[A-Za-z0-9]{4,}){2,}"),
    _shape("chat-token", "xapp-", r"xapp-\d-[A-Z0-9]{8,}-\d{8,}-[a-z0-9]{20,}"),
    _shape("chat-token", "hooks.slack.com/",
           r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]{20,}", leads=False),
    _shape("chat-token", "/api/webhooks/",
           r"discord(?:app)?\.com/api/webhooks/\d{15,}/[A-Za-z0-9_-]{40,}", leads=False),
    _shape("provider-key", "sk-ant-", r"sk-ant-[a-z0-9]+-[A-Za-z0-9_-]{24,}"),
    _shape("provider-key", "sk-proj- sk-svcacct- sk-admin- sk-or-",
           r"sk-(?:proj|svcacct|admin|or)-[A-Za-z0-9_-]{32,}"),
    _shape("provider-key", "sk-", rf"sk-[A-Za-z0-9]{{32,}}{_END}"),
    _shape("provider-key", "hf_ api_org_", rf"(?:hf|api_org)_[A-Za-z0-9]{{30,40}}{_END}"),
    _shape("provider-key", "nvapi-", r"nvapi-[A-Za-z0-9_-]{40,}"),
    _shape("provider-key", "gsk_", rf"gsk_[A-Za-z0-9]{{40,}}{_END}"),
    _shape("provider-key", "r8_", rf"r8_[A-Za-z0-9]{{37}}{_END}"),
    _shape("provider-key", "xai-", rf"xai-[A-Za-z0-9]{{60,}}{_END}"),
    _shape("provider-key", "pplx-", rf"pplx-[A-Za-z0-9]{{40,}}{_END}"),
    _shape("provider-key", "tgp_v1_", r"tgp_v1_[A-Za-z0-9_-]{40,}"),
    _shape("payment-key", "sk_live_ rk_live_ pk_live_ sk_test_ rk_test_ pk_test_",
           r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"),
    _shape("payment-key", "whsec_", r"whsec_[A-Za-z0-9+/=]{24,}"),
    _shape("payment-key", "sq0", r"sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{22,}"),
    _shape("payment-key", "access_token$",
           r"access_token\$(?:production|sandbox)\$[a-z0-9]{16}\$[a-f0-9]{32}"),
    _shape("registry-token", "npm_", rf"npm_[A-Za-z0-9]{{36}}{_END}"),
    _shape("registry-token", "pypi-AgE", r"pypi-AgE[A-Za-z0-9_-]{50,}"),
    _shape("registry-token", "dckr_", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}"),
    _shape("registry-token", "rubygems_", r"rubygems_[a-f0-9]{48}"),
    _shape("registry-token", "cio", rf"cio[A-Za-z0-9]{{32}}{_END}"),
    _shape("registry-token", "AKC", rf"AKC[A-Za-z0-9]{{60,80}}{_END}"),
    _shape("service-token", "SG.", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
    _shape("service-token", "hvs. hvb. hvr.", r"hv[sbr]\.[A-Za-z0-9_-]{24,}"),
    _shape("service-token", "dapi", rf"dapi[a-f0-9]{{32}}(?:-\d)?{_END}"),
    _shape("service-token", "shp", rf"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{{32}}{_END}"),
    _shape("service-token", "glsa_ glc_", r"gl(?:sa|c)_[A-Za-z0-9+/_=]{32,}"),
    _shape("service-token", "lin_api_", r"lin_api_[A-Za-z0-9]{40}"),
    _shape("service-token", "PMAK-", r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    _shape("service-token", "sntrys_ sntryu_", r"sntry[su]_[A-Za-z0-9+/=_-]{40,}"),
    _shape("service-token", "dp.", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9.]{40,}"),
    _shape("service-token", "tskey-", r"tskey-[a-z]+-[A-Za-z0-9]{8,}-[A-Za-z0-9]{16,}"),
    _shape("service-token", ".atlasv1.",
           r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}", leads=False),
    _shape("service-token", "secret_ ntn_",
           rf"(?:secret_[A-Za-z0-9]{{43}}|ntn_[A-Za-z0-9]{{40,}}){_END}"),
    _shape("service-token", "EAA", rf"EAA[A-Za-z0-9]{{80,}}{_END}"),
    _shape("service-token", "key-", rf"key-[a-f0-9]{{32}}{_END}"),
    _shape("service-token", "AC SK", rf"(?:AC|SK)[a-f0-9]{{32}}{_END}"),
)  # fmt: skip
_JWT = re.compile(
    r"(?<![A-Za-z0-9_-])(eyJ[A-Za-z0-9_-]{8,})\.([A-Za-z0-9_-]{4,})\.([A-Za-z0-9_-]{16,})"
)


_INNER = (
    ("chat-token", re.compile(r":AA[A-Za-z0-9_-]{32,33}(?![A-Za-z0-9_-])"),
     re.compile(r"(?<![A-Za-z0-9])\d{8,10}\Z")),
    ("chat-token", re.compile(r"\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}(?![A-Za-z0-9_-])"),
     re.compile(r"(?<![A-Za-z0-9_-])[MNO][A-Za-z0-9_-]{23,27}\Z")),
)  # fmt: skip
"""Tokens that start with nothing in particular: what is inside, and what stands before that."""
_WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def tokens(subject: Subject) -> Iterator[Match]:
    """Tokens by prefix or shape, and signed JSON web tokens."""
    text = subject.text
    for shape in _SHAPES:
        for match in _shaped(shape, text):
            if "EXAMPLE" not in match[0] and len(set(match[0])) > 8:
                yield Match(shape.kind, *match.span())
    for kind, inside, before in _INNER:
        for match in inside.finditer(text):
            start = before.search(text, max(0, match.start() - 32), match.start())
            if start is not None:
                yield Match(kind, start.start(), match.end())
    if "eyJ" in text:
        for match in _JWT.finditer(text):
            if _is_header(match[1]):
                yield Match("json-web-token", *match.span())


def _shaped(shape: _Shape, text: str) -> Iterator[re.Match[str]]:
    for needle in shape.needles:
        place = text.find(needle)
        if place >= 0 and not shape.leads:
            yield from shape.pattern.finditer(text)
            return
        while place >= 0:
            if not place or text[place - 1] not in _WORD:
                match = shape.pattern.match(text, place)
                if match is not None:
                    yield match
            place = text.find(needle, place + len(needle))


def _is_header(part: str) -> bool:
    try:
        header = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return False
    return isinstance(header, dict) and ("alg" in header or "typ" in header)
