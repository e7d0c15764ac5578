"""Renyi divergences of a record whose place is secret: what averages may be taken, and when.

The exact average of random_order.py is tighter than any of these. They are here because the
founding documents state their bounds through them. docs/theory/random_order.md has the proofs.
"""

import math
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.last_iterate.random_order import POSITIONS_MAX, checked_weights
from accounting.renyi.orders import ORDER_MAX
from accounting.rounding import Array, rounded_up

_UP: Final = 1 + 1e-12  # covers logarithms, exponentials, sums of POSITIONS_MAX and their rounding
_LEAST: Final = 1e-280  # added where a small divergence may have underflowed
_EXPONENT_MAX: Final = 700.0  # beyond, the largest term is taken out of the logarithm
_RELATIONS: Final = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)


def _checked(rdps: Array, order: float) -> Array:
    values = np.asarray(rdps, dtype=np.float64)
    if values.ndim != 1 or not 1 <= len(values) <= POSITIONS_MAX or not np.all(values >= 0):
        raise ValueError(f"rdps has 1 to {POSITIONS_MAX} entries, and none is negative.")
    if not 1 < order <= ORDER_MAX:
        raise ValueError(f"order lies in (1, {ORDER_MAX:g}].")
    return values


@theorem(
    id="softmax-average",
    source="docs/theory/random_order.md, Lemma 1; document 004, Lemma 3.1",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
)
def softmax_rdp(*, rdps: Array, order: float, weights: Array | None = None) -> float:
    """Renyi divergence of a mixture from those of its parts.

    D <= log(sum over j of w_j exp((alpha - 1) D_j)) / (alpha - 1), attained where the part is told.
    It is evaluated as log(1 + mean of expm1): positive terms, so that small ones lose no digits.

    Args:
        rdps: D_j >= 0 at the order, nats, shape (l,).
        order: alpha in (1, ORDER_MAX].
        weights: w_j, shape (l,); all alike if left out.

    Returns:
        RDP at the order, nats. Upper, between the mean and the largest of the D_j.

    Raises:
        ValueError: an argument is out of range.
    """
    from scipy.special import logsumexp  # more comes with it than few answers are worth

    values = _checked(rdps, order)
    shares = None if weights is None else checked_weights(weights, len(values))
    largest = float(np.max(values))
    if largest == 0 or not largest < math.inf:
        return largest
    powers = (order - 1) * values
    if float(np.max(powers)) < _EXPONENT_MAX:
        gains = np.expm1(powers)
        mean = float(np.mean(gains)) if shares is None else float(gains @ shares)
        found = math.log1p(mean)
    else:
        logs = logsumexp(powers, b=1 / len(values) if shares is None else shares)
        found = float(logs)
    return min(rounded_up(largest), found / (order - 1) * _UP + _LEAST)


@theorem(
    id="almost-convex-average",
    source="docs/theory/random_order.md, Lemma 2; document 004, Section 3.3.2",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
)
def almost_convex_rdp(*, rdps: Array, order: float) -> float:
    """Renyi divergence of a mixture of equal parts, if none is large: nearly their mean.

    D <= (1 + c) mean of D_j with c = (alpha - 1) max of D_j, if c <= 1. Not for larger c: mixtures
    whose part is told break it. softmax-average is never larger.

    Args:
        rdps: D_j >= 0 at the order, nats, shape (l,).
        order: alpha in (1, ORDER_MAX].

    Returns:
        RDP at the order, nats. Upper.

    Raises:
        ValueError: an argument is out of range, or c > 1.
    """
    values = _checked(rdps, order)
    c = (order - 1) * float(np.max(values))
    if not c <= 1:
        raise ValueError(f"(order - 1) times the largest of rdps is {c:g}; it must not exceed 1.")
    return (1 + c) * float(np.mean(values)) * _UP + _LEAST


def place_rdps(*, order: float, gradient_ratio: float, step_lipschitz: float, steps: int) -> Array:
    """Renyi divergences of one pass over single records, by how many steps are left.

    D = (2 alpha G^2 / sigma^2) theta_C(k), theta_C(k) = (1 - C^-2) / (1 - C^-2k), 1/k at C = 1, for
    the record used k steps before the end, its own step included: document 004, Theorem 3.6, which
    docs/theory/last_iterate.md proves.

    Args:
        order: alpha > 1.
        gradient_ratio: G / sigma > 0, bound of gradients over the noise added to them.
        step_lipschitz: C > 0.
        steps: n in [1, POSITIONS_MAX].

    Returns:
        RDP in nats for k = 1 to n, shape (n,). Upper, relative excess about 1e-12.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 < gradient_ratio < 1e100:
        raise ValueError("gradient_ratio lies in (0, 1e100).")
    if not 0 < step_lipschitz < math.inf:
        raise ValueError("step_lipschitz is positive and finite.")
    if not 1 <= steps <= POSITIONS_MAX:
        raise ValueError(f"steps lies in [1, {POSITIONS_MAX}].")
    left = np.arange(1.0, steps + 1)
    if step_lipschitz == 1:
        shares = 1 / left
    else:
        close = 0.5 <= step_lipschitz <= 2
        log = math.log1p(step_lipschitz - 1) if close else math.log(step_lipschitz)
        # Below one C^-2k grows; where it is no longer a double nothing is left of the first step.
        exponents = np.minimum(-2 * log * left, 700.0)
        shares = math.expm1(-2 * log) / np.expm1(exponents)
    largest = _checked(np.array([2 * order * gradient_ratio**2]), order)
    return np.asarray(largest * np.minimum(shares, 1.0) * _UP)


@theorem(
    id="small-rate-pass",
    source="docs/theory/random_order.md, Corollary 3; from document 004, Proposition 3.1",
    status=Status.CONDITIONAL,
    relations=_RELATIONS,
    assumptions=(
        Assumption.HIDDEN_ITERATES,
        Assumption.LOSS_CURVATURE,
        Assumption.SECRET_ORDER,
        Assumption.ONE_STEP_PER_PASS,
        Assumption.BOUNDED_GRADIENTS,
        Assumption.DATA_INDEPENDENT_START,
        Assumption.INDEPENDENT_GAUSSIAN_NOISE,
    ),
)
def small_rate_rdp(
    *, order: float, gradient_ratio: float, step_lipschitz: float, steps: int
) -> float:
    """Renyi divergence of one shuffled pass over single records, by the factor two.

    (4 alpha G^2 / (sigma^2 n)) sum over k <= n of theta_C(k): document 004 replaces the sum by
    logarithms, one of which understates it at every finite n. Here it is added up.

    Args:
        order: alpha in (1, ORDER_MAX], with 2 alpha (alpha - 1) G^2 <= sigma^2.
        gradient_ratio: G / sigma > 0, bound of gradients over the noise added to them.
        step_lipschitz: C > 0; 1 + learning rate times smoothness for any smooth loss.
        steps: n in [1, POSITIONS_MAX], each on one record.

    Returns:
        RDP at the order, nats. Upper; looser than softmax-average of the same places, and that
        than random-order-average.

    Raises:
        ValueError: an argument is out of range, or the noise too small for the order.
    """
    rdps = place_rdps(
        order=order, gradient_ratio=gradient_ratio, step_lipschitz=step_lipschitz, steps=steps
    )
    if not 2 * order * (order - 1) * gradient_ratio**2 <= 1:
        raise ValueError("2 order (order - 1) gradient_ratio^2 must not exceed 1.")
    return 2 * float(np.mean(rdps))  # they are rounded up by far more than their mean is off


THEOREMS = (softmax_rdp, almost_convex_rdp, small_rate_rdp)
