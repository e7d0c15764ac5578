"""A cache bounded by the memory it holds, safe to share between threads."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


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
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """The value of a key, which becomes the most recently used; None if it is not held."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V) -> None:
        """Hold a value, dropping those used longest ago."""
        size = value.nbytes  # before the lock: what may be interrupted is not done inside
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._held += size - before
            self._values[key] = value, size
            while self._held > self._limit:
                _, (_, dropped) = self._values.popitem(last=False)
                self._held -= dropped

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._held = 0

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._held
