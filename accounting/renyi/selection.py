"""Private selection: the best of a random number of trials, told alone.

The theorems and their proofs are in docs/theory/selection.md.
"""

import math
from typing import Final

import numpy as np

from accounting.events import (
    HALTING_MIN,
    SHAPE_MAX,
    TRIALS_MAX,
    NegativeBinomialTrials,
    NeighboringRelation,
    PoissonTrials,
    Trials,
)
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.orders import ORDERS, checked_orders
from accounting.rounding import (
    LIBRARY_ULPS,
    UNIT_ROUNDOFF,
    Array,
    least_true,
    require,
    rounded_down,
    rounded_up,
)

SELECTION: Final = (
    Assumption.INDEPENDENT_TRIALS,
    Assumption.CANDIDATES_DRAWN_AFRESH,
    Assumption.SCORE_IN_BASE,
    Assumption.TRIAL_COUNT_SECRET,
)
_SLACK: Final = 64 * UNIT_ROUNDOFF
_DIGITS: Final = 9  # of a halting probability that is solved for
# The orders at which a profile is read for a Poisson number of trials; between them the next one.
POISSON_ORDERS: Final[Array] = ORDERS[
    (ORDERS <= 4) | np.isin(ORDERS, (4.5, *range(5, 11), 12, 14, 16, 20, 24, 32, 48, 63, 128, 1024))
]
POISSON_ORDERS.flags.writeable = False


def expected_trials(law: Trials) -> float:
    """Return the mean number of trials. Upper.

    eta (1-gamma) / (gamma (1 - gamma^eta)), and its limit (1/gamma - 1) / log(1/gamma) at eta = 0.
    """
    if isinstance(law, PoissonTrials):
        return law.mean
    gamma = law.halting_probability
    halved = -math.log(gamma)
    power = law.shape * halved
    grown = 1.0 if abs(power) < UNIT_ROUNDOFF else power / -math.expm1(-power)
    return rounded_up((1 - gamma) / (gamma * halved) * grown, ulps=8 * LIBRARY_ULPS)


def negative_binomial_of_mean(*, shape: float, mean: float) -> NegativeBinomialTrials:
    """Return the truncated negative binomial law of a shape whose mean is about as asked.

    The halting probability is rounded down to nine decimal digits, so that the mean is at least
    what was asked for, to one part in 10^12, and the law is the same with every library.

    Args:
        shape: eta, in (-1, 100].
        mean: in (1, 10^6].

    Raises:
        ValueError: an argument is out of range, or no halting probability reaches the mean.
    """
    require(-1 < shape <= SHAPE_MAX, "shape in (-1, 100]")
    require(1 < mean <= TRIALS_MAX, "mean in (1, 10^6]")

    def short(gamma: float) -> bool:
        return expected_trials(_law(shape, gamma)) <= mean

    most = 1 - 2.0**-40
    require(short(most), "a mean further from 1")
    require(not short(HALTING_MIN), "a mean that some halting probability of 1e-12 or more reaches")
    found = least_true(short, low=HALTING_MIN, high=most) * (1 + 2.0**-40)
    unit = 10.0 ** (math.floor(math.log10(found)) + 1 - _DIGITS)
    digits = math.floor(found / unit)
    return _law(shape, float(f"{digits}e{round(math.log10(unit))}"))


def _law(shape: float, gamma: float) -> NegativeBinomialTrials:
    return NegativeBinomialTrials(shape=shape, halting_probability=gamma)


@theorem(
    id="selection-negative-binomial",
    source="docs/theory/selection.md, Theorem 1; after Papernot and Steinke 2022, ICLR, "
    "arXiv:2110.03620, Theorem 2",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=SELECTION,
)
def negative_binomial_selection_rdp(
    *, rdp: Array, shape: float, halting_probability: float, orders: Array
) -> Array:
    """RDP of the best of a truncated negative binomial number of trials.

    With r the curve of one trial, in both orders of the neighbours, and any b >= 1,

    rdp(alpha) = r(alpha) + (1+eta) ((1-1/b) r(b) + log(1/gamma)/b) + log E[K] / (alpha-1)

    The least over the orders b that are given, and b = 1. P(K=k) is proportional to
    (1-gamma)^k prod_(l<k) (l+eta)/(l+1), k >= 1. A bound at a larger order holds at a smaller one.

    Args:
        rdp: nats, of one trial, shape (k,); infinite where nothing is known.
        shape: eta, in (-1, 100].
        halting_probability: gamma, in [1e-12, 1).
        orders: alpha > 1, rising, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper.

    Raises:
        ValueError: an argument is out of range, or the curve is negative or not a number.
    """
    orders, law = checked_orders(orders), _law(shape, halting_probability)
    require(bool(np.all(rdp >= 0)), "rdp >= 0")
    doubt = -math.log(halting_probability)
    shares = 1 / orders
    least = min(doubt, float(np.min((1 - shares) * rdp + shares * doubt)))
    mean = math.log(max(1.0, expected_trials(law))) * (1 + _SLACK) + _SLACK
    curve = rdp + (1 + shape) * least * (1 + _SLACK) + mean / (orders - 1)
    return _falling(curve * (1 + _SLACK))


@theorem(
    id="selection-poisson",
    source="docs/theory/selection.md, Theorem 2; after Papernot and Steinke 2022, ICLR, "
    "arXiv:2110.03620, Theorem 6",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=SELECTION,
)
def poisson_selection_rdp(*, rdp: Array, deltas: Array, mean: float, orders: Array) -> Array:
    """RDP of the best of a Poisson number of trials, m on average.

    With one trial also (log(1 + 1/(alpha-1)), d)-DP, in both orders of the neighbours,

    rdp(alpha) = log(e^-m + m e^((alpha-1) (r(alpha) + m d))) / (alpha-1)

    Where there is no trial, a fixed output is released. A bound at a larger order holds at a
    smaller one.

    Args:
        rdp: nats, of one trial, shape (k,); infinite where nothing is known.
        deltas: d at each order, in [0, 1], shape (k,).
        mean: m, in [1, 10^6].
        orders: alpha > 1, rising, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper.

    Raises:
        ValueError: an argument is out of range, or an array is negative or not a number.
    """
    orders, law = checked_orders(orders), PoissonTrials(mean=mean)
    require(bool(np.all(rdp >= 0)) and bool(np.all((deltas >= 0) & (deltas <= 1))), "rdp, d >= 0")
    inside = rdp + law.mean * deltas
    none = np.exp(-law.mean - (orders - 1) * inside)
    curve = inside + (np.log(law.mean + none) * (1 + _SLACK) + _SLACK) / (orders - 1)
    return _falling(curve * (1 + _SLACK))


def threshold(order: float) -> float:
    """Return the epsilon at which a trial is read for a Poisson selection's order. Lower, nats."""
    return max(0.0, rounded_down(math.log1p(1 / (order - 1)), ulps=2 * LIBRARY_ULPS))


def _falling(curve: Array) -> Array:
    """What holds at an order holds at every smaller one."""
    return np.asarray(np.minimum.accumulate(curve[::-1])[::-1], dtype=np.float64)


THEOREMS = (negative_binomial_selection_rdp, poisson_selection_rdp)
