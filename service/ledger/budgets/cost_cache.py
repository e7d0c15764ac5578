"""What takes time to work out about events, and is not worked out while others wait for a lock.

A price may take seconds, and a dataset's lock is what all its trainers wait for. So a transaction
looks prices up, and works out only those that take no longer than to begin it anew. Where another
is missing it is left, what it needs is worked out in the thread of who asked, and it is tried
again.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, overload

from accounting.accountants.envelope_bound import admissible_of_last, epsilon_of, unused_delta
from accounting.bounds.event_bounds import NoBoundError, filter_accepted
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import Event, NeighboringRelation
from accounting.filters import EnvelopeItem, Filter, Total
from accounting.guarantees import Status
from accounting.work_limit import TooMuchWorkError, limit_work
from service.errors import UnavailableError
from service.work_limit import bounded

KNOWN_MAX: Final = 40_960  # prices that are cached for all; each takes about 1 kB
TRIES: Final = 8  # two suffice, unless settings change or much is forgotten meanwhile
# Of work for one request, whose reading takes time, too: it prices 1,000 events at any one order.
COST_POINTS_MAX: Final = 64_000_000
# Of work in one transaction, about 5 ms: the prices of 16 new noises at one order.
LOCKED_POINTS_MAX: Final = 1_000_000
_FURTHER: Final = (
    "What so many different events cost takes long to work out; send the same request again, which "
    "goes on where this one stopped, or fewer events at once."
)
_CHANGING: Final = "The dataset changes faster than its steps are counted; send the request again."


@dataclass(frozen=True, slots=True)
class Cost:
    """What a unit of an event adds to a filter's sums."""

    filter: Filter
    relation: NeighboringRelation
    accept: frozenset[Status]
    # It is looked up with each event of each batch: its hash is worked out once.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out the hash."""
        object.__setattr__(self, "_hash", hash((self.filter, self.relation, self.accept)))

    def __hash__(self) -> int:
        """Of all that it names."""
        return self._hash

    def of(self, event: Event) -> Total:
        """Work it out."""
        return self.filter.cost(event, relation=self.relation, accept=self.accept)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why no accepted theorem bounds an event; None where one does."""

    relation: NeighboringRelation
    accept: frozenset[Status]

    def of(self, event: Event) -> str | None:
        """Work it out."""
        try:
            filter_accepted(renyi_bounds(event, self.relation), accept=self.accept)
        except NoBoundError as reason:
            return str(reason)
        return None


@dataclass(frozen=True, slots=True)
class EnvelopeCost:
    """The epsilon of all items of an envelope together; infinite where no bound is accepted."""

    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float
    limit: float  # nats; beyond it, how many steps of the last item fit is worked out, too
    beside: bool  # whether a filter is to use the delta that the items leave

    def of(self, items: tuple[EnvelopeItem, ...]) -> "CertifiedItems":
        """Work it out."""
        given: dict[str, Any] = {
            "relation": self.relation, "accept": self.accept, "delta": self.delta,
        }  # fmt: skip
        with bounded("The envelope"):
            epsilon = epsilon_of(items, **given)
            if not epsilon <= self.limit:
                fit = admissible_of_last(items, epsilon=self.limit, **given)
                return CertifiedItems(epsilon=epsilon, fit=fit)
            unused = 0.0
            if self.beside:
                unused = unused_delta(items, epsilon=self.limit, certified=epsilon, **given)
            return CertifiedItems(epsilon=epsilon, fit=items[-1].steps, unused_delta=unused)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedItems:
    """What is certified of all items of an envelope together."""

    epsilon: float  # nats at the budget's delta, upper; infinite where no bound is accepted
    fit: int  # steps of the last item that fit
    unused_delta: float = 0.0  # of the budget's, at its epsilon; lower, where it was asked for


Quote = tuple[Cost | Reason, Event] | tuple[EnvelopeCost, tuple[EnvelopeItem, ...]]
Known = Mapping[Quote, Any]
_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class _Locked:
    """What a transaction was given, and how much it may still work out."""

    known: Known
    points: float  # of work


_given: ContextVar[_Locked | None] = ContextVar("dpledger_prices", default=None)
_known: OrderedDict[Quote, Any] = OrderedDict()  # of this process, the oldest first
_learning: Final = threading.Lock()


class UnpricedError(Exception):
    """Something is asked under a lock that is not known: the transaction is to be undone."""

    def __init__(self, wanted: Collection[Quote]) -> None:
        super().__init__(f"{len(wanted)} prices are not known")
        self.wanted = wanted


class UnpricedBeforeError(UnpricedError):
    """The same, noticed before anything was changed: the transaction may go on with others."""


@contextmanager
def cached_costs_only(known: Known) -> Iterator[None]:
    """Inside, what is neither known here nor to the process is missing, unless it takes little."""
    before = _given.set(_Locked(known, LOCKED_POINTS_MAX))
    try:
        yield
    finally:
        _given.reset(before)


@overload
def ask(question: Cost, event: Event) -> Total: ...
@overload
def ask(question: Reason, event: Event) -> str | None: ...
@overload
def ask(question: EnvelopeCost, event: tuple[EnvelopeItem, ...]) -> CertifiedItems: ...
def ask(question: Any, event: Any) -> Any:
    """The answer: looked up while a lock is held, else worked out.

    Raises:
        UnpricedError: a lock is held, and it is not known.
    """
    given = _given.get()
    if given is None:
        return question.of(event)
    quote = question, event
    for known in (given.known, _known):
        found = known.get(quote, _MISSING)
        if found is not _MISSING:
            return found
    raise UnpricedError([quote])


_MISSING: Final[Any] = object()


def missing(question: Cost | Reason, events: Iterable[Event]) -> list[Quote]:
    """What must be worked out before these events can be asked about here."""
    given = _given.get()
    if given is None:
        return []
    quotes = [(question, event) for event in events]
    return [quote for quote in quotes if quote not in given.known and quote not in _known]


def require(wanted: Collection[Quote], *, unchanged: bool = False) -> None:
    """Work out the missing costs that take little, and leave the transaction for the others.

    Args:
        wanted: what is missing; nothing happens where nothing is.
        unchanged: whether nothing was changed yet by what is asked for.

    Raises:
        UnpricedError: it names all that is still missing.
    """
    locked = _given.get()
    left = [quote for quote in wanted if locked is None or not _compute_if_cheap(quote, locked)]
    if left:
        raise UnpricedBeforeError(left) if unchanged else UnpricedError(left)


def _compute_if_cheap(quote: Quote, locked: _Locked) -> bool:
    """Whether a cost took no more than a transaction may still work out; it is cached then."""
    question, event = quote
    if locked.points <= 0 or not isinstance(question, Cost) or not isinstance(event, Event):
        return False
    try:
        with limit_work(locked.points) as meter:
            before = meter.spent
            answer = question.of(event)
            locked.points -= meter.spent - before
    except TooMuchWorkError:
        locked.points = 0  # it may have come as far
        return False
    _remember(quote, answer)
    return True


def retry_with_costs(attempt: Callable[[], _Answer]) -> _Answer:
    """What an attempt answers that holds locks, and is tried until it knows what it asks.

    Raises:
        UnavailableError: it asks something else each time.
    """
    known: dict[Quote, Any] = {}
    for _ in range(TRIES):
        try:
            with cached_costs_only(known):
                return attempt()
        except UnpricedError as lacking:
            known |= compute_costs(lacking.wanted)
    raise changing()


def compute_costs(wanted: Iterable[Quote]) -> dict[Quote, Any]:
    """The answers, which the process caches for a while; no lock may be held.

    Raises:
        UnavailableError: it takes more work than one request may; sent again, it comes further.
    """
    found = {}
    with limit_work(math.inf) as meter:
        before = meter.spent
        for quote in wanted:
            answer = _known.get(quote, _MISSING)  # another thread may have computed it meanwhile
            if answer is _MISSING:
                if meter.spent - before > COST_POINTS_MAX:
                    raise UnavailableError(_FURTHER)
                question: Any
                question, asked = quote
                answer = question.of(asked)
                _remember(quote, answer)
            found[quote] = answer
    return found


def _remember(quote: Quote, answer: Any) -> None:
    with _learning:
        if len(_known) >= KNOWN_MAX:
            _known.popitem(last=False)
        _known[quote] = answer


def changing() -> UnavailableError:
    """What is said to who asked so often that an end is not in sight."""
    return UnavailableError(_CHANGING)
