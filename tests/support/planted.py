"""A tree of files made from a seed: what must be found in it, and decoys which must not.

Every planted value is made here, at random; none is written in a file of this project.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import random
import string
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import zstandard

ALNUM = string.ascii_letters + string.digits
type Maker = Callable[[random.Random], str]


@dataclass(frozen=True)
class Planted:
    """One thing that must be found: in which file, on which line (0: none), of which kind."""

    file: str
    line: int
    kind: str
    what: str
    value: str


def _some(rng: random.Random, count: int, letters: str = ALNUM) -> str:
    return "".join(rng.choice(letters) for _ in range(count))


def _hex(rng: random.Random, count: int) -> str:
    return _some(rng, count, "0123456789abcdef")


def _strong(rng: random.Random, count: int) -> str:
    """Letters of both cases and digits, for sure."""
    body = [
        *_some(rng, count - 3),
        rng.choice("0123456789"),
        rng.choice("GHJK"),
        rng.choice("wvut"),
    ]
    rng.shuffle(body)
    return "".join(body)


def _pem(rng: random.Random, label: str) -> str:
    body = base64.b64encode(rng.randbytes(rng.choice((48, 300)))).decode()
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----"


def _jwt(rng: random.Random) -> str:
    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    claims = json.dumps({"sub": _some(rng, 8), "n": rng.random()}).encode()
    return ".".join((part(b'{"alg":"HS256","typ":"JWT"}'), part(claims), part(rng.randbytes(32))))


def _luhn(rng: random.Random, start: str, length: int) -> str:
    body = start + _some(rng, length - len(start) - 1, string.digits)
    total = sum(
        (d := int(c) * (2 - i % 2)) - 9 * (d > 9) for i, c in enumerate(reversed(body))
    )  # fmt: skip
    return body + str(-total % 10)


def _iban(rng: random.Random) -> str:
    country, length = rng.choice((("DE", 22), ("CH", 21), ("NL", 18), ("FR", 27), ("PL", 28)))
    body = "ABNA" if country == "NL" else ""
    body += _some(rng, length - 4 - len(body), string.digits)
    digits = "".join(str(int(c, 36)) for c in body + country + "00")
    code = f"{country}{98 - int(digits) % 97:02d}{body}"
    grouped = " ".join(code[at : at + 4] for at in range(0, length, 4))
    return rng.choice((code, grouped))


def _ahv(rng: random.Random) -> str:
    body = "756" + _some(rng, 9, string.digits)
    total = sum(int(c) * (1 + 2 * (i % 2)) for i, c in enumerate(body))
    code = body + str(-total % 10)
    return f"{code[:3]}.{code[3:7]}.{code[7:11]}.{code[11:]}"


NAMES = ("jmueller", "a.kowalska", "t-nguyen", "okafor2", "lindqvist")
HOSTS = ("mail.hospital-north.org", "kowalska-praxis.de", "uni-west.edu", "acme-lab.co.uk")


def _card(rng: random.Random) -> str:
    code = rng.choice((_luhn(rng, "4", 16), _luhn(rng, "53", 16), _luhn(rng, "37", 15)))
    if len(code) == 16 and rng.random() < 0.5:
        return rng.choice(" -").join(code[at : at + 4] for at in range(0, 16, 4))
    return code


def _phone(rng: random.Random) -> str:
    def some(count: int, letters: str = string.digits[1:]) -> str:
        return _some(rng, count, letters)

    return rng.choice((
        f"+49 {some(3)} {some(7)}", f"+1 ({some(3, '23456789')}) {some(3, '23456789')}-{some(4)}",
        f"+41{some(9)}", f"{some(3, '23456789')}-{some(3, '23456789')}-{some(4)}",
        f"Tel.: 0{some(3)} / {some(6)}", f"+44 20 {some(4)} {some(4)}",
    ))  # fmt: skip


def _ssn(rng: random.Random) -> str:
    return f"{rng.randint(100, 665)}-{rng.randint(10, 99)}-{rng.randint(1000, 9999)}"


CAPITALS = string.ascii_uppercase + string.digits
BECH32 = "QPZRY9X8GF2T" + "VDW0S3JN54KH" + "CE6MUA7L"
WEAK = ("tiger", "wolke", "sommer")
LABELS = ("", "RSA ", "EC ", "ENCRYPTED ")


def _base64(rng: random.Random, count: int) -> str:
    return base64.b64encode(rng.randbytes(count)).decode()


def _login(rng: random.Random) -> str:
    return base64.b64encode(f"ci:{_strong(rng, 12)}".encode()).decode()


def _number(rng: random.Random) -> str:
    return _some(rng, 12, string.digits)


def _path(rng: random.Random) -> str:
    return f"{_some(rng, 8)}/B{_some(rng, 8)}/{_strong(rng, 24)}"


def _pgp(rng: random.Random) -> str:
    plain = _pem(rng, "PGP PRIVATE KEY BLOCK")
    return plain.replace("-----\n", "-----\nVersion: 1\n\n", 1)


def _jwk(rng: random.Random) -> str:
    parts = {"kty": "OKP", "crv": "Ed25519", "x": _strong(rng, 43), "d": _strong(rng, 43)}
    return json.dumps(parts, separators=rng.choice(((",", ":"), (", ", ": "))))


SHAPES: dict[str, tuple[str, Maker]] = {
    "AWS key": ("cloud-key", lambda r: "AKIA" + _some(r, 16, CAPITALS)),
    "AWS session key": ("cloud-key", lambda r: "ASIA" + _some(r, 16, CAPITALS)),
    "AWS secret": ("password", lambda r: "aws_secret_access_key = " + _strong(r, 40)),
    "Google key": ("cloud-key", lambda r: "AIza" + _strong(r, 35)),
    "Azure key": ("cloud-key", lambda r: "AccountKey=" + _base64(r, 64)),
    "GitHub": ("forge-token", lambda r: f"gh{r.choice('pousr')}_{_strong(r, 36)}"),
    "GitHub fine": ("forge-token", lambda r: f"github_pat_{_strong(r, 22)}_{_strong(r, 59)}"),
    "GitLab": ("forge-token", lambda r: "glpat-" + _strong(r, 20)),
    "Slack": ("chat-token", lambda r: f"xoxb-{_number(r)}-{_number(r)}-{_strong(r, 24)}"),
    "Slack hook": ("chat-token", lambda r: "https://hooks.slack.com/services/T" + _path(r)),
    "Telegram": ("chat-token", lambda r: f"{r.randint(10**8, 10**9)}:AA{_strong(r, 33)}"),
    "Stripe": ("payment-key", lambda r: r.choice(("sk_live_", "rk_test_")) + _strong(r, 24)),
    "OpenAI": ("provider-key", lambda r: "sk-proj-" + _strong(r, 48)),
    "OpenAI old": ("provider-key", lambda r: "sk-" + _strong(r, 48)),
    "Anthropic": ("provider-key", lambda r: f"sk-ant-api03-{_strong(r, 93)}"),
    "Hugging Face": ("provider-key", lambda r: "hf_" + _some(r, 34, string.ascii_letters)),
    "npm": ("registry-token", lambda r: "npm_" + _strong(r, 36)),
    "npmrc": ("registry-token", lambda r: "//registry.npmjs.invalid/:_authToken=" + _strong(r, 30)),
    "PyPI": ("registry-token", lambda r: "pypi-AgE" + _strong(r, 60)),
    "Docker login": ("registry-token", lambda r: f'"auth": "{_login(r)}"'),
    "SendGrid": ("service-token", lambda r: f"SG.{_strong(r, 22)}.{_strong(r, 43)}"),
    "Vault": ("service-token", lambda r: "hvs." + _strong(r, 90)),
    "JWT": ("json-web-token", _jwt),
    "URL": ("address-password", lambda r: f"postgres://svc:{_strong(r, 12)}@db.corp-north.net/x"),
    "Git URL": ("address-password", lambda r: f"https://ci:{_strong(r, 20)}@git.corp.net/a.git"),
    "assignment": ("password", lambda r: f'password = "{_strong(r, 14)}"'),
    "weak password": ("password", lambda r: f'password: "{r.choice(WEAK)}{r.randint(10, 99)}!"'),
    "environment": ("password", lambda r: f'DB_PASSWORD="{_strong(r, 16)}"'),
    "API key": ("password", lambda r: f'"api_key": "{_strong(r, 32)}"'),
    "bearer": ("password", lambda r: f"Authorization: Bearer {_strong(r, 40)}"),
    "basic": ("password", lambda r: f"Authorization: Basic {_login(r)}"),
    "netrc": ("password", lambda r: f"machine host.corp.net login ci password {_strong(r, 12)}"),
    "hash": ("password-hash", lambda r: f"$6${_some(r, 12)}${_some(r, 86)}"),
    "bcrypt": ("password-hash", lambda r: f"$2b$12${_some(r, 53)}"),
    "PEM": ("private-key", lambda r: _pem(r, r.choice(LABELS) + "PRIVATE KEY")),
    "OpenSSH": ("private-key", lambda r: _pem(r, "OPENSSH PRIVATE KEY")),
    "PGP": ("private-key", _pgp),
    "age": ("private-key", lambda r: "AGE-SECRET-KEY-1" + _some(r, 58, BECH32)),
    "JWK": ("private-key", _jwk),
    "home": ("local-path", lambda r: f"/home/{r.choice(NAMES)}/projects/{_some(r, 5)}.txt"),
    "mac home": ("local-path", lambda r: f"/Users/{r.choice(NAMES)}/Desktop"),
    "Windows home": ("local-path", lambda r: rf"C:\Users\{r.choice(NAMES)}\file.txt"),
    "root": ("local-path", lambda r: f"/root/{_some(r, 6)}/x"),
    "work": ("local-path", lambda r: f"/work/{_some(r, 6)}/x"),
    "mail": ("e-mail", lambda r: f"{r.choice(NAMES)}@{r.choice(HOSTS)}"),
    "mail at example": ("e-mail", lambda r: f"{r.choice(NAMES)}@example.com"),
    "telephone": ("telephone", _phone),
    "IBAN": ("bank-account", _iban),
    "card": ("payment-card", _card),
    "SSN": ("national-id", _ssn),
    "AHV": ("national-id", _ahv),
    "random": ("high-entropy", lambda r: _strong(r, 40)),
    "random hex": ("high-entropy", lambda r: "x = '" + _hex(r, 32) + "'"),
    "session": ("high-entropy", lambda r: '{"session":"' + _hex(r, 32) + '"}'),
    "random base64": ("high-entropy", lambda r: _base64(r, 33)),
}  # fmt: skip

DECOYS: tuple[Maker, ...] = (
    lambda r: f"sha256:{_hex(r, 64)}",
    lambda r: f"{_hex(r, 64)}  dist/package-1.2.3.tar.gz",
    lambda r: f"commit {_hex(r, 40)}",
    lambda r: f'"site": "{_hex(r, 32)}"',
    lambda r: f"sha512-{base64.b64encode(r.randbytes(64)).decode()}",
    lambda r: f"/nix/store/{_some(r, 32, '0123456789abcdfghijklmnpqrsvwxyz')}-name-1.0",
    lambda r: "{}-{}-{}-{}-{}".format(*(_hex(r, n) for n in (8, 4, 4, 4, 12))),
    lambda r: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + _some(r, 43),
    lambda r: _pem(r, "PUBLIC KEY"),
    lambda r: _pem(r, "CERTIFICATE"),
    lambda r: "password = os.environ['DB_PASSWORD']",
    lambda r: 'password: "your-password-here"',
    lambda r: "token = get_token(request)",
    lambda r: f"prompt_tokens: {r.randint(1000, 99999)}",
    lambda r: "secret_name: database-credentials",
    lambda r: "https://user:password@example.com/x",
    lambda r: "write to user@example.com or git@example.org:project.git",
    lambda r: (
        f"{r.randint(1, 9)}.{r.randint(1, 99)}.{r.randint(1, 9999)}.dev{r.randint(1, 999999)}"
    ),
    lambda r: f"2026-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}T{r.randint(10, 23)}:17:29Z",
    lambda r: f"elapsed_ns = {r.randint(10**17, 10**18)}",
    lambda r: "/home/user/project and $HOME/.config and ~/x and /usr/share/doc and /tmp/x",
    lambda r: "https://host.invalid/home/index.html",
    lambda r: "AKIA" + "IOSFODNN7" + "EXAMPLE",
    lambda r: "-----BEGIN PRIVATE KEY-----",
    lambda r: "class HuggingFaceTextGenerationInferenceEndpointConfiguration2Parser:",
    lambda r: "test_a_rejected_group_executes_nothing_and_42_more_things_happen",
    lambda r: "torch-2.9.1+cu129-cp312-cp312-manylinux_2_28_x86_64.whl",
    lambda r: f"card 4{_some(r, 14, string.digits)}",
    lambda r: f"{r.randint(100, 999)},{r.randint(100, 999)},{r.randint(1000, 9999)}",
    lambda r: "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
    lambda r: "image@sha256:" + _hex(r, 64),
)
WORDS = (
    "the", "run", "keeps", "its", "evidence", "and", "nobody", "can", "improve", "it", "later",
    "on", "a", "quiet", "morning",
)  # fmt: skip
ENDINGS = ("md", "txt", "log", "py", "yaml", "json", "env", "toml", "sh", "cfg")


def plant(root: Path, seed: int, files: int = 500) -> list[Planted]:
    """Write the tree and return what must be found in it."""
    rng = random.Random(seed)
    planted: list[Planted] = []
    shapes = list(SHAPES)
    for index in range(files):
        kind_of_file = index % 10
        ending = ENDINGS[index // 10 % len(ENDINGS)]
        chosen = [shapes[(index * 3 + n) % len(shapes)] for n in range(3)] if index % 4 else []
        path = root / f"d{index % 7}" / f"sub{index % 3}" / f"f{index:03d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        text, found = _text(rng, chosen)
        _write(path, kind_of_file if found else 0, text, rng)
        name = path.relative_to(root).as_posix()
        for line, shape, value in found:
            shown = line if kind_of_file in (0, 1, 2, 3, 4, 9) else 0
            planted.append(Planted(name, shown, SHAPES[shape][0], shape, value))
    return planted


def _text(rng: random.Random, shapes: list[str]) -> tuple[str, list[tuple[int, str, str]]]:
    lines: list[str] = []
    found = []
    for shape in shapes:
        lines += _filler(rng)
        value = SHAPES[shape][1](rng)
        before = rng.choice(("", "  ", "see "))
        found.append((len(lines) + 1, shape, value))
        lines += f"{before}{value}".split("\n")
    return "\n".join([*lines, *_filler(rng)]) + "\n", found


def _filler(rng: random.Random) -> list[str]:
    lines = []
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.5:
            lines.append(" ".join(rng.choice(WORDS) for _ in range(8)))
        else:
            lines += rng.choice(DECOYS)(rng).split("\n")
    return lines


def _write(path: Path, sort: int, text: str, rng: random.Random) -> None:
    data = text.encode()
    if sort == 4:
        data = text.encode("utf-16")
    elif sort == 5:
        data = rng.randbytes(3000) + b"\0" + data + b"\0" + rng.randbytes(500)
    elif sort == 6:
        data = _zip({"inner/part.txt": data})
    elif sort == 7:
        data = gzip.compress(_tar({"a/b.txt": data}))
    elif sort == 8:
        data = _database(path, text)
    elif sort == 9:
        data = zstandard.compress(data)
    path.write_bytes(data)


def _zip(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def _tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def _database(path: Path, text: str) -> bytes:
    """A DuckDB or a Parquet file with the text in a column."""
    scratch = path.with_suffix(".scratch")
    parquet = int(path.stem[1:]) % 20 == 8
    with duckdb.connect(":memory:" if parquet else str(scratch)) as connection:
        connection.execute("CREATE TABLE notes (id INTEGER, note VARCHAR)")
        connection.execute("INSERT INTO notes VALUES (1, ?)", [text])
        if parquet:
            connection.execute(f"COPY notes TO '{scratch}' (FORMAT parquet, COMPRESSION zstd)")
    data = scratch.read_bytes()
    scratch.unlink()
    return data
