"""Work is counted: the same for the same question, whatever is remembered."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import work_budgets
from accounting.accountants import best_first
from accounting.accountants.best_bound import best_bound, guarantee
from accounting.accountants.event_grouping import CLOUD_GROUPS, dominating
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NeighboringRelation,
    Poisson,
    RandomizedResponse,
    Sampling,
    Span,
    TruncatedPoisson,
    Zcdp,
)
from accounting.pld import certified_composition
from accounting.rounding import Array
from accounting.work_limit import (
    ByteCache,
    TooMuchWorkError,
    as_many,
    attempt,
    by_itself,
    cached_with_cost,
    limit_work,
    remaining_points,
    spend,
)

DELTA = 1e-5
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
FIXED = FixedSize(batch_size=600, dataset_size=60_000)
TRUNCATED = TruncatedPoisson(sampling_probability=0.01, max_batch_size=650, dataset_size=60_000)
BALLS = BallsAndBins(steps_per_pass=100)


def noises(sampling: Sampling, count: int, steps: int = 10) -> EventCounts:
    events = [
        Event(mechanism=Gaussian(noise_multiplier=3 + i / 50), sampling=sampling)
        for i in range(count)
    ]
    return count_events([[Span(event=event, steps=steps)] for event in events])


def test_work_beyond_a_limit_stops_and_what_was_spent_is_known() -> None:
    spend(10**30)  # nobody limits it
    with limit_work(100) as meter:
        spend(60)
        spend(40)
        with pytest.raises(TooMuchWorkError):
            spend(1)
    assert meter.spent == 101


def test_a_limit_inside_is_no_more_than_what_is_left_outside() -> None:
    with limit_work(100) as outer:
        assert attempt(50, lambda: spend(51)) is None
        assert outer.spent == 50  # what was allowed, not how far the last part went
        with pytest.raises(TooMuchWorkError):
            attempt(1000, lambda: spend(60))


def test_a_limit_below_zero_gives_nothing_back() -> None:
    with limit_work(100) as meter:
        spend(40)
        assert attempt(-20, lambda: spend(1)) is None
        assert (meter.spent, remaining_points()) == (40, 60)
    assert remaining_points() == math.inf


def test_as_many_answers_are_worked_out_as_a_limit_allows() -> None:
    def priced(number: int) -> int:
        spend(10)
        return number

    with limit_work(100) as meter:
        assert as_many(35, [partial(priced, number) for number in range(9)]) == [0, 1, 2]
        assert meter.spent == 35
        assert as_many(100, []) == []
        with pytest.raises(TooMuchWorkError):
            as_many(100, [partial(priced, number) for number in range(9)])


def test_a_whole_guarantee_keeps_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = noises(TRUNCATED, 2)
    given: dict[str, Any] = {"relation": REPLACE_ONE, "delta": DELTA}
    whole = guarantee(counts, **given)
    monkeypatch.setattr(work_budgets, "GUARANTEE", 0)
    headline = guarantee(counts, **given)
    assert headline.epsilon == whole.epsilon  # what stands beside it is left out, never it
    assert whole.unamplified_epsilon is not None
    assert headline.unamplified_epsilon is None
    small = guarantee(counts, share=1e-3, **given)
    assert small.epsilon is not None
    assert whole.epsilon is not None
    assert small.epsilon >= whole.epsilon


def test_what_is_remembered_takes_as_much_as_what_is_not() -> None:
    calls: list[int] = []

    @cached_with_cost(maxsize=4)
    def inner(number: int) -> int:
        spend(number)
        calls.append(number)
        return number

    @cached_with_cost(maxsize=4)
    def outer(number: int) -> int:
        return inner(number) + inner(number)

    spent = []
    for _ in range(2):
        with limit_work(math.inf) as meter:
            assert outer(7) == 14
        spent.append(meter.spent)
    assert (spent, calls) == ([7, 7], [7])
    for ask in (outer, outer.__call__):
        with pytest.raises(TooMuchWorkError), limit_work(6):
            ask(7)
    with pytest.raises(TooMuchWorkError), limit_work(7):
        outer(8)
    with limit_work(8):
        assert outer(8) == 16
        assert outer(8) == 16  # asked for again, it is no more work
    outer.cache_clear()
    assert outer.cache_info().currsize == 0


def test_what_two_answers_ask_for_inside_counts_once() -> None:
    @cached_with_cost(maxsize=4)
    def grid(number: int) -> int:
        spend(number)
        return number

    @cached_with_cost(maxsize=4)
    def law(number: int) -> int:
        spend(1)
        return grid(number) + grid(5)

    for _ in range(2):
        with limit_work(math.inf) as meter:
            assert law(7) + law(8) + grid(5) == 30
        assert meter.spent == 7 + 8 + 5 + 2
        with limit_work(22):
            law(7), law(8)
            grid.cache_clear()
            grid(5)  # forgotten in between, it is no more work
            with pytest.raises(TooMuchWorkError):
                spend(1)


def test_what_took_too_much_has_asked_for_nothing() -> None:
    @cached_with_cost(maxsize=4)
    def grid(number: int) -> int:
        spend(number)
        return number

    for _ in range(2):
        with limit_work(math.inf) as meter:
            assert attempt(50, lambda: grid(40) + grid(20)) is None
            assert meter.spent == 50
            grid(40)
            assert meter.spent == 90


Task = tuple[Any, ...]
PARTS = 5
TASKS: st.SearchStrategy[list[Task]] = st.lists(
    st.recursive(
        st.tuples(st.just("spend"), st.integers(0, 20))
        | st.tuples(st.just("ask"), st.integers(0, PARTS - 1)),
        lambda inner: st.tuples(
            st.just("attempt"), st.integers(0, 60), st.lists(inner, max_size=4)
        ),
        max_leaves=6,
    ),
    max_size=5,
)


@given(
    programs=st.lists(TASKS, min_size=PARTS, max_size=PARTS),
    limit=st.integers(0, 200),
    forgotten=st.lists(st.integers(0, 1), min_size=1, max_size=9),
)
def test_what_is_remembered_changes_neither_an_answer_nor_its_work(
    programs: list[list[Task]], limit: int, forgotten: list[int]
) -> None:
    """Of programs that ask for one another, the later for earlier ones."""
    forget_now: Iterator[int] = iter(())

    @cached_with_cost(maxsize=PARTS)
    def answer(number: int) -> tuple[object, ...]:
        return tuple(do(task, number) for task in programs[number])

    def do(task: Task, number: int) -> object:
        if next(forget_now, 0):
            answer.cache_clear()
        if task[0] == "spend":
            spend(task[1])
            return None
        if task[0] == "ask":
            return answer(task[1]) if task[1] < number else None
        return attempt(task[1], lambda: tuple(do(one, number) for one in task[2]))

    def whole() -> tuple[object, float | None]:
        try:
            with limit_work(limit) as meter:
                found = [answer(number) for number in (PARTS - 1, PARTS - 2, PARTS - 1)]
        except TooMuchWorkError:
            return None, None
        return found, meter.spent

    answer.cache_clear()
    cold = whole()
    assert whole() == cold
    answer.cache_clear()
    forget_now = itertools.cycle(forgotten)
    assert whole() == cold
    answer(PARTS - 1)
    assert whole() == cold


def test_a_cache_by_bytes_remembers_the_work_too() -> None:
    cache: ByteCache[Array] = ByteCache(1000)

    def make() -> Array:
        spend(30)
        return np.zeros(3)

    for _ in range(2):
        with limit_work(100) as meter:
            cache.found("key", make)
        assert meter.spent == 30
        with pytest.raises(TooMuchWorkError), limit_work(29):
            cache.found("key", make)


def counted(counts: EventCounts, relation: NeighboringRelation) -> tuple[object, float]:
    with limit_work(math.inf) as meter:
        found = guarantee(counts, relation=relation, delta=DELTA)
    return found, meter.spent


def forget() -> None:
    certified_composition.forget()
    renyi_bounds.cache_clear()


def test_the_same_facts_take_the_same_work_whatever_was_asked_before() -> None:
    counts = noises(FIXED, 3)
    forget()
    cold = counted(counts, REPLACE_ONE)
    assert counted(counts, REPLACE_ONE) == cold
    guarantee(noises(FIXED, 2), relation=REPLACE_ONE, delta=DELTA)
    certified_composition.forget_answers()
    assert counted(counts, REPLACE_ONE) == cold


def test_what_an_accountant_cannot_work_out_is_bounded_by_fewer_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = noises(FIXED, 24)
    given: dict[str, Any] = {"relation": NeighboringRelation.ADD_OR_REMOVE_ONE, "delta": DELTA}
    exact = best_bound(counts, **given)
    monkeypatch.setitem(work_budgets.ACCOUNTANT, "pld", 200_000)
    monkeypatch.setattr(work_budgets, "GROUPED_EVENTS", 2_500_000)
    monkeypatch.setattr(work_budgets, "ONE_GROUP", 0)
    found = guarantee(counts, **given)
    assert exact is not None
    assert found.epsilon is not None
    assert found.headline is not None
    assert found.headline.accountant == "pld"
    assert "outward-rounding" in found.headline.theorems
    assert exact.epsilon < found.epsilon < 1.05 * exact.epsilon
    again = best_bound(counts, **given, with_lower=False)
    assert again is not None
    assert again.epsilon == found.epsilon


def test_where_nothing_else_is_little_work_a_closed_form_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = dict(work_budgets.ACCOUNTANT)
    monkeypatch.setattr(work_budgets, "FEW_EVENTS", 0)
    monkeypatch.setattr(work_budgets, "ACCOUNTANT_OF_FEW_EVENTS", {})
    monkeypatch.setattr(work_budgets, "FEWER_NOISES", ((1, 0),))
    monkeypatch.setattr(work_budgets, "GROUPED_EVENTS", 0)
    monkeypatch.setattr(work_budgets, "ONE_GROUP", 0)
    monkeypatch.setattr(work_budgets, "BESIDE", 0)
    monkeypatch.setattr(work_budgets, "ACCOUNTANT", dict.fromkeys(real, 50_000))
    found = guarantee(noises(TRUNCATED, 5), relation=REPLACE_ONE, delta=DELTA)
    assert found.headline is not None
    assert found.headline.accountant == "gdp"
    assert (found.alternatives, found.unamplified_epsilon) == ((), None)
    laplace = Event(
        mechanism=Laplace(noise_multiplier=3.0), sampling=Poisson(sampling_probability=0.1)
    )
    box = EventCounts(steps={laplace: 10})
    monkeypatch.setattr(work_budgets, "ACCOUNTANT", dict.fromkeys(real, 100))
    none = guarantee(box, relation=REPLACE_ONE, delta=DELTA)
    assert (none.epsilon, none.reason) == (None, best_first.REASON_WORK)
    monkeypatch.setattr(work_budgets, "ACCOUNTANT", real)
    assert guarantee(box, relation=REPLACE_ONE, delta=DELTA).epsilon is not None


@pytest.mark.parametrize(
    "sampling", [FIXED, TRUNCATED, BALLS, Full(), Poisson(sampling_probability=0.01)], ids=repr
)
def test_fewer_events_dominate(sampling: Sampling) -> None:
    counts = noises(sampling, 100)
    less = dominating(counts, 4)
    assert len(less.steps) <= max(4, 4 * CLOUD_GROUPS + 1)
    assert sum(less.steps.values()) == sum(counts.steps.values())
    assert sum(less.passes.values()) == sum(counts.passes.values())
    ours, theirs = (
        sorted(noise for event, n in one.counted() for noise in [noise_of(event.mechanism)] * n)
        for one in (less, counts)
    )
    assert all(own <= other for own, other in zip(ours, theirs, strict=True))


def noise_of(mechanism: Mechanism) -> float:
    assert isinstance(mechanism, Gaussian)
    return mechanism.noise_multiplier


def test_other_mechanisms_are_replaced_by_those_that_tell_more() -> None:
    kinds: list[tuple[Mechanism, Mechanism]] = [
        (Laplace(noise_multiplier=2.0), Laplace(noise_multiplier=1.0)),
        (Zcdp(rho=0.1), Zcdp(rho=0.2)),
        (ApproximateDp(epsilon=0.1, delta=1e-6), ApproximateDp(epsilon=0.2, delta=1e-9)),
    ]
    steps = {Event(mechanism=one, sampling=Full()): 3 for both in kinds for one in both}
    answer = RandomizedResponse(probability_of_truth=0.5, categories=3)
    steps |= {Event(mechanism=answer, sampling=Full()): 3}
    less = dominating(EventCounts(steps=steps), 1)
    assert {event.mechanism: count for event, count in less.steps.items()} == {
        Laplace(noise_multiplier=1.0): 6,
        Zcdp(rho=0.2): 6,
        ApproximateDp(epsilon=0.2, delta=1e-6): 6,
        answer: 3,
    }


def test_what_runs_by_itself_counts_as_if_nothing_was_asked_and_is_paid_for_once() -> None:
    @cached_with_cost(maxsize=4)
    def dear(value: int) -> int:
        spend(100)
        return value

    with limit_work(math.inf) as outer:
        dear(1)
        with by_itself() as inner:
            dear(1)
            spend(7)
        assert (inner.spent, outer.spent, outer.own) == (107, 107, 7)
        with by_itself() as again:
            dear(1)
        assert (again.spent, outer.spent) == (100, 107)
    with limit_work(50), pytest.raises(TooMuchWorkError), by_itself():
        dear(2)


def test_a_lower_bound_that_takes_too_much_work_loses_no_upper_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = noises(TRUNCATED, 2)
    exact = guarantee(counts, relation=REPLACE_ONE, delta=DELTA)
    monkeypatch.setattr("accounting.work_budgets.LOWER_BOUND", 0)
    found = guarantee(counts, relation=REPLACE_ONE, delta=DELTA)
    assert (found.epsilon, found.epsilon_lower) == (exact.epsilon, None)
