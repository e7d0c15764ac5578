"""Answers that took long, kept as long as nothing they rest on has changed.

Where many watch what changes all the time, an answer is given to several of them, so that working
it out takes a twentieth of the time at most. Each says itself of which steps it is.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Row

from service.guarantees.run_progress import SHARED

ANSWERS_MAX: Final = 400  # some tens of kilobytes each
Answer = TypeVar("Answer")


def state_of(dataset: Row[Any]) -> Hashable:
    """What changes with whatever is recorded, corrected or set on a dataset.

    Each entry and each act is a leaf of the log.
    """
    return (dataset.version, dataset.head_sequence, dataset.log_size)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer, of which state of its dataset, and what it took."""

    state: Hashable
    answer: Any
    at: float
    seconds: float

    def serves(self, state: Hashable, age_max: float) -> bool:
        """Whether it is as good as a new one."""
        age = time.monotonic() - self.at
        return self.state == state or age < min(age_max, SHARED * self.seconds)


class Kept:
    """The answers that were asked for last; for any thread."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, key: Hashable, state: Hashable, *, age_max: float = 0.0) -> Any:
        """What is kept, or None."""
        with self._lock:
            found = self._found.get(key)
            if found is None or not found.serves(state, age_max):
                return None
            self._found.move_to_end(key)
            return found.answer

    def answer(
        self, key: Hashable, state: Hashable, work: Callable[[], Answer], *, age_max: float
    ) -> Answer:
        """What is kept, else what the work finds, which then is.

        Args:
            key: of the question.
            state: of what it is asked of.
            work: finds the answer.
            age_max: seconds that an answer of another state may be old.
        """
        known = self.known(key, state, age_max=age_max)
        if known is not None:
            found: Answer = known
            return found
        start = time.monotonic()
        found = work()
        now = time.monotonic()
        with self._lock:
            self._found[key] = _Kept(state, found, now, now - start)
            self._found.move_to_end(key)
            while len(self._found) > ANSWERS_MAX:
                self._found.popitem(last=False)
        return found
