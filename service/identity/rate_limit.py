"""Rates: how many requests a key may send. Each process counts those that it answers itself."""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from service.errors import TooManyRequestsError

RATE_MIN: Final = 0.001  # requests a second; a refused sender waits twenty minutes at most
RATE_MAX: Final = 1e6
HOUR: Final = 3600.0
BURST_SECONDS: Final = 1.0  # what a key saved up: a second's worth, but one request at least

PACE_SECONDS: Final = 2.0  # worth of turns that are had at once after a pause
ROUNDING_SECONDS: Final = 1e-6  # rounding of added times must not refuse a request


class Buckets:
    """A bucket for each key, of as much as it may in an hour; from any thread."""

    def __init__(self, per_hour: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_hour / HOUR
        self._clock = clock
        self._of: dict[str, Bucket] = {}  # names are never reused, and few
        self._lock = threading.Lock()

    def take(self, key: str) -> None:
        """Take a token of a key; it may save up an hour's worth.

        Raises:
            TooManyRequestsError: there is none; nothing was taken.
        """
        with self._lock:
            if key not in self._of:
                self._of[key] = Bucket(self._rate, burst_seconds=HOUR, clock=self._clock)
            self._of[key].take()


class Bucket:
    """A token bucket, kept as the one moment at which it will be full again."""

    __slots__ = ("_clock", "_full_at", "_interval", "_slack", "burst_seconds", "rate")

    def __init__(
        self,
        rate: float,
        *,
        burst_seconds: float = BURST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rate = rate
        self.burst_seconds = burst_seconds
        self._interval = 1.0 / rate
        self._slack = max(0.0, burst_seconds - self._interval) + ROUNDING_SECONDS
        self._clock = clock
        self._full_at = -math.inf

    def take(self) -> None:
        """Take a token.

        Raises:
            TooManyRequestsError: there is none; nothing was taken.
        """
        present = self._clock()
        full_at = max(self._full_at, present)
        wait = full_at - present - self._slack
        if wait > 0:
            raise TooManyRequestsError(max(1, math.ceil(wait)))
        self._full_at = full_at + self._interval


class Pace:
    """Turns at a steady pace: who comes too soon is told how long to wait; for one event loop."""

    def __init__(self, per_second: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1.0 / per_second
        self._clock = clock
        self._next_at = -math.inf

    def turn(self, seconds_max: float) -> float:
        """Seconds until the caller's turn; beyond the most that it waits it has none."""
        present = self._clock()
        turn_at = max(self._next_at, present - PACE_SECONDS)
        wait = turn_at - present
        if wait <= seconds_max:
            self._next_at = turn_at + self._interval
        return max(0.0, wait)
