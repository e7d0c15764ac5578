"""How much processor time an answer may take. Whoever asks for more is refused, by name."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from service.errors import TooExpensiveError

SECONDS_MAX: Final = 1.5  # with what comes before and after, an answer stays below two
TOO_LONG: Final = "The answer would take more than 2 s of processor time."
_COMPARING: Final = frozenset({"__hash__", "__eq__"})
_LOOKS_EVERY: Final = 32  # calls of functions between two looks at the clock


class Effort:
    """Processor time that the parts of one answer share."""

    def __init__(self, seconds: float | None = None) -> None:
        """All of it is left."""
        self.left = SECONDS_MAX if seconds is None else seconds

    @contextmanager
    def limited(self, part: float = 1.0) -> Iterator[None]:
        """Stop what runs inside once this thread has spent a part of what is left on it.

        The work is stopped where it calls its next function, so it may be nothing that others see
        half-done: numbers are worked out inside, and nothing is written. A limit inside another
        does not extend it.

        Raises:
            TooExpensiveError: it took longer.
        """
        before, began = sys.getprofile(), time.thread_time()
        ends = began + max(0.0, self.left) * part
        if isinstance(before, _Watch):
            ends = min(ends, before.ends)
        sys.setprofile(_Watch(ends))
        try:
            yield
        finally:
            sys.setprofile(before if callable(before) else None)
            self.left -= time.thread_time() - began


class _Watch:
    """What Python calls whenever a function is called or returns."""

    __slots__ = ("calls", "ends")

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.calls = 0

    def __call__(self, frame: FrameType, what: str, _of: Any) -> None:
        """Look at the clock now and then.

        Only at the call of a function of Python's own: an object of the accounting that changes
        itself calls none on the way.
        """
        # A cache that compares its keys is between two states of its own.
        if what != "call" or frame.f_code.co_name in _COMPARING:
            return
        self.calls += 1
        if self.calls % _LOOKS_EVERY == 0 and time.thread_time() > self.ends:
            raise TooExpensiveError(TOO_LONG)
