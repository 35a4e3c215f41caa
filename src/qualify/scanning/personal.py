"""Data that looks personal: addresses, telephone numbers, accounts, cards, national numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qualify.scanning.kinds import Match, Subject, words

_AT = re.compile(
    r"@((?:[^\W_](?:[\w-]{0,62}[^\W_])?\.){1,8}([^\W\d_]{2,24}|xn--[a-z0-9-]{2,60}))(?![\w-]|\.\w|[(\[])"
)
_LOCAL = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}\Z")
_LOCAL_START = re.compile(r"[\W_]*")
_FILE_ENDINGS = words(
    "png jpg jpeg gif svg webp py pyi pyc js mjs ts tsx jsx json yaml yml toml html css txt cfg ini"
    " gz zip whl tar lock log service socket timer target slice mount device dtype shape weight"
    " bias get post put delete patch route fixture parametrize property setter command option"
    " argument group version"
)
_TOP_DOMAINS = words(
    "com org net edu gov mil int info io eu de at ch li fr nl be lu it es pt pl cz dk se no fi uk"
    " ie us ca au nz jp cn kr in br mx za"
)
_RESERVED = re.compile(
    r"(?:.*\.)?(?:example|test|invalid|localhost|local|lan)(?:\.(?:com|org|net|edu))?",
    re.IGNORECASE,
)
_ROLES = words(
    "user username name you your me someone somebody nobody admin root git test info mail email"
    " noreply no-reply foo bar baz a b c x y example hello support security contact owner login pw"
    " password job builder nixbld runner bot ci dev u p alice bob secret token"
)
_AUTHORITY = re.compile(r"://[^\s/\"'<>]*\Z")
_SHARED = re.compile(r"(?:git|noreply|no-reply|.*\[bot\]|\d+\+.*)")
_SHARED_DOMAINS = re.compile(r"(?:.*\.)?(?:users\.noreply\..*|noreply\..*)")

_INTERNATIONAL = re.compile(
    r"[+0](?<![\w.+/=^-].)(?:(?<=\+)|0)[1-9]\d{0,2}[ ./()-]{0,2}(?:\d[ ./()-]{0,2}){6,12}\d"
    r"(?![\w]|[.-]\d)"
)
_NATIONAL = re.compile(
    r"[(1-9](?<![\w.+/=^-].)(?:(?<=1)[ .-]\(?[2-9]\d{2}|(?<=\()[2-9]\d{2}|(?<=[2-9])\d{2})"
    r"(?:\) ?|[ .-])[2-9]\d{2}[ .-]\d{4}(?![\w]|[.-]\d)"
)
_CALLED = re.compile(
    r"(?<![a-z])(?:tel|telephone|telefon|phone|fon|mobile|mobil|handy|cell|fax|call|whatsapp|sms)"
    r"(?:[ _-]?(?:number|no|nr|nummer))?\.?[\"']?\s{0,3}[:=]?\s{0,3}[\"']?(?=[\d+(])"
)
_NUMBER = re.compile(r"[+(]{0,2}\d(?:[ ./()-]{0,3}\d){6,14}(?![\w]|[.-]\d)")

_CARD = re.compile(
    r"[2-6](?<![\w.+/#-].)(?:\d{12,15}|\d{18}|\d{3}(?:[ -]\d{4}){3}(?:[ -]\d{3})?"
    r"|\d{3}[ -]\d{6}[ -]\d{5})(?![\w]|[.-]\d)"
)
_CARD_STARTS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:2[2-9]|[3-6]\d|7[01])\d{13}|3[47]\d{13}"
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12}|35\d{14}|3(?:0[0-5]|[68]\d)\d{11}|62\d{14,17}"
    r"|(?:50|5[6-9]|6\d)\d{10,17}"
)
_MEASURE = re.compile(
    r"(?:_[num]?s|bytes|size|seed|count|offset|time|timestamp|total)[\"']?[ \t]*[:=][ \t]*\Z",
    re.IGNORECASE,
)
_IBAN = re.compile(
    r"[A-Z](?<![A-Za-z0-9+/].)[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?(?![A-Za-z0-9+/])"
)
_IBAN_LENGTHS = {
    country: int(length)
    for length, countries in {
        "15": "NO", "16": "BE", "18": "DK FK FI FO GL NL SD", "19": "MK SI",
        "20": "AT BA EE KZ LT LU MN XK",
        "21": "CH HR LI LV", "22": "BG BH CR DE GB GE IE ME RS VA", "23": "AE GI IL IQ OM SO TL",
        "24": "AD CZ ES MD PK RO SA SE SK TN VG", "25": "LY PT ST", "26": "IS TR",
        "27": "BI DJ FR GR IT MC MR SM", "28": "AL AZ BY CY DO GT HN HU LB NI PL SV",
        "29": "BR EG PS QA UA", "30": "JO KW MU YE", "31": "MT SC", "32": "LC", "33": "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip
"""Length of an IBAN by country (the IBAN registry, ISO 13616)."""
_SSN = re.compile(
    r"[0-8](?<![\w.+/-].)(?!(?<=0)00|(?<=6)66)\d{2}-(?!00)\d{2}-(?!0000)\d{4}(?![\w]|[.-]\d)"
)
_AHV = re.compile(r"(?<![\w.+/-])756\.\d{4}\.\d{4}\.\d{2}(?![\w]|[.-]\d)")
_NINO = re.compile(
    r"(?:NINO|National Insurance)\b[^\n]{0,30}?"
    r"([A-CEGHJ-PR-TW-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D])(?![\w-])",
    re.IGNORECASE,
)


def personal(subject: Subject) -> Iterator[Match]:
    """E-mail, telephone, bank account, card and national number shapes."""
    text = subject.text
    if "@" in text:
        yield from _mails(subject)
    if not text.isascii() or any(digit in text for digit in "0123456789"):
        yield from _accounts(text)
        yield from _phones(subject)
    if "insurance" in subject.lower or "NINO" in text:
        for match in _NINO.finditer(text):
            yield Match("national-id", *match.span(1))


def _mails(subject: Subject) -> Iterator[Match]:
    text = subject.text
    shortest = 3 if subject.sort == "binary" else 1
    for at in _AT.finditer(text):
        local = _LOCAL.search(text, max(0, at.start() - 64), at.start())
        end = _end_of_domain(at)
        if local is None or end is None:
            continue
        start = local.start() + len(_LOCAL_START.match(local[0])[0])  # type: ignore[index]
        start = max(start, *(text.rfind(c, local.start(), at.start()) + 1 for c in "/='`{|}\\%"))
        name, domain = text[start : at.start()].lower(), text[at.start() + 1 : end].lower()
        if len(name) < shortest or len(domain) < 2 * shortest:
            continue  # bytes of a binary file that happen to look like one
        if not _is_nobody(name, domain) and not _is_login(text, start):
            yield Match("e-mail", start, end)


def _end_of_domain(at: re.Match[str]) -> int | None:
    """Where a domain ends; before `.txt` in the name of a file. `None`: it is none."""
    if at[2].lower() not in _FILE_ENDINGS:
        return at.end()
    domain = at[1].rpartition(".")[0]
    known = domain.rpartition(".")[2].lower() in _TOP_DOMAINS
    return at.start() + 1 + len(domain) if known and "." in domain else None


def _is_nobody(name: str, domain: str) -> bool:
    """Tell whether an address belongs to no person: reserved domains, and logins of machines."""
    if _RESERVED.fullmatch(domain) and (name in _ROLES or len(name) < 3):
        return True
    return bool(_SHARED.fullmatch(name) or _SHARED_DOMAINS.fullmatch(domain))


def _is_login(text: str, start: int) -> bool:
    """Tell whether the address is the authority of a URL (`ssh://name:password@host`)."""
    return _AUTHORITY.search(text, max(0, start - 80), start) is not None


def _accounts(text: str) -> Iterator[Match]:
    for match in _IBAN.finditer(text):
        if _is_iban(match[0].replace(" ", "")):
            yield Match("bank-account", *match.span())
        else:
            yield from _iban_with_tail(match)
    for match in _CARD.finditer(text):
        if _is_card(re.sub(r"\D", "", match[0])) and not _is_measure(text, match.start()):
            yield Match("payment-card", *match.span())
    if "-" in text:
        for match in _SSN.finditer(text):
            yield Match("national-id", *match.span())
    if "756." in text:
        for match in _AHV.finditer(text):
            if _ean(match[0].replace(".", "")):
                yield Match("national-id", *match.span())


def _is_card(digits: str) -> bool:
    return bool(_CARD_STARTS.fullmatch(digits)) and _luhn(digits) and len(set(digits)) > 2


def _is_measure(text: str, start: int) -> bool:
    """Tell whether a number has the name of a measurement before it."""
    return _MEASURE.search(text, max(0, start - 40), start) is not None


def _iban_with_tail(match: re.Match[str]) -> Iterator[Match]:
    """An IBAN in groups that is followed by a word in capitals."""
    length = _IBAN_LENGTHS.get(match[0][:2])
    if length is None or " " not in match[0]:
        return
    count = 0
    for index, letter in enumerate(match[0], 1):
        count += letter != " "
        if count == length:
            if _is_iban(match[0][:index].replace(" ", "")):
                yield Match("bank-account", match.start(), match.start() + index)
            return


def _is_iban(code: str) -> bool:
    if len(code) != _IBAN_LENGTHS.get(code[:2]):
        return False
    return int("".join(str(int(letter, 36)) for letter in code[4:] + code[:4])) % 97 == 1


def _luhn(digits: str) -> bool:
    total = 0
    for index, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + index % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def _ean(digits: str) -> bool:
    return sum(int(d) * (1 + 2 * (i % 2)) for i, d in enumerate(digits)) % 10 == 0


def _phones(subject: Subject) -> Iterator[Match]:
    text = subject.text
    for pattern in (_INTERNATIONAL, _NATIONAL):
        for match in pattern.finditer(text):
            if _is_number(match[0]):
                yield Match("telephone", *match.span())
    for called in _CALLED.finditer(subject.lower):
        number = _NUMBER.match(text, called.end())
        if number is not None and _is_number(number[0]):
            yield Match("telephone", *number.span())


def _is_number(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    return 7 <= len(digits) <= 15 and len(set(digits)) > 2 and text.count("(") == text.count(")")
