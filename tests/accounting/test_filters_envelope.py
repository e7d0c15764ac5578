"""The envelope filter: whole numbers of steps, and which item covers which event."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.event_counts import count_events
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    NeighboringRelation,
    NoNoise,
    Poisson,
    Span,
)
from accounting.filters import RenyiFilter, plus, times
from accounting.filters.covers import covers
from accounting.filters.envelope import (
    ITEMS_MAX,
    EnvelopeFilter,
    EnvelopeItem,
    charged_items,
)
from accounting.filters.integer_totals import COUNT_MAX
from tests.accounting.envelope_events import EVENTS, gaussian

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
RATES = (0.1, 0.2, 0.4)
NOISES = (1.0, 2.0)
LADDER = [gaussian(noise, Poisson(sampling_probability=q)) for q, noise in product(RATES, NOISES)]
SAMPLE = [*LADDER, gaussian(1.5, Full()), gaussian(3.0, Full())]
ITEMS = st.lists(
    st.builds(EnvelopeItem, event=st.sampled_from(SAMPLE), steps=st.integers(1, 4)),
    min_size=1,
    max_size=6,
)
STEPS = st.lists(st.sampled_from(SAMPLE), max_size=24)


def held(*items: EnvelopeItem, epsilon: float = 3.0, certified: float = 2.5) -> EnvelopeFilter:
    return EnvelopeFilter(items=items, epsilon=epsilon, delta=1e-5, certified=certified)


def item(event: Event, steps: int) -> EnvelopeItem:
    return EnvelopeItem(event=event, steps=steps)


def total_of(budget: EnvelopeFilter, events: Sequence[Event]) -> tuple[int, ...]:
    counts = count_events([[Span(event=event, steps=1) for event in events]])
    return budget.total(counts, relation=ADD)


@given(items=ITEMS, steps=STEPS, order=st.randoms(use_true_random=False))
def test_totals_add_up_in_whatever_order(
    items: list[EnvelopeItem], steps: list[Event], order: random.Random
) -> None:
    budget = held(*items)
    sums = budget.zero()
    for event in steps:
        sums = plus(sums, budget.cost(event, relation=ADD))
    assert sums == total_of(budget, steps)
    known = {event: budget.cost(event, relation=ADD) for event in steps}
    shuffled = order.sample(steps, len(steps))
    counts = count_events([[Span(event=event, steps=1)] for event in shuffled])
    assert sums == budget.total(counts, relation=ADD, known=known or None)


@given(items=ITEMS, steps=STEPS)
def test_charges_keep_within_what_each_item_holds_and_no_unit_is_lost(
    items: list[EnvelopeItem], steps: list[Event]
) -> None:
    budget = held(*items)
    total = total_of(budget, steps)
    charged = budget.charged(total)
    assert sum(charged) == len(steps) - total[1]
    if budget.admits(total):
        assert all(0 <= n <= one.allowed for n, one in zip(charged, items, strict=True))
        assert 0 <= budget.share(total) <= 1
    else:
        assert budget.share(total) == math.inf


def one_by_one(budget: EnvelopeFilter, steps: Sequence[Event]) -> Counter[int] | None:
    """Charge each step as it comes to its own item, or else to the next parent that has room."""
    charged: Counter[int] = Counter()
    for event in steps:
        cost = budget.cost(event, relation=ADD)
        at = None if cost[1] else cost[2:].index(1)
        while at is not None and charged[at] >= budget._allowed[at]:
            at = budget._parents[at]
        if at is None:
            return None
        assert covers(budget.items[budget._order[at]].event, event)
        charged[at] += 1
    return charged


@given(items=ITEMS, steps=STEPS, order=st.randoms(use_true_random=False))
def test_steps_that_are_charged_as_they_come_end_as_their_counts_do(
    items: list[EnvelopeItem], steps: list[Event], order: random.Random
) -> None:
    budget = held(*items)
    total = total_of(budget, steps)
    for _ in range(4):
        found = one_by_one(budget, order.sample(steps, len(steps)))
        assert (found is not None) == budget.admits(total)
        if found is not None:
            by_item = {budget._order[at]: n for at, n in found.items()}
            assert budget.charged(total) == tuple(by_item.get(at, 0) for at in range(len(items)))


@given(items=ITEMS)
def test_what_an_item_does_not_hold_goes_to_one_that_covers_it_most_closely(
    items: list[EnvelopeItem],
) -> None:
    budget = held(*items)
    events = [items[at].event for at in budget._order]
    for at, parent in enumerate(budget._parents):
        above = [o for o in range(at + 1, len(events)) if covers(events[o], events[at])]
        assert parent in above if above else parent is None
        closer = [o for o in above if parent is not None and covers(events[parent], events[o])]
        assert all(covers(events[o], events[parent]) for o in closer if parent is not None)


@given(items=ITEMS, steps=STEPS, event=st.sampled_from(SAMPLE))
def test_as_many_further_units_fit_as_are_told(
    items: list[EnvelopeItem], steps: list[Event], event: Event
) -> None:
    budget = held(*items)
    total, cost = total_of(budget, steps), budget.cost(event, relation=ADD)
    fit = budget.admissible(total, cost)
    if budget.admits(total):
        assert budget.admits(plus(total, times(cost, fit)))
        assert not budget.admits(plus(total, times(cost, fit + 1)))
    else:
        assert fit == 0


def test_what_costs_nothing_fits_without_end_and_no_cost_is_negative() -> None:
    budget = held(item(LADDER[0], 2))
    zero = budget.zero()
    assert budget.admissible(zero, zero) == COUNT_MAX
    with pytest.raises(ValueError, match="not negative"):
        budget.admissible(zero, (0, 0, -1))


def test_a_count_that_is_negative_is_not_admitted() -> None:
    assert charged_items(used=(-1, 3), allowed=(2, 3), parents=(1, None)) is None
    assert charged_items(used=(4, 1), allowed=(2, 3), parents=(1, None)) == (2, 3)
    assert charged_items(used=(4, 2), allowed=(2, 3), parents=(1, None)) is None
    assert not held(item(LADDER[0], 2)).admits((1, 0, 0))


def test_a_step_that_no_item_covers_is_outside_for_good() -> None:
    budget = held(item(LADDER[0], 2))
    cost = budget.cost(Event(mechanism=NoNoise(), sampling=Full()), relation=ADD)
    assert cost == (0, 1, 0)
    assert budget.is_outside(cost)
    assert not budget.is_outside(budget.cost(LADDER[0], relation=ADD))
    assert not budget.admits(cost)
    assert budget.parts([cost, budget.zero()]) == (math.inf, 0.0)
    assert (budget.spent(cost), budget.remaining(cost)) == (math.inf, 0.0)


def test_any_use_spends_the_whole() -> None:
    budget = held(item(LADDER[0], 4))
    one = budget.cost(LADDER[0], relation=ADD)
    assert budget.spent(budget.zero()) == 0
    assert budget.remaining(budget.zero()) == pytest.approx(3.0)
    assert budget.spent(one) == 2.5
    assert budget.remaining(one) == pytest.approx(0.5)
    assert budget.record()["certified"] == 2.5


@given(items=ITEMS, parts=st.lists(STEPS, min_size=1, max_size=3))
def test_shares_are_those_of_steps_and_parts_add_up(
    items: list[EnvelopeItem], parts: list[list[Event]]
) -> None:
    budget = held(*items)
    totals = [total_of(budget, steps) for steps in parts]
    whole = total_of(budget, [event for steps in parts for event in steps])
    found = budget.parts(totals, whole=whole)
    if budget.admits(whole):
        assert sum(found) == pytest.approx(budget.share(whole), abs=1e-12)
        used = sum(map(len, parts)) / sum(one.allowed for one in items)
        assert used <= budget.share(whole) <= used * (1 + 1e-15)


def test_a_share_counts_steps_where_items_are_passes() -> None:
    loader = gaussian(5.0, Cyclic(batch_size=10, steps_per_pass=8))
    budget = held(item(loader, 17), item(LADDER[0], 6))
    assert budget.items[0].allowed == 3  # a pass that is begun is a whole one
    one = budget.cost(loader, relation=ADD)
    assert budget.share(one) == pytest.approx(8 / 30)


def passes(*noises: Sequence[float]) -> list[list[Span]]:
    """A branch for each row: passes of two steps at these noises."""
    order = BallsAndBins(steps_per_pass=2)
    return [[Span(event=gaussian(one, order), steps=1) for one in row] for row in noises]


def test_a_pass_whose_noise_falls_below_what_covers_its_beginning_is_outside() -> None:
    order = BallsAndBins(steps_per_pass=2)
    budget = held(item(gaussian(2.0, order), 8), item(gaussian(3.0, order), 8))

    def outside(*noises: Sequence[float]) -> int:
        return budget.total(count_events(passes(*noises)), relation=ADD)[1]

    assert outside([3.0, 3.0], [2.0, 2.0], [2.0, 3.5], [3.0]) == 0
    assert outside([2.9, 2.0]) == 0  # both are within the same item
    assert outside([3.5, 3.0, 2.0, 2.0]) == 0
    assert outside([3.0, 2.0]) > 0
    assert outside([3.0, 3.0], [3.0, 2.0]) > 0
    assert outside([3.0, 2.0], [2.0, 3.0]) > 0  # a rise elsewhere makes up for no fall
    assert outside([2.0, 1.9]) > 0
    assert outside([1.9, 1.9]) > 0
    assert not budget.admits(budget.total(count_events(passes([3.0, 2.0])), relation=ADD))


def test_a_pass_is_charged_when_it_begins_and_once() -> None:
    order = BallsAndBins(steps_per_pass=2)
    budget = held(item(gaussian(2.0, order), 4))
    begun, whole = (
        budget.total(count_events(passes(row)), relation=ADD) for row in ([2.0], [2.0, 2.0])
    )
    assert begun == whole == (0, 0, 1)


def test_limits_are_set_once_and_items_must_fit() -> None:
    budget = held(item(LADDER[0], 2))
    with pytest.raises(ValueError, match="cannot be changed"):
        budget.at(epsilon=4.0, delta=1e-5)
    with pytest.raises(ValueError, match="certified within epsilon"):
        held(item(LADDER[0], 2), certified=3.0000001)
    with pytest.raises(ValueError, match="certified within epsilon"):
        held(item(LADDER[0], 2), certified=math.nan)
    with pytest.raises(ValueError, match="items"):
        held()
    with pytest.raises(ValueError, match="items"):
        held(*[item(LADDER[0], 1)] * (ITEMS_MAX + 1))
    assert held(*[item(LADDER[0], 1)] * ITEMS_MAX).admits((0, 0, *[1] * ITEMS_MAX))
    with pytest.raises(ValueError, match="steps"):
        item(LADDER[0], 0)


def test_units_of_several_runs_add_up_item_by_item() -> None:
    budget = held(item(LADDER[1], 3), item(LADDER[0], 3))
    runs = [total_of(budget, [LADDER[1]] * 3), total_of(budget, [LADDER[1]] * 2)]
    whole = plus(*runs)
    assert budget.charged(whole) == (3, 2)
    assert not budget.is_read_beside(whole)
    assert [budget.own_units(one) for one in (*runs, whole)] == [(3, 0), (2, 0), (5, 0)]
    outside = plus(whole, total_of(budget, [SAMPLE[-2]]))
    assert not budget.admits(outside)
    assert budget.charged(outside) == (3, 2)


def test_equal_envelopes_are_one_value() -> None:
    one, same = held(item(LADDER[0], 2)), held(item(LADDER[0], 2))
    assert one == same
    assert hash(one) == hash(same)
    others = [held(item(LADDER[0], 3)), held(item(LADDER[1], 2)), replace(one, epsilon=3.5)]
    assert all(one != other and hash(one) != hash(other) for other in others)


def test_covering_is_reflexive_and_transitive() -> None:
    above = {event: [one for one in EVENTS if covers(one, event)] for event in EVENTS}
    assert all(event in found for event, found in above.items())
    for event, found in above.items():
        for one in found:
            assert set(above[one]) <= set(found), (event, one)


def test_nothing_covers_what_may_tell_more() -> None:
    def fixed(batch: int, size: int) -> Event:
        return gaussian(1.0, FixedSize(batch_size=batch, dataset_size=size))

    refused = [
        (fixed(10, 10), fixed(5, 10)),
        (fixed(5, 10), fixed(10, 10)),
        (fixed(10, 10), fixed(20, 20)),
        (fixed(3, 10), fixed(7, 20)),
        (gaussian(1.0, Full()), fixed(5, 10)),
        (gaussian(1.0, Full()), gaussian(0.99, Full())),
        (LADDER[0], gaussian(1.0, Full())),
        (LADDER[0], LADDER[2]),
    ]
    assert not any(covers(one, event) for one, event in refused)
    assert covers(fixed(3, 10), fixed(6, 20))
    box = Event(mechanism=ApproximateDp(epsilon=1.0, delta=1e-6), sampling=Full())
    smaller = Event(mechanism=ApproximateDp(epsilon=0.5, delta=1e-6), sampling=Full())
    crossed = Event(mechanism=ApproximateDp(epsilon=0.5, delta=1e-5), sampling=Full())
    assert covers(box, smaller)
    assert not covers(box, crossed)
    exact = Event(mechanism=NoNoise(), sampling=Full())
    assert covers(exact, exact)
    assert not covers(exact, replace(exact, sampling=Poisson(sampling_probability=0.5)))


BESIDE = EnvelopeFilter(
    items=(item(LADDER[3], 3), item(LADDER[1], 2)),
    epsilon=3.0,
    delta=1e-5,
    certified=2.5,
    order=8.0,
    weight=0.25,
)


def beside_of(budget: EnvelopeFilter) -> RenyiFilter:
    assert budget.beside is not None
    return budget.beside


@given(steps=STEPS)
def test_a_filter_beside_the_items_admits_what_they_do_not_hold(steps: list[Event]) -> None:
    alone = held(*BESIDE.items)
    other = beside_of(BESIDE)
    total, known = total_of(BESIDE, steps), {}
    for event in steps:
        known[event] = BESIDE.cost(event, relation=ADD)
    counts = count_events([[Span(event=event, steps=1) for event in steps]])
    assert total == BESIDE.total(counts, relation=ADD, known=known or None)
    inside, beside = total_of(alone, steps), other.total(counts, relation=ADD)
    assert total == (*inside, *beside)
    assert BESIDE.holds_items(total) == alone.admits(inside)
    assert BESIDE.admits(total) == (alone.admits(inside) or other.admits(beside))
    assert BESIDE.spent(total) == (0.0 if not steps else 3.0 if BESIDE.admits(total) else math.inf)
    assert BESIDE.share(total) == min(alone.share(inside), other.share(beside))
    assert BESIDE.admits(total) == (BESIDE.share(total) <= 1)
    assert BESIDE.charged(total) == alone.charged(inside)
    assert BESIDE.steps_of(total) == alone.steps_of(inside)
    parts = [BESIDE.cost(event, relation=ADD) for event in steps]
    assert sum(BESIDE.parts(parts)) >= BESIDE.share(total) * (1 - 1e-12)
    assert BESIDE.binding_order(total) == (
        None if alone.admits(inside) else other.binding_order(beside)
    )


def test_a_filter_beside_the_items_counts_all_steps_since_the_beginning() -> None:
    cost = BESIDE.cost(LADDER[5], relation=ADD)  # which no item covers
    assert BESIDE.is_outside(cost)
    own = beside_of(BESIDE)
    before = total_of(BESIDE, [LADDER[3]] * 3)
    rest = own.admissible(before[-3:], cost[-3:])
    assert 0 < rest == BESIDE.admissible(before, cost)
    assert rest < BESIDE.admissible(BESIDE.zero(), cost)
    assert not BESIDE.admits(plus(before, times(cost, rest + 1)))
    assert BESIDE.parts([before], whole=plus(before, cost)) == own.parts(
        [before[-3:]], whole=plus(before, cost)[-3:]
    )


def test_a_filter_beside_the_items_is_stored_with_them_and_needs_a_share_of_delta() -> None:
    found = BESIDE.record()
    assert (found["orders"], found["weights"]) == ([8.0], [0.25])
    own = beside_of(BESIDE)
    assert (own.order, own.epsilon) == (8.0, 3.0)
    assert 2.5e-6 * (1 - 1e-15) <= own.delta <= 2.5e-6
    assert hash(BESIDE) != hash(replace(BESIDE, weight=0.5))
    assert replace(BESIDE, weight=0.5) != BESIDE
    for weight in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"weight|a share of delta"):
            replace(BESIDE, weight=weight)


def test_a_pass_whose_noise_falls_is_left_to_the_filter_beside_the_items() -> None:
    cyclic = Cyclic(batch_size=10, steps_per_pass=4)
    budget = EnvelopeFilter(
        items=(item(gaussian(8.0, cyclic), 8),),
        epsilon=3.0, delta=1e-5, certified=2.5, order=8.0, weight=0.25,
    )  # fmt: skip
    special = NeighboringRelation.REPLACE_SPECIAL
    spans = [Span(event=gaussian(noise, cyclic), steps=2) for noise in (8.0, 7.0)]
    counts = count_events([spans])
    total = budget.total(counts, relation=special)
    assert total[1] > 0
    assert budget.admits(total)
    assert total[-3:] == beside_of(budget).total(counts, relation=special)
