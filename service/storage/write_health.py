"""How writing goes in this process: whether an attempt failed, and how long others take."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from service.errors import UnavailableError

FAILED: Final = "a write failed"
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
        """Attempt to write; a failure of the database is noted.

        Success is not: a small write succeeds on a disk that has no room for a large one.
        """
        mark = object()
        with self._lock:
            self._begun[mark] = time.monotonic()
        try:
            yield
        except UnavailableError as error:
            # What refuses without a driver's failure behind it says nothing of the database.
            if error.__cause__ is not None:
                with self._lock:
                    self._failed = True
                    self.write_failures += 1
            raise
        finally:
            with self._lock:
                del self._begun[mark]

    def mended(self, failures: int) -> None:
        """Note that as much was written as a large append takes.

        Args:
            failures: `write_failures` before it was tried; what failed meanwhile still counts.
        """
        with self._lock:
            if self.write_failures == failures:
                self._failed = False

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
