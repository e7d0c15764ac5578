"""What stands beside a headline, or is one: no limit of work hides what is proved for little."""

import math
from typing import Any

import pytest

from accounting.accountants.best_bound import best_bound, guarantee
from accounting.event_counts import EventCounts, count_events
from accounting.events import NonUniform, Sampling, Span, TruncatedPoisson, WithReplacement
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Bound, Status
from tests.accounting.test_gathering import (
    ADD_OR_REMOVE_ONE,
    CYCLIC,
    DELTA,
    DRAWN,
    FIXED,
    POISSON,
    REPLACE_ONE,
    REPLACE_SPECIAL,
    falling,
    gaussian,
    told,
)

RATE = 256 / 60_000
AT_MEAN = TruncatedPoisson(sampling_probability=RATE, max_batch_size=256, dataset_size=60_000)
ABOVE = TruncatedPoisson(sampling_probability=RATE, max_batch_size=400, dataset_size=60_000)
WEIGHED = NonUniform(max_weight=RATE)
RARE = NonUniform(max_weight=1 / 60_000)


def steps(*parts: tuple[int, Sampling, float]) -> EventCounts:
    return EventCounts(steps={gaussian(noise, sampling): count for count, sampling, noise in parts})


def in_turn(kinds: list[Sampling], each: int, count: int = 100) -> EventCounts:
    """So many runs of so many steps, at noises 2, 2.02 and so on, of each kind in turn."""
    return count_events(
        [
            [Span(event=gaussian(2 + i / 50, kinds[i % len(kinds)]), steps=each)]
            for i in range(count)
        ]
    )


@pytest.mark.parametrize(
    ("counts", "relation", "most"),
    [
        (falling(2, DRAWN), ADD_OR_REMOVE_ONE, 15.9),
        (falling(12, AT_MEAN), ADD_OR_REMOVE_ONE, 8.95),
        (falling(1, AT_MEAN), REPLACE_ONE, 12.95),
        (falling(8, AT_MEAN), REPLACE_ONE, 12.95),
        (falling(8, WEIGHED), REPLACE_ONE, 16.8),
        (falling(1, RARE, 360_000), REPLACE_ONE, 0.281),
    ],
    ids=["drawn", "cut", "cut-one", "cut-replaced", "weighed", "rare"],
)
def test_what_another_status_proves_is_named_however_dear_it_is(
    counts: EventCounts, relation: Any, most: float
) -> None:
    found = told(counts, relation)
    assert found.epsilon is not None
    assert found.epsilon > 20_000
    assert found.smaller_bound is not None
    assert found.smaller_bound.status is Status.DERIVED
    assert found.smaller_bound.epsilon < most
    assert found.epsilon_lower is not None
    assert found.smaller_bound.epsilon > found.epsilon_lower


def test_accepting_more_keeps_the_lower_end_of_a_single_dear_event() -> None:
    counts = falling(1, RARE, 360_000)
    less, more = (told(counts, REPLACE_SPECIAL, **given) for given in ({}, {"accept": ACCEPTABLE}))
    assert less.epsilon_lower is not None
    assert more.epsilon_lower == less.epsilon_lower


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
@pytest.mark.parametrize("count", [1, 3])
def test_a_small_share_of_the_work_pays_for_one_class(relation: Any, count: int) -> None:
    given: dict[str, Any] = {"relation": relation, "delta": DELTA}
    whole = best_bound(falling(count, DRAWN), **given)
    assert whole is not None
    for share in (1 / 2, 1 / 3, 1 / 6):
        part = best_bound(falling(count, DRAWN), share=share, **given)
        assert part is not None
        assert part.epsilon < 1.05 * whole.epsilon


@pytest.mark.parametrize("count", [20, 40])
def test_who_accepts_more_is_never_told_more(count: int) -> None:
    less, more = (
        best_bound(falling(count, ABOVE), relation=REPLACE_ONE, delta=DELTA, accept=accept)
        for accept in (DEFAULT_ACCEPT, ACCEPTABLE)
    )
    assert less is not None
    assert more is not None
    assert more.epsilon <= less.epsilon


def test_a_few_dear_events_of_several_kinds_are_gathered_together() -> None:
    small = WithReplacement(batch_size=20, dataset_size=1000)
    rest = ((97, small, 1.93), (143, small, 2.74), (95, FIXED, 1.8))
    given: dict[str, Any] = {"relation": ADD_OR_REMOVE_ONE, "accept": ACCEPTABLE, "delta": DELTA}
    found = best_bound(steps((187, DRAWN, 2.5), (50, DRAWN, 2.6), *rest), **given)
    alike = best_bound(steps((237, DRAWN, 2.5), *rest), **given)
    assert found is not None
    assert alike is not None
    assert found.epsilon <= alike.epsilon * 1.001


@pytest.mark.parametrize(
    ("kinds", "each"), [([POISSON, FIXED, DRAWN], 141), ([POISSON, FIXED, CYCLIC], 470)], ids=str
)
def test_kinds_cost_no_more_than_each_alone_at_an_equal_part_of_delta(
    kinds: list[Sampling], each: int
) -> None:
    counts = in_turn(kinds, each)
    found = best_bound(counts, relation=REPLACE_ONE, delta=DELTA)
    parts: list[Bound | None] = []
    for kind in kinds:
        same = [event for event in counts.steps if event.sampling == kind]
        part = count_events([[Span(event=event, steps=counts.steps[event])] for event in same])
        parts.append(best_bound(part, relation=REPLACE_ONE, delta=DELTA / len(kinds)))
    assert found is not None
    alone = math.fsum(part.epsilon for part in parts if part is not None)
    assert found.epsilon <= alone * 1.15  # of which each took as much work as all together may


def test_kinds_are_asked_one_by_one_for_delta_too() -> None:
    counts = in_turn([POISSON, FIXED, DRAWN], 141)
    given: dict[str, Any] = {"relation": REPLACE_ONE}
    there = best_bound(counts, delta=DELTA, **given)
    assert there is not None
    found = guarantee(counts, epsilon=there.epsilon, **given)
    assert found.headline is not None
    assert found.headline.bound == "basic-composition"
    assert found.headline.epsilon == there.epsilon
    assert found.delta is not None
    assert found.delta < 20 * DELTA
    assert best_bound(counts, epsilon=there.epsilon, **given) == found.headline
    # What some kind costs alone is told to nobody at an epsilon of nothing.
    assert guarantee(counts, epsilon=0.0, **given).delta in (None, 1.0)


@pytest.mark.parametrize("sampling", [POISSON, FIXED], ids=str)
def test_a_lower_end_far_below_is_worked_on(sampling: Sampling) -> None:
    found = told(falling(20, sampling), REPLACE_ONE)
    assert found.epsilon is not None
    assert found.epsilon_lower is not None
    assert found.epsilon < 1.5 * found.epsilon_lower
