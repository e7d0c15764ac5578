"""Of an event's pairs the one is composed that costs least beside the other steps."""

import pytest

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import count_events
from accounting.events import (
    Event,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Reshuffle,
    Shuffle,
    Span,
)
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT

EARLY = Shuffle(batch_size=10, steps_per_pass=9, dataset_size=95, reshuffle=Reshuffle.EACH_PASS)


def test_a_dear_pair_beside_other_steps_is_not_the_one_that_is_composed() -> None:
    passes = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=EARLY)
    poisson = Poisson(sampling_probability=0.003)
    steps = Event(mechanism=Gaussian(noise_multiplier=2.0), sampling=poisson)
    spans = [[Span(event=passes, steps=450)], [Span(event=steps, steps=100)]]
    for accept in (DEFAULT_ACCEPT, ACCEPTABLE):
        alone, other, both = (
            guarantee(
                count_events(each),
                relation=NeighboringRelation.REPLACE_SPECIAL,
                delta=1e-5,
                accept=accept,
            ).epsilon
            for each in (spans[:1], spans[1:], spans)
        )
        assert alone == pytest.approx(54.38, abs=0.01)
        assert alone is not None
        assert other is not None
        assert both is not None
        assert both < alone + other
