"""The order of a budget that names only epsilon and delta, and that of a plan."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.event_counts import EventCounts
from accounting.events import Event, Full, Gaussian, NeighboringRelation, NoNoise, Poisson
from accounting.filters import RenyiFilter, best_order, choose, default_order, order_for, share_held
from accounting.renyi.orders import ORDERS
from benchmarks.default_filter import BAR, TWELVE, Training, measure

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
# No order admits 60 % of the PLD's steps: their noise is too little for any Renyi order.
NOT_REACHED = {(2.0, 0.001, 0.6299), (3.0, 0.0001, 0.5)}


def key(training: Training) -> tuple[float, float, float]:
    return training.epsilon, training.rate, training.noise


@pytest.mark.parametrize("training", TWELVE, ids=str)
def test_a_budget_admits_sixty_percent_of_the_steps_of_the_pld(training: Training) -> None:
    found = measure(training)
    assert found.reachable == (key(training) not in NOT_REACHED)
    assert found.steps <= found.pld
    if found.reachable:
        assert found.share >= BAR


def test_the_full_batch_order_admits_no_step_of_ordinary_sampled_training() -> None:
    training = Training(1.0, 1e-5, 0.004, 1.1)
    assert training.admitted(best_order(epsilon=1.0, delta=1e-5)) == 0
    assert training.admitted(training.default()) == 1971


@settings(deadline=None)
@given(epsilon=st.floats(0.001, 50), delta=st.floats(1e-15, 0.5))
def test_a_default_order_is_on_the_grid_and_not_above_that_of_full_batches(
    epsilon: float, delta: float
) -> None:
    order = default_order(epsilon=epsilon, delta=delta)
    assert order in ORDERS
    full = default_order(epsilon=epsilon, delta=delta, share=1.0)
    assert order <= full
    held = [RenyiFilter(order=one, epsilon=epsilon, delta=delta) for one in (order, full)]
    admits = [one.admits(one.zero()) for one in held]
    assert admits[0] or not admits[1]


def test_a_budget_without_orders_counts_at_the_default_order() -> None:
    held = choose("fixed_order_renyi", epsilon=3.0, delta=1e-5)
    assert held == RenyiFilter(order=5.2, epsilon=3.0, delta=1e-5)


def test_the_order_of_a_plan_holds_the_most_of_it() -> None:
    event = Event(
        mechanism=Gaussian(noise_multiplier=1.1), sampling=Poisson(sampling_probability=0.01)
    )
    counts = EventCounts(steps={event: 100})
    order = order_for(counts, relation=RELATION, epsilon=2.0, delta=1e-5)
    assert order is not None
    held = [RenyiFilter(order=one, epsilon=2.0, delta=1e-5) for one in (order, *ORDERS.tolist())]
    steps = [one.admissible(one.zero(), one.cost(event, relation=RELATION)) for one in held]
    assert steps[0] == max(steps) > 0


def test_full_batches_have_the_full_batch_order() -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=10.0), sampling=Full())
    order = order_for(EventCounts(steps={event: 1}), relation=RELATION, epsilon=1.0, delta=1e-5)
    assert order == default_order(epsilon=1.0, delta=1e-5, share=1.0)


def test_a_plan_without_a_bound_has_no_order() -> None:
    counts = EventCounts(steps={Event(mechanism=NoNoise(), sampling=Full()): 1})
    assert order_for(counts, relation=RELATION, epsilon=1.0, delta=1e-5) is None


@pytest.mark.parametrize(
    ("event", "steps", "share"),
    [
        (Event(mechanism=Gaussian(noise_multiplier=40.0), sampling=Full()), 10, 1.0),
        (Event(mechanism=NoNoise(), sampling=Full()), 1, 0.0),
        (Event(mechanism=Gaussian(noise_multiplier=0.01), sampling=Full()), 10**9, None),
    ],
)
def test_a_budget_holds_all_a_share_or_nothing_of_a_plan(
    event: Event, steps: int, share: float | None
) -> None:
    limit = {"relation": RELATION, "epsilon": 3.0, "delta": 1e-5, "order": 8.0}
    found = share_held(EventCounts(steps={event: steps}), **limit)  # type: ignore[arg-type]
    assert 0 < found < 1 if share is None else found == share
