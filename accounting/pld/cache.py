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
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """The value of a key, which becomes the most recently used; None if it is not held."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Hashable, value: V) -> None:
        """Hold a value, dropping those used longest ago."""
        with self._lock:
            old = self._values.pop(key, None)
            self._held += value.nbytes - (old.nbytes if old is not None else 0)
            self._values[key] = value
            while self._held > self._limit:
                _, dropped = self._values.popitem(last=False)
                self._held -= dropped.nbytes

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._held = 0

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._held
