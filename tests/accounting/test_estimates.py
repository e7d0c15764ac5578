"""Guesses at what a balance spends: where a search begins, so that they need only be near."""

import math

import pytest

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Mechanism,
    NeighboringRelation,
    NoNoise,
    NonUniform,
    Poisson,
    RandomAllocation,
    Sampling,
    Span,
    WithReplacement,
    Zcdp,
)
from accounting.gaussian import gaussian_epsilon
from accounting.guarantees import ACCEPTABLE
from accounting.initial_guesses import estimated_mu

RELATION = NeighboringRelation.REPLACE_SPECIAL


def counts(mechanism: Mechanism, sampling: Sampling, steps: int) -> EventCounts:
    event = Event(mechanism=mechanism, sampling=sampling)
    return count_events([[Span(event=event, steps=steps)]])


@pytest.mark.parametrize(
    "spent",
    [
        counts(Gaussian(noise_multiplier=4.0), Full(), 100),
        counts(Gaussian(noise_multiplier=1.0), Poisson(sampling_probability=0.01), 10_000),
        counts(Gaussian(noise_multiplier=2.0), FixedSize(batch_size=20, dataset_size=1000), 5000),
        counts(
            Gaussian(noise_multiplier=2.0), WithReplacement(batch_size=5, dataset_size=1000), 5000
        ),
        counts(
            Gaussian(noise_multiplier=3.0),
            RandomAllocation(steps_per_pass=10, participations=2),
            100,
        ),
        counts(Gaussian(noise_multiplier=2.0), NonUniform(max_weight=0.01), 5000),
        counts(Gaussian(noise_multiplier=2.0), BallsAndBins(steps_per_pass=10), 100),
        counts(Zcdp(rho=0.01), Full(), 100),
        counts(ApproximateDp(epsilon=0.05, delta=0.0), Full(), 400),
    ],
    ids=repr,
)
def test_a_guess_is_within_a_factor_of_six(spent: EventCounts) -> None:
    found = guarantee(spent, relation=RELATION, delta=1e-5, accept=ACCEPTABLE)
    assert found.epsilon is not None
    guess = gaussian_epsilon(1e-5, mu=estimated_mu(spent, RELATION))
    assert found.epsilon / 6 < guess < 6 * found.epsilon


def test_no_noise_is_taken_for_a_little_and_very_much_is_cut_off() -> None:
    assert estimated_mu(counts(NoNoise(), Full(), 4), RELATION) == 2.0
    little = counts(Gaussian(noise_multiplier=1e-9), Full(), 4)
    assert estimated_mu(little, RELATION) == 1e6
    assert math.isfinite(estimated_mu(little, RELATION))
