import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accounting.bounds.event_bounds import NoBoundError, filter_accepted, least_curve
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    Poisson,
    Unknown,
    WithReplacement,
)
from accounting.filters import RenyiFilter, event_costs
from accounting.filters.closed_form import CACHE_ENTRIES as CLOSED_ENTRIES
from accounting.filters.event_costs import ORDER_MAX, gaussian_step_rdp, losses_at
from accounting.filters.integer_totals import (
    CEILING,
    LOSS_BITS,
    delta_limit,
    delta_units,
    limit_units,
    loss_of,
    loss_units,
)
from accounting.filters.renyi import CACHE_ENTRIES
from accounting.filters.selection import UNION_ORDERS
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Status
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import gaussian_rdp, poisson_gaussian_rdp

pytestmark = pytest.mark.no_cover  # of values; other tests reach the lines, and untraced it is fast

ADD, ONE, NULL = NeighboringRelation
RARE = Poisson(sampling_probability=0.01)
NOISY = Gaussian(noise_multiplier=2.0)
PROPERTY = settings(deadline=None)


# One order, without the curve


@PROPERTY
@given(
    order=st.integers(2, ORDER_MAX),
    sigma=st.floats(0.05, 1e5),
    q=st.floats(1e-10, 0.99),
)
def test_one_order_alone_costs_what_the_curve_says(order: int, sigma: float, q: float) -> None:
    (alone,) = gaussian_step_rdp((float(order),), sigma, q, 1.0)
    curve = poisson_gaussian_rdp(
        noise_multiplier=sigma, sampling_probability=q, orders=np.array([float(order)])
    )
    assert alone == pytest.approx(float(curve[0]), rel=1e-11, abs=1e-300)


@PROPERTY
@given(
    order=st.sampled_from(ORDERS.tolist()),
    sigma=st.floats(1e-3, 1e6),
    reach=st.sampled_from([1.0, 2.0]),
)
def test_without_sampling_it_is_the_same_number(order: float, sigma: float, reach: float) -> None:
    curve = gaussian_rdp(noise_multiplier=sigma, sensitivity=reach, orders=np.array([order]))
    assert gaussian_step_rdp((order,), sigma, 1.0, reach) == [curve[0]]


@pytest.mark.parametrize("order", [2, 3, 8, 16, 64])
@pytest.mark.parametrize(
    ("q", "sigma"), [(0.01, 1.0), (1e-9, 100.0), (0.5, 3.0), (0.3, 20000.0), (1e-4, 2.1)]
)
def test_one_order_alone_is_above_its_definition(
    order: int, q: float, sigma: float, exact_rdp: Callable[..., Any]
) -> None:
    exact = exact_rdp(order, q=q, sigma=sigma)
    (alone,) = gaussian_step_rdp((float(order),), sigma, q, 1.0)
    assert exact <= alone <= exact * (1 + 1e-11)


def test_the_sum_is_left_to_the_curve_where_it_would_overflow_or_vanish() -> None:
    for order, sigma, q in (
        (8.0, 0.01, 0.1), (8.0, 1e100, 0.1), (8.0, 2.0, 1e-100), (8.0, 2.0, 0.9),
        (8.5, 2.0, 0.1), (128.0, 20.0, 0.1), (64.0, 1.0, 0.1),
    ):  # fmt: skip
        curve = poisson_gaussian_rdp(
            noise_multiplier=sigma, sampling_probability=q, orders=np.array([order])
        )
        assert gaussian_step_rdp((order,), sigma, q, 1.0) == [curve[0]]


def test_orders_that_are_asked_together_cost_what_they_cost_alone() -> None:
    for sigma, q in ((0.02, 0.9), (1.0, 0.3), (2.0, 0.9)):  # none, some and all are sums
        together = gaussian_step_rdp(UNION_ORDERS, sigma, q, 1.0)
        alone = [gaussian_step_rdp((order,), sigma, q, 1.0)[0] for order in UNION_ORDERS]
        assert together == alone


EVENTS = [
    Event(mechanism=NOISY, sampling=Full()),
    Event(mechanism=NOISY, sampling=Unknown()),
    Event(mechanism=NOISY, sampling=RARE),
    Event(mechanism=NOISY, sampling=Poisson(sampling_probability=1.0)),
    Event(mechanism=NOISY, sampling=FixedSize(batch_size=3, dataset_size=100)),
    Event(mechanism=NOISY, sampling=BallsAndBins(steps_per_pass=5)),
    Event(mechanism=NOISY, sampling=WithReplacement(batch_size=3, dataset_size=100)),
    Event(mechanism=Laplace(noise_multiplier=3.0), sampling=RARE),
    Event(mechanism=ApproximateDp(epsilon=0.1, delta=1e-9), sampling=RARE),
]


@pytest.mark.parametrize("event", EVENTS, ids=repr)
@pytest.mark.parametrize("relation", [ADD, ONE, NULL])
@pytest.mark.parametrize(
    "accept",
    [DEFAULT_ACCEPT, ACCEPTABLE, frozenset({Status.DERIVED}), frozenset[Status]()],
    ids=len,
)
def test_an_event_costs_what_the_least_accepted_curve_says(
    event: Event, relation: NeighboringRelation, accept: frozenset[Status]
) -> None:
    orders = (1.5, 2.0, 8.0, 32.0)
    index = [int(np.flatnonzero(order == ORDERS)[0]) for order in orders]
    try:
        bounds = filter_accepted(renyi_bounds(event, relation), accept=accept)
    except NoBoundError:
        with pytest.raises(NoBoundError):
            losses_at(event, relation, accept, orders)
        return
    losses, failed = losses_at(event, relation, accept, orders)
    assert losses == pytest.approx(least_curve(bounds)[index].tolist(), rel=1e-11)
    assert failed in {bound.delta for bound in bounds}
    for order, loss in zip(orders, losses, strict=True):
        each = [(float(b.loss[int(np.flatnonzero(order == ORDERS)[0])]), b.delta) for b in bounds]
        assert failed >= min(each)[1]
        assert loss <= min(each)[0] * (1 + 1e-11)


@pytest.mark.parametrize("order", [1.15, 2.05, 8.05, 64.0, 100.0, 700.0])
def test_an_order_between_two_of_the_grid_is_bounded_by_them(order: float) -> None:
    # Full batches have a curve that is known everywhere; this mechanism is read from the grid.
    event = Event(mechanism=Laplace(noise_multiplier=3.0), sampling=Full())
    (between,), _ = losses_at(event, ADD, DEFAULT_ACCEPT, (order,))
    theorem = renyi_bounds(event, ADD)[0].theorem
    exact = float(theorem(noise_multiplier=3.0, sensitivity=1.0, orders=np.array([order]))[0])
    assert exact <= between <= exact * 1.02
    above = int(np.searchsorted(ORDERS, order))
    low, high = renyi_bounds(event, ADD)[0].loss[above - 1 : above + 1]
    assert low <= between <= high


def test_the_largest_failure_of_the_curves_that_are_used_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = Event(mechanism=ApproximateDp(epsilon=0.1, delta=1e-9), sampling=RARE)
    rare, often = renyi_bounds(event, ONE)
    assert rare.delta < often.delta
    crossing = (rare, replace(often, loss=rare.loss[::-1]))
    for bounds in (crossing, crossing[::-1]):
        monkeypatch.setattr(event_costs, "renyi_bounds", lambda *_, bounds=bounds: bounds)
        assert losses_at(event, ONE, ACCEPTABLE, (2.0, 32.0))[1] == often.delta
        assert {losses_at(event, ONE, ACCEPTABLE, (a,))[1] for a in (2.0, 32.0)} == {
            rare.delta,
            often.delta,
        }


# Whole numbers


@PROPERTY
@given(loss=st.floats(0, 1e30))
def test_losses_are_rounded_up_to_units_and_limits_down(loss: float) -> None:
    up, down = loss_units(loss), limit_units(loss)
    if loss < 2.0**64:
        assert up - 1 < math.ldexp(loss, LOSS_BITS) <= up
        assert down <= math.ldexp(loss, LOSS_BITS) < down + 1
        assert loss_of(up) >= loss
    else:
        assert up == CEILING
        assert down == CEILING - 1


def test_what_is_no_loss_is_beyond_all_limits_and_what_is_no_limit_holds_nothing() -> None:
    for loss in (math.inf, math.nan, -1.0, 1e300):
        assert loss_units(loss) == CEILING
        assert loss_of(loss_units(loss)) == math.inf
    for limit in (math.inf, math.nan, -1e-300):
        assert limit_units(limit) == -1
    for delta in (1.0, math.inf, math.nan, -1e-300):
        assert delta_limit(delta) == -1
    assert limit_units(1e300) < CEILING


def test_a_probability_below_a_unit_is_one_unit() -> None:
    assert delta_units(0.0) == 0
    assert delta_units(1e-70) == delta_units(1e-200) == 1


@PROPERTY
@given(units=st.integers(1 << 60, CEILING - 1))
@example(units=(1 << 60) + 1)
def test_units_are_read_upwards(units: int) -> None:
    n, d = loss_of(units).as_integer_ratio()
    assert n << LOSS_BITS >= units * d


def test_a_million_distinct_events_do_not_fill_the_memory() -> None:
    held = RenyiFilter(order=8.0, epsilon=3.0, delta=1e-5)
    misses = renyi_bounds.cache_info().misses
    for i in range(2 * CACHE_ENTRIES):
        event = Event(mechanism=Gaussian(noise_multiplier=1 + i / 1e6), sampling=RARE)
        held.cost(event, relation=ADD)
    assert 10_000 < CACHE_ENTRIES <= 20_000  # as many as one body names are not forgotten in it
    assert 10_000 < CLOSED_ENTRIES <= 20_000
    assert renyi_bounds.cache_info().misses == misses  # no curve was made, or kept
