"""Renyi curves of any mechanism on a batch, from its curve on a batch that is known.

For Gaussian noise fixed_size and subsampling are tighter. docs/theory/composition.md has the proof
for weights, and the errata of later restatements.
"""

import math
from typing import Final

import numpy as np

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.moments import log_sum
from accounting.renyi.orders import ORDER_MAX
from accounting.renyi.poisson import curve_of
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array

_LOG_TWO: Final = math.log(2)
_ROUNDING: Final = 4 * LIBRARY_ULPS * UNIT_ROUNDOFF  # relative to the size of a term's parts


def _log_expm1(x: Array) -> Array:
    """log(e^x - 1) for x >= 0, without overflow or cancellation; -inf at zero."""
    with np.errstate(divide="ignore"):
        near = np.log(np.expm1(np.minimum(x, 1.0)))
    return np.where(x > 1, x + np.log1p(-np.exp(-np.maximum(x, 1.0))), near)


def _log_shares(rdp: Array, epsilon: float) -> Array:
    """Log of what multiplies g^j C(alpha, j), for j = 2, 3, ..., shape (m-1,)."""
    j = np.arange(2, len(rdp) + 2, dtype=np.float64)
    gain = float(_log_expm1(np.array([epsilon]))[0])
    shares = np.asarray((j - 1) * rdp + np.minimum(_LOG_TWO, j * gain))
    # The second order has two more ways to be small.
    shares[0] = min(shares[0], 2 * _LOG_TWO + float(_log_expm1(rdp[:1])[0]))
    return shares


def _amplified(rate: float, rdp: Array, epsilon: float) -> Array:
    """The theorem's bound at the orders 2 to m. Upper, shape (m-1,)."""
    if not 0 < rate <= 1:
        raise ValueError("The rate lies in (0, 1].")
    if not 1 <= len(rdp) < ORDER_MAX:
        raise ValueError(f"rdp is that of the orders 2 to m, m at most {ORDER_MAX:g}.")
    if not (np.all(rdp >= 0) and epsilon >= 0):
        raise ValueError("Neither rdp nor epsilon is negative.")
    orders = np.arange(2, len(rdp) + 2, dtype=np.float64)
    if epsilon == 0:  # tells nothing
        return np.zeros_like(orders)
    shares, log_rate = _log_shares(rdp, epsilon), math.log(rate)
    logs = []
    for order in range(2, len(rdp) + 2):
        j, log_factorial = orders[: order - 1], float(special.gammaln(order + 1))
        ways = log_factorial - special.gammaln(j + 1) - special.gammaln(order - j + 1)
        terms = ways + j * log_rate + shares[: order - 1]
        finite = np.abs(shares[: order - 1])
        finite = finite[np.isfinite(finite)]
        size = 64 + 4 * log_factorial + order * abs(log_rate) + np.max(finite, initial=0.0)
        slack = _ROUNDING * size + 2 * order * UNIT_ROUNDOFF
        top = float(np.max(terms))
        logs.append(float(log_sum(terms)) + slack if math.isfinite(top) else top)
    return curve_of(np.array(logs), orders)


@theorem(
    id="subsampled-renyi",
    source="Wang, Balle and Kasiviswanathan 2019, AISTATS, arXiv:1808.00087v2, Theorem 9; "
    "from document 004 (Berthier 2019), Theorem 3.2, without its terms",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.FIXED_SIZE_SAMPLING,),
)
def subsampled_rdp(*, rate: float, rdp: Array, epsilon: float) -> Array:
    """RDP at integer orders of any mechanism on a uniform batch of fixed size.

    (alpha-1) rdp' <= log(1 + g^2 C(alpha,2) min(4 (e^r(2) - 1), e^r(2) min(2, (e^eps - 1)^2))
                            + sum_{j>=3} g^j C(alpha,j) e^((j-1) r(j)) min(2, (e^eps - 1)^j))

    It may exceed the mechanism's own curve, which then is the better bound.

    Args:
        rate: g = batch_size / dataset_size, in (0, 1].
        rdp: r at the orders 2, 3, ..., m, of the mechanism on a batch that is known, under
            replace_one; nats, shape (m-1,), m <= ORDER_MAX; infinite where nothing is known.
        epsilon: its pure epsilon, nats; infinite where it has none.

    Returns:
        RDP in nats at the orders 2 to m, shape (m-1,). Upper; relative excess below 1e-9.

    Raises:
        ValueError: an argument is out of range.
    """
    return _amplified(rate, rdp, epsilon)


@theorem(
    id="weighted-renyi",
    source="docs/theory/composition.md, Theorem 10; as document 004 (Berthier 2019), Lemma 4.1 and "
    "Theorem 4.2 with a sum from 3",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.DATA_INDEPENDENT_WEIGHTS,),
)
def weighted_rdp(
    *, max_weight: float, rdp: Array, epsilon: float, weights_depend_on_data: bool
) -> Array:
    """RDP at integer orders of any mechanism on one record, drawn by weights that are given.

    subsampled_rdp with the largest weight for the rate.

    Args:
        max_weight: c, in (0, 1]; no record is drawn with a greater chance.
        rdp: of the mechanism on one record that is known, at the orders 2, 3, ..., m, between any
            two records; nats, shape (m-1,), m <= ORDER_MAX; infinite where nothing is known.
        epsilon: its pure epsilon, nats; infinite where it has none.
        weights_depend_on_data: whether neighbours may have different weights; then no bound holds,
            however small the weights are.

    Returns:
        RDP in nats at the orders 2 to m, shape (m-1,). Upper; relative excess below 1e-9.

    Raises:
        ValueError: an argument is out of range, or the weights depend on the data.
    """
    if weights_depend_on_data:
        raise ValueError("Weights that differ between neighbours tell them apart: no bound holds.")
    return _amplified(max_weight, rdp, epsilon)


THEOREMS = (subsampled_rdp, weighted_rdp)
