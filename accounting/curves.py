"""Curves of a balance: its privacy profile, and what it says about any membership test.

A membership test looks at everything that was released and says whether a record was in. Its false
positives are records that were not in; its true positives those that were.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.accountants import Spend, best_bound
from accounting.balances import Balance
from accounting.bounds import NoBoundError, accepted
from accounting.coarsening import rounded_outward
from accounting.domination import pld_bounds
from accounting.events import NeighboringRelation
from accounting.gaussian import gaussian_trade_off
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.numerics import LIBRARY_ULPS, UNIT_ROUNDOFF, Array, rounded_up, sum_up
from accounting.pld.bracket import delta_bracket
from accounting.pld.pairs import GaussianPair, Pair
from accounting.theorem import theorem

WIDTH: Final = 1e-4  # relative, aimed at for a delta of the profile
LEAST_DELTAS: Final = (1e-12, 1e-9, 1e-6, 1e-3, 0.1)  # the first with a finite epsilon ends the grid
_SLACK: Final = 4 * LIBRARY_ULPS * UNIT_ROUNDOFF  # of an exponential and three operations
_CLOSED_FORM_SLACK: Final = 1e-9  # the closed form is good to 1e-12
_POINTS_PER_DECADE_FROM: Final = 1e-6  # the least false-positive rate of a curve, but for zero


@theorem(
    id="trade-off-of-profile",
    source="Kairouz, Oh and Viswanath 2015, ICML, arXiv:1311.0776v4, Theorem 2.1; "
    "moments of many: Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Proposition 2.11",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def trade_off_of_profile(
    *, epsilons: Array, deltas: Array, false_positive_rates: Array
) -> Array:
    """The least false-negative rate of any membership test, from points of the privacy profile.

    f(alpha) = max over points of max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha))

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


@dataclass(frozen=True, slots=True)
class Profile:
    """Delta at a grid of epsilons, and what it was read from."""

    epsilons: Array  # nats, rising from zero, (k,)
    lower: Array  # (k,); zero where nothing is known
    upper: Array  # (k,)
    mu: float | None  # upper; where every step is one Gaussian release, which is mu-GDP

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
        return np.maximum(found, np.array(exact) * (1 - _CLOSED_FORM_SLACK))

    def true_positive_rates(self, false_positive_rates: Array) -> Array:
        """The highest true-positive rates of any membership test. Upper."""
        missed = self.trade_off(false_positive_rates)
        return np.asarray(np.minimum(1.0, (1 - missed) + UNIT_ROUNDOFF))

    def advantage(self) -> float:
        """The most by which true positives may exceed false positives. Upper."""
        return membership_advantage(epsilons=self.epsilons, deltas=self.upper)


def privacy_profile(
    balance: Balance,
    *,
    relation: NeighboringRelation,
    epsilons: Array,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    spend: Spend = lambda: None,
) -> Profile:
    """Delta at each of some epsilons; valid when the steps were fixed in advance.

    Args:
        balance: units of each distinct event.
        relation: the neighbouring relation.
        epsilons: nats, >= 0, rising, shape (k,).
        accept: statuses that may be used.
        spend: called before each evaluation.

    Returns:
        The profile; both of its sides fall. Delta is one where no accepted bound is finite.
    """
    try:
        upper_pairs, lower_pairs = _pairs(balance, relation, accept)
    except NoBoundError:
        return _without_pairs(balance, relation, epsilons, accept, spend)
    lower, upper = np.zeros_like(epsilons), np.zeros_like(epsilons)
    for i, epsilon in enumerate(epsilons):
        spend()
        if upper_pairs:
            found = delta_bracket(upper_pairs, epsilon=float(epsilon), width=WIDTH)
            upper[i] = found.upper
            lower[i] = found.lower if lower_pairs == upper_pairs else 0.0
        if lower_pairs and lower_pairs != upper_pairs:
            lower[i] = delta_bracket(lower_pairs, epsilon=float(epsilon), width=WIDTH).lower
    return _falling(epsilons, lower, upper, _mu(upper_pairs))


def _pairs(
    balance: Balance, relation: NeighboringRelation, accept: frozenset[Status]
) -> tuple[list[tuple[Pair, int]], list[tuple[Pair, int]]]:
    """What dominates the balance, and what it dominates; in an order of values alone."""
    above: Counter[Pair] = Counter()
    below: Counter[Pair] = Counter()
    for event, count in balance.counted():
        loss = accepted(pld_bounds(event, relation), accept=accept)[0].loss
        above[loss.upper] += count
        if loss.lower is not None:
            below[loss.lower] += count
    upper = rounded_outward(units=list(above.items())).upper
    lower = rounded_outward(units=list(below.items())).lower
    return sorted(upper, key=_by_value), sorted(lower, key=_by_value)


def _by_value(unit: tuple[Pair, int]) -> str:
    return repr(unit[0])


def _mu(pairs: Sequence[tuple[Pair, int]]) -> float | None:
    """Upper mu where every pair is Gaussian, which is then exact; zero for no pairs."""
    squares = []
    for pair, count in pairs:
        if not isinstance(pair, GaussianPair):
            return None
        squares.append(rounded_up(count / pair.noise_multiplier / pair.noise_multiplier, ulps=3))
    mu = rounded_up(math.sqrt(sum_up(squares)), ulps=2) if squares else 0.0
    return mu if mu < math.inf else None


def _without_pairs(
    balance: Balance,
    relation: NeighboringRelation,
    epsilons: Array,
    accept: frozenset[Status],
    spend: Spend,
) -> Profile:
    upper = np.ones_like(epsilons)
    for i, epsilon in enumerate(epsilons):
        bound = best_bound(
            balance, relation=relation, epsilon=float(epsilon), accept=accept, spend=spend
        )
        if bound is None and i == len(epsilons) - 1:
            break
        upper[i] = 1.0 if bound is None else bound.delta
    return _falling(epsilons, np.zeros_like(epsilons), upper, None)


def _falling(epsilons: Array, lower: Array, upper: Array, mu: float | None) -> Profile:
    # The true profile falls: what bounds it at one epsilon does so above, or below.
    return Profile(
        epsilons,
        np.maximum.accumulate(lower[::-1])[::-1],
        np.minimum.accumulate(np.minimum(1.0, upper)),
        mu,
    )


def epsilon_grid(
    balance: Balance,
    *,
    relation: NeighboringRelation,
    points: int,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    spend: Spend = lambda: None,
) -> Array:
    """Even epsilons from zero to where delta is as small as anyone asks for.

    Returns:
        Nats, shape (points,); only zero where nothing is spent; empty where no bound is finite.
    """
    for delta in LEAST_DELTAS:
        bound = best_bound(balance, relation=relation, delta=delta, accept=accept, spend=spend)
        if bound is not None:
            last = bound.epsilon
            return np.linspace(0.0, last, points) if last > 0 else np.zeros(1)
    return np.zeros(0)


def rate_grid(points: int) -> Array:
    """False-positive rates from zero to one: half of them even in their logarithm, half even."""
    few = max(2, points // 2)
    small = np.geomspace(_POINTS_PER_DECADE_FROM, 0.1, few)
    large = np.linspace(0.1, 1.0, max(2, points - few))
    return np.unique(np.concatenate([[0.0], small, large]))[-points:]


THEOREMS = (trade_off_of_profile, membership_advantage)
