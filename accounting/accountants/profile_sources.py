"""What a privacy profile is read from: delta at each of many epsilons, and what that rests on."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

from accounting.accountants.best_bound import BEST, best_bound
from accounting.accountants.composed_bounds import least_of_choices
from accounting.accountants.event_grouping import DISTINCT_MAX, dominating, group_events
from accounting.accountants.queries import Query, pairs_above
from accounting.accountants.shuffled_passes import (
    bounds_with_passes,
    guess_aside,
    kept_passes,
)
from accounting.accountants.truncated_poisson import as_poisson
from accounting.bounds.dominating_pairs import Offered
from accounting.bounds.event_bounds import NoBoundError
from accounting.bounds.lower_bounds import lower_bound_units
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation, TruncatedPoisson
from accounting.guarantees import Assumption, Bound, Status, weakest
from accounting.pld.certified_composition import delta_bracket, lower_delta
from accounting.pld.pairs import GaussianPair, Units
from accounting.rounding import rounded_up, sum_up
from accounting.shuffling.shuffled_batches import shuffled_batches_pairs
from accounting.subsampling.truncated import truncated_delta
from accounting.work_limit import attempt, remaining_points, spend

WIDTH: Final = 1e-4  # relative, aimed at for a delta of the profile
# Set aside for shuffled passes, all together: at each epsilon one of these is near the best.
_ASIDE: Final[tuple[float, ...]] = tuple(10.0 ** (-place / 2) for place in range(4, 31))
_PART: Final = 0.25  # of what moments guess, which say many times delta
# Of delta: where more was set aside than that, so much is.
_MUCH: Final = 0.5
_LESS: Final = 0.1
_EACH: Final = 0.5  # of the work that is left, so that some remains for other epsilons
_NOISES: Final = 4  # of each sampling, where the Renyi curve stands in
_LOOK: Final = 3000  # points that looking up what is known of an event is taken for


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Delta at an epsilon, and what bounds it from above."""

    lower: float
    upper: float
    status: Status | None = None  # None where nothing bounds the events
    assumptions: tuple[Assumption, ...] = ()

    def or_less(
        self, upper: float, status: Status | None, assumptions: tuple[Assumption, ...]
    ) -> "Reading":
        """The lesser of two upper ends. What is used of the other, its mu, is still named."""
        if not upper < self.upper:
            return self
        statuses = [one for one in (self.status, status) if one is not None]
        return Reading(
            lower=self.lower,
            upper=upper,
            status=weakest(statuses),
            assumptions=tuple(sorted({*self.assumptions, *assumptions})),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a profile is read from."""

    read: Callable[[float], Reading]  # at an epsilon
    mu: float | None = None  # upper; where every step is one Gaussian release, which is mu-GDP


def source_of_events(
    counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> Source:
    """What the pairs say, and where batches are truncated what the same whole batches say.

    Valid when the steps were fixed in advance, as all accountants here but the odometer.
    """
    counts = counts.with_known_orders()
    direct = _source_of_pairs(counts, relation, accept)
    if not any(isinstance(event.sampling, TruncatedPoisson) for event in counts.steps):
        return direct
    poisson = as_poisson(counts, relation)
    whole = _source_of_pairs(poisson.counts, relation, accept)

    def read(epsilon: float) -> Reading:
        found, uncut = direct.read(epsilon), whole.read(epsilon)
        upper = truncated_delta(uncut.upper, epsilon=epsilon, failure=poisson.failure)
        return found.or_less(upper, uncut.status, poisson.assumptions(uncut.assumptions))

    return replace(direct, read=read)


def _source_of_pairs(
    counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> Source:
    """The pairs of the events where all have some, else whatever accountant answers.

    The statuses are those of the events' bounds; composing and reading them is published.
    """
    rounded = group_events(counts) if len(counts.steps) > DISTINCT_MAX else None
    try:
        used, above = pairs_above(rounded.upper if rounded else counts, relation, accept)
    except NoBoundError:
        return _source_without_pairs(counts, relation, accept, BEST)
    below = lower_bound_units(rounded.lower if rounded else counts, relation)
    status = weakest([theorem.status for bound in used for theorem in bound.theorems])
    assumptions = tuple(sorted({one for bound in used for one in bound.assumptions}))

    def read(epsilon: float) -> Reading:
        lower, upper = _delta(above, below, epsilon)
        return Reading(lower=lower, upper=upper, status=status, assumptions=assumptions)

    direct = Source(read=read, mu=_mu(above))
    if shuffled_batches_pairs.status not in accept:
        return direct
    return _or_aside(direct, dominating(counts, 1) if rounded else counts, relation, accept)


def _or_aside(
    direct: Source, counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> Source:
    """The same, and what shuffled passes that may fail say where that is less.

    Each delta set aside gives a profile that holds at all epsilons, its part of delta included; so
    does the least of several. At each epsilon one is read that is little of delta.
    """
    if not kept_passes(counts, relation):
        return direct
    passes = _Passes(counts, relation, accept)

    def read(epsilon: float) -> Reading:
        found = direct.read(epsilon)
        for bound in passes.bounds(epsilon):
            found = found.or_less(bound.delta, bound.status, bound.assumptions)
        return found

    return replace(direct, read=read)


class _Passes:
    """Delta of a ledger with shuffled passes that may fail with a part of it."""

    def __init__(
        self, counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
    ) -> None:
        """Of a ledger; what bounds its events is kept for each part set aside."""
        self._asked = Query(
            relation=relation,
            accept=accept,
            delta=None,
            epsilon=None,
            width=WIDTH,
            with_lower=False,
        )
        self._kept = cache(partial(bounds_with_passes, counts, relation, accept))

    def _offered(self, *, aside: float) -> Sequence[Offered]:
        return self._kept(aside=_near(aside))

    def _composed(self, epsilon: float, aside: float) -> Bound:
        question = replace(self._asked, epsilon=epsilon)
        return least_of_choices(self._offered(aside=aside), [], question)

    def bounds(self, epsilon: float) -> Iterator[Bound]:
        """Each is proved. Where much of one was set aside, the next has less of it."""
        guess = attempt(
            _EACH * remaining_points(), partial(guess_aside, self._offered, epsilon=epsilon)
        )
        aside = None if guess is None else _near(_PART * guess)
        while aside is not None:
            bound = attempt(_EACH * remaining_points(), partial(self._composed, epsilon, aside))
            if bound is None:
                return
            yield bound
            less = _near(_LESS * (bound.delta - aside))
            aside = less if aside > _MUCH * bound.delta and less < aside else None


def _near(aside: float) -> float:
    """The nearest of a few parts of delta, whose pairs then serve many epsilons."""
    return min(_ASIDE, key=lambda one: abs(math.log(one / max(aside, _ASIDE[-1]))))


def _delta(above: Units, below: Units, epsilon: float) -> tuple[float, float]:
    if not above:
        return 0.0, 0.0
    found = delta_bracket(above, epsilon=epsilon, width=WIDTH)
    if above == below:
        return found.lower, found.upper
    least = lower_delta(below, epsilon=epsilon, width=WIDTH) if below else 0.0
    return least, found.upper


def _mu(pairs: Units) -> float | None:
    """Upper mu where every unit is one Gaussian release of all records, which is then exact."""
    squares = []
    for pair, count in pairs:
        if not isinstance(pair, GaussianPair):
            return None
        squares.append(rounded_up(count / pair.noise_multiplier / pair.noise_multiplier, ulps=3))
    mu = rounded_up(math.sqrt(sum_up(squares)), ulps=2)
    return mu if mu < math.inf else None


def source_of_curve(
    counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> Source:
    """The Renyi curve, which takes little work however many epsilons it is read at."""
    if len(counts.steps) > DISTINCT_MAX:
        counts = group_events(counts).rough_upper
    return _source_without_pairs(dominating(counts, _NOISES), relation, accept, "rdp")


def _source_without_pairs(
    counts: EventCounts,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    accountant: str,
) -> Source:
    given: dict[str, Any] = {"relation": relation, "accept": accept, "accountant": accountant}

    def read(epsilon: float) -> Reading:
        spend(_LOOK * len(counts.steps))
        bound = best_bound(counts, epsilon=epsilon, with_lower=False, **given)
        if bound is None:
            return Reading(lower=0.0, upper=1.0)
        return Reading(
            lower=0.0, upper=bound.delta, status=bound.status, assumptions=bound.assumptions
        )

    return Source(read=read)
