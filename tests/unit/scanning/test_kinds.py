"""Each kind has values that are found and neighbours that are not.

Values are put together when the tests run, so that none stands in this file.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from qualify.scanning.kinds import KINDS
from qualify.scanning.texts import find
from support.planted import SHAPES

HEX = "0123456789abcdef"
SECRET = "x8Jk2" + "mQp77zR"
TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3
HOME = "/ho" + "me/"


def kinds(text: str, name: str = "notes.md") -> list[str]:
    return [match.kind for match in find(text, name)]


@pytest.mark.parametrize("what", SHAPES)
@pytest.mark.parametrize("name", ["a.md", "a.yaml", "a.env", "Dockerfile"])
def test_each_planted_shape_is_found_as_its_kind(what: str, name: str) -> None:
    kind, make = SHAPES[what]
    for seed in range(10):
        value = make(random.Random(seed))
        assert kind in kinds(f"before\n{value}\nbehind\n", name), seed


def test_every_kind_but_unread_has_a_shape() -> None:
    assert {kind for kind, _ in SHAPES.values()} == set(KINDS) - {"unread"}


FOUND: dict[str, tuple[str, str, str]] = {
    "in JSON": ("password", '{"password": "' + SECRET + '"}', "a.json"),
    "in YAML without quotes": ("password", f"db:\n  password: {SECRET}\n", "a.yaml"),
    "in TOML": ("password", f"client_secret = '{SECRET}'", "a.toml"),
    "a default of a parameter": ("password", f'def f(password: str = "{SECRET}"):', "a.py"),
    "an entry of a mapping in code": ("password", f"d['api_key'] = '{SECRET}'", "a.py"),
    "an option": ("password", f"tool --password {SECRET} --x", "run.sh"),
    "curl": ("password", f"curl -u ci:{SECRET} host", "a.sh"),
    "a header": ("password", f"X-Api-Key: {SECRET}1", "a.log"),
    "XML": ("password", f"<password>{SECRET}</password>", "a.xml"),
    "SQL": ("password", f"CREATE USER u IDENTIFIED BY '{SECRET}'", "a.sql"),
    "pgpass": ("password", f"db.corp.net:5432:app:svc:{SECRET}", ".pgpass"),
    "a German word": ("password", f"Kennwort: {SECRET}", "a.txt"),
    "a private key that is cut off": (
        "private-key", "-----BEGIN PRIVATE" + " KEY-----\n" + (SECRET + "Ab1Cd2") * 4, "a.txt"),
    "a key in a string of a program": (
        "private-key",
        'K = "-----BEGIN EC PRIVATE' + ' KEY-----\\n' + SECRET * 6 + "\\n-----END EC PRIVATE"
        + ' KEY-----"', "a.py"),
    "a home of Windows in JSON": ("local-path", '{"p": "C:\\\\Users\\\\lindqvist\\\\x"}', "a.json"),
    "a home with escaped slashes": (
        "local-path", '"' + HOME.replace("/", "\\/") + 'lindqvist\\/x"', "a.json"),
    "a home in a file address": ("local-path", f"file://{HOME}lindqvist/x", "a.md"),
    "a scratch folder": ("local-path", "/scra" + "tch/lindqvist/run", "a.md"),
    "a temporary folder of macOS": ("local-path", "/var/fol" + "ders/ab/cdefghijk/T", "a.md"),
    "a UNC path": ("local-path", "\\\\server" + "\\share\\projects\\x", "a.txt"),
    "an address in an escape": ("e-mail", "lindqvist%40" + "uni-west.edu", "a.html"),
    "an address in HTML": ("e-mail", "lindqvist&#64;" + "uni-west.edu", "a.html"),
    "an address with letters of other languages": ("e-mail", "jürgen@" + "müller-praxis.de", "a"),
    "a number with its name": ("telephone", "phone: 0341" + " 123 4567", "a.txt"),
    "random behind an escape": ("forge-token", '"a\\n' + TOKEN + '"', "a.json"),
    "a token with an escaped sign": ("forge-token", "glpat\\u002d" + "a1B2c3D4e5" * 2, "a.json"),
    "a token in an address": ("forge-token", f"https://h/?t={TOKEN}&x", "a.md"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_it_is_found(what: str) -> None:
    kind, text, name = FOUND[what]
    assert kinds(text, name) == [kind]


CLEAN: dict[str, tuple[str, str]] = {
    "a variable": ("password = get_password(user)", "a.py"),
    "an environment variable": ("password: ${DB_PASSWORD}", "a.yaml"),
    "a placeholder": ("password: <your password>", "a.md"),
    "a template": ("password: {{ vault.password }}", "a.yaml"),
    "a name of a field": ('"password": "password_hash"', "a.json"),
    "a count": ("max_tokens: 16384", "a.yaml"),
    "a file of accounts": ("etc/passwd: 0644 root", "a.yaml"),
    "a sentence": ("The password is asked for once. Token: the smallest part of a text.", "a.md"),
    "a C++ name": ("RsaPrivateKey::version", "a.md"),
    "a header of a key": ("it starts with -----BEGIN PRIVATE KEY----- and a line", "a.md"),
    "a placeholder of a key": (
        "-----BEGIN PRIVATE KEY-----\nyour key here\n-----END PRIVATE KEY-----", "a.md"),
    "a public JWK": ('{"kty":"OKP","crv":"Ed25519","x":"' + "aB3x" * 11 + '"}', "a.json"),
    "a login that is a name": ("https://user:password@example.com", "a.md"),
    "no user": ("https://host.example:8080/@scope/package", "a.md"),
    "folders of everybody": ("/usr/share /etc/x /var/lib/y /tmp/z ~/x $HOME/x /home/user", "a.md"),
    "a route": ("GET https://host.example/home/index /api/users/7", "a.md"),
    "an address of nobody": ("user@example.com git@github.com:a/b.git noreply@example.org", "a.md"),
    "a decorator": ("@pytest.mark.parametrize\nx@y.shape", "a.py"),
    "a version of an image": ("name@sha256:" + HEX * 4, "a.md"),
    "a time": ("2026-12-01T10:17:29Z 20261201101729", "a.md"),
    "versions": ("1.2.3.4 v10.11.12 580.95.05", "a.md"),
    "numbers": ("524288 1073741824 0.123456789 3.14159265358979", "a.md"),
    "a table of numbers": ("| 4111 1111 | 222-333 | 12-34-5678 |", "a.md"),
    "a digest": ("sha256:" + HEX * 4, "a.json"),
    "a list of digests": (HEX * 4 + "  wheels/x-1.0.whl\n" + HEX * 4 + "  y.tar.gz\n", "SUMS"),
    "a commit": ("commit " + (HEX * 3)[:40], "a.txt"),
    "a subresource digest": ("sha512-" + "aB3x" * 21 + "a+", "a.json"),
    "a UUID": ("12345678-9abc-4def-8123-456789abcdef", "a.txt"),
    "a public key": ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "aB3x" * 11, "a.pub"),
    "a name of a class": ("AutomaticSpeechRecognitionPipelineForConditionalGeneration2", "a.py"),
    "a wheel": ("torch-2.9.1+cu129-cp312-cp312-manylinux_2_28_x86_64.whl", "a.md"),
    "the alphabet": ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", "a.py"),
}  # fmt: skip


@pytest.mark.parametrize("what", CLEAN)
def test_it_is_not_found(what: str) -> None:
    text, name = CLEAN[what]
    assert kinds(text, name) == []


def wrong_digit(value: str) -> str:
    """The value with its last digit changed, so that its checksum is not sound."""
    index = max(i for i, c in enumerate(value) if c.isdigit())
    return f"{value[:index]}{(int(value[index]) + 1) % 10}{value[index + 1 :]}"


@pytest.mark.parametrize("what", ["IBAN", "card", "AHV"])
def test_a_number_with_a_wrong_checksum_is_not_found(what: str) -> None:
    kind, make = SHAPES[what]
    for seed in range(10):
        value = make(random.Random(seed))
        assert kind in kinds(value)
        assert kind not in kinds(wrong_digit(value))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: f"data: {text}",
        lambda text: '{"blob": "' + text + '"}',
        lambda text: "\n".join(text[at : at + 64] for at in range(0, len(text), 64)),
    ],
)
def test_what_stands_in_base64_is_found_and_marked(wrap: Callable[[str], str]) -> None:
    import base64

    text = base64.b64encode(f"user: ci\npassword = {SECRET}\nport: 1\n".encode() * 3).decode()
    (found, *_) = find(wrap(text), "a.txt")
    assert (found.kind, found.wrapped) == ("password", True)


def test_the_position_behind_escapes_is_that_in_the_file() -> None:
    text = f'one\n"x\\n\\u0041\\/{TOKEN}\\n"'
    (found,) = find(text, "a.json")
    assert text[found.start : found.end] == TOKEN


def test_matches_do_not_overlap_and_the_more_specific_one_counts() -> None:
    value = "hf_" + "AbCdEfGhIj" * 3 + "KlMn"
    assert kinds(f'token = "{value}"', "a.py") == ["provider-key"]
