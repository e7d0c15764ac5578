import itertools
import json
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import EventCounts
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    NoNoise,
    Poisson,
    Unknown,
)
from accounting.filters import (
    COUNT_MAX,
    KINDS,
    Filter,
    GaussianFilter,
    RenyiFilter,
    choose,
    filter_of,
    plus,
    revision_share,
    times,
)
from accounting.guarantees import ACCEPTABLE, Status

ADD, ONE, NULL = NeighboringRelation
EACH = pytest.mark.parametrize("kind", KINDS)
TENTH = Event(mechanism=Gaussian(noise_multiplier=10.0), sampling=Full())
BOX = Event(mechanism=ApproximateDp(epsilon=0.1, delta=1e-12), sampling=Full())
EVENTS = [
    TENTH,
    BOX,
    Event(mechanism=Laplace(noise_multiplier=8.0), sampling=Unknown()),
    Event(mechanism=Gaussian(noise_multiplier=2.0), sampling=Poisson(sampling_probability=0.01)),
    Event(mechanism=Gaussian(noise_multiplier=4.0), sampling=BallsAndBins(steps_per_pass=10)),
    Event(mechanism=TENTH.mechanism, sampling=Cyclic(batch_size=5, steps_per_pass=4)),
    Event(mechanism=NoNoise(), sampling=Full()),
]  # fmt: skip


def held(kind: str, *, epsilon: float = 3.0, delta: float = 1e-5) -> Filter:
    return choose(kind, epsilon=epsilon, delta=delta)


# Every filter


@EACH
def test_a_total_of_costs_that_are_known_is_of_those(kind: str) -> None:
    budget = held(kind)
    counted = EventCounts(steps=dict.fromkeys(EVENTS[:3], 3))
    costs = {event: budget.cost(event, relation=NULL) for event in EVENTS[:3]}
    assert budget.total(counted, relation=NULL, known=costs) == budget.total(counted, relation=NULL)
    dearer = {event: tuple(x + 1 for x in cost) for event, cost in costs.items()}
    found = budget.total(counted, relation=NULL, known=dearer)
    assert found == tuple(x + 9 for x in budget.total(counted, relation=NULL))


@EACH
@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 1000), min_size=len(EVENTS), max_size=len(EVENTS)))
def test_a_total_is_the_sum_of_its_units_and_can_be_taken_back(
    kind: str, counts: list[int]
) -> None:
    budget = held(kind)
    steps = {event: n for event, n in zip(EVENTS, counts, strict=True) if n}
    passes = {event: 2 * n for event, n in steps.items() if event in EVENTS[4:6]}
    total = budget.total(EventCounts(steps=steps, passes=passes), relation=NULL)
    expected = budget.zero()
    for event, n in {**steps, **passes}.items():
        expected = plus(expected, times(budget.cost(event, relation=NULL), n))
    assert total == expected
    for event, n in {**steps, **passes}.items():
        expected = plus(expected, times(budget.cost(event, relation=NULL), -n))
    assert expected == budget.zero()


@EACH
@settings(deadline=None)
@given(
    epsilon=st.floats(0.05, 50),
    delta=st.floats(1e-9, 0.1),
    before=st.integers(0, 50),
    index=st.integers(0, len(EVENTS) - 1),
)
def test_as_many_units_fit_as_are_said_to_and_no_more(
    kind: str, epsilon: float, delta: float, before: int, index: int
) -> None:
    budget = held(kind, epsilon=epsilon, delta=delta)
    first = EVENTS[0] if kind != "approximate_dp" else EVENTS[1]
    total = times(budget.cost(first, relation=NULL), before)
    cost = budget.cost(EVENTS[index], relation=NULL)
    n = budget.admissible(total, cost)
    assert 0 <= n <= COUNT_MAX
    if n:
        assert budget.admits(plus(total, times(cost, n)))
    if n < COUNT_MAX:
        assert not budget.admits(plus(total, times(cost, n + 1)))


@EACH
def test_what_costs_nothing_fits_as_often_as_anyone_may_ask(kind: str) -> None:
    budget = held(kind)
    assert budget.admissible(budget.zero(), budget.zero()) == COUNT_MAX
    with pytest.raises(ValueError, match="not negative"):
        budget.admissible(budget.zero(), tuple(-1 for _ in budget.zero()))


@EACH
@settings(deadline=None)
@given(epsilon=st.floats(0.05, 50), delta=st.floats(1e-9, 0.1), count=st.integers(1, 200))
def test_spent_and_remaining_stay_on_their_sides(
    kind: str, epsilon: float, delta: float, count: int
) -> None:
    budget = held(kind, epsilon=epsilon, delta=delta)
    event = EVENTS[1] if kind == "approximate_dp" else EVENTS[0]
    total = times(budget.cost(event, relation=NULL), count)
    spent, remaining = budget.spent(total), budget.remaining(total)
    assert spent <= budget.spent(times(budget.cost(event, relation=NULL), count + 1))
    assert remaining >= 0
    assert Fraction(remaining) == 0 or Fraction(spent) + Fraction(remaining) <= Fraction(epsilon)
    if budget.admits(total):
        assert spent <= epsilon
        assert remaining >= (epsilon - spent) * (1 - 1e-12) - 1e-300
    else:
        assert remaining == 0
        assert spent >= epsilon * (1 - 1e-12)


@EACH
@pytest.mark.parametrize("relation", [ADD, ONE, NULL])
def test_what_a_filter_says_is_spent_is_at_least_what_some_dataset_loses(
    kind: str, relation: NeighboringRelation
) -> None:
    budget = held(kind)
    boxes = {EVENTS[1]: 30, EVENTS[2]: 3}
    noises = {EVENTS[0]: 30, EVENTS[3]: 40}
    steps = boxes if kind == "approximate_dp" else noises
    # Of black boxes the accountant takes the failures off the delta, as the filter does.
    counts = EventCounts(steps=steps)
    spent = budget.spent(budget.total(counts, relation=relation, accept=ACCEPTABLE))
    found = guarantee(counts, relation=relation, delta=1e-5, accept=ACCEPTABLE)
    assert math.isfinite(spent)
    assert found.epsilon_lower is not None
    assert 0 < found.epsilon_lower <= spent
    assert found.epsilon is not None
    assert found.epsilon <= spent * (1 + 1e-9)  # a schedule that is known in advance costs less


@EACH
def test_what_is_stored_is_the_filter(kind: str) -> None:
    budget = held(kind)
    record: dict[str, Any] = json.loads(json.dumps(budget.record()))
    assert record["kind"] == kind == budget.kind
    assert filter_of(record, epsilon=3.0, delta=1e-5) == budget
    assert filter_of(record, epsilon=4.0, delta=1e-6) != budget


@EACH
@pytest.mark.parametrize("epsilon", [math.inf, math.nan, -1.0])
def test_a_budget_that_is_no_number_admits_nothing(kind: str, epsilon: float) -> None:
    if kind == "fixed_order_renyi":
        budget: Filter = RenyiFilter(order=8.0, epsilon=epsilon, delta=1e-5)
    else:
        budget = choose(kind, epsilon=epsilon, delta=1e-5)
    assert not budget.admits(budget.zero())
    assert budget.remaining(budget.zero()) == 0
    assert budget.admissible(budget.zero(), budget.zero()) == 0


@EACH
def test_what_has_no_bound_is_infinite(kind: str) -> None:
    budget = held(kind)
    total = budget.total(EventCounts(steps={EVENTS[-1]: 1}), relation=NULL)
    assert total[0] == 1
    assert budget.spent(total) == math.inf
    assert not budget.admits(total)
    assert budget.admissible(total, budget.zero()) == 0
    assert budget.binding_order(total) is None


def test_a_filter_is_chosen_by_name_and_refuses_what_it_has_not() -> None:
    assert choose("fixed_order_renyi", epsilon=3.0, delta=1e-5, orders=[5.5]) == RenyiFilter(
        order=5.5, epsilon=3.0, delta=1e-5
    )
    with pytest.raises(ValueError, match=r"orders: from 1 to 1, each once"):
        choose("fixed_order_renyi", epsilon=3.0, delta=1e-5, orders=[2.0, 3.0])
    with pytest.raises(ValueError, match=r"orders: from 1 to 64, each once"):
        choose("union_of_orders", epsilon=3.0, delta=1e-5, orders=[2.0, 2.0])
    for orders in ([], [2.0 + i / 10 for i in range(65)]):
        with pytest.raises(ValueError, match=r"orders: from 1"):
            choose("union_of_orders", epsilon=3.0, delta=1e-5, orders=orders)
    for kind, order in itertools.product(KINDS[:2], (1.0, 1.05, 1025.0, math.nan, math.inf)):
        with pytest.raises(ValueError, match=r"orders: each lies in \[1.1, 1024\]"):
            choose(kind, epsilon=3.0, delta=1e-5, orders=[order])
    for kind in KINDS[2:]:
        with pytest.raises(ValueError, match=r"orders: the .* filter has none"):
            choose(kind, epsilon=3.0, delta=1e-5, orders=[2.0])
    with pytest.raises(ValueError, match="kind: the filters are"):
        choose("natural", epsilon=3.0, delta=1e-5)
    with pytest.raises(ValueError, match="kind: the filters are"):
        filter_of({"kind": "natural", "orders": [], "weights": []}, epsilon=3.0, delta=1e-5)


def test_the_shares_of_all_revisions_are_at_most_everything() -> None:
    square_of_pi = Fraction("9.869604401089358618834490999876")  # from below
    for i in (1, 2, 3, 10, 1000, 10**6):
        assert Fraction(revision_share(i)) <= 6 / (square_of_pi * i * i)
    shares = [revision_share(i) for i in range(1, 2001)]
    assert sum(shares) == pytest.approx(1 - 6 / math.pi**2 / 2000, abs=1e-6)
    assert revision_share(0) == 1
    assert revision_share(1) == pytest.approx(6 / math.pi**2)
    assert shares == sorted(shares, reverse=True)
    with pytest.raises(ValueError, match="revision >= 0"):
        revision_share(-1)


def test_a_filter_says_what_it_rests_on() -> None:
    for kind, status in zip(
        KINDS,
        (Status.PUBLISHED, Status.DERIVED, Status.PUBLISHED, Status.PUBLISHED),
        strict=True,
    ):
        assert held(kind).status is status
    assert isinstance(held("gaussian_dp"), GaussianFilter)
    assert len({held(kind).theorem for kind in KINDS}) == 4
