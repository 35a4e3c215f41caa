"""Publishing to a folder and to a real HTTP server; places that lose, change or lie."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from qualify.core.errors import EnvironmentFault, Refusal, UsageError
from qualify.evidence.checkpoints import sign_checkpoint
from qualify.evidence.publishing import open_place, publish
from qualify.evidence.signing.keys import read_signing_key
from support.signed_site import Site

type Answer = tuple[int, bytes, dict[str, str]]


class Keeper(ThreadingHTTPServer):
    """Keeps what is put there, as a service should; `answer` may spoil a reply."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.kept: dict[str, bytes] = {}
        self.seen: list[tuple[str, str, str | None]] = []
        self.spoil = lambda method, path, status, body: (status, body, {})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/evidence"


class Handler(BaseHTTPRequestHandler):
    server: Keeper

    def do_GET(self) -> None:
        body = self.server.kept.get(self.path)
        self.reply("GET", 404 if body is None else 200, body or b"")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["If-None-Match"] == "*"
        taken = self.server.kept.setdefault(self.path, body) is not body
        self.reply("PUT", 412 if taken else 201, b"")

    def reply(self, method: str, status: int, body: bytes) -> None:
        self.server.seen.append((method, self.path, self.headers["Authorization"]))
        status, body, headers = self.server.spoil(method, self.path, status, body)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    server = Keeper()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["folder", "service"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        (tmp_path / "kept").mkdir()
        return str(tmp_path / "kept")
    keeper: Keeper = request.getfixturevalue("keeper")
    return keeper.url


def sign(site: Site) -> None:
    sign_checkpoint(site.ledger, read_signing_key(site.key), site.clock.clock())


@pytest.fixture
def signed(site: Site) -> Site:
    site.run("p")
    sign(site)
    site.run("p")
    sign(site)
    return site


def test_what_is_signed_is_published_once(signed: Site, place: str) -> None:
    done = publish(signed.ledger, open_place(place))
    assert (done.new, done.kept) == ([3, 5], [])
    done = publish(signed.ledger, open_place(place))
    assert (done.new, done.kept) == ([], [3, 5])
    signed.run("p")
    sign(signed)
    assert publish(signed.ledger, open_place(place)).new == [7]


def test_two_may_publish_at_once(signed: Site, place: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: publish(signed.ledger, open_place(place)), range(4)))
    assert sorted(count for each in done for count in each.new) == [3, 5]


def test_a_place_that_holds_another_checkpoint_is_refused_and_not_changed(
    signed: Site, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "ledger"
    shutil.copytree(signed.results / "ledger", other)
    publish(signed.ledger, open_place(place))
    # The same site, rewritten after the first checkpoint by the holder of the key.
    folder = other / "checkpoints"
    for path in folder.glob("000000000005*"):
        path.unlink()
    lines = (other / "ledger.log").read_bytes().splitlines(keepends=True)
    (other / "ledger.log").write_bytes(b"".join(lines[:3]))
    signed.results = tmp_path / "other"
    signed.clock.advance(hours=1)
    signed.run("f")
    sign(signed)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "forgotten"))
    with pytest.raises(Refusal, match="one of the two was rewritten"):
        publish(signed.ledger, open_place(place))


def test_a_ledger_that_was_rolled_back_is_told_by_the_receipts(signed: Site, place: str) -> None:
    publish(signed.ledger, open_place(place))
    for path in (signed.results / "ledger" / "checkpoints").glob("000000000005*"):
        path.unlink()
    with pytest.raises(Refusal, match="was rolled back"):
        publish(signed.ledger, open_place(place))


def test_a_folder_that_lost_or_changed_what_was_published_is_named(
    signed: Site, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    publish(signed.ledger, open_place(str(kept)))
    (path,) = kept.rglob("000000000003.json")
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(Refusal, match=r"has lost .*000000000003\.json"):
        publish(signed.ledger, open_place(str(kept)))
    path.write_bytes(data + b" ")
    with pytest.raises(Refusal, match=r"has changed .*000000000003\.json"):
        publish(signed.ledger, open_place(str(kept)))


def test_a_service_that_says_yes_and_keeps_nothing_is_not_believed(
    signed: Site, keeper: Keeper
) -> None:
    keeper.spoil = lambda method, path, status, body: (
        (201, b"", {}) if method == "PUT" else (404, b"", {})
    )
    with pytest.raises(Refusal, match="does not give back"):
        publish(signed.ledger, open_place(keeper.url))


@pytest.mark.parametrize("status", [301, 302, 307, 401, 403, 500, 503])
def test_an_answer_that_is_no_success_is_an_error_and_redirects_are_not_followed(
    status: int, signed: Site, keeper: Keeper
) -> None:
    keeper.spoil = lambda method, path, _status, body: (
        status, b"", {"Location": "http://127.0.0.1:9/"}
    )  # fmt: skip
    with pytest.raises(EnvironmentFault, match=f"answered {status}"):
        publish(signed.ledger, open_place(keeper.url))
    assert len(keeper.seen) == 1


def test_an_endless_answer_is_cut_off(signed: Site, keeper: Keeper) -> None:
    keeper.spoil = lambda method, path, status, body: (200, b"x" * (33 << 20), {})
    with pytest.raises(EnvironmentFault, match="more than"):
        publish(signed.ledger, open_place(keeper.url))


def test_the_token_goes_along_and_into_no_message(
    signed: Site, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUALIFY_PUBLISH_TOKEN", "not-to-be-seen")
    publish(signed.ledger, open_place(keeper.url))
    assert {header for _, _, header in keeper.seen} == {"Bearer not-to-be-seen"}
    keeper.spoil = lambda method, path, status, body: (500, b"", {})
    with pytest.raises(EnvironmentFault) as error:
        publish(signed.ledger, open_place(keeper.url))
    assert "not-to-be-seen" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://example.org/x", "is not encrypted"),
        ("http://127.0.0.1.example.org/x", "is not encrypted"),
        ("ftp://127.0.0.1/x", "is no http address"),
        ("file:///etc", "is no http address"),
        ("https://", "is no http address"),
        ("https://user:secret@example.org/x", "holds a credential"),
        ("https://example.org/x?token=1", "more than a host and a plain path"),
        ("https://example.org/../x", "more than a host and a plain path"),
        ("https://example.org/a b", "more than a host and a plain path"),
        ("https://example.org:99999/x", "has a port"),
        ("/nowhere/at/all", "is no folder"),
    ],
)
def test_a_place_that_must_not_be_used_is_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        open_place(url)
    assert "secret" not in str(error.value)


def test_nothing_signed_is_nothing_to_publish(site: Site, tmp_path: Path) -> None:
    site.run("p")
    with pytest.raises(UsageError, match="no checkpoint is signed"):
        publish(site.ledger, open_place(str(tmp_path)))


def test_an_interrupted_publication_goes_on(signed: Site, keeper: Keeper) -> None:
    count = 0

    def spoil(
        method: str, path: str, status: int, body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        nonlocal count
        count += method == "PUT"
        return (503, b"", {}) if count == 2 else (status, body, {})

    keeper.spoil = spoil
    with pytest.raises(EnvironmentFault, match="answered 503"):
        publish(signed.ledger, open_place(keeper.url))
    keeper.spoil = lambda method, path, status, body: (status, body, {})
    publish(signed.ledger, open_place(keeper.url))
    assert len(keeper.kept) == 6
