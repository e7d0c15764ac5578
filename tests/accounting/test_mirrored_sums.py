"""What balls and bins attain where a record is replaced: below the exact law, and not far."""

import math

import numpy as np
import pytest
from scipy import special

from accounting.bounds.lower_bounds import lower_bound_units
from accounting.event_counts import EventCounts
from accounting.events import (
    BallsAndBins,
    Direction,
    Event,
    Gaussian,
    NeighboringRelation,
    RandomAllocation,
    Sampling,
)
from accounting.pld.certified_composition import lower_epsilon
from accounting.pld.pairs import DensePair, GaussianPair, Pair, ReplacedGaussianPair
from accounting.pld.profiles import profiles
from accounting.rounding import Array
from accounting.shuffling import mirrored_sums
from accounting.shuffling.allocation import allocation_lower_pair
from accounting.shuffling.mirrored_sums import mirrored_lower_pair

_, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
LOSSES = np.array([0.0, 0.05, 0.2, 0.7, 1.5, 3.0])


def floor(sigma: float, length: int, steps: int) -> Pair:
    return mirrored_lower_pair(noise_multiplier=sigma, steps_per_pass=length, steps=steps)


def profile(pair: Pair, direction: Direction = Direction.REMOVE) -> tuple[Array, Array]:
    return profiles(pair, direction=direction, losses=LOSSES)


def exact_of_two(sigma: float) -> Array:
    """H of both steps of a pass of two: its losses rise in the sum of sinh(w_t / sigma^2)."""
    grid = np.linspace(-1 - 8 * sigma, 1 + 8 * sigma, 4001)
    step = grid[1] - grid[0]
    below = special.ndtr

    def mass(mean: float) -> Array:
        return np.diff(below((np.append(grid, grid[-1] + step) - mean) / sigma))

    def total(sign: float) -> Array:
        return 0.5 * np.add(
            np.multiply.outer(mass(sign), mass(0.0)), np.multiply.outer(mass(0.0), mass(sign))
        )

    p, q = total(1.0), total(-1.0)
    return np.array([float(np.sum(np.maximum(p - math.exp(x) * q, 0.0))) for x in LOSSES])


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_a_pass_of_two_steps_attains_no_less(sigma: float) -> None:
    exact = exact_of_two(sigma)
    lower, upper = profile(floor(sigma, 2, 2))
    assert np.all(lower <= exact * (1 + 1e-4) + 1e-9)
    assert np.all(upper >= 0.88 * exact - 1e-4)
    other = profile(floor(sigma, 2, 2), Direction.ADD)[0]
    assert np.allclose(lower, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("length", "sigma"), [(2, 1.0), (50, 0.7), (1000, 3.0)])
def test_one_step_of_a_pass_is_a_poisson_step(length: int, sigma: float) -> None:
    pair = ReplacedGaussianPair(noise_multiplier=sigma, sampling_probability=1 / length)
    exact = profile(pair)[1]
    lower, upper = profile(floor(sigma, length, 1))
    assert np.all(lower <= exact)
    assert np.all(upper >= 0.99 * exact - 1e-6)


def test_one_step_a_pass_is_a_release_at_distance_two() -> None:
    assert floor(1.0, 1, 1) == GaussianPair(noise_multiplier=0.5)


def test_masses_are_rounded_to_the_safe_side() -> None:
    for sigma, length, steps in ((1.1, 235, 235), (0.5, 1000, 400), (20.0, 10, 10)):
        pair = floor(sigma, length, steps)
        assert isinstance(pair, DensePair)
        assert 1 - 1e-6 < math.fsum(pair.first) <= 1
        assert 1 <= math.fsum(pair.second) < 1 + 1e-6
        assert pair.first[-1] == 0


def test_what_is_cut_off_counts_for_the_second_law(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = lower_epsilon([(floor(1.0, 30, 30), 3)], delta=1e-5)
    monkeypatch.setattr(mirrored_sums, "_SPREAD", 0.1)
    monkeypatch.setattr(mirrored_sums, "_FAR", 0.5)
    monkeypatch.setattr(mirrored_sums, "_HALF", 150)
    mirrored_lower_pair.cache_clear()
    narrow = floor(1.0, 30, 30)
    mirrored_lower_pair.cache_clear()
    assert isinstance(narrow, DensePair)
    assert narrow.second[-1] > 0.1
    assert math.fsum(narrow.first) < 0.9
    assert math.fsum(narrow.second) >= 1
    assert lower_epsilon([(narrow, 3)], delta=1e-5) < wide


def units(sampling: Sampling, sigma: float, steps: int, passes: int) -> dict[Pair, int]:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)
    counts = EventCounts(steps={event: steps}, passes={event: passes}, begun={event: passes})
    return dict(lower_bound_units(counts, REPLACE_ONE))


def test_of_two_instances_the_one_that_says_more_is_taken() -> None:
    # With little noise a single pass is told by its largest answer.
    bins = BallsAndBins(steps_per_pass=100)
    (once,) = units(bins, 0.3, 100, 1)
    assert once == allocation_lower_pair(noise_multiplier=0.3, steps_per_pass=100, steps=100)
    (often,) = units(bins, 0.7, 6000, 60)
    assert often == floor(0.7, 100, 100)
    (loud,) = units(bins, 1.5, 100, 1)
    assert loud == floor(1.5, 100, 100)
    (single,) = units(BallsAndBins(steps_per_pass=1), 0.7, 2, 2)
    assert single == GaussianPair(noise_multiplier=0.35)
    # What is out of range is told against a null record.
    assert units(bins, 2e3, 100, 1) == {DensePair(first=(1.0,), second=(1.0,)): 1}


def test_several_participations_are_told_by_their_sum() -> None:
    several = RandomAllocation(steps_per_pass=100, participations=4)
    (pair,) = units(several, 2.0, 100, 1)
    assert isinstance(pair, GaussianPair)
    assert pair.noise_multiplier == pytest.approx(2.0 * 10 / 4 / 2)
    assert pair.noise_multiplier >= 2.5


def test_sixty_passes_attain_nearly_what_poisson_steps_do() -> None:
    pair = floor(1.1, 235, 235)
    assert 4.21 <= lower_epsilon([(pair, 60)], delta=1e-5) <= 4.228
