"""Renyi curves of randomized response: divergences of two explicit finite distributions."""

import math
from fractions import Fraction
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.moments import log_bregman, log_sum
from accounting.renyi.orders import checked_orders
from accounting.renyi.poisson import curve_of
from accounting.renyi.pure import two_point_moments
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array

# What cancels in a term is at least this share of it, times the distance of the power from one.
_CANCELLING: Final = 0.05


def _probabilities(probability_of_truth: float, categories: int) -> tuple[Fraction, Fraction]:
    # Exact, because near chance the two differ by less than their rounding.
    truth = Fraction(probability_of_truth)
    return truth, (1 - truth) / (categories - 1)


def _log(ratio: Fraction) -> float:
    beyond_one = float(ratio - 1)
    return math.log1p(beyond_one) if abs(beyond_one) < 0.5 else math.log(float(ratio))


@theorem(
    id="randomized-response-renyi",
    source="Kairouz, Oh and Viswanath 2016, JMLR, arXiv:1407.1338v3, Section 4; for two categories "
    "Mironov 2017, CSF, arXiv:1702.07476v3, Proposition 5",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.INDEPENDENT_ANSWERS,),
)
def randomized_response_rdp(
    *, probability_of_truth: float, categories: int, orders: Array
) -> Array:
    """RDP of one randomized response when a record's category is replaced.

    With p = probability_of_truth and r = (1-p)/(k-1), the answers of two categories exchange p and
    r and agree elsewhere:

      rdp(alpha) = log(1 + p^alpha r^(1-alpha) + r^alpha p^(1-alpha) - p - r) / (alpha-1).

    Args:
        probability_of_truth: p, in (0, 1); the chance of reporting one's own category.
        categories: k, >= 2; every other category is reported with chance r.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper; relative excess below 1e-11.
    """
    orders = checked_orders(orders)
    less, more = sorted(_probabilities(probability_of_truth, categories))
    log_mass = math.log(float(more))
    loss = math.log1p(float((more - less) / less))
    return curve_of(two_point_moments(loss=loss, log_mass=log_mass, orders=orders), orders)


@theorem(
    id="randomized-response-null-renyi",
    source="Kairouz, Oh and Viswanath 2016, JMLR, arXiv:1407.1338v3, Section 4",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.REPLACE_SPECIAL,),
    assumptions=(Assumption.INDEPENDENT_ANSWERS, Assumption.UNIFORM_NULL_ANSWER),
)
def randomized_response_null_rdp(
    *, probability_of_truth: float, categories: int, orders: Array
) -> Array:
    """RDP of one randomized response against a null record, which answers uniformly.

    That a null record reports each of the k categories with chance 1/k is an assumption on the
    mechanism. With S the ratio of a record's answer to a null record's, k p with chance 1/k and k r
    otherwise, r = (1-p)/(k-1), E[S] = 1 and

      rdp(alpha) = max(log E[S^alpha], log E[S^(1-alpha)]) / (alpha-1).

    E[S^beta] - 1 is summed as E[S^beta - 1 - beta (S - 1)], whose terms are never negative.

    Args:
        probability_of_truth: p, in (0, 1).
        categories: k, >= 2.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,), the greater of both directions. Upper; relative excess below 1e-8.
    """
    orders = checked_orders(orders)
    ratios = [share * categories for share in _probabilities(probability_of_truth, categories)]
    if ratios[0] == 1:  # an answer at chance tells nothing
        return np.zeros_like(orders)
    log_weights = np.array([-math.log(categories), math.log1p(-1 / categories)])
    d = np.array([float(ratio - 1) for ratio in ratios])
    log_s = np.array([_log(ratio) for ratio in ratios])
    reach = float(np.max(np.abs(log_s)))
    moments = []
    for betas in (orders, 1 - orders):
        shape = (len(betas), 2)
        terms = log_bregman(
            betas[:, None], np.broadcast_to(d, shape).copy(), np.broadcast_to(log_s, shape)
        )
        cancelling = _CANCELLING * np.minimum(1.0, np.abs(betas - 1))
        # A logarithm of a term adds at most 100 to what is rounded.
        size = 100 + np.abs(betas) * reach
        slack = 8 * LIBRARY_ULPS * UNIT_ROUNDOFF * size / cancelling
        moments.append(log_sum(terms + log_weights) + slack)
    return curve_of(np.maximum(*moments), orders)


THEOREMS = (randomized_response_rdp, randomized_response_null_rdp)
