"""Several orders that share delta."""

import math
from typing import Any

import numpy as np
import pytest

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import EventCounts
from accounting.events import (
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    Poisson,
)
from accounting.filters import (
    KINDS,
    UNION_ORDERS,
    Filter,
    RenyiFilter,
    UnionFilter,
    choose,
    filter_of,
    renyi_filter_limit,
    times,
)
from accounting.filters.theorems import union_filter_limits
from accounting.gaussian import gaussian_epsilon
from accounting.guarantees import DEFAULT_ACCEPT
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.poisson import poisson_gaussian_rdp

ADD, ONE, NULL = NeighboringRelation
TENTH = Event(mechanism=Gaussian(noise_multiplier=10.0), sampling=Full())
SAMPLED = Event(
    mechanism=Gaussian(noise_multiplier=2.0), sampling=Poisson(sampling_probability=0.01)
)


def held(kind: str, *, epsilon: float = 3.0, delta: float = 1e-5) -> Filter:
    return choose(kind, epsilon=epsilon, delta=delta)


def test_the_limits_of_several_orders_are_those_of_the_fixture() -> None:
    orders = np.array(UNION_ORDERS)
    weights = np.full(11, 1 / 11) * (1 - 1e-15)
    limits = union_filter_limits(orders=orders, weights=weights, epsilon=3.0, delta=1e-5)
    expected = [
        -22.91209897065273, -9.524526376648708, -3.0006391164420805, -0.8871600530977886,
        0.7585093030858454, 1.4433343646118424, 2.048291914445939, 2.3219897201023167,
        2.575917574965724, 2.6948104778317132, 2.860955695787045,
    ]  # fmt: skip
    assert limits == pytest.approx(expected, rel=1e-12)
    for order, limit in zip(UNION_ORDERS, limits, strict=True):
        exact = renyi_filter_limit(order=order, epsilon=3.0, delta=1e-5 / 11)
        assert limit <= exact + 1e-15
    for bad in ([0.5, 0.6], [0.0, 0.5], [math.nan, 0.1]):
        with pytest.raises(ValueError, match="weights"):
            union_filter_limits(
                orders=np.array([2.0, 3.0]), weights=np.array(bad), epsilon=3.0, delta=1e-5
            )


def test_how_many_plain_steps_each_filter_holds() -> None:
    steps = {}
    for kind in KINDS[:3]:
        budget = held(kind)
        steps[kind] = budget.admissible(budget.zero(), budget.cost(TENTH, relation=ADD))
    assert steps == {"fixed_order_renyi": 33, "union_of_orders": 36, "gaussian_dp": 51}
    exact = [gaussian_epsilon(1e-5, mu=math.sqrt(n) / 10) for n in (51, 52)]
    assert exact[0] <= 3 < exact[1]


def test_a_union_is_as_many_filters_that_share_delta() -> None:
    budget = held("union_of_orders")
    assert isinstance(budget, UnionFilter)
    cost = budget.cost(SAMPLED, relation=ADD)
    total = times(cost, 3000)
    parts = [
        RenyiFilter(order=order, epsilon=3.0, delta=1e-5 / 11 * (1 - 1e-15))
        for order in UNION_ORDERS
    ]
    spent = [
        part.spent((total[0], total[1], rdp)) for part, rdp in zip(parts, total[2:], strict=True)
    ]
    assert budget.spent(total) == pytest.approx(min(spent), rel=1e-12)
    best = UNION_ORDERS[int(np.argmin(spent))]
    assert budget.binding_order(total) == best
    fits = [
        part.admissible((0, 0, rdp), (0, 0, each))
        for part, rdp, each in zip(parts, total[2:], cost[2:], strict=True)
    ]
    assert abs(budget.admissible(total, cost) - max(fits)) <= 1
    assert budget.at(epsilon=4.0, delta=1e-6).orders == budget.orders
    assert budget.at(epsilon=4.0, delta=1e-6).weights == budget.weights


def test_weights_that_spend_delta_twice_are_refused() -> None:
    for weights in ((0.5, 0.5000001), (0.0, 0.5), (0.5,), (), (math.nan, 0.1)):
        with pytest.raises(ValueError, match="weight"):
            UnionFilter(orders=(2.0, 3.0), weights=weights, epsilon=3.0, delta=1e-5)
    for pair in ((0.5, 0.5000001), (0.0, 1.0), (1.0,)):
        record: dict[str, Any] = {"kind": "approximate_dp", "orders": [], "weights": pair}
        with pytest.raises(ValueError, match="weights"):
            filter_of(record, epsilon=3.0, delta=1e-5)


def test_prices_stand_in_the_proved_order() -> None:
    event = Event(
        mechanism=Gaussian(noise_multiplier=1.0), sampling=Poisson(sampling_probability=0.01)
    )
    counts = EventCounts(steps={event: 1000})
    several = held(UnionFilter.kind, epsilon=math.inf)
    price = several.spent(several.total(counts, relation=ADD))
    assert price == pytest.approx(2.4503, abs=5e-5)
    exact = guarantee(counts, relation=ADD, delta=1e-5).epsilon
    curve = poisson_gaussian_rdp(
        noise_multiplier=1.0, sampling_probability=0.01, orders=np.array(UNION_ORDERS)
    )
    single, _ = rdp_epsilon(rdp=1000 * curve, orders=np.array(UNION_ORDERS), delta=1e-5)
    assert exact == pytest.approx(1.8282, abs=5e-5)
    assert single == pytest.approx(2.1078, abs=5e-5)
    # It is the least budget that admits the steps.
    for epsilon, admitted in ((price * (1 - 1e-9), False), (price * (1 + 1e-9), True)):
        budget = held("union_of_orders", epsilon=epsilon)
        assert budget.admits(budget.total(counts, relation=ADD)) is admitted


def test_one_order_that_fails_does_not_close_the_others() -> None:
    budget = UnionFilter(orders=(2.0, 64.0), weights=(0.5, 0.5), epsilon=40.0, delta=1e-2)
    cost = budget.cost(
        Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Full()), relation=ADD
    )
    assert budget.admits(times(cost, 5))
    assert budget.binding_order(times(cost, 5)) == 2
    lost = (0, 0, 0, 1 << 200)
    assert budget.admits(lost)
    assert not budget.admits((0, 0, 1 << 200, 1 << 200))


@pytest.mark.parametrize("delta", [5e-324, 1e-323, 1e-320])
def test_the_smallest_deltas_hold_nothing_and_fail_nowhere(delta: float) -> None:
    for kind in ("fixed_order_renyi", "union_of_orders"):
        held = choose(kind, epsilon=3.0, delta=delta)
        loud = held.total(
            EventCounts(
                steps={Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Full()): 1}
            ),
            relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            accept=DEFAULT_ACCEPT,
        )
        assert not held.admits(loud)
        assert not held.spent(loud) <= 3.0
