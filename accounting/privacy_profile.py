"""Curves of a ledger: its privacy profile, and what it says about any membership test.

A membership test looks at everything that was released and says whether a record was in. Its false
positives are records that were not in; its true positives those that were.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import partial
from typing import Final

import numpy as np

from accounting import work_budgets
from accounting.accountants.best_bound import best_bound
from accounting.accountants.profile_sources import (
    Reading,
    Source,
    source_of_curve,
    source_of_events,
)
from accounting.accountants.shuffled_passes import kept_passes
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.gaussian import gaussian_trade_off
from accounting.guarantees import DEFAULT_ACCEPT, Assumption, Status, theorem, weakest
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.shuffling.shuffled_batches import shuffled_batches_pairs
from accounting.work_limit import as_many, attempt, limit_work

# The first with a finite epsilon ends the grid.
LEAST_DELTAS: Final = (1e-12, 1e-9, 1e-6, 1e-3, 0.1)
_SLACK: Final = 4 * LIBRARY_ULPS * UNIT_ROUNDOFF  # of an exponential and three operations
_CLOSED_FORM_SLACK: Final = 1e-9  # the closed form is good to 1e-12
_TOLD: Final = Context(prec=4, rounding=ROUND_CEILING)
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
    source, found = _read(partial(source_of_events, *given), epsilons, points)
    if not found:
        source, found = _read(
            partial(source_of_curve, *given), epsilons, work_budgets.RENYI_CURVE_OF_PROFILE
        )
    reached = sorted(found)
    readings = [found[i] for i in reached]
    lower = np.array([one.lower for one in readings], dtype=np.float64)
    upper = np.array([one.upper for one in readings], dtype=np.float64)
    statuses = [one.status for one in readings if one.status is not None]
    # The true profile falls: what bounds it at one epsilon does so above, or below.
    return Profile(
        epsilons=epsilons[reached],
        lower=np.maximum.accumulate(lower[::-1])[::-1],
        upper=np.minimum.accumulate(np.minimum(1.0, upper)),
        mu=source.mu if source else None,
        status=weakest(statuses) if statuses else None,
        assumptions=tuple(sorted({item for one in readings for item in one.assumptions})),
    )


def _read(
    make: Callable[[], Source], epsilons: Array, points: float
) -> tuple[Source | None, dict[int, Reading]]:
    """A source, and what was read from it by index of the epsilon, for so much work."""
    with limit_work(math.inf) as meter:
        end = meter.spent + points
        source = attempt(points, make)
        if source is None:
            return None, {}
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


def epsilon_grid(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    points: int,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
) -> Array:
    """Nearly even epsilons from zero to about where delta is as small as anyone asks for.

    They have four digits, so that a page can tell them as they are. Where they end is read from the
    cheapest accountant; what is said of each is not.

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
            even = np.linspace(0.0, bound.epsilon, points).tolist()
            return np.array([float(_TOLD.create_decimal_from_float(one)) for one in even])
    return np.zeros(0)


def rate_grid(points: int) -> Array:
    """False-positive rates from zero to one: half of them even in their logarithm, half even."""
    few = max(2, points // 2)
    small = np.geomspace(RATE_MIN, 0.1, few)
    large = np.linspace(0.1, 1.0, max(2, points - few))
    return np.asarray(np.unique(np.concatenate([[0.0], small, large])), dtype=np.float64)


THEOREMS = (trade_off_of_profile, membership_advantage)
