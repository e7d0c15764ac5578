"""Tallies: exact sums, whatever the order, and what a move would make of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.event_counts import EventCounts
from accounting.events import Cyclic, Event, Full, Gaussian, NeighboringRelation, Poisson
from accounting.filters import KINDS, choose
from accounting.guarantees import Status
from service.ledger.budgets.accumulator import (
    COSTS_MAX,
    BudgetAccumulator,
    BudgetDelta,
    read_accumulator,
)
from service.ledger.budgets.steps_and_passes import (
    EventCountDelta,
    StepsAndPasses,
    add_to,
    merge_changes,
)

RELATION = NeighboringRelation.REPLACE_SPECIAL
ACCEPT = frozenset({Status.PUBLISHED, Status.DERIVED, Status.DECLARED})
LOUD, QUIET = Gaussian(noise_multiplier=10.0), Gaussian(noise_multiplier=20.0)
PASS = Cyclic(batch_size=10, steps_per_pass=4)
EVENTS = (
    Event(mechanism=LOUD, sampling=Full()),
    Event(mechanism=QUIET, sampling=Poisson(sampling_probability=0.1)),
    Event(mechanism=LOUD, sampling=PASS),
    Event(mechanism=QUIET, sampling=PASS),
)
COUNTS = st.builds(
    lambda steps, passes: StepsAndPasses(steps=steps, passes=passes),
    st.integers(1, 50),
    st.integers(0, 5),
)
CHANGES = st.dictionaries(st.sampled_from(EVENTS), COUNTS, max_size=4)


def a_tally(kind: str = "fixed_order_renyi") -> BudgetAccumulator:
    return read_accumulator(None, choose(kind, epsilon=3.0, delta=1e-5), RELATION, ACCEPT)


def count_events(change: EventCountDelta) -> EventCounts:
    return EventCounts(
        steps={event: one.steps for event, one in change.items()},
        passes={event: one.passes for event, one in change.items() if event.sampling is PASS},
    )


@settings(deadline=None, max_examples=60)
@given(kind=st.sampled_from(KINDS[:3]), recorded=CHANGES, reserved=CHANGES)
def test_sums_are_the_filters_total_of_the_whole_balance(
    kind: str, recorded: EventCountDelta, reserved: EventCountDelta
) -> None:
    accumulator = a_tally(kind)
    for event, counts in recorded.items():
        accumulator.apply(BudgetDelta(recorded={event: counts}))
    for event, counts in reversed([*reserved.items()]):
        accumulator.apply(BudgetDelta(reserved={event: counts}))
    held = merge_changes([recorded, reserved])
    for total, change in ((accumulator.sums().spent, recorded), (accumulator.sums().held, held)):
        passes = {event: one for event, one in change.items() if event.sampling is PASS}
        steps = {event: one for event, one in change.items() if event.sampling is not PASS}
        parts = [
            accumulator.filter.total(count_events(part), relation=RELATION, accept=ACCEPT)
            for part in (passes, steps)
        ]
        assert total == tuple(x + y for x, y in zip(*parts, strict=True))


@settings(deadline=None, max_examples=60)
@given(first=CHANGES, second=CHANGES)
def test_what_a_move_would_make_is_what_it_makes(
    first: EventCountDelta, second: EventCountDelta
) -> None:
    accumulator = a_tally()
    accumulator.apply(BudgetDelta(recorded=first))
    before = accumulator.sums()
    move = BudgetDelta(recorded=second, reserved=first)
    foreseen = accumulator.sums(move)
    assert accumulator.sums() == before  # nothing has changed yet
    other = BudgetDelta(recorded=first)
    accumulator.sums(other)  # another was looked at in between
    accumulator.apply(move)
    assert accumulator.sums() == foreseen


@settings(deadline=None, max_examples=60)
@given(first=CHANGES, second=CHANGES)
def test_what_was_foreseen_before_another_move_is_not_used_after_it(
    first: EventCountDelta, second: EventCountDelta
) -> None:
    accumulator, fresh = a_tally(), a_tally()
    move, other = BudgetDelta(recorded=second), BudgetDelta(reserved=first)
    accumulator.sums(move)
    accumulator.apply(other)
    accumulator.apply(move)
    fresh.apply(BudgetDelta(recorded=second, reserved=first))
    assert accumulator.sums() == fresh.sums()


@settings(deadline=None, max_examples=60)
@given(change=CHANGES)
def test_what_is_reserved_and_taken_back_leaves_nothing(change: EventCountDelta) -> None:
    accumulator = a_tally()
    back = {e: StepsAndPasses(steps=-one.steps, passes=-one.passes) for e, one in change.items()}
    accumulator.apply(BudgetDelta(reserved=change))
    accumulator.apply(BudgetDelta(reserved=back))
    assert accumulator.sums().held == accumulator.filter.zero()
    assert accumulator.reserved_passes == {}


@settings(deadline=None, max_examples=30)
@given(recorded=CHANGES, reserved=CHANGES)
def test_what_counts_by_step_is_stored_and_read_to_the_last_digit(
    recorded: EventCountDelta, reserved: EventCountDelta
) -> None:
    accumulator = a_tally("union_of_orders")
    accumulator.apply(BudgetDelta(recorded=recorded, reserved=reserved))
    again = read_accumulator(accumulator.stored(), accumulator.filter, RELATION, ACCEPT)
    assert (again.recorded, again.reserved) == (accumulator.recorded, accumulator.reserved)


def test_a_plans_part_of_a_move_is_not_the_runs_own() -> None:
    change = {EVENTS[0]: StepsAndPasses(steps=3)}
    whole = BudgetDelta(recorded=change, reserved=change)
    assert whole.of_run is whole
    assert BudgetDelta(recorded=change, reserved=change, own={}).of_run == BudgetDelta(
        recorded=change
    )


def test_costs_beyond_what_is_remembered_are_worked_out_again() -> None:
    accumulator = a_tally()
    for one in range(COSTS_MAX + 2):
        mechanism = Gaussian(noise_multiplier=10 + one / 100)
        accumulator.cost(Event(mechanism=mechanism, sampling=Full()))
    assert accumulator.cost(EVENTS[0]) == accumulator.filter.cost(
        EVENTS[0], relation=RELATION, accept=ACCEPT
    )


def test_readings_of_many_totals_stay_those_of_the_filter() -> None:
    accumulator = a_tally()
    cost = accumulator.cost(EVENTS[0])
    for count in (0, 1, 5, 10, 20, 100, 1, 0):
        total = tuple(x * count for x in cost)
        found = accumulator.reading(total)
        assert (found.admitted, found.epsilon) == (
            accumulator.filter.admits(total),
            accumulator.filter.spent(total),
        )


def test_counts_that_cancel_are_dropped() -> None:
    into = {EVENTS[0]: StepsAndPasses(steps=2)}
    add_to(into, {EVENTS[0]: StepsAndPasses(steps=-2), EVENTS[1]: StepsAndPasses(passes=1)})
    assert into == {EVENTS[1]: StepsAndPasses(passes=1)}


def test_a_copy_is_corrected_apart() -> None:
    accumulator = a_tally()
    counted = {EVENTS[2]: StepsAndPasses(passes=1)}
    accumulator.correct(accumulator.filter.zero(), counted)
    before, other = accumulator.sums(), accumulator.copy()
    other.correct(accumulator.cost(EVENTS[0]), {EVENTS[3]: StepsAndPasses(passes=2)})
    other.apply(BudgetDelta(shifted={EVENTS[2]: StepsAndPasses(passes=1)}))
    assert other.sums() != before
    assert (accumulator.sums(BudgetDelta()), accumulator.corrected_passes) == (before, counted)
