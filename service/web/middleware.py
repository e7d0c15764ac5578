"""Limits of a request's body, and the log of requests."""

import asyncio
import logging
import time
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import telemetry
from service.identity.authentication import BODY_BYTES_MAX
from service.telemetry import OTHER, PROBLEM, TEMPLATE, Measures
from service.web.strict_requests import _LOGGER, _PROCESS, _REQUESTS, CACHING


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
        telemetry.request_id.set(identifier)  # each request has a context of its own
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
