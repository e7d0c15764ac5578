"""Arrivals: the first check of a request is the rate of its sender.

Refusing also takes time: clients that retry at once, thousands of times a second, would take it
from appends. So a key beyond its rate is refused here, cheaply and with a delay, and a request
without a valid key waits in a queue with a fixed rate. This check grants no permission: the
permissions of a key are checked later.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import TooManyRequestsError, UnavailableError
from service.identity.authentication import RATE_TAKEN, KeyRing
from service.identity.rate_limit import Pace
from service.web import problems

# Who probes gives up after a second or so, and then ends the process.
PROBES: Final = frozenset({"/healthz", "/readyz"})
PROBE_SECONDS_MAX: Final = 0.5
WAIT_SECONDS_MAX: Final = 10.0
_LATER: Final = "Too many ask without a key; ask again later."


class Arrivals:
    """ASGI middleware: refuses a key that is beyond its rate, and lets strangers take turns."""

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
        answer = problems.answer(refusal)
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
            if caller.bucket is not None:
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
