"""Balls and bins, random allocation: tables against integrals, closed forms and other figures."""

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from accounting import THEOREMS
from accounting.events import Direction
from accounting.pld.certified_composition import epsilon_bracket, lower_epsilon
from accounting.pld.pairs import DensePair, GaussianPair, SampledGaussianPair
from accounting.pld.tails import profile
from accounting.rounding import Array
from accounting.shuffling import allocation
from accounting.shuffling.allocation import (
    allocation_lower_pair,
    allocation_pair,
    random_allocation_pairs,
)
from accounting.shuffling.sums import mean_table

REMOVE, ADD = Direction.REMOVE, Direction.ADD
EXACT = 1e-5  # what integrals below may be off by, relative; the widths of brackets are larger


def _nodes(sigma: float, count: int) -> tuple[Array, Array]:
    """The ratio of one step, and weights, for a trapezoidal sum."""
    z = np.linspace(-9.0, 9.0, count)
    weights = np.exp(-0.5 * z * z) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    return np.exp((z - 0.5 / sigma) / sigma), weights


def _dense(pair: DensePair | GaussianPair) -> DensePair:
    assert isinstance(pair, DensePair)
    return pair


def _upper(sigma: float, steps: int) -> DensePair:
    return _dense(allocation_pair(noise_multiplier=sigma, steps_per_pass=steps))


def _floor(sigma: float, steps_per_pass: int, steps: int | None = None) -> DensePair:
    released = steps_per_pass if steps is None else steps
    pair = allocation_lower_pair(
        noise_multiplier=sigma, steps_per_pass=steps_per_pass, steps=released
    )
    return _dense(pair)


def _gaussian(sigma: float, passes: int, delta: float) -> float:
    units = ((GaussianPair(noise_multiplier=sigma), passes),)
    return epsilon_bracket(units, delta=delta).upper


def _call(strike: Array, sigma: float) -> Array:
    """E(Y - k)_+ of one lognormal variable of mean one."""
    k = np.maximum(strike, 1e-300)
    d = 0.5 / sigma - sigma * np.log(k)
    found = np.where(strike > 0, special.ndtr(d) - k * special.ndtr(d - 1 / sigma), 1 - strike)
    return np.asarray(found, dtype=np.float64)


def _excess(level: Array, sigma: float, steps: int, *, count: int) -> Array:
    """E(S - a)_+ for the mean of two or three variables, at each level a."""
    y, weights = _nodes(sigma, count)
    if steps == 3:
        y, weights = np.add.outer(y, y).ravel(), np.outer(weights, weights).ravel()
    found = [_call(steps * a - y, sigma) @ weights / steps for a in level]
    return np.array(found, dtype=np.float64)


def _exact_delta(epsilon: float, sigma: float, steps: int, direction: Direction) -> float:
    level = math.exp(epsilon if direction is REMOVE else -epsilon)
    found = float(_excess(np.array([level]), sigma, steps, count=20001 if steps == 2 else 801)[0])
    # E(1 - b S)_+ = b (E(S - a)_+ - 1) + 1 for b = 1/a.
    return found if direction is REMOVE else (found - 1) / level + 1


CASES = [(sigma, steps) for sigma in (0.5, 1.0, 2.5) for steps in (2, 3)]


@pytest.mark.no_cover
@pytest.mark.parametrize(("sigma", "steps"), CASES)
@pytest.mark.parametrize("direction", Direction)
def test_short_passes_lie_between_their_tables(
    sigma: float, steps: int, direction: Direction
) -> None:
    for epsilon in np.array([0.0, 0.2, 0.5, 1.0]) / sigma:
        exact = _exact_delta(epsilon, sigma, steps, direction)
        upper = profile(_upper(sigma, steps), direction=direction, epsilon=epsilon)[1]
        assert exact * (1 - EXACT) <= upper <= exact * 1.002
        if direction is REMOVE:
            lower = profile(_floor(sigma, steps), direction=REMOVE, epsilon=epsilon)[0]
            assert exact * 0.998 <= lower <= exact * (1 + EXACT)


@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_two_passes_of_two_steps_lie_between_their_tables(sigma: float) -> None:
    y, weights = _nodes(sigma, 61)
    both = np.outer(weights, weights).ravel()
    first = np.add.outer(y, y).ravel() / 2
    for epsilon in (0.3 / sigma, 1.5 / sigma):
        # E(S S' - a)_+ = E[S' E(S - a/S')_+]
        terms = first * _excess(math.exp(epsilon) / first, sigma, 2, count=401)
        delta = float(terms @ both)
        assert lower_epsilon(((_floor(sigma, 2), 2),), delta=delta) <= epsilon * (1 + EXACT)
        upper = epsilon_bracket(((_upper(sigma, 2), 2),), delta=delta).upper
        assert epsilon * (1 - EXACT) <= upper <= epsilon * 1.002


def test_a_pass_of_one_step_is_a_gaussian_release() -> None:
    pair = GaussianPair(noise_multiplier=1.3)
    assert allocation_pair(noise_multiplier=1.3, steps_per_pass=1) == pair
    assert allocation_lower_pair(noise_multiplier=1.3, steps_per_pass=1, steps=1) == pair


@pytest.mark.parametrize("sigma", [0.1, 0.6, 30.0])
def test_the_table_of_one_variable_brackets_the_gaussian(sigma: float) -> None:
    lower, upper = (mean_table(sigma, 1, upper=side) for side in (False, True))
    for loss in np.array([-8.0, -2.0, -0.5, 0.0, 0.5, 2.0, 8.0, 14.0]) / sigma:
        level = math.exp(loss)
        with mp.workdps(40):
            d = 0.5 / mp.mpf(sigma) - sigma * mp.log(level)
            exact = float(mp.ncdf(d) - level * mp.ncdf(d - 1 / mp.mpf(sigma)))
        low, high = (
            float(np.maximum(table.places - level, 0) @ table.masses) for table in (lower, upper)
        )
        assert low <= exact * (1 + 1e-12)
        assert exact <= (high + upper.infinite) * (1 + 1e-12)
        assert exact < 1e-12 or high - low <= 0.01 * exact


LONG = [(1.0, 1000), (0.5, 30), (3.0, 235), (0.2, 50), (50.0, 7)]


@pytest.mark.parametrize(("sigma", "steps"), LONG)
def test_means_are_one_and_second_moments_on_either_side(sigma: float, steps: int) -> None:
    exact = math.expm1(1 / sigma**2) / steps
    lower, upper = (mean_table(sigma, steps, upper=side) for side in (False, True))
    for table in (lower, upper):
        assert float(table.masses.sum()) == pytest.approx(1, abs=1e-10 * steps)
        assert float(table.places @ table.masses) == pytest.approx(1, abs=1e-10 * steps)
    small, large = ((t.places - 1) ** 2 @ t.masses for t in (lower, upper))
    assert small <= exact * (1 + 1e-9)
    if 1 / sigma**2 < 10:  # beyond, what tables leave out matters to it
        assert exact * (1 - 1e-9) <= large
        assert large - small <= 2e-3 * exact


GOLDEN = [(1.0, 1, 0.138812, 0.138879), (0.5, 1, 3.1341, 3.1350), (1.0, 10, 0.46438, 0.46459)]


@pytest.mark.no_cover
@pytest.mark.parametrize(("sigma", "passes", "low", "high"), GOLDEN)
def test_a_thousand_steps_agree_with_another_calculation(
    sigma: float, passes: int, low: float, high: float
) -> None:
    lower = lower_epsilon(((_floor(sigma, 1000), passes),), delta=1e-5)
    upper = epsilon_bracket(((_upper(sigma, 1000), passes),), delta=1e-5).upper
    assert lower <= high
    assert low <= upper <= high + (high - low)
    assert upper <= lower * (1 + 7e-4)


def test_ten_participations_in_a_thousand_steps_agree_with_another_calculation() -> None:
    pairs = random_allocation_pairs(noise_multiplier=1.0, steps_per_pass=1000, participations=10)
    assert pairs == ((_upper(1.0, 100), 10),)
    assert epsilon_bracket(pairs, delta=1e-5).upper <= 1.7018502403375513 * (1 + 2e-4)


def test_steps_that_do_not_divide_are_left_out() -> None:
    pairs = random_allocation_pairs(noise_multiplier=1.0, steps_per_pass=11, participations=3)
    assert pairs == ((_upper(1.0, 3), 3),)


def test_taking_part_in_every_step_is_no_sampling() -> None:
    pairs = random_allocation_pairs(noise_multiplier=2.0, steps_per_pass=5, participations=5)
    assert pairs == ((GaussianPair(noise_multiplier=2.0), 5),)


def test_two_of_three_steps_cost_no_less_than_they_do() -> None:
    sigma, level = 1.0, math.exp(1.0)
    y, one = _nodes(sigma, 401)
    a, b = np.meshgrid(y, y)
    weights = np.outer(one, one)
    # The ratio is (y1 y2 + y1 y3 + y2 y3)/3: given two of them linear in the third.
    slope = a + b
    exact = float(np.sum(slope / 3 * _call((3 * level - a * b) / slope, sigma) * weights))
    pairs = random_allocation_pairs(noise_multiplier=sigma, steps_per_pass=3, participations=2)
    assert epsilon_bracket(pairs, delta=exact).upper >= 1 - EXACT


SAMPLED = [(0.6, 10, 3, 1e-5), (1.0, 100, 10, 1e-6), (2.0, 50, 40, 1e-7), (5.0, 20, 500, 1e-5)]


@pytest.mark.parametrize(("sigma", "steps", "passes", "delta"), SAMPLED)
def test_a_pass_costs_no_more_than_poisson_sampling(
    sigma: float, steps: int, passes: int, delta: float
) -> None:
    upper = epsilon_bracket(((_upper(sigma, steps), passes),), delta=delta).upper
    lower = lower_epsilon(((_floor(sigma, steps), passes),), delta=delta)
    sampled = SampledGaussianPair(noise_multiplier=sigma, sampling_probability=1 / steps)
    poisson = epsilon_bracket(((sampled, passes * steps),), delta=delta).upper
    full = _gaussian(sigma, passes, delta)
    assert 0 < lower <= upper <= min(poisson, full) * (1 + 1e-3)
    assert upper <= lower * (1 + 2e-3)


def test_at_a_large_delta_poisson_sampling_can_cost_less() -> None:
    # A record is left out of a Poisson pass now and then, but never out of one of these.
    sampled = SampledGaussianPair(noise_multiplier=0.3, sampling_probability=0.25)
    poisson = epsilon_bracket(((sampled, 4),), delta=0.72).upper
    assert poisson < lower_epsilon(((_floor(0.3, 4), 1),), delta=0.72)


def test_more_noise_and_longer_passes_never_cost_more() -> None:
    def epsilon(sigma: float, steps: int) -> float:
        return epsilon_bracket(((_upper(sigma, steps), 5),), delta=1e-6).upper

    by_noise = [epsilon(sigma, 20) for sigma in (0.4, 0.8, 1.6, 3.2)]
    by_length = [epsilon(1.0, steps) for steps in (2, 3, 5, 9, 17)]
    for costs in (by_noise, by_length):
        assert costs == sorted(costs, reverse=True)


def test_a_delta_far_below_the_rounding_of_doubles_is_within_reach() -> None:
    units = ((_upper(1.1, 235), 3000),)
    lower = lower_epsilon(((_floor(1.1, 235), 3000),), delta=1e-20)
    assert 45 < lower <= epsilon_bracket(units, delta=1e-20).upper <= lower * 1.002


def test_part_of_a_pass_is_attained_in_part() -> None:
    found = [lower_epsilon(((_floor(0.8, 12, steps), 4),), delta=1e-6) for steps in range(0, 13, 3)]
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] <= epsilon_bracket(((_upper(0.8, 12), 4),), delta=1e-6).upper


def test_a_single_step_of_a_pass_is_a_sampled_one() -> None:
    sampled = SampledGaussianPair(noise_multiplier=0.8, sampling_probability=0.25)
    exact = epsilon_bracket(((sampled, 3),), delta=1e-6)
    found = lower_epsilon(((_floor(0.8, 4, 1), 3),), delta=1e-6)
    assert exact.upper * (1 - 1e-3) <= found <= exact.upper


def test_noise_outside_the_tables_has_bounds_all_the_same() -> None:
    for sigma in (0.09, 1001.0):
        pair = allocation_pair(noise_multiplier=sigma, steps_per_pass=7)
        assert pair == GaussianPair(noise_multiplier=sigma)
    assert _floor(0.01, 7, 3) == _floor(0.1, 7, 3)
    nothing = DensePair(first=(1.0,), second=(1.0,))
    assert _floor(1001.0, 7) == _floor(1.0, 10**10) == nothing


def test_a_longer_pass_than_tables_are_made_for_has_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocation, "STEPS_MAX", 6)
    assert _upper(1.25, 9) == _upper(1.25, 6)
    assert _upper(20.5, 9) == _upper(20.5, 2)  # with much noise already from fewer steps on


def test_a_long_pass_of_little_noise_stays_below_a_gaussian_release() -> None:
    upper = epsilon_bracket(((_upper(0.1, 10**6), 3),), delta=1e-5).upper
    full = _gaussian(0.1, 3, 1e-5)
    lower = lower_epsilon(((_floor(0.1, 10**6), 3),), delta=1e-5)
    assert lower <= upper <= min(full, lower * 1.003)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": math.inf}, "noise_multiplier"),
        ({"steps_per_pass": 0}, "steps_per_pass"),
    ],
)
def test_what_is_no_pass_is_refused(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"noise_multiplier": 1.0, "steps_per_pass": 3} | changed
    with pytest.raises(ValueError, match=message):
        allocation_pair(**given)
    with pytest.raises(ValueError, match=message):
        random_allocation_pairs(**given, participations=1)
    with pytest.raises(ValueError, match=message):
        allocation_lower_pair(**given, steps=0)


@pytest.mark.parametrize("number", [-1, 4])
def test_a_pass_of_three_steps_has_no_fewer_or_more(number: int) -> None:
    with pytest.raises(ValueError, match="steps lie"):
        allocation_lower_pair(noise_multiplier=1.0, steps_per_pass=3, steps=number)
    with pytest.raises(ValueError, match="participations"):
        random_allocation_pairs(noise_multiplier=1.0, steps_per_pass=3, participations=number)


def test_its_theorems_are_listed() -> None:
    assert set(allocation.THEOREMS) <= set(THEOREMS)
