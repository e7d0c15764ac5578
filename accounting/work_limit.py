"""How much work an answer takes: counted, not timed, so that it is the same everywhere.

Functions whose arrays may be large say how many points they are about to evaluate; whoever asks for
an answer may set a limit. What is cached of earlier answers counts as if it were evaluated, and
what one answer asks for twice counts once, however deep inside what it asks for. So whether an
answer is within a limit depends on what is asked alone: neither on what was asked before, nor on
how fast or how busy the machine is.

Each answer that is cached has a meter of its own while it is worked out, which counts it as if
nothing else had been asked. The meters around it pay at the same time, so that a limit of theirs
stops it, except those for which the same was asked before (and has been forgotten since).
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class TooMuchWorkError(Exception):
    """An answer takes more work than whoever asked allows."""


class CacheKey:
    """What was asked; its hash, which may take long, is worked out once."""

    __slots__ = ("_hash", "what")

    def __init__(self, what: Hashable) -> None:
        """Of what is compared by value."""
        self.what = what
        self._hash = hash(what)

    def __hash__(self) -> int:
        """That of what was asked."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether the same was asked."""
        return isinstance(other, CacheKey) and self.what == other.what


@dataclass(frozen=True, slots=True)
class Work:
    """What something took that is cached."""

    own: int  # points, without what it asked for that is cached by itself
    parts: dict[CacheKey, int]  # what that is, and the points that each took by itself


@dataclass(slots=True)
class WorkCounter:
    """What was spent, and what may be."""

    limit: float
    payers: tuple["WorkCounter", ...] = ()  # meters around it that pay for what is spent here
    spent: float = 0
    own: float = 0  # of it, what was not for something that is cached by itself
    asked: dict[CacheKey, int] = field(default_factory=dict)  # in order: what was spent for already

    def spend(self, points: float) -> None:
        """Spend points, here first.

        Raises:
            TooMuchWorkError: there are not so many left.
        """
        self.own += points
        for meter in (self, *self.payers):
            meter._add(points)

    def ask(self, what: CacheKey, work: Work) -> None:
        """Spend what something took that is cached, as far as it was not asked for before.

        Raises:
            TooMuchWorkError: there is not so much left.
        """
        for meter in (self, *self.payers):
            if what in meter.asked:
                return  # and so in all that are around it
            new = {part: own for part, own in work.parts.items() if part not in meter.asked}
            meter.asked |= new
            meter.asked[what] = work.own
            meter._add(work.own + sum(new.values()))

    def _add(self, points: float) -> None:
        self.spent += points
        if self.spent > self.limit:
            raise TooMuchWorkError


_METER: Final[ContextVar[WorkCounter | None]] = ContextVar("meter", default=None)


def spend(points: int) -> None:
    """Say that so many points are about to be evaluated.

    Raises:
        TooMuchWorkError: that is more than is allowed.
    """
    meter = _METER.get()
    if meter is not None:
        meter.spend(points)


def compute_with_work(what: CacheKey, compute: Callable[[], R]) -> tuple[R, Work]:
    """What a function computes that is going to be cached, and the work it took.

    Raises:
        TooMuchWorkError: it takes more than what is allowed around it.
    """
    around = _METER.get()
    levels = () if around is None else (around, *around.payers)
    meter = WorkCounter(math.inf, tuple(level for level in levels if what not in level.asked))
    token = _METER.set(meter)
    try:
        found = compute()
    finally:
        _METER.reset(token)
    own = int(meter.own)
    for level in meter.payers:
        level.asked[what] = own
    return found, Work(own, meter.asked)


def spend_recalled(what: CacheKey, work: Work) -> None:
    """Spend what something took that is cached, unless the same was asked for before.

    Raises:
        TooMuchWorkError: that is more than is allowed.
    """
    meter = _METER.get()
    if meter is not None:
        meter.ask(what, work)


@contextmanager
def limit_work(points: float) -> Iterator[WorkCounter]:
    """Allow what runs inside so many points, and no more than what is allowed outside.

    What takes more counts as having taken what it was allowed, and as having asked for nothing: how
    far it came, and what it had asked for by then, depends on what was cached.

    Raises:
        TooMuchWorkError: it takes more.
    """
    points = max(0, points)
    meter = _METER.get()
    if meter is None:
        token = _METER.set(meter := WorkCounter(points))
        try:
            yield meter
        finally:
            _METER.reset(token)
        return
    allowed, own = meter.limit, meter.own
    before = [(one, one.spent, len(one.asked)) for one in (meter, *meter.payers)]
    meter.limit = min(allowed, meter.spent + points)
    try:
        yield meter
    except TooMuchWorkError:
        meter.limit, meter.own = allowed, own
        for one, spent, asked in before:
            one.spent = spent
            while len(one.asked) > asked:
                one.asked.popitem()
        meter.spend(points)
        raise
    finally:
        meter.limit = allowed


@contextmanager
def by_itself() -> Iterator[WorkCounter]:
    """Count what runs inside as if nothing else had been asked; the meters around it pay, too.

    So what is decided inside by what was spent depends on nothing that was asked before.

    Raises:
        TooMuchWorkError: it takes more than what is allowed outside.
    """
    around = _METER.get()
    payers = () if around is None else (around, *around.payers)
    token = _METER.set(meter := WorkCounter(math.inf, payers))
    try:
        yield meter
    finally:
        _METER.reset(token)
        if around is not None:
            around.own += meter.own


def remaining_points() -> float:
    """How many points may still be spent here; infinite where there is no limit."""
    meter = _METER.get()
    return math.inf if meter is None else meter.limit - meter.spent


def attempt(points: float, compute: Callable[[], R]) -> R | None:
    """What a function computes; None where that takes more than so many points.

    Raises:
        TooMuchWorkError: it takes more than what is allowed outside.
    """
    try:
        with limit_work(points):
            return compute()
    except TooMuchWorkError:
        spend(0)
        return None


def as_many(points: float, computations: Iterable[Callable[[], R]]) -> list[R]:
    """What the first of some functions compute, as many as take no more than so many points.

    Raises:
        TooMuchWorkError: it takes more than what is allowed outside.
    """
    found: list[R] = []
    with limit_work(math.inf) as meter:
        end = meter.spent + points
        for compute in computations:
            answer = attempt(end - meter.spent, compute)
            if answer is None:
                break
            found.append(answer)
    return found


class CachedWithCost(Generic[P, R]):
    """A function that caches its latest answers, each with the work that it took."""

    def __init__(self, function: Callable[P, R], maxsize: int) -> None:
        """Nothing is cached."""

        @lru_cache(maxsize=maxsize)
        def kept(what: CacheKey) -> tuple[R, Work]:
            _, args, kwargs = cast(Any, what.what)  # as it is made below
            return compute_with_work(what, lambda: function(*args, **dict(kwargs)))

        self._kept = kept
        self.cache_clear = kept.cache_clear
        self.cache_info = kept.cache_info
        wraps(function)(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer; what it took is spent either way."""
        what = CacheKey((self, args, frozenset(kwargs.items())))
        found, work = self._kept(what)
        spend_recalled(what, work)
        return found


def cached_with_cost(maxsize: int) -> Callable[[Callable[P, R]], CachedWithCost[P, R]]:
    """As functools.lru_cache, for functions whose work is counted."""

    def remember(function: Callable[P, R]) -> CachedWithCost[P, R]:
        return CachedWithCost(function, maxsize)

    return remember


class Sized(Protocol):
    """Something that knows how much memory it holds."""

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        ...


V = TypeVar("V", bound=Sized)


class ByteCache(Generic[V]):
    """The most recently used values up to a number of bytes, each with the work that it took.

    Keys are compared by value. Threads may share it.
    """

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
            held = self._put(what, *compute_with_work(what, make))
        spend_recalled(what, held[2])
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
