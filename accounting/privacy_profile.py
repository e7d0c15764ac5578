"""Curves of a ledger: its privacy profile, and what it says about any membership test.

A membership test looks at everything that was released and says whether a record was in. Its false
positives are records that were not in; its true positives those that were.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from accounting import work_budgets
from accounting.accountants.best_bound import BEST, best_bound
from accounting.accountants.event_grouping import DISTINCT_MAX, dominating, group_events
from accounting.accountants.queries import pairs_above
from accounting.accountants.shuffled_passes import SHARE, delta_of_passes, kept_passes
from accounting.accountants.truncated_poisson import as_poisson
from accounting.bounds.event_bounds import EventBound, NoBoundError, Pairs
from accounting.bounds.lower_bounds import lower_bound_units
from accounting.bounds.pair_choice import log_delta_of_moments
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation, TruncatedPoisson
from accounting.gaussian import gaussian_trade_off
from accounting.guarantees import DEFAULT_ACCEPT, Assumption, Status, weakest
from accounting.pld.certified_composition import delta_bracket, delta_floor
from accounting.pld.contour.parameters import Units
from accounting.pld.pairs import GaussianPair
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array, rounded_up, sum_up
from accounting.shuffling.shuffled_batches import shuffled_batches_pairs
from accounting.subsampling.truncated import truncated_delta
from accounting.theorem import theorem
from accounting.work_limit import as_many, attempted, limited, spend

WIDTH: Final = 1e-4  # relative, aimed at for a delta of the profile
# The first with a finite epsilon ends the grid.
LEAST_DELTAS: Final = (1e-12, 1e-9, 1e-6, 1e-3, 0.1)
# Set aside for shuffled passes, all together: at each epsilon one of these is near the best.
_ASIDE: Final = tuple(10.0**-place for place in range(3, 16))
_NOISES: Final = 4  # of each sampling, where the Renyi curve stands in
_LOOK: Final = 3000  # points that looking up what is known of an event is taken for
_SLACK: Final = 4 * LIBRARY_ULPS * UNIT_ROUNDOFF  # of an exponential and three operations
_CLOSED_FORM_SLACK: Final = 1e-9  # the closed form is good to 1e-12
RATE_MIN: Final = 1e-6  # the least false-positive rate of a curve, but for zero


@theorem(
    id="trade-off-of-profile",
    source="Kairouz, Oh and Viswanath 2015, ICML, arXiv:1311.0776v4, Theorem 2.1; "
    "from many points: Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Proposition 2.11",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def trade_off_of_profile(*, epsilons: Array, deltas: Array, false_positive_rates: Array) -> Array:
    """The least false-negative rate of any membership test, from points of the privacy profile.

    f(alpha) = max over points of
        max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha))

    Each point alone gives a bound, so that any number of points do. docs/theory/curves.md has the
    proof.

    Args:
        epsilons: nats, >= 0, shape (k,).
        deltas: at each epsilon, in both orders of the neighbours, shape (k,). Upper.
        false_positive_rates: alpha, in [0, 1], shape (m,).

    Returns:
        The false-negative rates, in [0, 1], shape (m,). Lower, rounding included.
    """
    if np.any(epsilons < 0) or np.any((false_positive_rates < 0) | (false_positive_rates > 1)):
        raise ValueError("epsilons are not negative and false_positive_rates lie in [0, 1].")
    alpha = false_positive_rates[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        power = np.exp(epsilons)
        lost = np.where(alpha > 0, power * alpha, 0.0)
        steep = 1 - deltas - lost - _SLACK * (1 + deltas + lost)
        flat = (1 - deltas - alpha - _SLACK * (1 + deltas + alpha)) / (power * (1 + _SLACK))
    lines = np.concatenate([np.zeros_like(alpha), steep, flat], axis=1)
    return np.asarray(np.max(np.nan_to_num(lines, nan=0.0), axis=1), dtype=np.float64)


@theorem(
    id="membership-advantage",
    source="Kairouz, Oh and Viswanath 2015, ICML, arXiv:1311.0776v4, Theorem 2.1",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def membership_advantage(*, epsilons: Array, deltas: Array) -> float:
    """The most by which true positives may exceed false positives, for any membership test.

    min over points of (e^epsilon - 1 + 2 delta) / (e^epsilon + 1)

    At epsilon zero it is delta, the total variation distance, which is exact. docs/theory/curves.md
    has the proof.

    Args:
        epsilons: nats, >= 0, shape (k,).
        deltas: at each epsilon, in both orders of the neighbours, shape (k,). Upper.

    Returns:
        The advantage, in [0, 1]. Upper, rounding included; 1 where there are no points.
    """
    if np.any(epsilons < 0):
        raise ValueError("epsilons are not negative.")
    # (e^x - 1)/(e^x + 1) = tanh(x/2), which neither cancels nor overflows.
    half = np.tanh(0.5 * epsilons)
    advantages = (half + deltas * (1 - half)) * (1 + _SLACK) + _SLACK * deltas
    return float(np.min(np.minimum(1.0, advantages), initial=1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Delta at a grid of epsilons, and what it was read from."""

    epsilons: Array  # nats, rising from zero, (k,)
    lower: Array  # (k,); zero where nothing is known
    upper: Array  # (k,)
    mu: float | None  # upper; where every step is one Gaussian release, which is mu-GDP
    status: Status | None  # of what bounds the events; None where nothing does
    assumptions: tuple[Assumption, ...]

    def trade_off(self, false_positive_rates: Array) -> Array:
        """The least false-negative rates of any membership test. Lower."""
        found = trade_off_of_profile(
            epsilons=self.epsilons,
            deltas=self.upper,
            false_positive_rates=false_positive_rates,
        )
        if self.mu is None:
            return found
        exact = [gaussian_trade_off(float(rate), mu=self.mu) for rate in false_positive_rates]
        least = np.array(exact, dtype=np.float64) * (1 - _CLOSED_FORM_SLACK)
        return np.asarray(np.maximum(found, least), dtype=np.float64)

    def true_positive_rates(self, false_positive_rates: Array) -> Array:
        """The highest true-positive rates of any membership test. Upper."""
        missed = self.trade_off(false_positive_rates)
        return np.asarray(np.minimum(1.0, (1 - missed) + UNIT_ROUNDOFF))

    def advantage(self) -> float:
        """The most by which true positives may exceed false positives. Upper."""
        return membership_advantage(epsilons=self.epsilons, deltas=self.upper)


def privacy_profile(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    epsilons: Array,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    points: float = math.inf,
) -> Profile:
    """Delta at each of some epsilons; valid when the steps were fixed in advance.

    Args:
        counts: units of each distinct event.
        relation: the neighbouring relation.
        epsilons: nats, >= 0, rising, shape (k,).
        accept: statuses that may be used.
        points: what it may take, as work.py counts it; epsilons that are not reached by then are
            left out. Those reached first are the ends, then the middle, then the quarters.

    Returns:
        The profile; both of its sides fall. Delta is one where no accepted bound is finite.
    """
    given = counts, relation, accept
    source, found = _read(partial(_source, *given), epsilons, points)
    if not found:
        source, found = _read(
            partial(_source_of_curve, *given), epsilons, work_budgets.RENYI_CURVE_OF_PROFILE
        )
    reached = sorted(found)
    lower = np.array([found[i][0] for i in reached], dtype=np.float64)
    upper = np.array([found[i][1] for i in reached], dtype=np.float64)
    # The true profile falls: what bounds it at one epsilon does so above, or below.
    return Profile(
        epsilons=epsilons[reached],
        lower=np.maximum.accumulate(lower[::-1])[::-1],
        upper=np.minimum.accumulate(np.minimum(1.0, upper)),
        mu=source.mu,
        status=source.status,
        assumptions=source.assumptions,
    )


def _read(
    make: Callable[[], "_Source"], epsilons: Array, points: float
) -> tuple["_Source", dict[int, tuple[float, float]]]:
    """A source, and what was read from it by index of the epsilon, for so much work."""
    with limited(math.inf) as meter:
        end = meter.spent + points
        source = attempted(points, make)
        if source is None:
            return _NOTHING, {}
        order = spread(len(epsilons))
        reads = [partial(source.read, float(epsilons[i])) for i in order]
        return source, dict(zip(order, as_many(end - meter.spent, reads), strict=False))


def spread(count: int) -> list[int]:
    """0 .. count-1 in an order in which any beginning is spread over the whole: the ends first."""
    order = dict.fromkeys([count - 1, 0] if count else [])
    stride = count
    while stride > 1:
        stride = (stride + 1) // 2
        order |= dict.fromkeys(range(0, count, stride))
    return list(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a profile is read from, and what that rests on."""

    read: Callable[[float], tuple[float, float]]  # (lower, upper) delta at an epsilon
    mu: float | None
    status: Status | None
    assumptions: tuple[Assumption, ...]


_NOTHING: Final = _Source(read=lambda _: (0.0, 1.0), mu=None, status=None, assumptions=())


def _source(
    counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> _Source:
    """What the pairs say, and where batches are truncated what the same whole batches say."""
    direct = _source_of_pairs(counts, relation, accept)
    if not any(isinstance(event.sampling, TruncatedPoisson) for event in counts.steps):
        return direct
    poisson = as_poisson(counts, relation)
    whole = _source_of_pairs(poisson.counts, relation, accept)

    def read(epsilon: float) -> tuple[float, float]:
        (lower, upper), (_, uncut) = direct.read(epsilon), whole.read(epsilon)
        return lower, min(upper, truncated_delta(uncut, epsilon=epsilon, failure=poisson.failure))

    statuses = [one.status for one in (direct, whole) if one.status is not None]
    return _Source(
        read=read,
        mu=direct.mu,
        status=weakest(statuses) if statuses else None,
        assumptions=tuple(sorted({*direct.assumptions, *poisson.assumptions(whole.assumptions)})),
    )


def _source_of_pairs(
    counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> _Source:
    """The pairs of the events where all have some, else whatever accountant answers.

    The statuses are those of the events' bounds; composing and reading them is published.
    """
    rounded = group_events(counts) if len(counts.steps) > DISTINCT_MAX else None
    try:
        used, upper = pairs_above(rounded.upper if rounded else counts, relation, accept)
    except NoBoundError:
        return _source_without_pairs(counts, relation, accept, BEST)
    lower = lower_bound_units(rounded.lower if rounded else counts, relation)
    direct = _Source(
        read=lambda epsilon: _delta(upper, lower, epsilon),
        mu=_mu(upper),
        status=weakest([theorem.status for bound in used for theorem in bound.theorems]),
        assumptions=tuple(sorted({one for bound in used for one in bound.assumptions})),
    )
    if shuffled_batches_pairs.status not in accept:
        return direct
    return _or_aside(direct, dominating(counts, 1) if rounded else counts, relation, accept)


def _or_aside(
    direct: _Source, counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> _Source:
    """The same, and what shuffled passes that may fail say where that is less.

    Each delta set aside gives a profile that holds at all epsilons, its part of delta included; so
    does the least of several. At each epsilon the one that moments favour is read.
    """
    if not kept_passes(counts, relation):
        return direct
    known = []
    for aside in _ASIDE:
        given = pairs_above(counts, relation, accept, delta=aside / SHARE, aside=aside)
        failed = sum_up([bound.delta for bound in given[0] if bound.delta])
        known.append((*given, failed))
    bounds = [bound for used, _, _ in known for bound in used]

    def guess(epsilon: float, used: list[EventBound[Pairs]], failed: float) -> float:
        offered = [((bound,), 1) for bound in used]
        return math.exp(min(0.0, log_delta_of_moments(offered, epsilon=epsilon))) + failed

    def read(epsilon: float) -> tuple[float, float]:
        lower, upper = direct.read(epsilon)
        _, above, failed = min(known, key=lambda one: guess(epsilon, one[0], one[2]))
        if failed < upper:
            upper = min(upper, delta_of_passes(above, epsilon=epsilon, failed=failed))
        return lower, upper

    statuses = {theorem.status for bound in bounds for theorem in bound.theorems}
    assumptions = {one for bound in bounds for one in bound.assumptions}
    return replace(
        direct,
        read=read,
        status=weakest([*statuses, *filter(None, [direct.status])]),
        assumptions=tuple(sorted({*direct.assumptions, *assumptions})),
    )


def _delta(above: Units, below: Units, epsilon: float) -> tuple[float, float]:
    if not above:
        return 0.0, 0.0
    found = delta_bracket(above, epsilon=epsilon, width=WIDTH)
    if above == below:
        return found.lower, found.upper
    least = delta_floor(below, epsilon=epsilon, width=WIDTH) if below else 0.0
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


def _source_of_curve(
    counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> _Source:
    """The Renyi curve, which takes little work however many epsilons it is read at."""
    if len(counts.steps) > DISTINCT_MAX:
        counts = group_events(counts).rough_upper
    return _source_without_pairs(dominating(counts, _NOISES), relation, accept, "rdp")


def _source_without_pairs(
    counts: EventCounts,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    accountant: str,
) -> _Source:
    given: dict[str, Any] = {"relation": relation, "accept": accept, "accountant": accountant}

    def read(epsilon: float) -> tuple[float, float]:
        spend(_LOOK * len(counts.steps))
        bound = best_bound(counts, epsilon=epsilon, floor=False, **given)
        return 0.0, 1.0 if bound is None else bound.delta

    bound = best_bound(counts, delta=LEAST_DELTAS[-1], floor=False, **given)
    return _Source(
        read=read,
        mu=None,
        status=bound.status if bound else None,
        assumptions=bound.assumptions if bound else (),
    )


def epsilon_grid(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    points: int,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
) -> Array:
    """Even epsilons from zero to about where delta is as small as anyone asks for.

    Where they end is read from the cheapest accountant; what is said of each is not.

    Returns:
        Nats, shape (points,); only zero where nothing is spent; empty where no bound is finite.
    """
    if not counts.steps:
        return np.zeros(1)
    # What shuffled passes that leave a record out cost, the cheapest accountant does not see.
    derived = shuffled_batches_pairs.status in accept
    accountant = "pld" if derived and kept_passes(counts, relation) else "rdp"
    for delta in LEAST_DELTAS:
        bound = best_bound(
            counts, relation=relation, delta=delta, accept=accept, accountant=accountant
        )
        if bound is not None:
            return np.linspace(0.0, bound.epsilon, points)
    return np.zeros(0)


def rate_grid(points: int) -> Array:
    """False-positive rates from zero to one: half of them even in their logarithm, half even."""
    few = max(2, points // 2)
    small = np.geomspace(RATE_MIN, 0.1, few)
    large = np.linspace(0.1, 1.0, max(2, points - few))
    return np.asarray(np.unique(np.concatenate([[0.0], small, large])), dtype=np.float64)


THEOREMS = (trade_off_of_profile, membership_advantage)
