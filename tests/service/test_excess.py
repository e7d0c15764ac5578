"""What corrections change, without a database: sums that cover both accounts, and little more."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from accounting.event_counts import (
    EventCounts,
    advance,
    count_events,
    count_passes_begun,
    reveal_order,
)
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
)
from accounting.filters import Total, choose, plus, times
from accounting.guarantees import DEFAULT_ACCEPT, Status
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta, read_accumulator
from service.ledger.budgets.correction_costs import (
    Corrected,
    add_correction_costs,
    shifted_counts,
    shifts_of,
)
from service.ledger.budgets.steps_and_passes import (
    EventCountDelta,
    StepsAndPasses,
    by_pass,
    merge_changes,
)
from service.schemas.event_codec import overlay

RELATION = NeighboringRelation.REPLACE_SPECIAL
TRUSTING = DEFAULT_ACCEPT | {Status.DERIVED}
FILTER = choose("union_of_orders", epsilon=100.0, delta=1e-5)


def gaussian(noise: float, sampling: Sampling) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


CYCLIC = Cyclic(batch_size=2, steps_per_pass=5)
BALLS = BallsAndBins(steps_per_pass=3)
STOPPED = Shuffle(batch_size=1, steps_per_pass=3, reshuffle=Reshuffle.EACH_PASS, dataset_size=1000)
POISSON = Poisson(sampling_probability=0.1)
RECORDED = [
    gaussian(8.0, Full()),
    gaussian(4.0, CYCLIC),
    gaussian(4.0, BALLS),
    gaussian(2.0, POISSON),
]
REALLY = [
    *RECORDED,
    gaussian(2.0, CYCLIC),
    gaussian(40.0, CYCLIC),
    gaussian(1.0, BALLS),
    gaussian(3.0, Full()),
]
BY_STEP = [
    *(gaussian(noise, Full()) for noise in (8.0, 4.0, 3.0)),
    *(gaussian(noise, POISSON) for noise in (5.0, 2.0, 1.0)),
]
# Loaders that change their noise: where a pass begins decides which steps share one.
CHANGING = [
    *(gaussian(noise, CYCLIC) for noise in (2.0, 30.0, 100.0, 1000.0)),
    *(gaussian(noise, BALLS) for noise in (2.0, 1000.0)),
    *(gaussian(noise, STOPPED) for noise in (1.0, 4.0, 40.0)),
    gaussian(1000.0, Full()),
]


def accumulator(
    counts: EventCounts, accept: frozenset[Status] = DEFAULT_ACCEPT
) -> BudgetAccumulator:
    zero = FILTER.zero()
    found = BudgetAccumulator(
        filter=FILTER, relation=RELATION, accept=accept, recorded=zero, reserved=zero
    )
    found.apply(BudgetDelta(recorded=counted(counts)))
    return found


def counted(counts: EventCounts) -> EventCountDelta:
    return {
        event: StepsAndPasses(
            steps=steps,
            passes=counts.passes.get(event, 0),
            begun=counts.begun.get(event, 0),
        )
        for event, steps in counts.steps.items()
    }


def total(counts: EventCounts, accept: frozenset[Status]) -> Total:
    return FILTER.total(counts, relation=RELATION, accept=accept)


def spans(events: Sequence[Event]) -> list[Span]:
    return [Span(event=event, steps=1) for event in events]


def covers(enforced: Total, account: Total) -> bool:
    return all(part <= whole for part, whole in zip(account, enforced, strict=True))


def parts(steps: Sequence[Event], over: Sequence[tuple[int, int, Event]]) -> list[Corrected]:
    """What the ledger reads of corrections: counts by recorded event."""
    return [
        Corrected(
            correction=low,
            dataset_id=1,
            run_id=1,
            recorded=event,
            really=really,
            steps=count,
            length=high - low,
        )
        for low, high, really in over
        for event, count in Counter(steps[low:high]).items()
    ]


def noise(event: Event) -> float:
    return event.mechanism.noise_multiplier if isinstance(event.mechanism, Gaussian) else 0.0


def quieter(what: Event, event: Event) -> bool:
    """Whether passes were what was recorded with more noise: they cost no more."""
    return by_pass(event) and what.sampling == event.sampling and noise(what) > noise(event)


def both(
    steps: Sequence[Event],
    over: Sequence[tuple[int, int, Event]],
    accept: frozenset[Status] = DEFAULT_ACCEPT,
) -> tuple[Total, Total, Total]:
    """Enforced, as recorded, as corrected."""
    recorded = count_events([spans(steps)])
    found = accumulator(recorded, accept)
    corrected = parts(steps, over)
    add_correction_costs(found, corrected)
    found.apply(BudgetDelta(shifted=shifted_counts(shifts_of(corrected), counted(recorded))))
    really = [
        event if quieter(what, event) else what
        for number, event in enumerate(steps)
        for _, _, what in overlay((number, 1, event), list(over))
    ]
    return found.sums().spent, total(recorded, accept), total(count_events([spans(really)]), accept)


def some(chance: random.Random, events: Sequence[Event], longest: int) -> list[Event]:
    return [
        event
        for _ in range(chance.randrange(1, 9))
        for event in [chance.choice(events)] * chance.randrange(1, longest)
    ]


@pytest.mark.parametrize(("pool", "longest"), [("kept", 12), ("changing", 12), ("changing", 4)])
@pytest.mark.parametrize("accept", [DEFAULT_ACCEPT, TRUSTING], ids=["published", "derived"])
def test_what_is_enforced_covers_the_record_and_the_corrected_account(
    pool: str, longest: int, accept: frozenset[Status]
) -> None:
    for seed in range(200):
        chance = random.Random(seed)
        steps = some(chance, RECORDED if pool == "kept" else CHANGING, longest)
        over, at = [], chance.randrange(4)
        while at < len(steps):
            end = min(len(steps), at + chance.randrange(1, longest))
            over.append((at, end, chance.choice(REALLY if pool == "kept" else CHANGING)))
            at = end + chance.randrange(9)
        enforced, recorded, corrected = both(steps, over, accept)
        assert covers(enforced, recorded), seed
        assert covers(enforced, corrected), seed


def test_a_pass_is_counted_wherever_in_it_corrected_steps_may_have_begun() -> None:
    steps, loud = [gaussian(4.0, CYCLIC)] * 10, gaussian(1.0, CYCLIC)
    enforced, _, corrected = both(steps, [(4, 6, loud)])  # of both passes
    assert covers(enforced, corrected)
    assert not covers(both(steps, [(4, 5, loud)])[0], corrected)


def test_a_loader_that_was_interrupted_begins_anew() -> None:
    steps = [gaussian(4.0, CYCLIC)] * 10
    quiet = gaussian(100.0, Full())
    enforced, recorded, corrected = both(steps, [(1, 2, quiet)])
    pass_cost = accumulator(EventCounts()).cost(steps[0])
    two, three = (times(pass_cost, passes) for passes in (2, 3))
    assert recorded == two
    assert covers(corrected, three)
    assert covers(enforced, corrected)
    enforced, _, corrected = both(steps, [(at, at + 1, quiet) for at in (1, 3)])
    assert covers(corrected, times(pass_cost, 4))
    assert covers(enforced, corrected)


def test_passes_that_begin_elsewhere_may_each_hold_a_loud_step() -> None:
    loader = Cyclic(batch_size=2, steps_per_pass=10)
    loud, quiet = gaussian(2.0, loader), gaussian(1000.0, loader)
    steps = ([loud] * 2 + [quiet] * 18) * 50
    enforced, recorded, corrected = both(steps, [(10, 11, gaussian(1000.0, Full()))])
    assert not covers(recorded, corrected)
    assert covers(enforced, corrected)


def test_each_noise_may_be_the_least_of_a_pass_that_begins_elsewhere() -> None:
    loader = BallsAndBins(steps_per_pass=2)
    steps = []
    for one in range(100):
        pair = [gaussian(2.0, loader), gaussian(2 + 0.001 * (one + 1), loader)]
        steps += pair if one % 2 else pair[::-1]
    for accept in (DEFAULT_ACCEPT, TRUSTING):
        enforced, _, corrected = both(steps, [(0, 1, gaussian(1000.0, Full()))], accept)
        assert covers(enforced, corrected)


def test_steps_that_are_put_before_a_pass_shift_it() -> None:
    loud, quiet = gaussian(1.0, CYCLIC), gaussian(1000.0, CYCLIC)
    steps = [gaussian(1000.0, Full())] + [loud] * 5
    enforced, recorded, corrected = both(steps, [(0, 1, quiet)])
    assert not covers(recorded, corrected)
    assert covers(enforced, corrected)


def test_of_passes_that_were_shifted_it_is_not_known_where_they_began() -> None:
    steps = [gaussian(4.0, BALLS)] * 3 + [gaussian(2.0, BALLS)] * 3
    recorded = count_events([spans(steps)])
    corrected = parts(steps, [(0, 1, gaussian(1000.0, Full()))])
    after = merge_changes(
        [counted(recorded), shifted_counts(shifts_of(corrected), counted(recorded))]
    )
    assert {event: counts.begun for event, counts in after.items()} == dict.fromkeys(after, 0)


def test_what_a_shift_adds_is_the_same_step_by_step() -> None:
    for seed in range(50):
        same_step_by_step(seed)


def same_step_by_step(seed: int) -> None:
    chance = random.Random(seed)
    first, later = (some(chance, CHANGING, 4) for _ in range(2))
    corrected = parts(first, [(0, len(first), chance.choice(CHANGING))])
    shifts = shifts_of(corrected)
    added = [shifted_counts(shifts, counted(count_events([spans(first)])))]
    open_pass = None
    for span in spans(first):
        _, open_pass = advance(open_pass, span)
    for span in spans(later):
        begun = count_passes_begun(open_pass, span)
        passes, open_pass = advance(open_pass, span)
        recorded = merge_changes(
            [
                {span.event: StepsAndPasses(steps=1, begun=begun)},
                {event: StepsAndPasses(passes=count) for event, count in passes.items()},
            ]
        )
        added.append(shifted_counts(shifts, recorded))
    whole = shifted_counts(shifts, counted(count_events([spans([*first, *later])])))
    assert merge_changes(added) == merge_changes([whole]), seed


def test_each_pass_of_a_shifted_loader_counts_once_more_for_each_correction() -> None:
    steps = [gaussian(4.0, CYCLIC)] * 50 + [gaussian(4.0, BALLS)] * 6
    quiet = gaussian(100.0, Full())
    before = counted(count_events([spans(steps)]))
    for corrections in (1, 2):
        over = [(7 * one, 7 * one + 1, quiet) for one in range(corrections)]
        found = shifted_counts(shifts_of(parts(steps, over)), before)
        passes = {event: counts.passes for event, counts in found.items()}
        assert passes == {steps[0]: corrections * 10}  # the other loader keeps its passes


def test_a_step_over_a_pass_is_counted_in_full() -> None:
    steps = [gaussian(1.0, CYCLIC)] * 5
    plain = accumulator(count_events([spans(steps)]))
    loud = gaussian(3.0, Full())  # cheaper than a pass, which is counted elsewhere
    before = plain.sums().spent
    add_correction_costs(plain, parts(steps, [(0, 2, loud)]))
    assert plain.sums().spent == plus(before, times(plain.cost(loud), 2))


def test_sums_are_stored_as_recorded_and_corrections_are_charged_again() -> None:
    steps = [gaussian(8.0, Full())] * 5
    over = [(0, 1, gaussian(3.0, Full())), (1, 3, gaussian(4.0, CYCLIC))]
    first = accumulator(count_events([spans(steps)]))
    stored = first.stored()
    add_correction_costs(first, parts(steps, over))
    assert first.stored() == stored
    again = read_accumulator(stored, FILTER, RELATION, DEFAULT_ACCEPT)
    assert again.sums().spent != first.sums().spent
    add_correction_costs(again, parts(steps, over))
    assert again.sums() == first.sums()
    assert again.passes == {}
    assert again.corrected_passes == {gaussian(4.0, CYCLIC): StepsAndPasses(steps=2, passes=2)}


def test_on_a_branch_of_an_old_order_a_told_pass_of_both_events_is_counted() -> None:
    found, both_events = accumulator(EventCounts()), (gaussian(4.0, CYCLIC), gaussian(1.0, BALLS))
    (one,) = parts(both_events[:1], [(0, 1, both_events[1])])
    add_correction_costs(found, [replace(one, unplaced=True)])
    counts = zip(
        both_events, (StepsAndPasses(passes=1), StepsAndPasses(steps=1, passes=2)), strict=True
    )
    assert found.corrected_passes == {reveal_order(event): count for event, count in counts}
