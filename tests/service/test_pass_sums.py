"""Sums of what counts by pass: moved by differences they are what they are from nothing."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    Gaussian,
    Mechanism,
    NeighboringRelation,
    NoNoise,
    Poisson,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
)
from accounting.filters import EnvelopeFilter, EnvelopeItem, Filter, Total, choose, plus, times
from accounting.guarantees import Status
from service.ledger.budgets.accumulator import (
    BudgetAccumulator,
    BudgetDelta,
    Totals,
    larger,
    read_accumulator,
)
from service.ledger.budgets.pass_sums import PassSums
from service.ledger.budgets.steps_and_passes import (
    EventCountDelta,
    StepsAndPasses,
    count_events,
    merge_changes,
    negative,
)

RELATION = NeighboringRelation.REPLACE_SPECIAL
PUBLISHED = frozenset({Status.PUBLISHED, Status.DECLARED})
DERIVED = PUBLISHED | {Status.DERIVED}
NOISES = tuple(Gaussian(noise_multiplier=noise) for noise in (2.0, 3.0, 5.0))
EARLY = Shuffle(batch_size=10, steps_per_pass=4, reshuffle=Reshuffle.EACH_PASS, dataset_size=50)
SAMPLINGS = (
    Cyclic(batch_size=10, steps_per_pass=4),
    Cyclic(batch_size=10, steps_per_pass=5),
    EARLY,
    Shuffle(batch_size=10, steps_per_pass=4, reshuffle=Reshuffle.ONCE, dataset_size=50),
    Shuffle(batch_size=10, steps_per_pass=5, reshuffle=Reshuffle.EACH_PASS, dataset_size=50),
    BallsAndBins(steps_per_pass=4),
    RandomAllocation(steps_per_pass=5, participations=2),
)
EVENTS = (
    *(Event(mechanism=noise, sampling=one) for one in SAMPLINGS for noise in NOISES),
    Event(mechanism=NoNoise(), sampling=SAMPLINGS[0]),
    Event(mechanism=NOISES[0], sampling=Poisson(sampling_probability=0.1)),
)
ITEMS = tuple(
    EnvelopeItem(event=Event(mechanism=NOISES[1], sampling=one), steps=40)
    for one in (SAMPLINGS[0], SAMPLINGS[5])
)
FILTERS: tuple[Filter, ...] = (
    choose("fixed_order_renyi", epsilon=3.0, delta=1e-5),
    choose("union_of_orders", epsilon=3.0, delta=1e-5),
    choose("gaussian_dp", epsilon=3.0, delta=1e-5),
    choose("approximate_dp", epsilon=3.0, delta=1e-5),
    EnvelopeFilter(items=ITEMS, epsilon=9.0, delta=1e-5, certified=8.0),
    EnvelopeFilter(items=ITEMS, epsilon=9.0, delta=1e-5, certified=8.0, order=8.0, weight=0.5),
)
KEPT = st.builds(
    lambda steps, passes: StepsAndPasses(steps=steps, passes=passes, begun=passes),
    st.integers(0, 9),
    st.integers(0, 4),
)  # as most steps count
# As noise that falls, lines of no known place, and reservations that are used count.
OTHER = st.builds(
    lambda steps, passes, begun: StepsAndPasses(steps=steps, passes=passes, begun=begun),
    st.integers(-3, 9),
    st.integers(-2, 4),
    st.integers(-2, 4),
)
CHANGES = st.dictionaries(st.sampled_from(EVENTS), st.one_of(KEPT, OTHER), max_size=3)
MOVES = st.tuples(st.sampled_from(["record", "reserve", "void", "correct", "shift"]), CHANGES)


def passes_in(change: EventCountDelta) -> EventCountDelta:
    return {event: one for event, one in change.items() if event.sampling in SAMPLINGS}


def from_nothing(found: BudgetAccumulator) -> Totals:
    def whole(counts: EventCountDelta) -> Total:
        return found.filter.total(
            count_events(counts), relation=found.relation, accept=found.accept
        )

    held = plus(found.recorded, found.reserved)
    ahead = merge_changes([found.passes, found.reserved_passes])
    sums = Totals(plus(found.recorded, whole(found.passes)), plus(held, whole(ahead)))
    if found.most_changed is None:
        return sums
    really = [merge_changes([one, found.corrected_passes]) for one in (found.passes, ahead)]
    spent, kept = (
        plus(found.most_changed, plus(steps, whole(counts)))
        for steps, counts in zip((found.recorded, held), really, strict=True)
    )
    return Totals(larger(sums.spent, spent), larger(sums.held, kept))


def take(found: BudgetAccumulator, kind: str, change: EventCountDelta) -> None:
    """Apply a change, and see that it was foreseen."""
    if kind == "correct":
        found.correct(found.filter.zero(), passes_in(change))
        return
    move = {
        "record": lambda: BudgetDelta(recorded=change),
        "reserve": lambda: BudgetDelta(reserved=change),
        "void": lambda: BudgetDelta(reserved=negative(found.reserved_passes)),
        "shift": lambda: BudgetDelta(recorded=change, shifted=passes_in(change)),
    }[kind]()
    before = found.sums()
    foreseen = found.sums(move)
    assert found.sums() == before == from_nothing(found)
    found.apply(move)
    assert found.sums() == foreseen


@settings(deadline=None, max_examples=150)
@given(
    held_by=st.sampled_from(FILTERS),
    accept=st.sampled_from([PUBLISHED, DERIVED]),
    moves=st.lists(MOVES, max_size=12),
)
def test_sums_that_are_moved_are_those_from_nothing(
    held_by: Filter, accept: frozenset[Status], moves: Sequence[tuple[str, EventCountDelta]]
) -> None:
    found = read_accumulator(None, held_by, RELATION, accept)
    for kind, change in moves:
        take(found, kind, change)
        assert found.sums() == from_nothing(found), kind
    again = found.copy()
    assert again.sums() == found.sums()
    again.apply(BudgetDelta(recorded={EVENTS[0]: StepsAndPasses(steps=4, passes=1, begun=1)}))
    assert again.sums() == from_nothing(again)
    assert found.sums() == from_nothing(found)


def test_a_secret_order_that_may_be_used_again_counts_as_it_does_from_nothing() -> None:
    kept = StepsAndPasses(steps=4, passes=1, begun=1)
    secret, known = Event(mechanism=NOISES[0], sampling=EARLY), EVENTS[0]
    found = read_accumulator(None, FILTERS[0], RELATION, DERIVED)
    found.apply(BudgetDelta(recorded={secret: kept}))
    assert found.sums().spent[0] == 0
    found.apply(BudgetDelta(recorded={known: kept}))
    assert found.sums().spent[0] == 1  # of no bound any more
    assert found.sums() == from_nothing(found)


def test_a_change_counts_as_often_as_it_is_taken() -> None:
    held_by, change = FILTERS[0], {EVENTS[0]: StepsAndPasses(steps=4, passes=1, begun=1)}
    accumulator = read_accumulator(None, held_by, RELATION, DERIVED)
    zero = held_by.zero()
    sums = PassSums(zero, cost=accumulator.cost, whole=lambda *_: zero, rule=lambda *_: None)
    once = sums.after(change)
    for times_taken in (1, 2, 3):
        assert sums.after(change) == times(once, times_taken)
        sums.add(change)
        assert sums.total == times(once, times_taken)
    sums.add(negative(merge_changes([change] * 3)))
    assert sums.total == held_by.zero()


LEVELS: tuple[Mechanism, ...] = (  # the least noise first
    NoNoise(),
    *(Gaussian(noise_multiplier=noise) for noise in (0.4, 0.6, 0.8, 1, 1.3, 1.7, 2.2, 3, 5, 9)),
)
# Passes: where they began and where their noise fell to, how often, and which of both is told, or
# that they kept their noise.
PASS = st.tuples(
    st.integers(0, 2),
    st.integers(0, len(LEVELS) - 1),
    st.integers(0, len(LEVELS) - 1),
    st.integers(-1, 3),
    st.sampled_from(["both", "both", "kept", "kept", "begin", "end"]),
)
Passes = tuple[int, int, int, int, str]


def taken(samplings: Sequence[Sampling], passes: Sequence[Passes]) -> EventCountDelta:
    changes: list[EventCountDelta] = []
    for place, one, other, count, told in passes:
        sampling = samplings[place % len(samplings)]
        end, begin = sorted((one, one if told == "kept" else other))
        first = Event(mechanism=LEVELS[begin], sampling=sampling)
        least = Event(mechanism=LEVELS[end], sampling=sampling)
        if told != "end":
            changes.append({first: StepsAndPasses(steps=count, begun=count)})
        if told != "begin":
            changes.append({least: StepsAndPasses(steps=3 * count, passes=count)})
    return merge_changes(changes)


@settings(deadline=None, max_examples=400)
@given(
    held_by=st.sampled_from(FILTERS[:4]),
    accept=st.sampled_from([PUBLISHED, DERIVED]),
    samplings=st.sampled_from([SAMPLINGS[:1], SAMPLINGS[2:4], *[(one,) for one in SAMPLINGS[4:]]]),
    moves=st.lists(
        st.tuples(st.lists(PASS, min_size=1, max_size=3), st.booleans()), min_size=6, max_size=14
    ),
)
def test_sums_of_passes_whose_noise_fell_are_those_from_nothing(
    held_by: Filter,
    accept: frozenset[Status],
    samplings: Sequence[Sampling],
    moves: Sequence[tuple[Sequence[Passes], bool]],
) -> None:
    found = read_accumulator(None, held_by, RELATION, accept)
    for passes, goes_back in moves:
        change = taken(samplings, passes)
        take(found, "record", change)
        assert found.sums() == from_nothing(found)
        if goes_back:  # to a group whose noise may not have fallen, or without secret orders
            take(found, "record", negative(change))
            assert found.sums() == from_nothing(found)
    take(found, "record", negative(found.passes))
    assert found.sums().spent == held_by.zero()


def test_what_comes_beside_another_order_of_the_same_sizes_counts_after_it_leaves() -> None:
    found = read_accumulator(None, FILTERS[0], RELATION, DERIVED)
    other = taken([SAMPLINGS[0]], [(0, 3, 3, 1, "kept")])
    for change in (
        taken([EARLY], [(0, 2, 9, 2, "both")]),
        other,
        taken([EARLY], [(0, 1, 10, 3, "both")]),
        negative(other),
        taken([EARLY], [(0, 4, 5, 1, "both")]),
    ):
        take(found, "record", change)
        assert found.sums() == from_nothing(found)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2] + SAMPLINGS[3:])
@pytest.mark.parametrize("held_by", FILTERS[:4])
def test_passes_are_not_read_as_a_whole_for_each_change(
    held_by: Filter, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_accumulator(None, held_by, RELATION, DERIVED)
    each = [(0, at, at, 1, "both") for at in range(1, len(LEVELS))]
    take(found, "record", taken([sampling], each))
    take(found, "record", taken([sampling], [(0, 1, 10, 1, "both")]))  # past all others
    before = from_nothing(found)
    monkeypatch.setattr(type(held_by), "total", None)  # which a reading as a whole would call
    for one, other, count in ((4, 4, 1), (3, 7, 2), (1, 10, -1)):
        change = taken([sampling], [(0, one, other, count, "both")])
        found.apply(BudgetDelta(recorded=change))
    moved = found.sums()
    monkeypatch.undo()
    assert moved == from_nothing(found) != before
