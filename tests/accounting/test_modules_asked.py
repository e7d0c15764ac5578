"""A question enters the modules of the kinds of its events, and of no others."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from accounting.accountants import best_bound
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    Event,
    FixedSize,
    Gaussian,
    Mechanism,
    NeighboringRelation,
    Poisson,
    RandomizedResponse,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    TruncatedPoisson,
)
from accounting.guarantees import ACCEPTABLE

ACCOUNTING = Path(best_bound.__file__).parents[1]
# Of no other test: answers are remembered.
NOISE = Gaussian(noise_multiplier=2.345)
ANSWER = RandomizedResponse(probability_of_truth=0.6, categories=2)
POISSON = Poisson(sampling_probability=0.01)
TRUNCATED = TruncatedPoisson(sampling_probability=0.01, max_batch_size=30, dataset_size=1000)
FIXED = FixedSize(batch_size=10, dataset_size=1000)
OTHER_FIXED = FixedSize(batch_size=13, dataset_size=1000)
EARLY = Shuffle(batch_size=10, steps_per_pass=9, dataset_size=95, reshuffle=Reshuffle.EACH_PASS)
# What serves other events than Gaussian steps of one Poisson sampling.
OTHERS = {
    "accountants/event_grouping.py",
    "accountants/grouped_bounds.py",
    "accountants/many_noises.py",
    "accountants/mixed_kinds.py",
    "accountants/shuffled_passes.py",
    "accountants/truncated_poisson.py",
    "bounds/pair_choice.py",
    "bounds/sampled_pairs.py",
    "pld/multinomial.py",
    "pld/rare_losses.py",
}


def entered(counts: EventCounts) -> set[str]:
    """The modules in which a function is called for a guarantee."""
    files: set[str] = set()

    def called(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        best_bound.guarantee(
            counts, relation=NeighboringRelation.REPLACE_SPECIAL, delta=1e-5, accept=ACCEPTABLE
        )
    finally:
        sys.setprofile(before)
    places = (Path(file) for file in files)
    return {
        str(place.relative_to(ACCOUNTING)) for place in places if place.is_relative_to(ACCOUNTING)
    }


def counts_of(*parts: tuple[Mechanism, Sampling, int]) -> EventCounts:
    return count_events(
        [
            [Span(event=Event(mechanism=noise, sampling=sampling), steps=steps)]
            for noise, sampling, steps in parts
        ]
    )


def test_a_poisson_step_enters_no_module_of_other_kinds() -> None:
    assert not OTHERS & entered(counts_of((NOISE, POISSON, 321)))


@pytest.mark.parametrize(
    ("module", "counts"),
    [
        ("accountants/mixed_kinds.py", counts_of((NOISE, POISSON, 10), (ANSWER, POISSON, 10))),
        ("accountants/grouped_bounds.py", counts_of((NOISE, POISSON, 10), (NOISE, FIXED, 10))),
        ("accountants/shuffled_passes.py", counts_of((NOISE, EARLY, 18))),
        ("accountants/truncated_poisson.py", counts_of((NOISE, TRUNCATED, 20))),
        ("bounds/pair_choice.py", counts_of((ANSWER, POISSON, 7))),
        ("bounds/sampled_pairs.py", counts_of((NOISE, OTHER_FIXED, 20))),
        ("pld/multinomial.py", counts_of((ANSWER, POISSON, 5))),
        ("pld/rare_losses.py", counts_of((NOISE, Poisson(sampling_probability=1e-7), 10**8))),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_events_enter_the_modules_of_their_kinds(module: str, counts: EventCounts) -> None:
    assert module in entered(counts)
