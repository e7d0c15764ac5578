"""A cache bounded by the memory it holds, safe to share between threads."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from accounting.work_limit import CacheKey, Work, recalled, worked_out


class Sized(Protocol):
    """Something that knows how much memory it holds."""

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        ...


V = TypeVar("V", bound=Sized)


class ByteCache(Generic[V]):
    """The most recently used values up to a number of bytes; keys are compared by value."""

    def __init__(self, limit: int) -> None:
        """An empty cache that holds at most `limit` bytes."""
        self._limit = limit
        self._held = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[CacheKey, tuple[V, int, Work]] = OrderedDict()

    def found(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, made if it is not held; the work of making it is spent either way."""
        what = CacheKey((self, key))
        with self._lock:
            held = self._values.get(what)
            if held is not None:
                self._values.move_to_end(what)
        if held is None:
            held = self._put(what, *worked_out(what, make))
        recalled(what, held[2])
        return held[0]

    def _put(self, what: CacheKey, value: V, work: Work) -> tuple[V, int, Work]:
        """Hold a value, dropping those used longest ago."""
        size = value.nbytes
        held = value, size, work
        with self._lock:
            replaced = self._values.pop(what, None)
            self._held += size - (0 if replaced is None else replaced[1])
            self._values[what] = held
            while self._held > self._limit:
                _, (_, dropped, _) = self._values.popitem(last=False)
                self._held -= dropped
        return held

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._held = 0

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._held
