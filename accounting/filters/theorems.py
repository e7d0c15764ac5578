"""What filters rest on: how much a budget holds, each with its theorem."""

import math
from functools import lru_cache
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.gaussian import gaussian_mu
from accounting.guarantees import Status, theorem
from accounting.renyi.conversion import conversion_costs
from accounting.rounding import LIBRARY_ULPS, Array, require, rounded_down, rounded_up

_ALL: Final = tuple(NeighboringRelation)


@lru_cache(maxsize=4096)  # one a filter and order
def conversion_cost(order: float, delta: float) -> float:
    """What reading epsilon at one order adds to the RDP. Upper, nats; may be negative."""
    if not delta > 0:  # what is left of a share of the smallest doubles
        return math.inf
    return float(conversion_costs(np.array([order]), delta=delta)[0])


@theorem(
    id="fixed-order-renyi-filter",
    source="Feldman and Zrnic 2021, NeurIPS, arXiv:2008.11193v4, Theorem 4.3",
    status=Status.PUBLISHED,
    relations=_ALL,
)
def renyi_filter_limit(*, order: float, epsilon: float, delta: float) -> float:
    """How much RDP at one fixed order an (epsilon, delta) budget holds.

    With the order fixed before the first step, steps may be chosen one by one after seeing all
    earlier answers. The whole stays (epsilon, delta) as long as their RDP at that order adds up to
    at most epsilon - log(1 - 1/alpha) + (log(delta) + log(alpha))/(alpha - 1).

    Args:
        order: alpha > 1, fixed when the budget is set.
        epsilon: nats, > 0.
        delta: in (0, 1).

    Returns:
        RDP in nats. Lower; negative when the budget admits nothing at this order.
    """
    return rounded_down(epsilon - conversion_cost(order, delta), ulps=2)


@theorem(
    id="union-of-orders-filter",
    source="docs/theory/filters.md, Theorem 2",
    status=Status.DERIVED,
    relations=_ALL,
)
def union_filter_limits(*, orders: Array, weights: Array, epsilon: float, delta: float) -> Array:
    """How much RDP an (epsilon, delta) budget holds at each of several orders, any one of them.

    Orders and weights are fixed before the first step, and the weights split delta. A step is
    admitted while at some order alpha the RDP adds up to at most what a fixed-order filter with
    (epsilon, w_alpha delta) holds; which order that is may change from step to step.

    Args:
        orders: alpha > 1, shape (k,).
        weights: w, > 0, shape (k,), adding up to at most 1.
        epsilon: nats, > 0.
        delta: in (0, 1).

    Returns:
        RDP in nats, shape (k,). Lower; negative where the budget admits nothing.

    Raises:
        ValueError: the weights are not positive, or add up to more than 1.
    """
    require(bool(np.all(weights > 0)) and math.fsum(weights) <= 1, "weights > 0, sum at most 1")
    return np.array(
        [
            renyi_filter_limit(order=order, epsilon=epsilon, delta=rounded_down(weight * delta))
            for order, weight in zip(orders.tolist(), weights.tolist(), strict=True)
        ]
    )


@theorem(
    id="gaussian-dp-filter",
    source="Smith and Thakurta 2022, arXiv:2210.17520v1, Theorem 1; Koskela, Tobaben and Honkela "
    "2023, ICLR, arXiv:2209.15596v2, Section 3",
    status=Status.PUBLISHED,
    relations=_ALL,
)
def gaussian_filter_limit(*, epsilon: float, delta: float) -> float:
    """How much Gaussian DP an (epsilon, delta) budget holds.

    Steps may be chosen one by one after seeing all earlier answers; each must be mu_i-GDP, its mu_i
    known before it runs. The whole stays (epsilon, delta) as long as the mu_i^2 add up to at most
    mu^2, the largest for which mu-GDP gives (epsilon, delta). Nothing is lost to adaptivity.

    Args:
        epsilon: nats, >= 0.
        delta: in (0, 1).

    Returns:
        mu^2. Lower.

    Raises:
        ValueError: epsilon is negative or delta not in (0, 1).
    """
    mu = gaussian_mu(epsilon, delta=delta)
    return rounded_down(mu * mu)


@theorem(
    id="approximate-dp-filter",
    source="Whitehouse, Ramdas, Rogers and Wu 2023, ICML, arXiv:2203.05481v3, Section 3",
    status=Status.PUBLISHED,
    relations=_ALL,
)
def approximate_dp_filter_epsilon(*, squares: float, delta_slack: float) -> float:
    """Epsilon of steps chosen one by one, each (epsilon_i, delta_i)-DP whatever came before.

    sqrt(2 log(1/delta_slack) S) + S/2 with S the sum of epsilon_i^2, at delta_slack plus the sum of
    delta_i. Both sums are kept below limits that were fixed before the first step.

    Args:
        squares: S, >= 0.
        delta_slack: in (0, 1).

    Returns:
        Epsilon in nats. Upper, to rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    require(squares >= 0 and 0 < delta_slack < 1, "squares >= 0, delta_slack in (0, 1)")
    deviation = math.sqrt(2 * -math.log(delta_slack) * squares)
    return rounded_up(deviation + 0.5 * squares, ulps=4 * LIBRARY_ULPS)


def squares_limit(*, epsilon: float, delta_slack: float) -> float:
    """The largest S at which approximate_dp_filter_epsilon is epsilon. Lower; never cancels."""
    if not 0 <= epsilon < math.inf:
        return -1.0
    slack = -2 * math.log(delta_slack)
    root = 2 * epsilon / (math.sqrt(slack + 2 * epsilon) + math.sqrt(slack))
    return rounded_down(root * root, ulps=8 * LIBRARY_ULPS)


@theorem(
    id="revised-filter",
    source="docs/theory/filters.md, Theorem 3",
    status=Status.DERIVED,
    relations=_ALL,
)
def revision_share(revision: int) -> float:
    """The share of a budget's delta that a limit may use which was set after answers were seen.

    6 / (pi^2 i^2) for the i-th such limit: all these shares together are at most 1. Order, orders
    and weights stay; the new epsilon may depend on every answer so far. Of Renyi filters only. The
    limit that was set before any answer is number 0 and may use all of delta: of the limit in force
    at the end (epsilon, delta) holds all the same, as E[(1 - e^(epsilon - loss))+] <= delta.

    Args:
        revision: i, >= 0.

    Returns:
        A share in (0, 1]. Lower.

    Raises:
        ValueError: the revision is negative.
    """
    require(revision >= 0, "revision >= 0")
    if revision == 0:
        return 1.0
    return rounded_down(6 / (math.pi * revision) ** 2, ulps=8)


THEOREMS = (
    renyi_filter_limit,
    union_filter_limits,
    gaussian_filter_limit,
    approximate_dp_filter_epsilon,
    revision_share,
)
