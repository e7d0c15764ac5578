"""The gate: while the ledger is suspended, requests that write are refused, whatever they are."""

import threading
import time
from typing import Final

from sqlalchemy import Engine
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import problems
from service.errors import LedgerError
from service.looks import Look
from service.suspension import Standing, standing

REFRESH_SECONDS: Final = 0.5  # within this time all processes know
STATE_HEADER: Final = b"x-ledger-state"
_PREFIX: Final = "/v1/"
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# What reads though it is sent, and what an admin needs to open the ledger again. All else writes.
_ALLOWED: Final = (
    "/v1/plan", "/v1/log:recover", "/v1/log:reconcile", "/explain", "/checkpoint:compare",
)  # fmt: skip
_ADMITTING: Final = "/reservations"  # what recovering does not do
_STATING: Final = "/certificate"  # nobody signs what a ledger says that is not whole


class Gate:
    """Where the ledger stands, read anew when older than REFRESH_SECONDS."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looks = Look(engine, self.refresh)
        self._lock = threading.Lock()
        self._read_at = -1e9
        self._standing = Standing("open")

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

    async def current(self) -> Standing:
        """Where the ledger stands."""
        if self.stale:  # only then is a thread worth its price
            await self._looks.take()
        return self._standing

    def require_admitting(self) -> None:
        """Refuse to admit steps against a budget whose ledger is not whole.

        Raises:
            LedgerSuspendedError: it is not.
        """
        if self._standing.state != "open":
            raise self._standing.refusal()


class WritesWhileOpen:
    """ASGI middleware: asks the gate, and says in each answer if the ledger is not open."""

    def __init__(self, app: ASGIApp, *, gate: Gate) -> None:
        self.app = app
        self.gate = gate

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

        if _refused(scope, found):
            await problems.answer(found.refusal())(scope, receive, marked)
        else:
            await self.app(scope, receive, marked)


def _refused(scope: Scope, found: Standing) -> bool:
    path: str = scope["path"]
    if path.endswith(_STATING):
        return True
    if scope["method"] in _READING or path.endswith(_ALLOWED):
        return False
    return found.state == "suspended" or path.endswith(_ADMITTING)
