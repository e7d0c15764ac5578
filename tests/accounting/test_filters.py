import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.balances import Balance, balance_of
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    NoNoise,
    Poisson,
    Span,
)
from accounting.filters import RenyiFilter, best_order, renyi_filter_limit
from accounting.gaussian import gaussian_epsilon
from accounting.guarantees import Status
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import gaussian_rdp

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
PROPERTY = settings(deadline=None)
BUDGET = RenyiFilter(order=8.0, epsilon=3.0, delta=1e-5)
EIGHT = np.array([8.0])


def gaussian_steps(steps: int, *, sigma: float = 10.0) -> Balance:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=Full())
    return Balance(steps={event: steps})


@pytest.mark.parametrize("spent", [math.nan, math.inf])
def test_what_is_not_a_finite_number_is_not_admitted(spent: float) -> None:
    assert not BUDGET.admits(spent)


def test_a_budget_without_a_finite_epsilon_admits_nothing() -> None:
    for epsilon in (math.inf, math.nan, -math.inf):
        budget = RenyiFilter(order=8.0, epsilon=epsilon, delta=1e-5)
        assert not budget.admits(0.0)


def test_the_limit_is_the_published_one_from_below() -> None:
    exact = 3 - (math.log(7 / 8) - (math.log(1e-5) + math.log(8)) / 7)
    published = renyi_filter_limit(order=8.0, epsilon=3.0, delta=1e-5)
    assert exact * (1 - 1e-14) <= published <= exact
    assert published == pytest.approx(1.7858908321544666, rel=1e-12)
    # A millionth of delta is kept for steps that may fail.
    assert published - 1.1e-6 / 7 <= BUDGET.limit < published
    assert BUDGET.admits(BUDGET.limit)
    assert not BUDGET.admits(math.nextafter(BUDGET.limit, math.inf))


def test_a_budget_too_small_for_an_order_admits_nothing_at_it() -> None:
    budget = RenyiFilter(order=2.0, epsilon=3.0, delta=1e-5)
    assert budget.limit < 0
    assert not budget.admits(0.0)


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
    spent = budget.spent(gaussian_steps(steps, sigma=sigma), relation=RELATION)
    reading = budget.reading(spent)
    if budget.admits(spent):
        assert reading <= epsilon * (1 + 1e-12)
    else:
        assert reading >= epsilon * (1 - 1e-12)
    converted, _ = rdp_epsilon(rdp=np.array([spent]), orders=np.array([budget.order]), delta=delta)
    assert converted <= reading * (1 + 1e-14)
    assert reading - converted <= 1.1e-6 / (budget.order - 1) + 1e-14 * reading
    assert reading >= gaussian_epsilon(delta, mu=math.sqrt(steps) / sigma) * (1 - 1e-12)


def test_a_budget_holds_as_many_gaussian_steps_as_its_limit_pays_for() -> None:
    order = best_order(epsilon=3.0, delta=1e-5)
    budget = RenyiFilter(order=order, epsilon=3.0, delta=1e-5)
    admitted = 0
    while budget.admits(budget.spent(gaussian_steps(admitted + 1), relation=RELATION)):
        admitted += 1
    assert admitted == math.floor(budget.limit / (order / 200))
    assert admitted == 44
    # The largest number whose exact epsilon is within the budget is 51.
    assert gaussian_epsilon(1e-5, mu=math.sqrt(51) / 10) <= 3
    assert gaussian_epsilon(1e-5, mu=math.sqrt(52) / 10) > 3


@PROPERTY
@given(epsilon=st.floats(0.01, 50), delta=st.floats(1e-12, 1e-2))
def test_the_order_is_one_of_the_grid_and_holds_the_most_gaussian_steps(
    epsilon: float, delta: float
) -> None:
    chosen = best_order(epsilon=epsilon, delta=delta)
    assert chosen in ORDERS
    most = renyi_filter_limit(order=chosen, epsilon=epsilon, delta=delta) / chosen
    for order in ORDERS.tolist():
        assert renyi_filter_limit(order=order, epsilon=epsilon, delta=delta) / order <= most


def test_nothing_spent_reads_as_nothing() -> None:
    assert BUDGET.spent(Balance(), relation=RELATION) == 0
    assert BUDGET.reading(0.0) == 0
    assert BUDGET.reading(1e-9) > 0


def test_a_reading_is_never_negative() -> None:
    generous = RenyiFilter(order=8.0, epsilon=3.0, delta=0.9)
    assert generous.reading(1e-9) == 0


def test_a_step_without_a_bound_is_never_admitted() -> None:
    event = Event(mechanism=NoNoise(), sampling=Full())
    spent = BUDGET.spent(Balance(steps={event: 1}), relation=RELATION)
    assert spent == math.inf
    assert not BUDGET.admits(spent)


def test_only_accepted_bounds_are_charged() -> None:
    event = Event(
        mechanism=Gaussian(noise_multiplier=4.0), sampling=Poisson(sampling_probability=0.01)
    )
    replaced = NeighboringRelation.REPLACE_ONE
    spent = Balance(steps={event: 10})
    cautious = BUDGET.spent(spent, relation=replaced)
    trusting = BUDGET.spent(
        spent, relation=replaced, accept=frozenset({Status.PUBLISHED, Status.DERIVED})
    )
    assert 0 < trusting < cautious
    assert BUDGET.spent(spent, relation=replaced, accept=frozenset()) == math.inf


def test_an_order_outside_the_grid_is_refused() -> None:
    with pytest.raises(IndexError):
        RenyiFilter(order=8.05, epsilon=3.0, delta=1e-5).spent(Balance(), relation=RELATION)


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
    spent = BUDGET.spent(balance_of([spans]), relation=RELATION)
    assert spent == BUDGET.spent(balance_of([moved]), relation=RELATION)
    true = sum(
        n * Fraction(gaussian_rdp(noise_multiplier=1.0 + i, sensitivity=1.0, orders=EIGHT)[0])
        for i, n in enumerate(counts)
    )
    assert true <= Fraction(spent) <= true * (1 + Fraction(1, 10**14))


def renyi(p: tuple[float, ...], q: tuple[float, ...], order: float) -> float:
    """The Renyi divergence of order `order` between two distributions, nats."""
    moment = math.fsum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))
    return math.log(moment) / (order - 1)


def test_orders_are_fixed_because_choosing_them_afterwards_breaks_the_budget() -> None:
    # The rule "accept a step while some order is still within its full budget" lets the next step
    # be fitted to the outcome of the last: each branch below is within the budget of one order.
    orders = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)
    p = (0.986013, 0.0136844, 0.0003026)
    q = (0.9920564, 0.0078044, 0.0001392)
    seconds = [(4.88e-5, 2.017e-6), (0.00636, 0.0005093), (0.9047, 0.0946)]
    admitting = {}
    for order in orders:
        limit = renyi_filter_limit(order=order, epsilon=3.0, delta=1e-5)
        first = max(renyi(p, q, order), renyi(q, p, order))
        costs = []
        for a, b in seconds:
            pair = ((a, 1 - a), (b, 1 - b))
            costs.append(first + max(renyi(*pair, order), renyi(*pair[::-1], order)))
        admitting[order] = {branch for branch, cost in enumerate(costs) if cost <= limit}
    # Every branch is admitted by some order, and no order admits them all.
    assert {order: some for order, some in admitting.items() if some} == {
        6.0: {0},
        12.0: {1},
        32.0: {2},
    }
    # The exact delta at epsilon 3, over all six outcomes, is more than twice the budget's.
    outcomes = [
        (p[i] * (a if hit else 1 - a), q[i] * (b if hit else 1 - b))
        for (i, (a, b)), hit in product(enumerate(seconds), (True, False))
    ]
    delta = math.fsum(max(0.0, mine - math.exp(3.0) * yours) for mine, yours in outcomes)
    assert delta == pytest.approx(2.439e-5, rel=1e-3)
    assert delta > 2 * 1e-5


def test_noise_that_falls_inside_an_amplified_pass_takes_its_amplification() -> None:
    relation = NeighboringRelation.REPLACE_SPECIAL
    sampling = BallsAndBins(steps_per_pass=2)
    budget = RenyiFilter(order=8.0, epsilon=3.0, delta=1e-5)

    def spent(*noises: float) -> float:
        spans = [
            Span(event=Event(mechanism=Gaussian(noise_multiplier=s), sampling=sampling), steps=1)
            for s in noises
        ]
        return budget.spent(balance_of([spans]), relation=relation)

    high, low = 2.253, 1.352
    steady, fallen = spent(high, high), spent(high, low)
    release = 8 / (2 * low * low)
    assert steady < 8 / (2 * high * high)
    # A game that lowers the noise where the first answer says little attains 1.5435 of order 8.
    assert fallen >= 1.5435
    assert fallen == pytest.approx(2 * release, rel=1e-9)
    assert fallen >= steady + release
    # A pass that is one Gaussian release anyway is charged as before.
    cyclic = [
        Span(
            event=Event(
                mechanism=Gaussian(noise_multiplier=s),
                sampling=Cyclic(batch_size=1, steps_per_pass=2),
            ),
            steps=1,
        )
        for s in (high, low)
    ]
    assert budget.spent(balance_of([cyclic]), relation=relation) == pytest.approx(release)
