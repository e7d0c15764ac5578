"""Values that take work, each kept with the version of the facts that it was computed from."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")
SHARED: Final = 20  # times as long as its work took, an earlier value may serve in a shared cache


@dataclass(frozen=True, slots=True)
class _Found(Generic[Value]):
    version: Hashable
    value: Value
    at: float
    seconds: float  # that the work took


@dataclass(slots=True)
class _Slot(Generic[Value]):
    working: threading.Lock = field(default_factory=threading.Lock)
    found: _Found[Value] | None = None


class VersionedCache(Generic[Value]):
    """The values that were used last, at most `size_max`; no value is None. For any thread.

    A value serves while its version is the present one. A reader that allows it is also given a
    value of another version, if that is younger than `age_max` seconds; in a shared cache it must
    also be younger than SHARED times the seconds of its work, so that however many readers there
    are, work takes a twentieth of the time at most.
    """

    def __init__(self, size_max: int, *, shared: bool = False) -> None:
        self._size_max = size_max
        self._shared = shared
        self._slots: OrderedDict[Hashable, _Slot[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, key: Hashable, version: Hashable, *, age_max: float = 0.0) -> Value | None:
        """Return the value of a key; None if there is none that serves."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is not None:
                self._slots.move_to_end(key)
        return None if slot is None else self._serving(slot, version, age_max)

    def last(self, key: Hashable, *, age_max: float) -> Value | None:
        """Return the last value of a key, whatever its version, if it is younger than that."""
        with self._lock:
            slot = self._slots.get(key)
        found = None if slot is None else slot.found
        return found.value if found and time.monotonic() - found.at < age_max else None

    def put(self, key: Hashable, version: Hashable, value: Value, *, seconds: float = 0.0) -> None:
        """Keep a value that took so many seconds."""
        self._slot(key).found = _Found(version, value, time.monotonic(), seconds)

    def compute(
        self,
        key: Hashable,
        version: Hashable,
        work: Callable[[], Value],
        *,
        age_max: float = 0.0,
    ) -> Value:
        """Return the value of a key that serves, else what `work` returns.

        Of threads that want the same key at once, one works and the others wait for its value.
        """
        slot = self._slot(key)
        with slot.working:
            value = self._serving(slot, version, age_max)
            if value is None:
                start = time.monotonic()
                value = work()
                end = time.monotonic()
                slot.found = _Found(version, value, end, end - start)
            return value

    def _slot(self, key: Hashable) -> _Slot[Value]:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            if len(self._slots) > self._size_max:
                self._slots.popitem(last=False)
            return slot

    def _serving(self, slot: _Slot[Value], version: Hashable, age_max: float) -> Value | None:
        found = slot.found
        if found is None:
            return None
        limit = min(age_max, SHARED * found.seconds) if self._shared else age_max
        serves = found.version == version or time.monotonic() - found.at < limit
        return found.value if serves else None
