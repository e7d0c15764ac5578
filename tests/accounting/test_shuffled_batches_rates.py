import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from accounting.events import (
    Direction,
)
from accounting.pld.pairs import GaussianPair, SymmetricPair
from accounting.pld.profiles import profile
from accounting.rounding import Array
from accounting.shuffling import likelihood_sums
from accounting.shuffling.likelihood_sums import least_sums, log_moments
from accounting.shuffling.partial import partial_shuffle_pairs
from accounting.shuffling.shuffled_batches import (
    OWN_RATES,
    RATES,
    STEPS_MAX,
    pass_rates,
    rounded_rates,
    shuffled_batches_pairs,
)

# The sum of the ratios


def true_log_moment(theta: float, sigma: float) -> float:
    v = 2 / sigma

    def integrand(z: float) -> float:
        return math.exp(-theta * math.exp(v * z - v * v / 2) - z * z / 2)

    found = sum(
        integrate.quad(integrand, z, z + 1, epsabs=1e-15, epsrel=1e-12)[0] for z in range(-12, 12)
    )
    return math.log(found / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("sigma", [0.7, 2.0, 8.0])
def test_moments_lie_just_above_the_true_ones(sigma: float) -> None:
    found = log_moments(sigma)
    for place in range(30, 56, 5):
        theta = float(likelihood_sums._THETAS[place])
        true = true_log_moment(theta, sigma)
        assert true > -20  # below, what is added for rounding shows
        assert true < found[place] < true + 2e-3 * abs(true)


@pytest.mark.parametrize("end", [1.0, 2.0])
def test_both_tails_count(end: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood_sums, "_END", end)
    found = log_moments(2.0 + end * 1e-9)  # no other test has asked for this noise
    for place in (30, 48, 60):
        assert true_log_moment(float(likelihood_sums._THETAS[place]), 2.0) < found[place]


@pytest.mark.parametrize("sigma", [1e-100, 1e-3, 1e100])
def test_noises_beyond_all_use_have_moments(sigma: float) -> None:
    found = log_moments(sigma)
    assert np.all(np.isfinite(found))
    assert np.all(found <= 0)
    sums = least_sums(noise_multiplier=sigma, log_chance=-20.0, steps=np.arange(100.0))
    assert np.all((sums >= 0) & (sums <= np.arange(100.0)))


def test_one_ratio_is_left_out_of_each_sum() -> None:
    sigma, chance = 4.0, 0.05
    moments = np.array([true_log_moment(float(t), sigma) for t in likelihood_sums._THETAS[40:70]])
    steps = np.arange(12.0)
    found = least_sums(noise_multiplier=sigma, log_chance=math.log(chance), steps=steps)

    def true(t: int, ratios: int) -> float:
        best = np.max((math.log(chance) - ratios * moments) / likelihood_sums._THETAS[40:70])
        return max(0.0, float(best))

    assert found[0] == found[1] == 0
    for t in range(2, 12):
        assert found[t] <= true(t, t - 1)
        assert found[t] < true(t, t)
    assert found[11] == pytest.approx(true(11, 10), rel=0.01)
    assert all(0 <= high - low <= 1 for low, high in pairwise(found))


def test_sums_fall_below_with_no_more_than_their_chance() -> None:
    rng = np.random.default_rng(1)
    v, steps = 1.0, 40
    ratios = np.exp(v * rng.normal(size=(20_000, steps - 1)) - v * v / 2)
    sums = least_sums(noise_multiplier=2.0, log_chance=math.log(0.05), steps=np.array([40.0]))
    assert 10 < sums[0] < 39
    assert 0.0005 < np.mean(np.sum(ratios, axis=1) < sums[0]) < 0.05


# Rates


@settings(deadline=None, max_examples=50)
@given(
    n=st.integers(3, 10**6),
    b=st.integers(1, 1000),
    sigma=st.floats(0.3, 50),
    share=st.floats(0.01, 1.0),
)
def test_rates_lie_between_those_of_a_full_pass_and_none(
    n: int, b: int, sigma: float, share: float
) -> None:
    b = min(b, n - 1)
    k = max(1, int(share * ((n - 1) // b)))
    rates, counts = pass_rates(sigma, b, n, k, 1e-8)
    lasts = np.cumsum(counts) - 1
    assert sum(counts) == k
    assert len(rates) == min(k, STEPS_MAX)
    assert all(count >= 1 for count in counts)
    assert np.all(np.diff(rates) >= 0)
    assert np.all(rates >= b / n)
    assert np.all(rates <= b / (n - lasts * b) * (1 + 1e-14))
    assert rates[-1] < 1


def test_a_short_pass_keeps_its_own_rates_and_its_own_chance() -> None:
    n, b, k, passes, delta = 60_000, 4096, 14, 60, 1e-6
    found = shuffled_batches_pairs(
        noise_multiplier=8.0,
        batch_size=b,
        dataset_size=n,
        steps_per_pass=k,
        passes=passes,
        delta=delta,
    )
    sums = least_sums(
        noise_multiplier=8.0,
        log_chance=math.log(delta / (2 * k * passes)),
        steps=np.arange(k, dtype=np.float64),
    )
    assert sums[-1] > 1
    exact = 1 / (n / b - np.arange(k) + sums)
    rates = [pair.sampling_probability for pair, _ in found]
    np.testing.assert_allclose(rates, exact, rtol=1e-9)
    assert np.all(np.array(rates) >= exact)
    assert {count for _, count in found} == {passes}
    assert {pair.near for pair, _ in found} == {GaussianPair(noise_multiplier=4.0)}
    assert k <= OWN_RATES


def test_a_long_pass_counts_every_step_at_few_rates() -> None:
    found = shuffled_batches_pairs(
        noise_multiplier=2.0,
        batch_size=1,
        dataset_size=1000,
        steps_per_pass=500,
        passes=20,
        delta=1e-7,
    )
    beta = 0.875 * 1e-7 / 20
    rates, _ = pass_rates(2.0, 1, 1000, 500, beta)
    marks = [pair.sampling_probability for pair, _ in found]
    assert len(found) == RATES
    assert sum(count for _, count in found) == 500 * 20
    assert marks[0] == pytest.approx(rates[0], rel=1e-12)
    assert marks[-1] == pytest.approx(rates[-1], rel=1e-12)
    assert sum(pair.sampling_probability * count for pair, count in found) > 20 * np.sum(rates)


def test_without_much_noise_rates_are_those_of_the_pass_itself() -> None:
    rates, _ = pass_rates(0.05, 1, 1000, 10, 1e-8)
    pairs = partial_shuffle_pairs(
        noise_multiplier=0.05, batch_size=1, dataset_size=1000, steps_per_pass=8
    )
    np.testing.assert_allclose(rates[:8], [pair.sampling_probability for pair, _ in pairs])


def test_rates_that_hardly_differ_count_as_the_largest() -> None:
    assert rounded_rates(np.array([0.01, 0.010001]), [3, 4], chance=1e-9) == ((0.010001, 7),)


# Coins


@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0])
def test_a_pair_is_dominated_by_a_coin_between_its_neighbours(mean: float) -> None:
    half = GaussianPair(noise_multiplier=0.5)

    def at(rate: float, epsilon: float) -> float:
        pair = SymmetricPair(near=half, far=half, sampling_probability=rate)
        return profile(pair, direction=Direction.REMOVE, epsilon=epsilon)[1]

    low, high = 0.01, 0.02
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        coin = (1 - mean) * at(low, epsilon) + mean * at(high, epsilon)
        assert at((1 - mean) * low + mean * high, epsilon) <= coin * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(20, 300),
    grown=st.floats(1.0, 20.0),
    times=st.integers(1, 50),
    chance=st.floats(1e-9, 0.1),
)
def test_few_rates_stand_for_many_but_for_the_chance(
    count: int, grown: float, times: int, chance: float
) -> None:
    rates = np.geomspace(0.01, 0.01 * grown, count)
    found = rounded_rates(rates, [times] * count, chance=chance)
    marks, numbers = (np.array(one) for one in zip(*found, strict=True))
    assert len(found) <= RATES
    assert np.all(np.diff(marks) > 0)
    assert np.all(numbers >= 1)
    assert sum(numbers) == count * times
    # Steps of a rate above a mark count at a greater one; and at no less than their mean in all.
    for mark in marks:
        assert np.sum(numbers[marks >= mark]) >= times * np.sum(rates > mark * (1 + 1e-9))
    assert float(numbers @ marks) >= times * float(np.sum(rates)) * (1 - 1e-9)


def test_more_coins_come_up_than_are_counted_with_no_more_than_the_chance() -> None:
    rates: Array = np.linspace(0.01, 0.02, 50)
    chance = 0.05
    found = rounded_rates(rates, [4] * 50, chance=chance)
    marks = np.array([rate for rate, _ in found])
    failed = 0.0
    for mark in range(1, len(marks)):
        inside = (rates > marks[mark - 1]) & (rates <= marks[mark])
        coins = (rates[inside] - marks[mark - 1]) / (marks[mark] - marks[mark - 1])
        counted = sum(number for _, number in found[mark:]) - 4 * int(np.sum(rates > marks[mark]))
        law = np.ones(1)
        for coin in np.repeat(coins, 4):
            law = np.convolve(law, [1 - coin, coin])
        failed += float(np.sum(law[counted + 1 :]))
    assert failed <= chance
