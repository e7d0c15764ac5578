"""What may be enforced when the next step is chosen after seeing the last."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.balances import Balance, pass_length
from accounting.bounds import NoBoundError, accepted, failure, least_curve
from accounting.events import Event, NeighboringRelation, Sampling
from accounting.gdp_bounds import gdp_bounds
from accounting.guarantees import DEFAULT_ACCEPT, Assumption, Status
from accounting.numerics import rounded_down, rounded_up, sum_up
from accounting.renyi.conversion import conversion_costs
from accounting.renyi.orders import ORDERS
from accounting.renyi_bounds import renyi_bounds
from accounting.theorem import theorem


@theorem(
    id="fixed-order-renyi-filter",
    source="Feldman and Zrnic 2021, NeurIPS, arXiv:2008.11193v4, Theorem 4.3",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
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
    return rounded_down(epsilon - _cost(order, delta), ulps=2)


def _cost(order: float, delta: float) -> float:
    return float(conversion_costs(np.array([order]), delta=delta)[0])


# Of a budget's delta, for steps whose curve may fail with a probability of its own.
FAILURE_SHARE: Final = 1e-6


def _released(event: Event, relation: NeighboringRelation, order: float) -> float:
    """RDP of a pass as a Gaussian release, whatever its sampling hides. Upper, nats."""
    (release,) = gdp_bounds(event, relation)
    return rounded_up(0.5 * order * release.loss * release.loss, ulps=4)


def _several_noises(balance: Balance) -> set[Sampling]:
    """Samplings counted by pass that ran with more than one noise, maybe within a pass."""
    counts = Counter(event.sampling for event in balance.steps if pass_length(event) is not None)
    return {sampling for sampling, count in counts.items() if count > 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiFilter:
    """A budget held by a fixed-order Renyi filter.

    Epsilon is read at the budget's delta less FAILURE_SHARE of it. That share is for steps whose
    curve holds but for some probability, which may not add up to more (docs/theory/filters.md).
    """

    order: float  # one of ORDERS
    epsilon: float  # nats
    delta: float

    @property
    def limit(self) -> float:
        """The RDP the budget holds, in nats. Lower."""
        return renyi_filter_limit(order=self.order, epsilon=self.epsilon, delta=self._read_at)

    @property
    def _read_at(self) -> float:
        """The delta at which the order is read. Lower."""
        return rounded_down(self.delta * (1 - FAILURE_SHARE), ulps=2)

    def spent(
        self,
        balance: Balance,
        *,
        relation: NeighboringRelation,
        accept: frozenset[Status] = DEFAULT_ACCEPT,
    ) -> float:
        """RDP at the filter's order, in nats. Upper.

        Infinite where some event has no bound, and where curves may fail with more than the share
        of the budget's delta that is kept for it.
        """
        index = int(np.flatnonzero(self.order == ORDERS)[0])
        several = _several_noises(balance)
        terms, failures = [], []
        for event, count in balance.units():
            try:
                bounds = accepted(renyi_bounds(event, relation), accept=accept)
            except NoBoundError:
                return math.inf
            failed = failure(bounds)
            failures += [rounded_up(count * failed)] if failed else []
            least = float(least_curve(bounds)[index])
            if event.sampling in several:
                released = _released(event, relation, self.order)
                # The noise may have fallen after a look at answers of the same pass, of which an
                # amplified curve knows nothing; one pass may have been begun at that curve.
                count, least = (
                    (count + 1, released) if least < 0.999999 * released else (count, least)
                )
            terms.append(rounded_up(count * least))
        if failures and not sum_up(failures) <= FAILURE_SHARE * self.delta:
            return math.inf
        return sum_up(terms)

    def admits(self, spent: float) -> bool:
        """Whether so much RDP is within the budget; NaN and infinity are not."""
        return spent <= self.limit

    def reading(self, spent: float) -> float:
        """The epsilon at the budget's delta that so much RDP stands for, in nats. Upper."""
        if spent == 0:
            return 0.0
        return max(0.0, rounded_up(spent + _cost(self.order, self._read_at), ulps=2))


def best_order(*, epsilon: float, delta: float) -> float:
    """The order at which a budget holds the most Gaussian steps.

    A Gaussian step costs in proportion to the order, so this maximises limit / order over ORDERS.
    It is chosen once, from the budget alone, and never moves afterwards.
    """
    limits = [
        renyi_filter_limit(order=float(order), epsilon=epsilon, delta=delta) for order in ORDERS
    ]
    return float(ORDERS[int(np.argmax(np.array(limits) / ORDERS))])


THEOREMS = (renyi_filter_limit,)
