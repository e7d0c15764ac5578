"""The gate: while the ledger is suspended, requests that write are refused, whatever they are.

It looks now and then, so that a suspended ledger costs no request a body. What begins before it
has looked is refused by the transaction that would write (`taking`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeVar

from sqlalchemy import Engine
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import LedgerError
from service.storage.single_flight import SingleFlight
from service.transparency.recovery import LedgerStatus, standing
from service.web import problems

REFRESH_SECONDS: Final = 0.5  # within this time all processes know
STATE_HEADER: Final = b"x-ledger-state"
_PREFIX: Final = "/v1/"
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PASSAGE: Final = "_passage"  # an endpoint's attribute
Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


class WritePolicy(Enum):
    """What the gate does with an endpoint, other than to let GET pass and nothing else."""

    PASSES = "it writes nothing though it is sent to, or opens the ledger again"
    STATES = "it signs the state of the ledger, which requires a complete ledger"


def passage(kind: WritePolicy) -> Callable[[Endpoint], Endpoint]:
    """Mark an endpoint."""

    def marked(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _PASSAGE, kind)
        return endpoint

    return marked


class SuspensionState:
    """Where the ledger stands, read anew when older than REFRESH_SECONDS."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looks = SingleFlight(engine, self.refresh)
        self._lock = threading.Lock()
        self._read_at = -1e9
        self._standing = LedgerStatus("open")

    @property
    def stale(self) -> bool:
        """Whether what is known is too old to decide by."""
        return time.monotonic() - self._read_at >= REFRESH_SECONDS

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


class WritesWhileOpen:
    """ASGI middleware: asks the gate, and says in each answer if the ledger is not open."""

    def __init__(self, app: ASGIApp, *, gate: SuspensionState, routes: Sequence[BaseRoute]) -> None:
        self.app = app
        self.gate = gate
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not scope["path"].startswith(_PREFIX):
            await self.app(scope, receive, send)
            return
        try:
            found = await self.gate.current()
        except LedgerError as error:  # the database does not answer
            await problems.answer(error)(scope, receive, send)
            return
        if found.state == "open":
            await self.app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (STATE_HEADER, found.state.encode())
                message["headers"] = [*message["headers"], header]
            await send(message)

        if self._refused(scope, found):
            await problems.answer(found.refusal())(scope, receive, marked)
        else:
            await self.app(scope, receive, marked)

    def _refused(self, scope: Scope, found: LedgerStatus) -> bool:
        kind = self._passage(scope)
        if kind is WritePolicy.STATES:
            return True
        if scope["method"] in _READING or kind is WritePolicy.PASSES:
            return False
        return found.state == "suspended"

    def _passage(self, scope: Scope) -> WritePolicy | None:
        """How the endpoint is marked that answers; what a path names may look like any endpoint."""
        for route in self.routes:
            if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
                return getattr(route.endpoint, _PASSAGE, None)
        return None
