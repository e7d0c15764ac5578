"""Amplification by shuffling of batches of one record."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from accounting.events import Direction, NeighboringRelation
from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket, lower_epsilon
from accounting.pld.pairs import DensePair
from accounting.pld.profiles import profiles
from accounting.rounding import Array
from accounting.shuffling.clones import (
    THEOREMS,
    clones_epsilon,
    clones_gaussian_epsilon,
    clones_pair,
)
from accounting.shuffling.full import largest_pair
from tests.accounting.shuffle_floors import shuffle_lower_epsilon

DELTA = 1e-5
PROPERTY = settings(deadline=None, max_examples=25)
CROWDS = [(4.0, 10**6), (8.0, 10**4), (2.0, 10**7), (30.0, 10**5)]  # amplified


def pass_epsilon(noise_multiplier: float, steps: int, delta: float = DELTA) -> float:
    return clones_gaussian_epsilon(
        noise_multiplier=noise_multiplier, steps_per_pass=steps, delta=delta
    )


def pass_pair(noise_multiplier: float, steps: int) -> DensePair:
    pair = clones_pair(noise_multiplier=noise_multiplier, steps_per_pass=steps)
    assert pair is not None
    return pair


def _splits(steps: int) -> Array:
    return np.geomspace(1e-3, math.log(steps / 22.2), 3000)


def least_delta(epsilons: Array, sigma: float, steps: int) -> Array:
    """The published delta, the theorem's epsilon inverted by hand, at the best of many splits."""
    epsilon0 = _splits(steps)
    failed = np.array([steps * gaussian_delta(float(one), mu=2 / sigma) for one in epsilon0])
    failed *= 1 + np.exp(-epsilon0) / 2
    crowd = steps / np.exp(epsilon0)

    def least(epsilon: float) -> float:
        gain = math.expm1(epsilon) / np.tanh(epsilon0 / 2)
        root = np.maximum(gain - 8 / crowd, 0.0) * np.sqrt(crowd) / 8
        hidden = 4 * np.exp(-np.minimum(root**2, crowd / 16))
        return float(np.min(hidden + (math.exp(epsilon) + 1) * failed))

    return np.array([least(float(one)) for one in epsilons])


# One pass of pure steps


def test_the_closed_form_is_what_is_known() -> None:
    known = clones_epsilon(epsilon0=1.0, delta=1e-6, steps_per_pass=10**6)
    assert known == pytest.approx(0.023496774905355625, rel=1e-12)


@PROPERTY
@given(epsilon0=st.floats(1e-6, 12), delta=st.floats(1e-30, 1), steps=st.integers(1, 10**12))
def test_the_closed_form_is_above_fifty_digits_by_roundoffs_only(
    epsilon0: float, delta: float, steps: int
) -> None:
    found = clones_epsilon(epsilon0=epsilon0, delta=delta, steps_per_pass=steps)
    with mp.workdps(50):
        one, logarithm = mp.mpf(epsilon0), mp.log(4 / mp.mpf(delta))
        share = mp.exp(one) / steps
        exact = one
        if one <= mp.log(steps / (16 * logarithm)):
            gain = 8 * mp.sqrt(share * logarithm) + 8 * share
            exact = min(one, mp.log1p(mp.tanh(one / 2) * gain))
        assert exact <= found <= exact * (1 + 1e-12) or found == epsilon0
        if found == epsilon0 > exact:  # only at the edge of the domain, where rounding decides
            assert abs(16 * share * logarithm - 1) < 1e-12


def _shuffled_answers(ones: int, records: int, truth: float) -> Array:
    """Law of the number of yes answers when each of them is truthful with a chance."""
    yes = stats.binom.pmf(np.arange(ones + 1), ones, truth)
    no = stats.binom.pmf(np.arange(records - ones + 1), records - ones, 1 - truth)
    return np.asarray(np.convolve(yes, no), dtype=np.float64)


@pytest.mark.parametrize(
    ("epsilon0", "records", "delta"), [(0.5, 500, 1e-3), (1.0, 2000, 1e-6), (2.0, 3000, 1e-4)]
)
def test_shuffled_yes_and_no_answers_lose_less(epsilon0: float, records: int, delta: float) -> None:
    claimed = clones_epsilon(epsilon0=epsilon0, delta=delta, steps_per_pass=records)
    assert claimed < epsilon0
    truth = 1 / (1 + math.exp(-epsilon0))
    for ones in (1, records // 2, records):
        first, second = (_shuffled_answers(count, records, truth) for count in (ones, ones - 1))
        for one, other in ((first, second), (second, first)):
            assert np.maximum(one - math.exp(claimed) * other, 0).sum() <= delta


def test_without_a_crowd_a_pass_loses_what_a_step_does() -> None:
    assert clones_epsilon(epsilon0=6.0, delta=1e-6, steps_per_pass=10**4) == 6.0
    assert clones_epsilon(epsilon0=900.0, delta=1e-6, steps_per_pass=10**9) == 900.0
    assert clones_epsilon(epsilon0=0.0, delta=1e-6, steps_per_pass=1) == 0.0


@pytest.mark.parametrize(
    ("epsilon0", "delta", "steps"),
    [(-1.0, 0.1, 10), (math.inf, 0.1, 10), (1.0, 0.0, 10), (1.0, 1.1, 10), (1.0, 0.1, 0)],
)
def test_questions_out_of_range_are_refused(epsilon0: float, delta: float, steps: int) -> None:
    with pytest.raises(ValueError, match="epsilon0 is finite"):
        clones_epsilon(epsilon0=epsilon0, delta=delta, steps_per_pass=steps)


# One pass of Gaussian steps


def test_a_pass_of_gaussian_steps_is_at_most_what_is_known() -> None:
    found = pass_epsilon(4.0, 10**6, 1e-6)
    assert 0.1640 < found <= 0.16447013494527157


@pytest.mark.parametrize(("noise_multiplier", "steps"), CROWDS)
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_some_split_of_delta_gives_the_epsilon_and_none_a_much_smaller_one(
    noise_multiplier: float, steps: int, delta: float
) -> None:
    found = pass_epsilon(noise_multiplier, steps, delta)
    around = np.array([found * (1 + 1e-3), found * (1 - 1e-3)])
    above, below = least_delta(around, noise_multiplier, steps)
    assert above <= delta < below


@PROPERTY
@given(
    noise_multiplier=st.floats(0.3, 50), steps=st.integers(1, 10**9), delta=st.floats(1e-12, 0.1)
)
def test_a_pass_is_between_its_floor_and_one_gaussian(
    noise_multiplier: float, steps: int, delta: float
) -> None:
    upper = pass_epsilon(noise_multiplier, steps, delta)
    assert upper <= gaussian_epsilon(delta, mu=2 / noise_multiplier) * (1 + 1e-12)
    floor = shuffle_lower_epsilon(
        delta,
        noise_multiplier=noise_multiplier,
        batches=steps,
        steps=steps,
        relation=NeighboringRelation.REPLACE_ONE,
    )
    assert floor <= upper


def test_more_records_and_more_noise_hide_a_record_better() -> None:
    crowds = [pass_epsilon(4.0, 10**exponent) for exponent in range(4, 10)]
    assert crowds == sorted(crowds, reverse=True)
    noises = [pass_epsilon(sigma, 10**5) for sigma in (1.0, 2.0, 4.0, 8.0, 16.0)]
    assert noises == sorted(noises, reverse=True)


# Passes


@pytest.mark.parametrize(("noise_multiplier", "steps"), CROWDS)
def test_the_pair_of_a_pass_is_below_both_bounds_it_is_made_of(
    noise_multiplier: float, steps: int
) -> None:
    pair = pass_pair(noise_multiplier, steps)
    for delta in (1e-2, 1e-5, 1e-10):
        found = epsilon_bracket([(pair, 1)], delta=delta).upper
        assert found <= pass_epsilon(noise_multiplier, steps, delta) * 1.001
        assert found < gaussian_epsilon(delta, mu=2 / noise_multiplier)


def _hull(losses: Array, values: Array) -> Array:
    """The lower convex hull over e^l of dots at losses of both signs, read at the losses."""
    x = np.exp(losses)
    kept: list[int] = []
    for j in range(len(x)):
        while (
            len(kept) > 1
            and np.cross(
                (x[kept[-1]] - x[kept[-2]], values[kept[-1]] - values[kept[-2]], 0),
                (x[j] - x[kept[-2]], values[j] - values[kept[-2]], 0),
            )[2]
            <= 0
        ):
            kept.pop()
        kept.append(j)
    return np.asarray(np.interp(x, x[kept], values[kept]))


@pytest.mark.parametrize(("noise_multiplier", "steps"), CROWDS)
def test_the_pair_dominates_what_both_bounds_allow(noise_multiplier: float, steps: int) -> None:
    pair = pass_pair(noise_multiplier, steps)
    losses = np.concatenate(([0.0], np.geomspace(1e-3, 4, 1200)))
    plain = [gaussian_delta(float(one), mu=2 / noise_multiplier) for one in losses]
    allowed = np.minimum(plain, least_delta(losses, noise_multiplier, steps))
    both = np.concatenate((-losses[:0:-1], losses))
    below = (-np.expm1(-losses) + np.exp(-losses) * allowed)[:0:-1]
    hull = _hull(both, np.concatenate((below, allowed)))
    inside = (both > -2) & (both < 2)  # near the ends it is a hull of what is inside only
    for direction in Direction:
        lower, upper = (one[inside] for one in profiles(pair, direction=direction, losses=both))
        # The pair has dots and splits of its own.
        assert np.all(lower >= hull[inside] * 0.99 - 1e-11)
        assert np.all(upper <= hull[inside] * 1.03 + 1e-9)


@pytest.mark.parametrize("passes", [3, 30])
def test_passes_are_between_their_floor_and_as_many_gaussians(passes: int) -> None:
    pair = pass_pair(4.0, 10**5)
    upper = epsilon_bracket([(pair, passes)], delta=DELTA).upper
    assert upper < 0.35 * gaussian_epsilon(DELTA, mu=0.5 * math.sqrt(passes))
    floor = largest_pair(
        noise_multiplier=4.0,
        batches=10**5,
        steps=10**5,
        relation=NeighboringRelation.REPLACE_ONE,
    )
    assert lower_epsilon([(floor, passes)], delta=DELTA) <= upper
    assert delta_bracket([(pair, passes)], epsilon=upper).lower <= DELTA


@pytest.mark.parametrize(
    ("noise_multiplier", "steps"), [(1.0, 10**6), (0.01, 10**12), (4.0, 22), (4.0, 1), (1e-100, 9)]
)
def test_there_is_no_pair_where_one_gaussian_a_pass_is_as_good(
    noise_multiplier: float, steps: int
) -> None:
    assert clones_pair(noise_multiplier=noise_multiplier, steps_per_pass=steps) is None
    alone = gaussian_epsilon(DELTA, mu=2 / noise_multiplier)
    assert pass_epsilon(noise_multiplier, steps) == pytest.approx(alone, rel=1e-12)


def test_very_much_noise_is_still_a_pair() -> None:
    pair = pass_pair(1e4, 10**12)
    assert epsilon_bracket([(pair, 1)], delta=1e-9).upper < 1e-6


def test_every_theorem_of_this_file_needs_a_secret_order() -> None:
    assert all("fresh_secret_order" in one.assumptions for one in THEOREMS)
    assert all(NeighboringRelation.ADD_OR_REMOVE_ONE not in one.relations for one in THEOREMS)
