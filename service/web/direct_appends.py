"""A usual append, answered before the framework, whose layers take longer than to record a step.

A request that is usual in every respect - one Host, a small JSON body without a query, a key in
force that reaches the run, an open ledger - is recorded here. Any other, and any that is refused,
goes to the framework with what was read of it: each refusal is worded there, and nowhere else.
"""

import asyncio
import logging
import re
import time
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import LedgerError
from service.identity.authentication import RATE_TAKEN, Caller, KeyRing
from service.identity.keys import Role
from service.ledger.append.append import Append
from service.schemas.requests import NAME_PATTERN
from service.settings import Settings
from service.web.api.append_events import (
    DEFAULTS,
    EVENTS_PATH,
    FAILURE,
    STRATEGY,
    read_append,
    record,
)
from service.web.middleware import BODY_ENDS_AT, HTTP_LOGGER, answer_headers, begin_request
from service.web.server import send_whole
from service.web.strict_requests import INLINE_BYTES, JSON

_PATH: Final = re.compile(f"/v1/runs/({NAME_PATTERN.strip('^$')})/events")
_JSON: Final = JSON.encode()
_LENGTH: Final = re.compile(rb"[1-9]\d{0,4}")
# What only the framework looks at.
_UNUSUAL: Final = frozenset({b"content-encoding", b"transfer-encoding", b"expect"})


@dataclass(frozen=True, slots=True)
class _Usual:
    """What the head of a usual append says."""

    run: str
    caller: Caller


class DirectAppends:
    """ASGI application: answers usual appends, and leaves the others to the framework."""

    def __init__(
        self, framework: ASGIApp, state: State, *, bytes_max: int, seconds_max: float
    ) -> None:
        """Appends before a framework.

        Args:
            framework: answers what is not usual.
            state: of the application.
            bytes_max: of a body.
            seconds_max: within which a body has arrived.
        """
        self._framework = framework
        self._state = state
        self._keys: KeyRing = state.keys
        self._bytes_max = min(bytes_max, INLINE_BYTES)
        self._seconds_max = seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, which is a POST."""
        started = time.perf_counter()
        usual = self._usual(scope)
        if usual is None:
            await self._framework(scope, receive, send)
            return
        message = await self._first_message(scope, receive)
        append = None if message is None else self._read(usual, message)
        if append is None:
            await self._framework(scope, _again(message, receive), send)
            return
        identifier = begin_request(scope["headers"])
        self._keys.uses.note(usual.caller.name)
        try:
            status, content = await record(self._state, append)
        except Exception as error:
            scope[FAILURE] = error
            await self._framework(scope, _again(message, receive), send)
            return
        self._state.measures.answered(EVENTS_PATH, "POST", status, time.perf_counter() - started)
        headers = [
            (b"content-length", b"%d" % len(content)),
            (b"content-type", _JSON),
            *answer_headers(identifier),
        ]
        if not send_whole(send, status, headers, content):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})

    def _usual(self, scope: Scope) -> _Usual | None:
        """What a usual append says; None if the framework has to look at the request."""
        place = _PATH.fullmatch(scope["path"])
        if place is None or scope["query_string"] or HTTP_LOGGER.isEnabledFor(logging.DEBUG):
            return None
        headers = dict(scope["headers"])
        if len(headers) != len(scope["headers"]) or not _UNUSUAL.isdisjoint(headers):
            return None
        caller = self._caller(headers.get(b"authorization"), place[1])
        if caller is None or b"host" not in headers or headers.get(b"content-type") != _JSON:
            return None
        length = headers.get(b"content-length", b"")
        bytes_max = min(self._bytes_max, caller.body_bytes_max or self._bytes_max)
        if not _LENGTH.fullmatch(length) or int(length) > bytes_max:
            return None
        if caller.bucket is not None:
            try:
                caller.bucket.take()
            except LedgerError:
                return None
            scope[RATE_TAKEN] = True
        return _Usual(place[1], caller)

    def _caller(self, authorization: bytes | None, run: str) -> Caller | None:
        """Who may append to a run, as far as it is known without a look at the database."""
        keys = self._keys
        # A provider's token is verified by the framework.
        if authorization is None or keys.stale or keys.directory or not self._state.gate.open:
            return None
        caller = keys.sender(authorization)
        if caller is None or not caller.may(Role.TRAINER):
            return None
        limit = caller.datasets
        if limit is not None and keys.reach.unknown(caller.name, limit, {"run": run}):
            return None
        return caller

    async def _first_message(self, scope: Scope, receive: Receive) -> Message | None:
        """What arrives of the body first; None if nothing arrives in time."""
        scope[BODY_ENDS_AT] = ends_at = asyncio.get_running_loop().time() + self._seconds_max
        try:
            async with asyncio.timeout_at(ends_at):
                return await receive()
        except TimeoutError:
            return None

    def _read(self, usual: _Usual, message: Message) -> Append | None:
        """The append of a whole body; None if the framework has to look at it."""
        body: bytes = message.get("body", b"")
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        # A strategy is looked up in the database.
        if not whole or STRATEGY in body:
            return None
        known, name = self._state.sensitivities, usual.caller.name
        try:
            return read_append(usual.run, DEFAULTS, JSON, body, known, name)
        except (LedgerError, RequestValidationError):
            return None


class Application(FastAPI):
    """FastAPI, with what is answered before it."""

    _appends: DirectAppends | None = None

    def answer_appends(self, settings: Settings, *, traced: bool) -> None:
        """Answer usual appends first, where the process writes and no span has to be told of it."""
        if settings.role != "reader" and not traced:
            self._appends = DirectAppends(
                super().__call__,
                self.state,
                bytes_max=settings.body_bytes_max,
                seconds_max=settings.body_seconds,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._appends is None or scope.get("method") != "POST":
            await super().__call__(scope, receive, send)
        else:
            await self._appends(scope, receive, send)


def _again(message: Message | None, receive: Receive) -> Receive:
    """What was received, and then what follows it."""
    left: list[Message] = [] if message is None else [message]

    async def received() -> Any:
        return left.pop() if left else await receive()

    return received
