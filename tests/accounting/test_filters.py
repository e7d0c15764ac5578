import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    ApproximateDp,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    NoNoise,
    Poisson,
    Span,
)
from accounting.filters import (
    FAILURE_SHARE,
    RenyiFilter,
    Total,
    best_order,
    renyi_filter_limit,
    times,
)
from accounting.filters.integer_totals import CEILING, DELTA_BITS, LOSS_BITS
from accounting.gaussian import gaussian_epsilon
from accounting.guarantees import Status
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import gaussian_rdp

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
PROPERTY = settings(deadline=None)
BUDGET = RenyiFilter(order=8.0, epsilon=3.0, delta=1e-5)
EIGHT = np.array([8.0])
NAT = 1 << LOSS_BITS


def gaussian_steps(steps: int, *, sigma: float = 10.0) -> EventCounts:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=Full())
    return EventCounts(steps={event: steps})


def nats(total: Total) -> float:
    return total[2] / NAT


def test_a_budget_without_a_finite_epsilon_admits_nothing() -> None:
    for epsilon in (math.inf, math.nan, -math.inf):
        budget = RenyiFilter(order=8.0, epsilon=epsilon, delta=1e-5)
        assert not budget.admits(budget.zero())
        assert budget.remaining(budget.zero()) == 0
        assert budget.admissible(budget.zero(), (0, 0, 1)) == 0


def test_the_limit_is_the_published_one_from_below() -> None:
    exact = 3 - (math.log(7 / 8) - (math.log(1e-5) + math.log(8)) / 7)
    published = renyi_filter_limit(order=8.0, epsilon=3.0, delta=1e-5)
    assert exact * (1 - 1e-14) <= published <= exact
    assert published == pytest.approx(1.7858908321544666, rel=1e-12)
    # A millionth of delta is kept for steps that may fail.
    assert published - 1.1e-6 / 7 <= BUDGET.limits[2] / NAT < published
    assert BUDGET.admits(BUDGET.limits)
    for component in range(3):
        beyond = tuple(x + (i == component) for i, x in enumerate(BUDGET.limits))
        assert not BUDGET.admits(beyond)


def test_a_limit_in_units_is_never_above_the_limit() -> None:
    limit = renyi_filter_limit(order=8.0, epsilon=3.0, delta=1e-5 * (1 - FAILURE_SHARE))
    assert Fraction(BUDGET.limits[2], NAT) <= Fraction(limit)
    assert Fraction(BUDGET.limits[1], 1 << DELTA_BITS) <= Fraction(FAILURE_SHARE) * Fraction(1e-5)


def test_what_is_less_than_nothing_is_not_admitted() -> None:
    assert BUDGET.admits(BUDGET.zero())
    for total in ((-1, 0, 0), (0, -1, 0), (0, 0, -1)):
        assert not BUDGET.admits(total)


def test_a_budget_too_small_for_an_order_admits_nothing_at_it() -> None:
    budget = RenyiFilter(order=2.0, epsilon=3.0, delta=1e-5)
    assert budget.limits[2] < 0
    assert not budget.admits(budget.zero())
    assert budget.remaining(budget.zero()) == 0


@PROPERTY
@given(
    epsilon=st.floats(0.1, 20),
    delta=st.floats(1e-10, 1e-2),
    sigma=st.floats(1, 200),
    steps=st.integers(1, 10**6),
)
def test_a_reading_of_what_is_admitted_never_exceeds_the_budget(
    epsilon: float, delta: float, sigma: float, steps: int
) -> None:
    budget = RenyiFilter(
        order=best_order(epsilon=epsilon, delta=delta), epsilon=epsilon, delta=delta
    )
    total = budget.total(gaussian_steps(steps, sigma=sigma), relation=RELATION)
    reading = budget.spent(total)
    if budget.admits(total):
        assert reading <= epsilon
    else:
        assert reading >= epsilon * (1 - 1e-12)
        assert budget.remaining(total) == 0
    rdp = np.array([nats(total)])
    converted, _ = rdp_epsilon(rdp=rdp, orders=np.array([budget.order]), delta=delta)
    assert converted <= reading * (1 + 1e-14)
    assert reading - converted <= 1.1e-6 / (budget.order - 1) + 1e-14 * reading
    assert reading >= gaussian_epsilon(delta, mu=math.sqrt(steps) / sigma) * (1 - 1e-12)


def test_a_budget_holds_as_many_gaussian_steps_as_its_limit_pays_for() -> None:
    order = best_order(epsilon=3.0, delta=1e-5)
    budget = RenyiFilter(order=order, epsilon=3.0, delta=1e-5)
    admitted = 0
    while budget.admits(budget.total(gaussian_steps(admitted + 1), relation=RELATION)):
        admitted += 1
    assert admitted == math.floor(budget.limits[2] / NAT / (order / 200))
    assert admitted == 44
    (event,) = gaussian_steps(1).steps
    cost = budget.cost(event, relation=RELATION)
    assert budget.admissible(budget.zero(), cost) == 44
    assert budget.admissible(times(cost, 40), cost) == 4
    assert budget.admissible(times(cost, 45), cost) == 0
    # The largest number whose exact epsilon is within the budget is 51.
    assert gaussian_epsilon(1e-5, mu=math.sqrt(51) / 10) <= 3
    assert gaussian_epsilon(1e-5, mu=math.sqrt(52) / 10) > 3


@PROPERTY
@given(epsilon=st.floats(0.01, 50), delta=st.floats(1e-12, 1e-2))
def test_the_order_is_one_of_the_grid_and_holds_nearly_the_most_gaussian_steps(
    epsilon: float, delta: float
) -> None:
    chosen = best_order(epsilon=epsilon, delta=delta)
    assert chosen in ORDERS
    held = renyi_filter_limit(order=chosen, epsilon=epsilon, delta=delta) / chosen
    most = max(
        renyi_filter_limit(order=order, epsilon=epsilon, delta=delta) / order
        for order in ORDERS.tolist()
    )
    assert held >= most - 0.02 * abs(most)
    assert chosen == int(chosen) or held == most


def test_an_order_is_a_whole_number_unless_that_costs_steps() -> None:
    assert best_order(epsilon=3.0, delta=1e-5) == 8
    assert best_order(epsilon=100.0, delta=1e-5) == 1.5


def test_nothing_is_left_at_the_limit_and_no_less() -> None:
    assert BUDGET.spent(BUDGET.limits) == 3.0
    assert BUDGET.remaining(BUDGET.limits) == 0
    assert 0 < BUDGET.remaining((0, 0, BUDGET.limits[2] - (1 << 60))) < 1e-5


def test_nothing_spent_reads_as_nothing() -> None:
    assert BUDGET.total(EventCounts(), relation=RELATION) == BUDGET.zero() == (0, 0, 0)
    assert BUDGET.spent(BUDGET.zero()) == 0
    assert BUDGET.remaining(BUDGET.zero()) <= 3.0
    assert BUDGET.remaining(BUDGET.zero()) == pytest.approx(3.0)
    assert BUDGET.spent((0, 0, 1)) > 0


def test_a_reading_is_never_negative() -> None:
    generous = RenyiFilter(order=8.0, epsilon=3.0, delta=0.9)
    assert generous.spent((0, 0, 1)) == 0


def test_a_step_without_a_bound_is_never_admitted() -> None:
    event = Event(mechanism=NoNoise(), sampling=Full())
    total = BUDGET.total(EventCounts(steps={event: 2}), relation=RELATION)
    assert total == (2, 0, 0)
    assert BUDGET.spent(total) == math.inf
    assert BUDGET.remaining(total) == 0
    assert not BUDGET.admits(total)
    assert BUDGET.binding_order(total) is None
    assert BUDGET.admissible(BUDGET.zero(), BUDGET.cost(event, relation=RELATION)) == 0


def test_a_loss_beyond_all_limits_is_infinite() -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=1e-90), sampling=Full())
    cost = BUDGET.cost(event, relation=RELATION)
    assert cost == (0, 0, CEILING)
    assert BUDGET.spent(cost) == math.inf
    assert not RenyiFilter(order=8.0, epsilon=1e300, delta=1e-5).admits(cost)


def test_only_accepted_bounds_are_charged() -> None:
    event = Event(
        mechanism=Gaussian(noise_multiplier=4.0), sampling=Poisson(sampling_probability=0.01)
    )
    replaced = NeighboringRelation.REPLACE_ONE
    cautious = BUDGET.cost(event, relation=replaced)
    trusting = BUDGET.cost(
        event, relation=replaced, accept=frozenset({Status.PUBLISHED, Status.DERIVED})
    )
    assert 0 < nats(trusting) < nats(cautious)
    assert BUDGET.cost(event, relation=replaced, accept=frozenset()) == (1, 0, 0)
    declared = frozenset({Status.DECLARED})
    assert BUDGET.cost(event, relation=RELATION, accept=declared) == (1, 0, 0)


def test_failures_are_counted_however_small_and_have_a_limit_of_their_own() -> None:
    event = Event(mechanism=ApproximateDp(epsilon=0.0, delta=1e-18), sampling=Full())
    cost = BUDGET.cost(event, relation=RELATION)
    assert cost[1] >= Fraction(1e-18) * (1 << DELTA_BITS)
    held = BUDGET.admissible(BUDGET.zero(), cost)
    assert held == 9_999_999  # the share is rounded down
    nearly = (0, BUDGET.limits[1], 0)
    assert BUDGET.admits(nearly)
    assert math.isfinite(BUDGET.spent(nearly))
    assert BUDGET.admissible(nearly, cost) == 0
    assert BUDGET.spent((0, BUDGET.limits[1] + 1, 0)) == math.inf
    assert BUDGET.binding_order((0, BUDGET.limits[1] + 1, 0)) is None


def test_a_revision_keeps_the_order() -> None:
    assert BUDGET.at(epsilon=5.0, delta=1e-6) == RenyiFilter(order=8.0, epsilon=5.0, delta=1e-6)
    assert BUDGET.orders == (8.0,)
    assert BUDGET.binding_order(BUDGET.zero()) == 8.0


@PROPERTY
@given(counts=st.lists(st.integers(1, 10**6), min_size=1, max_size=6), data=st.data())
def test_spending_does_not_depend_on_the_order_of_events(
    counts: list[int], data: st.DataObject
) -> None:
    spans = [
        Span(event=Event(mechanism=Gaussian(noise_multiplier=1.0 + i), sampling=Full()), steps=n)
        for i, n in enumerate(counts)
    ]
    moved = data.draw(st.permutations(spans))
    total = BUDGET.total(count_events([spans]), relation=RELATION)
    assert total == BUDGET.total(count_events([moved]), relation=RELATION)
    true = sum(
        n * Fraction(gaussian_rdp(noise_multiplier=1.0 + i, sensitivity=1.0, orders=EIGHT)[0])
        for i, n in enumerate(counts)
    )
    spent = Fraction(total[2], NAT)
    assert true <= spent <= true * (1 + Fraction(1, 10**14))
