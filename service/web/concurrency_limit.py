"""Seats: how many expensive requests run at once, and how many may wait.

Python runs one thread at a time, so computing a number takes turns with appending a step. More
seats would not answer sooner, and every append would wait for more turns.
"""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from service.errors import TooManyRequestsError, UnavailableError

SEATS: Final = 2
WAITING_MAX: Final = 62
_PATIENCE_SECONDS: Final = 10.0  # in the queue; then the place is free for another request
_RETRY_SECONDS: Final = 1
# How long a thread that works something out goes on when another wants the interpreter. An append
# wants it some ten times, after each wait for the disk or another thread, and would wait as often.
TURN_SECONDS: Final = 0.0005
_USUAL_TURN_SECONDS: Final = sys.getswitchinterval()
_OPEN: Final = "The key has as many questions open as it may; wait for their answers."
_LATER: Final = "Too many questions wait to be worked out; ask again later."


@dataclass(eq=False, slots=True)
class _Waiting:
    key: str
    called: "asyncio.Future[None]"


class ConcurrencyLimiter:
    """Seats of one process, and the line before them; for one event loop.

    A key has at most half of all places, and never the last free seat: another key finds one, and
    is not behind all that the first one asked.
    """

    def __init__(
        self,
        seats: int = SEATS,
        waiting_max: int = WAITING_MAX,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._free = self._seats = seats
        self._patience_seconds = patience_seconds
        self._seats_of_key = max(1, seats - 1)
        self._places_of_key = max(1, (seats + waiting_max) // 2)
        self._waiting_max = waiting_max
        self._seated: Counter[str] = Counter()
        self._places: Counter[str] = Counter()  # seated or waiting
        self._line: deque[_Waiting] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    @asynccontextmanager
    async def taken(self, key: str) -> AsyncIterator[None]:
        """Hold a seat, once there is one.

        Raises:
            TooManyRequestsError: the key has all the places that it may have.
            UnavailableError: too many wait already, or one has waited too long.
        """
        if self._places[key] >= self._places_of_key:
            raise TooManyRequestsError(_RETRY_SECONDS, _OPEN)
        self._places[key] += 1
        try:
            await self._sit(key)
            try:
                yield
            finally:
                self._stand_up(key)
        finally:
            self._places[key] -= 1
            if not self._places[key]:
                del self._places[key], self._seated[key]

    def _may_sit(self, key: str) -> bool:
        return self._free > 0 and self._seated[key] < self._seats_of_key

    async def _sit(self, key: str) -> None:
        if self._may_sit(key):
            self._seat(key)
            return
        if len(self._line) >= self._waiting_max:
            raise UnavailableError(_LATER)
        one = _Waiting(key, asyncio.get_running_loop().create_future())
        self._line.append(one)
        try:
            async with asyncio.timeout(self._patience_seconds):
                await one.called
        except TimeoutError:
            self._leave(one)
            raise UnavailableError(_LATER) from None
        except asyncio.CancelledError:
            self._leave(one)
            raise

    def _leave(self, one: _Waiting) -> None:
        if one in self._line:
            self._line.remove(one)
        else:  # it was called just now
            self._stand_up(one.key)

    def _seat(self, key: str) -> None:
        self._free -= 1
        self._seated[key] += 1
        sys.setswitchinterval(TURN_SECONDS)

    def _stand_up(self, key: str) -> None:
        self._free += 1
        self._seated[key] -= 1
        self._call()
        if self._free == self._seats:  # the shorter the turns the less is done in all
            sys.setswitchinterval(_USUAL_TURN_SECONDS)

    def _call(self) -> None:
        """Give free seats to the first in line whose keys may sit."""
        for one in tuple(self._line):
            if self._may_sit(one.key) and not one.called.done():  # it may be leaving
                self._line.remove(one)
                self._seat(one.key)
                one.called.set_result(None)
