"""The metering relay between the agent and an engine: one process-local proxy on loopback.

Every model call of a trial goes through it. It reads from the request that was sent what the agent
really asked for, counts what the engine really answered, lets nothing but chat completions of the
one allowed model pass, talks to the one configured target, and follows no redirect. It changes what
is asked in one respect: an engine is always asked for a stream, so that progress shows token by
token; a client that wanted one answer gets it put together again (see `streams`).

It runs in a thread of its own with its own event loop and keeps no prompt and no answer.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from qualify.core.errors import EnvironmentFault
from qualify.runtimes.calls import Activity, Call, Expectation, Kind

if TYPE_CHECKING:
    from aiohttp import ClientSession, web

_BODY_LIMIT = 32 << 20
_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 10
_ACTIVITY_PAUSE_S = 0.1

type Listener = Callable[[Activity], None]


class Relay:
    """One relay. `start`, use `url` (agent) and `direct_url` (questions of our own), `stop`.

    `extras` are body fields added to every request (`Engine.request_extras`); `on_activity` hears
    of progress, in the relay's thread; `timeout_s` bounds one model call.
    """

    def __init__(
        self,
        target_url: str,
        target_key: str,
        expected: Expectation,
        *,
        extras: Mapping[str, Any] | None = None,
        on_activity: Listener | None = None,
        timeout_s: float = 3600,
    ) -> None:
        self.expected = expected
        self.extras = dict(extras or {})
        self.timeout_s = timeout_s
        self.target = (target_url.rstrip("/"), target_key)
        self.session: ClientSession | None = None
        self._listener = on_activity
        self._next_activity = 0.0
        self._last_phase = ""
        self._key = ""
        self._port = 0
        self._calls: list[Call] = []
        self._in_flight = 0
        self._refused = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """Base address for the agent, up to and including `/v1`."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def direct_url(self) -> str:
        """Base address for questions that are not the agent's; such calls have kind `direct`."""
        return f"http://127.0.0.1:{self._port}/direct/v1"

    @property
    def key(self) -> str:
        """The random bearer token that clients must send."""
        return self._key

    @property
    def model_name(self) -> str:
        """The only model id that is let through."""
        return self.expected.model_name

    @property
    def refused(self) -> int:
        """Requests without the key, or for a path that is not on the list."""
        return self._refused

    def retarget(self, target_url: str, target_key: str) -> None:
        """Send later calls to an engine that was started again."""
        self.target = (target_url.rstrip("/"), target_key)

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────

    def start(self) -> tuple[str, str]:
        """Listen, and return `url` and `key`. Raises `EnvironmentFault`."""
        if self._thread is not None:
            raise RuntimeError("the relay is already started")
        self._key = secrets.token_urlsafe(32)
        ready: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="relay", daemon=True
        )
        self._thread.start()
        try:
            self._port = ready.result(_START_TIMEOUT_S)
        except (OSError, ImportError, TimeoutError) as error:
            self._thread = None
            raise EnvironmentFault(
                f"the relay could not be started: {error}",
                fix="install the run extra; check that loopback works",
            ) from error
        return self.url, self._key

    def stop(self) -> None:
        """Stop listening; calls at work are broken off and recorded as failed. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._closing is None:
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        thread.join(_STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def _serve(self, ready: Future[int]) -> None:
        try:
            import aiohttp
            from aiohttp import web

            from qualify.runtimes.relaying import handlers

            application = web.Application(client_max_size=_BODY_LIMIT)
            application.router.add_routes(handlers(self))
            runner = web.AppRunner(
                application, access_log=None, handler_cancellation=True, shutdown_timeout=0.5
            )
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        except (OSError, ImportError, RuntimeError) as error:
            ready.set_exception(error)
            return
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        # A connection for each call: a kept one that the engine has closed would look like a fault.
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=self.timeout_s, connect=30),
            max_line_size=1 << 16,
        )
        ready.set_result(runner.addresses[0][1])
        try:
            await self._closing.wait()
        finally:
            await runner.cleanup()
            await self.session.close()

    # ── accounting ───────────────────────────────────────────────────────────────────────────────

    def calls(self) -> tuple[Call, ...]:
        """Every finished call, in the order in which they ended."""
        with self._changed:
            return tuple(self._calls)

    def mark(self) -> int:
        """A point in time for `since`."""
        with self._changed:
            return len(self._calls)

    def since(self, mark: int, *, settle_s: float = 2.0) -> tuple[Call, ...]:
        """Calls that ended after `mark`, after at most `settle_s` seconds for those at work."""
        self.settle(settle_s)
        with self._changed:
            return tuple(self._calls[mark:])

    def settle(self, timeout_s: float) -> bool:
        """Wait until no call is at work; tell whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._in_flight == 0, timeout_s)

    def admits(self, request: web.Request) -> bool:
        """Whether a request carries the key."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        good = hmac.compare_digest(given.encode(), self._key.encode())
        if not good:
            self.refuse()
        return good

    def refuse(self) -> None:
        """Count a request that nobody was meant to make."""
        with self._changed:
            self._refused += 1

    def begin(self) -> None:
        """A call starts."""
        with self._changed:
            self._in_flight += 1

    def finish(self, call: Call) -> None:
        """A call has ended."""
        with self._changed:
            self._calls.append(call)
            self._in_flight -= 1
            self._changed.notify_all()

    def tell(self, kind: Kind, phase: str, begun: float, **counts: Any) -> None:
        """Pass progress on, at most ten times a second; a new phase is always told."""
        now = time.monotonic()
        if self._listener is None or (now < self._next_activity and phase == self._last_phase):
            return
        self._next_activity, self._last_phase = now + _ACTIVITY_PAUSE_S, phase
        self._listener(
            Activity(
                kind=kind,
                phase=phase,  # type: ignore[arg-type]
                elapsed_ms=int((now - begun) * 1000),
                prompt_done=counts.get("prompt_done"),
                prompt_total=counts.get("prompt_total"),
                completion_tokens=counts.get("completion_tokens", 0),
            )
        )
