"""From a ledger to a guarantee: the best accepted bound, and what stands beside it."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from accounting import work_budgets
from accounting.accountants.best_first import (
    ACCOUNTANTS,
    ODOMETER,
    ask_accountants,
    best_first,
    bounds_of,
    is_settled,
    of_any_status,
)
from accounting.accountants.event_grouping import DISTINCT_MAX, GroupedEvents, group_events
from accounting.accountants.grouped_bounds import rough_lower_end
from accounting.accountants.queries import Query, lower_end
from accounting.event_counts import EventCounts
from accounting.events import (
    Cyclic,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    NoNoise,
    Poisson,
    PoissonUnit,
    PrivateSelection,
    Shuffle,
)
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Bound, Guarantee, Status
from accounting.math_library import require_accurate_library
from accounting.rounding import rounded_down
from accounting.work_limit import WorkCounter, attempt, limit_work, remaining_points

R = TypeVar("R")

BEST: Final = "best"
# Where everything that is known is so many times the lower end, more is looked for: bounds of every
# status that may be accepted, and a better lower end.
WIDE: Final = 2.0
NOISE_LEAST: Final = 1e-100  # of an event; less counts as none


def guarantee(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    delta: float | None = None,
    epsilon: float | None = None,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    accountant: str = BEST,
    share: float = 1.0,
) -> Guarantee:
    """The best accepted bound on what a ledger has spent, and what else can be said of it.

    Valid when the steps' parameters and number were fixed in advance. Exactly one of delta and
    epsilon is given; the guarantee holds the other.

    Args:
        counts: units of each distinct event.
        relation: the neighbouring relation.
        delta: in (0, 1), to ask for epsilon.
        epsilon: nats, >= 0, to ask for delta.
        accept: statuses that may be the headline; conjectures and estimates never are.
        accountant: "best", a key of ACCOUNTANTS, or "odometer", which is valid for any schedule.
        share: of the work that a guarantee may take; less where several make one answer.

    Raises:
        ValueError: not exactly one of delta and epsilon, one that is out of range, an unknown
            accountant, or a status that may never be accepted.
    """
    names = _names(accountant)
    with limit_work(math.inf) as meter:
        purse = _Purse(meter, share, meter.spent)
        counts, rounded = _few(counts)
        question = replace(_question(relation, delta, epsilon, accept, rounded), share=share)
        found, reason, beyond = ask_accountants(counts, question, names)
        purse.end += beyond  # which takes nothing from what stands beside it
        headline = found[0] if found else None
        reached = headline.delta if headline else delta
        points = _beside(counts)
        every = replace(question, accept=ACCEPTABLE)
        others = found
        if question != every:
            others = purse.pays(points, lambda: best_first(counts, every, names)) or []
        lower = _lower(purse, [*found, *others], headline, counts, question)
        if question != every and not is_settled(others) and _is_wide([*found, *others], lower):
            rest = purse.start + share * work_budgets.WIDE_GUARANTEE - meter.spent
            most = max(rest, share * work_budgets.EVERY_STATUS)
            others = [*others, *of_any_status(counts, every, names, most)]
        unamplified = purse.pays(points, lambda: _unamplified_epsilon(counts, relation, reached))
        as_poisson = purse.pays(
            points, lambda: _poisson_would_say(counts, relation, reached, names)
        )
    return Guarantee(
        epsilon=headline.epsilon if headline else None,
        epsilon_lower=lower,
        delta=reached,
        neighboring_relation=relation,
        headline=headline,
        reason=None if headline else reason,
        unamplified_epsilon=unamplified,
        poisson_would_say=as_poisson,
        alternatives=tuple(
            bound for bound in dict.fromkeys([*found, *others]) if bound != headline
        ),
    )


def with_odometer(
    found: Guarantee,
    counts: EventCounts,
    *,
    delta: float | None,
    accountant: str = BEST,
    share: float = 1.0,
) -> Guarantee:
    """A guarantee of a ledger with the odometer's reading beside it, where it has one.

    Args:
        found: the guarantee.
        counts: what it is of.
        delta: what it was asked at; None where epsilon was given.
        accountant: that was asked for; only the best has the odometer beside it.
        share: of the work that it may take.
    """
    if delta is None or accountant != BEST:
        return found
    relation = found.neighboring_relation
    read = attempt(
        share * _beside(counts),
        lambda: best_bound(
            counts,
            relation=relation,
            delta=delta,
            accept=ACCEPTABLE,
            accountant=ODOMETER,
            with_lower=False,
        ),
    )
    return found if read is None else replace(found, alternatives=(*found.alternatives, read))


def best_bound(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    delta: float | None = None,
    epsilon: float | None = None,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    accountant: str = BEST,
    with_lower: bool = True,
    share: float = 1.0,
) -> Bound | None:
    """The headline of a guarantee, to the same bits, without what would stand beside it.

    Args and errors are those of guarantee, and with_lower: whether its own lower bound is wanted.

    Returns:
        The bound, or None where no accepted one is finite.
    """
    counts, rounded = _few(counts)
    asked = _question(relation, delta, epsilon, accept, rounded)
    question = replace(asked, with_lower=with_lower, share=share)
    found = best_first(counts, question, _names(accountant))
    return found[0] if found else None


def with_lower_bound(bound: Bound, counts: EventCounts, *, relation: NeighboringRelation) -> Bound:
    """A headline of a ledger with a lower end beside it alone, where that takes little work."""
    few, rounded = _few(counts)
    lower_counts = few if rounded is None else rounded.rough_lower
    lower = attempt(
        work_budgets.LOWER_END, lambda: lower_end([bound], bound, lower_counts, relation)
    )
    return replace(bound, epsilon_lower=lower)


def _question(
    relation: NeighboringRelation,
    delta: float | None,
    epsilon: float | None,
    accept: frozenset[Status],
    rounded: GroupedEvents | None,
) -> Query:
    require_accurate_library()
    if (delta is None) == (epsilon is None):
        raise ValueError("Give delta or epsilon, not both.")
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    if not accept <= ACCEPTABLE:
        raise ValueError("Conjectures and estimates are never accepted.")
    return Query(relation=relation, accept=accept, delta=delta, epsilon=epsilon, rounded=rounded)


def _few(counts: EventCounts) -> tuple[EventCounts, GroupedEvents | None]:
    """The ledger, or its upper side where it has too many distinct events to compose each."""
    if len(counts.steps) <= DISTINCT_MAX:
        return counts, None
    rounded = group_events(counts)
    return rounded.upper, rounded


def _names(accountant: str) -> tuple[str, ...]:
    """Which accountants are asked, in turn."""
    if accountant == BEST:
        return tuple(ACCOUNTANTS)
    if accountant not in (*ACCOUNTANTS, ODOMETER):
        raise ValueError(f"The accountants are {', '.join([BEST, *ACCOUNTANTS, ODOMETER])}.")
    return (accountant,)


def _beside(counts: EventCounts) -> int:
    """What work each number may take that stands beside a headline."""
    few = len(counts.steps) <= work_budgets.FEW_EVENTS
    return work_budgets.BESIDE_OF_FEW_EVENTS if few else work_budgets.BESIDE


@dataclass(slots=True)
class _Purse:
    """What a guarantee may take, and what stands beside its headline."""

    meter: WorkCounter
    share: float  # of what it may take
    start: float
    end: float = field(init=False)

    def __post_init__(self) -> None:
        """No more than what is allowed to one guarantee."""
        self.end = self.start + self.share * work_budgets.GUARANTEE

    def pays(self, points: int, compute: Callable[[], R], least: int = 0) -> R | None:
        """What a function computes within its points and what is left, or within so many."""
        rest = max(self.share * least, self.end - self.meter.spent)
        return attempt(min(self.share * points, rest, remaining_points()), compute)


def _lower(
    purse: _Purse, known: list[Bound], headline: Bound | None, counts: EventCounts, question: Query
) -> float | None:
    """The best proved lower end beside a headline; a rougher one, too, where that is far below."""
    relation, rounded = question.relation, question.rounded
    lower_counts = counts if rounded is None else rounded.lower
    least = work_budgets.LOWER_END if len(counts.steps) > 1 else work_budgets.LOWER_END_OF_ONE_EVENT
    found = [
        purse.pays(
            work_budgets.LOWER_BOUND,
            lambda: lower_end(known, headline, lower_counts, relation),
            0 if rounded else least,
        )
    ]
    if found == [None] and rounded is not None:
        lower_counts = rounded.rough_lower
        found.append(
            purse.pays(
                work_budgets.LOWER_BOUND,
                lambda: lower_end(known, headline, lower_counts, relation),
                work_budgets.ROUGH_LOWER_END,
            )
        )
    lower = max((one for one in found if one is not None), default=None)
    if len(counts.steps) > 1 and (lower is None or _is_wide(known, lower)):
        rougher = purse.pays(
            work_budgets.LOWER_END,
            lambda: rough_lower_end(headline, lower_counts, relation),
            work_budgets.LOWER_END,
        )
        lower = max((one for one in (lower, rougher) if one is not None), default=None)
    return lower


def _is_wide(known: list[Bound], lower: float | None) -> bool:
    """Whether all that is known is so far above a lower end that more is looked for."""
    least = min((bound.epsilon for bound in known), default=math.inf)
    return not least <= WIDE * (lower or 0.0)


def _poisson_would_say(
    counts: EventCounts,
    relation: NeighboringRelation,
    delta: float | None,
    names: tuple[str, ...],
) -> float | None:
    """Epsilon had each batch in turn been a Poisson sample of the same size; bounds nothing."""
    if delta is None or not 0 < delta < 1:
        return None
    claimed = as_if_poisson(counts)
    if claimed is None:
        return None
    question = Query(
        relation=relation, accept=ACCEPTABLE, delta=delta, epsilon=None, with_lower=False
    )
    asked = ("rdp",) if names == ("rdp",) else ("pld", "rdp")
    found, _ = bounds_of(claimed, question, asked)
    return found[0].epsilon if found else None


def as_if_poisson(counts: EventCounts) -> EventCounts | None:
    """The ledger had each batch in turn been a Poisson sample of the same size.

    Args:
        counts: units of each distinct event.

    Returns:
        The ledger, which bounds nothing; None where no batches were taken in turn.
    """
    steps: Counter[Event] = Counter()
    for event, count in counts.steps.items():
        sampling = event.sampling
        if isinstance(sampling, Cyclic | Shuffle):
            if isinstance(sampling, Shuffle) and sampling.dataset_size is not None:
                rate = sampling.batch_size / sampling.dataset_size
            else:
                rate = 1 / sampling.steps_per_pass
            event = replace(event, sampling=Poisson(sampling_probability=min(1.0, rate)))
        steps[event] += count
    if steps == counts.steps:
        return None
    passes = {event: n for event, n in counts.passes.items() if event in steps}
    return EventCounts(steps=steps, passes=passes)


def _unamplified_epsilon(
    counts: EventCounts, relation: NeighboringRelation, delta: float | None
) -> float | None:
    """Epsilon of the same steps had every record taken part in each. Upper; None if infinite."""
    if delta is None or not 0 < delta < 1:
        return None
    whole_counts = as_if_unsampled(counts)
    question = Query(relation=relation, accept=DEFAULT_ACCEPT, delta=delta, epsilon=None)
    found, _ = bounds_of(whole_counts, question, ("gdp",))  # exact where it applies
    if not all(isinstance(event.mechanism, Gaussian) for event in whole_counts.steps):
        found, _ = bounds_of(whole_counts, question, ("pld", "rdp"))
    return found[0].epsilon if found else None


def as_if_unsampled(counts: EventCounts) -> EventCounts:
    """The ledger of full batches: of the same steps, had every record taken part in each.

    It bounds no other: where a record's absence lets another into a batch, that may lose more.

    Args:
        counts: units of each distinct event.
    """
    steps: Counter[Event] = Counter()
    for event, count in counts.steps.items():
        steps[_without_sampling(event)] += count
    return EventCounts(steps=dict(steps))


def _without_sampling(event: Event) -> Event:
    mechanism, sampling = event.mechanism, event.sampling
    if isinstance(mechanism, PrivateSelection):
        mechanism = replace(mechanism, base=_without_sampling(mechanism.base))
    elif isinstance(mechanism, Gaussian) and isinstance(sampling, PoissonUnit):
        # All rows of a record take part.
        noise = rounded_down(mechanism.noise_multiplier / sampling.rows)
        if noise < NOISE_LEAST:
            return Event(mechanism=NoNoise(), sampling=Full())
        mechanism = replace(mechanism, noise_multiplier=noise)
    return Event(mechanism=mechanism, sampling=Full())
