import dataclasses
import math

import pytest

from accounting.events import (
    ApproximateDp,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NoNoise,
    Poisson,
    RandomizedResponse,
    Reshuffle,
    Shuffle,
    Span,
    Zcdp,
)

FULL_EVENT = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Full())


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_a_noise_multiplier_is_positive_and_finite(sigma: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        Gaussian(noise_multiplier=sigma)
    with pytest.raises(ValueError, match="noise_multiplier"):
        Laplace(noise_multiplier=sigma)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, 1.5, 1e-101, math.nan, math.inf])
def test_an_answer_is_neither_certain_nor_impossible(p: float) -> None:
    with pytest.raises(ValueError, match="probability_of_truth"):
        RandomizedResponse(probability_of_truth=p, categories=2)


@pytest.mark.parametrize("k", [1, 0, -2, 10**6 + 1])
def test_an_answer_has_two_to_a_million_categories(k: int) -> None:
    with pytest.raises(ValueError, match="categories"):
        RandomizedResponse(probability_of_truth=0.5, categories=k)


def test_an_answer_may_be_true_less_often_than_by_chance() -> None:
    assert RandomizedResponse(probability_of_truth=0.001, categories=2).probability_of_truth < 0.5


@pytest.mark.parametrize("epsilon", [-1e-9, 10001.0, math.inf, math.nan])
def test_a_declared_epsilon_is_bounded(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        ApproximateDp(epsilon=epsilon, delta=0.0)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 2.0, math.nan])
def test_a_declared_delta_is_below_one(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        ApproximateDp(epsilon=0.0, delta=delta)


@pytest.mark.parametrize("rho", [0.0, -1.0, 1e-101, 10001.0, math.inf, math.nan])
def test_a_declared_rho_is_positive_and_bounded(rho: float) -> None:
    with pytest.raises(ValueError, match="rho"):
        Zcdp(rho=rho)


def test_mechanisms_with_equal_fields_are_different_events() -> None:
    mechanisms: list[Mechanism] = [Laplace(noise_multiplier=1.0), Gaussian(noise_multiplier=1.0)]
    assert mechanisms[0] != mechanisms[1]
    assert ApproximateDp(epsilon=0.0, delta=0.0) == ApproximateDp(epsilon=0.0, delta=0.0)


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
