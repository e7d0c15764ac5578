import dataclasses
import math

import pytest

from accounting.events import (
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    NoNoise,
    Poisson,
    Reshuffle,
    Shuffle,
    Span,
)

FULL_EVENT = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Full())


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_a_noise_multiplier_is_positive_and_finite(sigma: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        Gaussian(noise_multiplier=sigma)


@pytest.mark.parametrize("q", [0.0, -0.1, 1.0000001, math.nan])
def test_a_sampling_probability_lies_above_zero_and_up_to_one(q: float) -> None:
    with pytest.raises(ValueError, match="sampling_probability"):
        Poisson(sampling_probability=q)


def test_a_sampling_probability_of_one_is_allowed() -> None:
    assert Poisson(sampling_probability=1.0).sampling_probability == 1


@pytest.mark.parametrize(("batch_size", "dataset_size"), [(0, 10), (11, 10), (-1, 10), (1, 0)])
def test_a_batch_fits_in_its_dataset(batch_size: int, dataset_size: int) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        FixedSize(batch_size=batch_size, dataset_size=dataset_size)


@pytest.mark.parametrize(("batch_size", "steps_per_pass"), [(0, 1), (1, 0)])
def test_a_pass_has_batches_and_batches_have_records(batch_size: int, steps_per_pass: int) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        Cyclic(batch_size=batch_size, steps_per_pass=steps_per_pass)
    with pytest.raises(ValueError, match="Out of range"):
        Shuffle(batch_size=batch_size, steps_per_pass=steps_per_pass, reshuffle=Reshuffle.EACH_PASS)


@pytest.mark.parametrize("steps", [0, -1])
def test_a_span_has_steps(steps: int) -> None:
    with pytest.raises(ValueError, match="steps"):
        Span(event=FULL_EVENT, steps=steps)


def test_equal_events_are_one_key() -> None:
    again = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Full())
    assert {FULL_EVENT: 1}[again] == 1
    assert Event(mechanism=NoNoise(), sampling=Full()) != FULL_EVENT


def test_an_event_never_changes() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL_EVENT.sampling = Full()  # type: ignore[misc]
