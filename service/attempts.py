"""How writing goes in this process: how the last attempt ended, and how long others take."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from service.errors import UnavailableError

FAILED: Final = "the last write failed"
WAITING: Final = "a write waits"


class Attempts:
    """Attempts to write to one database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.read_failures = 0  # of the database, since this process started, as are the next
        self.write_failures = 0
        self._failed = False
        self._begun: dict[object, float] = {}

    @contextmanager
    def one(self) -> Iterator[None]:
        """Attempt to write; whether it was committed is noted."""
        mark = object()
        with self._lock:
            self._begun[mark] = time.monotonic()
        try:
            yield
        except UnavailableError as error:
            # What refuses without a driver's failure behind it says nothing of the database.
            if error.__cause__ is not None:
                self._failed = True
                self.write_failures += 1
            raise
        else:
            self._failed = False
        finally:
            with self._lock:
                del self._begun[mark]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read; whether the database failed is noted."""
        try:
            yield
        except UnavailableError as error:
            if error.__cause__ is not None:
                self.read_failures += 1
            raise

    def trouble(self, seconds_max: float) -> str | None:
        """What is wrong, or nothing; an attempt that takes longer than so long waits."""
        if self._failed:
            return FAILED
        with self._lock:
            first = min(self._begun.values(), default=None)
        return WAITING if first is not None and time.monotonic() - first > seconds_max else None
