"""HTTP at the edge: strict JSON bodies, and one middleware for ids, hosts and logs."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from http import HTTPStatus
from typing import Any, Final, TypeVar

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.auth import BODY_BYTES_MAX, Caller, admitted, scope_needed
from service.errors import UnavailableError, UnsupportedMediaTypeError
from service.measures import OTHER, PROBLEM, TEMPLATE, Measures
from service.queries import QueryRules
from service.seats import Seats
from service.strict_json import parse_json

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
INLINE_BYTES: Final = 16 * 1024  # read without a thread: less than a millisecond
_LOGGER = logging.getLogger("dpledger.http")
_PROCESS: Final = secrets.token_hex(10)  # begins the id of each request that this process answers
_REQUESTS: Final = itertools.count()
CACHING: Final = "dpledger.caching"  # of a connection's scope: how its answer may be kept
_DEAR: Final = "_dear"  # an endpoint's attribute
Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


def dear(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint whose answer is worked out: it takes a seat, or waits for one."""
    setattr(endpoint, _DEAR, True)
    return endpoint


def is_dear(endpoint: Callable[..., object]) -> bool:
    """Whether an endpoint was marked so."""
    return bool(getattr(endpoint, _DEAR, False))


def media_type(request: Request) -> str:
    """The body's declared type, without parameters.

    Raises:
        UnsupportedMediaTypeError: the body is compressed, or in another character set than UTF-8.
    """
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":  # a few bytes could be made to be many
        raise UnsupportedMediaTypeError("The body is compressed; send it as it is.")
    declared = request.headers.getlist("content-type")
    if len(declared) > 1:
        raise UnsupportedMediaTypeError("Content-Type is there twice; send it once.")
    kind, *parameters = "".join(declared).lower().split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            raise UnsupportedMediaTypeError("Send the body in UTF-8; no other charset is read.")
    return kind.strip()


class StrictRequest(Request):
    """A request whose JSON was read strictly."""

    parsed: Any = None

    async def json(self) -> Any:
        """The body's value; FastAPI asks for it."""
        return self.parsed


class StrictRoute(APIRoute):
    """A route that reads bodies strictly, and none before the caller may send it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handler = super().get_route_handler()
        needed = scope_needed(self.dependant)
        costs = is_dear(self.endpoint)
        reads, asks = self.body_field is not None, self.body_field is not None or costs
        rules = QueryRules.of_route(self.dependant)

        async def strict(request: Request) -> Response:
            caller = None
            fault = rules.fault(request.scope["query_string"])
            # A caller without a key is told of that first.
            if needed is not None and (asks or fault):
                caller = await admitted(request, needed, request.path_params)
            if fault is not None:
                raise fault
            if reads and media_type(request) != JSON:
                raise UnsupportedMediaTypeError(f"Send {JSON}.")
            if not asks:
                return await handler(request)
            checked = StrictRequest(request.scope, request.receive)
            body = await _body(checked)  # whoever sends it slowly has no seat yet
            async with seat(request, caller) if costs else nullcontext():
                if costs and await checked.is_disconnected():
                    raise UnavailableError("Nobody waits for the answer any more.")
                if reads:
                    checked.parsed = await _parsed(body)
                return await handler(checked)

        return strict


def seat(request: Request, caller: Caller | None) -> AbstractAsyncContextManager[None]:
    """The seat that whoever asks something dear takes, or waits for."""
    seats: Seats = request.app.state.seats
    return seats.taken("" if caller is None else caller.name)


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:  # it is told to nobody, and no defect
        raise UnavailableError("The body was not sent to its end.") from None


async def _parsed(body: bytes) -> Any:
    return (
        parse_json(body) if len(body) <= INLINE_BYTES else await run_in_threadpool(parse_json, body)
    )


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
        loop = asyncio.get_running_loop()
        # Once the body is there, what is waited for is that the reader leaves.
        ends: float | None = loop.time() + self.seconds_max

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
        identifier = f"{_PROCESS}{next(_REQUESTS):012x}"
        logs.request_id.set(identifier)  # each request has a context of its own
        started = time.perf_counter()
        status = 500

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope, status, time.perf_counter() - started)
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", identifier.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"cache-control", scope.get(CACHING, b"no-store")),
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
            if _LOGGER.isEnabledFor(level):
                _LOGGER.log(
                    level,
                    "request",
                    extra={
                        "method": scope["method"],
                        "path": scope["path"],
                        "status": status,
                        "milliseconds": round((time.perf_counter() - started) * 1000, 3),
                    },
                )

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        found = scope.get("route")
        template = getattr(found, "path_format", None) or scope.get(TEMPLATE, OTHER)
        self.measures.answered(template, scope["method"], status, seconds)
        if slug := scope.get(PROBLEM):
            self.measures.refused(slug)
