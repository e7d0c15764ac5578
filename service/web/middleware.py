"""What happens to each request before and after its endpoint, from the outside inwards.

- `RequestLog` gives it an id, counts it and logs it.
- `Arrivals` refuses a key beyond its rate, and lets senders without one take turns.
- `OneHost` refuses a second Host.
- `BodyLimit` refuses a body that is too large or too slow.
- `StateHeader` says in an answer of the API if the ledger is not open.
- `PageLoader` loads the pages when the first of them is asked for.
"""

import asyncio
import itertools
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import telemetry, trace_context
from service.errors import LedgerError, TooManyRequestsError, UnavailableError
from service.identity.authentication import BODY_BYTES_MAX, RATE_TAKEN, KeyRing
from service.identity.rate_limit import Pace
from service.schemas.responses import build_messages
from service.storage.single_flight import SingleFlight
from service.telemetry import KEY, OTHER, PROBLEM, Measures
from service.transparency.recovery import LedgerStatus, standing
from service.web import problems
from service.web.strict_requests import CACHING

HTTP_LOGGER: Final = logging.getLogger("dpledger.http")
_PROCESS: Final = secrets.token_hex(10)  # begins the id of each request that this process answers
_REQUESTS: Final = itertools.count()
# A prober gives up after a second or so, and then ends the process.
PROBES: Final = frozenset({"/healthz", "/readyz"})
PROBE_SECONDS_MAX: Final = 0.5
WAIT_SECONDS_MAX: Final = 10.0
_LATER: Final = "Too many ask without a key; ask again later."
STATUS_REFRESH_SECONDS: Final = (
    0.5  # within this time all processes know that the ledger is suspended
)
BODY_ENDS_AT: Final = "dpledger.body_ends_at"  # of a scope: when its body must be there
STATE_HEADER: Final = b"x-ledger-state"
_API: Final = "/v1/"
TRACEPARENT: Final = b"traceparent"
_TRACEPARENT_FORM: Final = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<rest>-[^\n]*)?"
)
_SAMPLED: Final = 1


def begin_request(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """A new id, which is that of the request in what is logged from here on, with its trace."""
    identifier = f"{_PROCESS}{next(_REQUESTS):012x}"
    telemetry.request_id.set(identifier)
    sent = read_traceparent(headers)
    trace_context.traceparent.set(sent)
    if sent is not None:
        trace_context.trace_id.set(trace_context.trace_of(sent))
    elif trace_context.span.get() is None:  # a pipelined request has the context of the one before
        trace_context.trace_id.set(None)
    return identifier


def read_traceparent(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The traceparent in a request's headers, in the form of version 00; None without a valid one.

    An invalid one is ignored, as the standard says; so are two. A later version's is read as far as
    version 00 goes. Of the flags only `sampled` is kept.
    """
    given = [value for name, value in headers if name == TRACEPARENT]
    found = _TRACEPARENT_FORM.fullmatch(given[0].strip(b" \t")) if len(given) == 1 else None
    if found is None:
        return None
    version, trace, parent = found["version"], found["trace"], found["parent"]
    longer = version == b"00" and found["rest"] is not None
    if version == b"ff" or longer or not (trace.strip(b"0") and parent.strip(b"0")):
        return None
    sampled = int(found["flags"], 16) & _SAMPLED
    return f"00-{trace.decode()}-{parent.decode()}-{sampled:02x}"


def answer_headers(identifier: str, caching: bytes = b"no-store") -> list[tuple[bytes, bytes]]:
    """What every answer says."""
    return [
        (b"x-request-id", identifier.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", caching),
    ]


class RequestLog:
    """ASGI middleware: gives every request an id, answers with it, logs one line and counts it."""

    def __init__(self, app: ASGIApp, *, measures: Measures) -> None:
        self.app = app
        self.measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identifier = begin_request(scope["headers"])
        started = time.perf_counter()
        status = 500

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope, status, time.perf_counter() - started)
                message["headers"] = [
                    *message["headers"],
                    *answer_headers(identifier, scope.get(CACHING, b"no-store")),
                ]
            await send(message)

        try:
            await self.app(scope, receive, answered)
        except Exception:  # answered outside all middleware
            scope[PROBLEM] = "internal-error"
            self._count(scope, status, time.perf_counter() - started)
            raise
        finally:
            routine = scope.get("routine", False) and status < HTTPStatus.BAD_REQUEST
            level = logging.DEBUG if routine else logging.INFO
            if HTTP_LOGGER.isEnabledFor(level):
                HTTP_LOGGER.log(
                    level,
                    "request",
                    extra={
                        **({"key": scope[KEY]} if KEY in scope else {}),
                        "method": scope["method"],
                        "path": scope["path"],
                        "status": status,
                        "milliseconds": round((time.perf_counter() - started) * 1000, 3),
                    },
                )

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        template = getattr(scope.get("route"), "path_format", OTHER)
        self.measures.answered(template, scope["method"], status, seconds)
        if slug := scope.get(PROBLEM):
            self.measures.refused(slug)


class Arrivals:
    """ASGI middleware: refuses a key that is beyond its rate, and lets strangers take turns.

    To refuse, too, takes time: of those that ask again at once, thousands a second would take it
    from those who append. So a key beyond its rate is refused here, for next to nothing, and
    slowly; a sender without a key that is in force waits in a line that moves at a steady pace.
    This lets no request in: whether a key may do what it asks is looked at later.
    """

    def __init__(self, app: ASGIApp, *, keys: KeyRing, per_second: float) -> None:
        """Arrivals before an application.

        Args:
            app: what is behind.
            keys: as they are known; they are not read anew for this.
            per_second: requests without a key that are taken; of those with a cookie, which may be
                that of a session, as many again, and of probes.
        """
        self.app = app
        self._keys = keys
        self._strangers, self._cookies, self._probes = (Pace(per_second) for _ in range(3))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = await self._turn(scope)
        if refusal is None:
            await self.app(scope, receive, send)
            return
        answer = problems.problem_answer(refusal)
        await problems.hold_back(scope["app"].state, refusal)
        await answer(scope, receive, send)

    async def _turn(self, scope: Scope) -> TooManyRequestsError | UnavailableError | None:
        """Wait until it is the request's turn; why it never is, where that is so."""
        if scope["path"] in PROBES:
            wait = self._probes.turn(PROBE_SECONDS_MAX)
            if wait > 0:
                await asyncio.sleep(min(wait, PROBE_SECONDS_MAX))
            return None
        headers = scope["headers"]
        authorization = next((value for name, value in headers if name == b"authorization"), None)
        caller = None if authorization is None else self._keys.sender(authorization)
        if caller is not None:
            scope[KEY] = caller.name
            if caller.bucket is not None and RATE_TAKEN not in scope:
                try:
                    caller.bucket.take()
                except TooManyRequestsError as refusal:
                    return refusal
                scope[RATE_TAKEN] = True
            return None
        keeps = authorization is None and any(name == b"cookie" for name, _ in headers)
        wait = (self._cookies if keeps else self._strangers).turn(WAIT_SECONDS_MAX)
        if wait > 0:
            await asyncio.sleep(min(wait, WAIT_SECONDS_MAX))
        return UnavailableError(_LATER) if wait > WAIT_SECONDS_MAX else None


class OneHost:
    """ASGI middleware: answers 400 to a request with two Hosts, or with none (RFC 9112, 3.2).

    So nothing in front reads another one than the service.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            hosts = sum(name == b"host" for name, _ in scope["headers"])
            if hosts != 1 and not (hosts == 0 and scope["http_version"] == "1.0"):
                refusal = problems.problem(
                    "malformed-request", "A request has exactly one Host header."
                )
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)


class BodyLimit:
    """ASGI middleware: refuses a body beyond a size, declared or not, and one that comes slowly."""

    def __init__(self, app: ASGIApp, *, bytes_max: int, seconds_max: float) -> None:
        self.app = app
        self.bytes_max = bytes_max
        self.seconds_max = seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        declared = dict(scope.get("headers", ())).get(b"content-length", b"0")
        received = int(declared) if declared.isdigit() else 0
        # Once the body is there, what is waited for is that the reader leaves.
        latest = asyncio.get_running_loop().time() + self.seconds_max
        ends: float | None = scope.get(BODY_ENDS_AT, latest)

        async def in_time() -> Message:
            nonlocal ends
            try:
                async with asyncio.timeout_at(ends):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, headers={"Connection": "close"}) from None
            if not message.get("more_body", False):
                ends = None
            return message

        async def bounded() -> Message:
            nonlocal received
            # By now the key is known, and whether it may send less than others.
            bytes_max = min(self.bytes_max, scope.get(BODY_BYTES_MAX, self.bytes_max))
            if received <= bytes_max:
                message = await in_time()
                if not declared.isdigit() or declared == b"0":
                    received += len(message.get("body", b""))
                if received <= bytes_max:
                    return message
            raise HTTPException(413)  # FastAPI lets this one error pass while it reads a body

        await self.app(scope, bounded, send)


class SuspensionState:
    """Whether the ledger is open, read anew when older than REFRESH_SECONDS."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looks = SingleFlight(engine, self.refresh)
        self._lock = threading.Lock()
        self._read_at = -1e9
        self._standing = LedgerStatus("open")

    @property
    def stale(self) -> bool:
        """Whether what is known is too old to decide by."""
        return time.monotonic() - self._read_at >= STATUS_REFRESH_SECONDS

    @property
    def open(self) -> bool:
        """Whether it is known, and not by too old a look, that the ledger is open."""
        return not self.stale and self._standing.state == "open"

    def refresh(self) -> None:
        """Read it if what is known is too old."""
        with self._lock:
            if self.stale:
                started = time.monotonic()
                self._standing = standing(self._engine)
                self._read_at = started

    def forget(self) -> None:
        """It was changed in this process."""
        self._read_at = -1e9

    async def current(self) -> LedgerStatus:
        """Where the ledger stands."""
        if self.stale:  # only then is a thread worth its price
            await self._looks.take()
        return self._standing


class StateHeader:
    """ASGI middleware: says in each answer of the API if the ledger is not open.

    It refuses nothing for that: the transaction that would write does (`append.write_access`).
    """

    def __init__(self, app: ASGIApp, *, gate: SuspensionState) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not scope["path"].startswith(_API):
            await self.app(scope, receive, send)
            return
        try:
            found = await self.gate.current()
        except LedgerError as error:  # the database does not answer, and no header means open
            await problems.problem_answer(error)(scope, receive, send)
            return
        if found.state == "open":
            await self.app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (STATE_HEADER, found.state.encode())
                message["headers"] = [*message["headers"], header]
            await send(message)

        await self.app(scope, receive, marked)


class PageLoader:
    """ASGI middleware: adds the pages to the application when the first of them is asked for.

    They take a sixth of a start and 10 MiB, which a service that only programs ask does without.
    """

    def __init__(self, app: ASGIApp, *, single_sign_on: bool) -> None:
        """Load nothing yet.

        Args:
            app: what is behind.
            single_sign_on: whether people sign in at identity providers.
        """
        self.app = app
        self._single_sign_on = single_sign_on
        self._loading = asyncio.Lock()
        self._loaded = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if not self._loaded and scope["type"] == "http" and _leads_to_page(scope):
            async with self._loading:
                if not self._loaded:
                    await self._load(scope["app"])
        await self.app(scope, receive, send)

    async def _load(self, app: FastAPI) -> None:
        install = await asyncio.to_thread(
            _load_pages, self._single_sign_on
        )  # steps go on meanwhile
        install(app)
        build_messages()  # those of pages, too
        self._loaded = True


def _load_pages(single_sign_on: bool) -> Callable[[FastAPI], None]:
    from service.web.dashboard.routes import install_pages, page_modules  # as the class says

    return partial(install_pages, modules=page_modules(single_sign_on=single_sign_on))


def _leads_to_page(scope: Scope) -> bool:
    """Whether the answer may be a page."""
    path: str = scope["path"]
    if path in PROBES or path == "/metrics":  # a browser is told of a refusal by a page
        return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
    return not path.startswith((_API, "/problems/"))
