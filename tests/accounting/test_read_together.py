"""A filter's total is the sum over samplings that are read together."""

from itertools import combinations

import pytest

from accounting.event_counts import EventCounts, read_together
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    Gaussian,
    NeighboringRelation,
    Reshuffle,
    Shuffle,
)
from accounting.filters import choose, plus
from accounting.guarantees import Status

ACCEPT = frozenset({Status.PUBLISHED, Status.DERIVED})
FEW, MANY = Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=3.0)
SAMPLINGS = (
    Shuffle(batch_size=10, steps_per_pass=4, reshuffle=Reshuffle.EACH_PASS, dataset_size=50),
    Shuffle(batch_size=10, steps_per_pass=4, reshuffle=Reshuffle.ONCE, dataset_size=50),
    Shuffle(batch_size=10, steps_per_pass=3, reshuffle=Reshuffle.ONCE, dataset_size=50),
    Cyclic(batch_size=10, steps_per_pass=4),
    Cyclic(batch_size=20, steps_per_pass=4),
    BallsAndBins(steps_per_pass=4),
)


def counts(*events: Event) -> EventCounts:
    ones = dict.fromkeys(events, 1)
    begun = {Event(mechanism=MANY, sampling=event.sampling): 1 for event in events}
    return EventCounts(steps=dict.fromkeys(events, 4), passes=ones, begun=begun)


@pytest.mark.parametrize("kind", ["fixed_order_renyi", "union_of_orders", "gaussian_dp"])
@pytest.mark.parametrize("pair", list(combinations(SAMPLINGS, 2)))
def test_what_is_not_read_together_adds_up(kind: str, pair: tuple[Shuffle, Shuffle]) -> None:
    held_by = choose(kind, epsilon=3.0, delta=1e-5)
    events = [Event(mechanism=FEW, sampling=one) for one in pair]
    whole, *parts = (
        held_by.total(one, relation=NeighboringRelation.REPLACE_SPECIAL, accept=ACCEPT)
        for one in (counts(*events), *map(counts, events))
    )
    adds_up = whole == plus(*parts)
    first, second = map(read_together, pair)
    assert adds_up or first == second
    if kind != "gaussian_dp" and pair[0] == SAMPLINGS[0] and pair[1] in SAMPLINGS[1:4:2]:
        assert not adds_up  # an order that may be used again hides nothing
