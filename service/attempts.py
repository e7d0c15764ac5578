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
            self._failed = self._failed or error.__cause__ is not None
            raise
        else:
            self._failed = False
        finally:
            with self._lock:
                del self._begun[mark]

    def trouble(self, seconds_max: float) -> str | None:
        """What is wrong, or nothing; an attempt that takes longer than so long waits."""
        if self._failed:
            return FAILED
        with self._lock:
            first = min(self._begun.values(), default=None)
        return WAITING if first is not None and time.monotonic() - first > seconds_max else None
