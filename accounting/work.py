"""How much work an answer takes: counted, not timed, so that it is the same everywhere.

Functions whose arrays may be large say how many points they are about to evaluate; whoever asks for
an answer may set a limit. What is remembered of earlier answers counts as if it were evaluated, and
what one answer asks for twice counts once. So whether an answer is within a limit depends on what
is asked alone: neither on what was asked before, nor on how fast or how busy the machine is.
"""

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class TooMuchWorkError(Exception):
    """An answer takes more work than whoever asked allows."""


@dataclass(slots=True)
class Meter:
    """What was spent, and what may be."""

    limit: float
    spent: int = 0
    asked: set[Hashable] = field(default_factory=set)  # what was spent for already

    def add(self, points: int) -> None:
        """Spend points.

        Raises:
            TooMuchWorkError: there are not so many left.
        """
        self.spent += points
        if self.spent > self.limit:
            raise TooMuchWorkError


_METER: Final[ContextVar[Meter | None]] = ContextVar("meter", default=None)


def spend(points: int) -> None:
    """Say that so many points are about to be evaluated.

    Raises:
        TooMuchWorkError: that is more than is allowed.
    """
    meter = _METER.get()
    if meter is not None:
        meter.add(points)


def spend_once(what: Hashable, points: int) -> None:
    """The same for something that is worked out at most once for an answer.

    Raises:
        TooMuchWorkError: that is more than is allowed.
    """
    meter = _METER.get()
    if meter is not None and what not in meter.asked:
        meter.add(points)
        meter.asked.add(what)


@contextmanager
def measured() -> Iterator[Meter]:
    """Count what runs inside as if nothing else had been asked; it is spent outside afterwards.

    Raises:
        TooMuchWorkError: it takes more than what is allowed outside.
    """
    outer = _METER.get() or Meter(math.inf)
    meter = Meter(outer.limit - outer.spent)
    token = _METER.set(meter)
    try:
        yield meter
    except TooMuchWorkError:
        outer.spent += meter.spent
        raise
    finally:
        _METER.reset(token)


@contextmanager
def limited(points: float) -> Iterator[Meter]:
    """Allow what runs inside so many points, and no more than what is allowed outside.

    Raises:
        TooMuchWorkError: it takes more.
    """
    outer = _METER.get()
    left = math.inf if outer is None else outer.limit - outer.spent
    meter = Meter(min(points, left)) if outer is None else Meter(min(points, left), 0, outer.asked)
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)
        if outer is not None:
            # How far beyond a limit the last part went depends on what was remembered of it.
            outer.spent += int(meter.spent if left <= points else min(meter.spent, points))


def attempted(points: float, compute: Callable[[], R]) -> R | None:
    """What a function computes; None where that takes more than so many points.

    Raises:
        TooMuchWorkError: it takes more than what is allowed outside.
    """
    try:
        with limited(points):
            return compute()
    except TooMuchWorkError:
        spend(0)
        return None


class Remembered(Generic[P, R]):
    """A function that remembers its latest answers, each with the work that it took."""

    def __init__(self, function: Callable[P, R], maxsize: int) -> None:
        """Nothing is remembered."""

        @lru_cache(maxsize=maxsize)
        def kept(*args: P.args, **kwargs: P.kwargs) -> tuple[R, int]:
            with measured() as meter:
                found = function(*args, **kwargs)
            return found, meter.spent

        self._kept = kept
        self.cache_clear = kept.cache_clear
        self.cache_info = kept.cache_info
        wraps(function)(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer; what it took is spent either way."""
        found, points = self._kept(*args, **kwargs)  # type: ignore[arg-type]  # hashable
        spend_once((self, args, frozenset(kwargs.items())), points)
        return found


def remembered(maxsize: int) -> Callable[[Callable[P, R]], Remembered[P, R]]:
    """As functools.lru_cache, for functions whose work is counted."""

    def remember(function: Callable[P, R]) -> Remembered[P, R]:
        return Remembered(function, maxsize)

    return remember
