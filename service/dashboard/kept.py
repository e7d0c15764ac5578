"""Answers that took long, kept as long as nothing they rest on has changed."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from sqlalchemy import Row

ANSWERS_MAX: Final = 400  # some tens of kilobytes each
Answer = TypeVar("Answer")


def state_of(run: Row[Any], dataset: Row[Any]) -> Hashable:
    """What changes with whatever is recorded, corrected or set on a run's dataset.

    Each entry and each act is a leaf of the log; the time keeps apart the runs of two databases.
    """
    return (run.id, run.created_at, dataset.version, dataset.head_sequence, dataset.log_size)


class Kept:
    """The answers that were asked for last; for any thread."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, key: Hashable) -> Any:
        """What is kept, or None."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def answer(self, key: Hashable, work: Callable[[], Answer]) -> Answer:
        """What is kept, else what the work finds, which then is."""
        known = self.known(key)
        if known is not None:
            found: Answer = known
            return found
        found = work()
        with self._lock:
            self._found[key] = found
            while len(self._found) > ANSWERS_MAX:
                self._found.popitem(last=False)
        return found
