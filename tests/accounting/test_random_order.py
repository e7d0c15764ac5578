import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.events import Direction
from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.last_iterate import random_order
from accounting.last_iterate.random_order import (
    GROUPS,
    averaged_gaussian_delta,
    averaged_gaussian_epsilon,
    averaged_pair,
    checked_weights,
    fresh_passes_delta,
    fresh_passes_epsilon,
    group_mus,
)
from accounting.pld.certified_composition import epsilon_bracket
from accounting.pld.profiles import profiles
from accounting.rounding import Array

MUS = st.lists(st.floats(1e-3, 5.0), min_size=1, max_size=12).map(np.array)


def decaying(count: int) -> Array:
    """Mus of the places of a pass of nonexpansive steps."""
    return np.asarray(1 / np.sqrt(np.arange(count, 0, -1.0)))


def mixture_delta(
    first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]], epsilon: float
) -> float:
    """Delta of two mixtures, evenly weighted, of Gaussians (mean, standard deviation)."""
    y = np.linspace(-14, 14, 40001)

    def density(parts: Sequence[tuple[float, float]]) -> Array:
        found = [np.exp(-0.5 * ((y - m) / s) ** 2) / (s * math.sqrt(2 * math.pi)) for m, s in parts]
        return np.asarray(np.mean(found, axis=0))

    gap = np.maximum(density(first) - math.exp(epsilon) * density(second), 0.0)
    return float(np.sum(gap) * (y[1] - y[0]))


# The average


@settings(max_examples=30, deadline=None)
@given(mus=MUS, epsilon=st.floats(0.0, 6.0))
def test_delta_is_the_mean_of_the_deltas_and_not_below_it(mus: Array, epsilon: float) -> None:
    found = averaged_gaussian_delta(epsilon, mus=mus)
    with mpmath.workdps(40):
        exact = mpmath.mpf(0)
        for mu in mus:
            a, b = epsilon / mpmath.mpf(mu) - mpmath.mpf(mu) / 2, mpmath.mpf(0)
            b = a + mpmath.mpf(mu)
            exact += mpmath.ncdf(-a) - mpmath.exp(epsilon) * mpmath.ncdf(-b)
        exact /= len(mus)
        assert exact <= found <= exact * (1 + 1e-9) + mpmath.mpf(1e-13)


@given(mus=MUS, delta=st.floats(1e-12, 0.9))
@settings(max_examples=30, deadline=None)
def test_epsilon_keeps_to_delta_and_no_much_smaller_one_does(mus: Array, delta: float) -> None:
    epsilon = averaged_gaussian_epsilon(delta, mus=mus)
    assert averaged_gaussian_delta(epsilon, mus=mus) <= delta
    if epsilon > 0:
        assert averaged_gaussian_delta(epsilon * (1 - 1e-9), mus=mus) > delta
    assert epsilon <= gaussian_epsilon(delta, mu=float(np.max(mus))) * (1 + 1e-6) + 1e-6


@given(mus=MUS, epsilon=st.floats(0.0, 5.0))
@settings(max_examples=30, deadline=None)
def test_a_secret_place_costs_no_more_than_the_worst_place(mus: Array, epsilon: float) -> None:
    worst = gaussian_delta(epsilon, mu=float(np.max(mus)))
    found = averaged_gaussian_delta(epsilon, mus=mus)
    assert found <= worst * (1 + 1e-9) + 1e-13
    assert found >= worst / len(mus) * (1 - 1e-9)


def test_places_that_are_all_alike_are_one_gaussian() -> None:
    alike = np.full(1000, 0.7)
    assert averaged_gaussian_epsilon(1e-5, mus=alike) == pytest.approx(
        gaussian_epsilon(1e-5, mu=0.7), rel=1e-9
    )


def test_weights_are_chances_of_places() -> None:
    mus = np.array([1.0, 0.1])
    even = averaged_gaussian_delta(0.5, mus=mus)
    assert averaged_gaussian_delta(0.5, mus=mus, weights=np.array([0.5, 0.5])) == pytest.approx(
        even, rel=1e-11
    )
    thrice = averaged_gaussian_delta(0.5, mus=np.array([1.0, 0.1, 0.1, 0.1]))
    weighted = averaged_gaussian_delta(0.5, mus=mus, weights=np.array([0.25, 0.75]))
    assert weighted == pytest.approx(thrice, rel=1e-11)


def test_weights_that_rounding_left_short_of_one_are_scaled_up() -> None:
    mus, short = np.array([1.0, 1.0]), np.array([0.5, 0.5 - 5e-10])
    assert averaged_gaussian_delta(0.5, mus=mus, weights=short) >= gaussian_delta(0.5, mu=1.0)


@pytest.mark.parametrize("seed", range(20))
def test_weights_add_up_to_one_at_least(seed: int) -> None:
    shares = np.random.default_rng(seed).dirichlet(np.ones(50))
    found = checked_weights(shares * (1 - 1e-10), 50)
    assert sum((Fraction(one) for one in found.tolist()), Fraction(0)) >= 1


def test_a_place_that_tells_nothing_and_one_that_tells_all() -> None:
    mus = np.array([0.0, math.inf])
    assert averaged_gaussian_delta(3.0, mus=mus) == pytest.approx(0.5)
    assert averaged_gaussian_epsilon(0.4, mus=mus) == math.inf
    assert averaged_gaussian_epsilon(0.6, mus=mus) == 0.0
    assert averaged_gaussian_delta(3.0, mus=np.zeros(3)) < 1e-280


def test_deltas_that_underflow_are_not_called_zero() -> None:
    assert 0 < averaged_gaussian_delta(1e6, mus=np.array([1e-3])) < 1e-280


@pytest.mark.parametrize(
    "mus",
    [
        np.array([]),
        np.array([-1.0]),
        np.array([math.nan]),
        np.ones((2, 2)),
    ],
)
def test_mus_out_of_range_are_refused(mus: Array) -> None:
    with pytest.raises(ValueError, match="mus has"):
        averaged_gaussian_delta(1.0, mus=mus)


@pytest.mark.parametrize(
    "weights", [np.ones(1), np.ones(2), np.array([1.5, -0.5]), np.array([math.nan, 0.5])]
)
def test_weights_that_are_no_chances_are_refused(weights: Array) -> None:
    with pytest.raises(ValueError, match="weights has"):
        averaged_gaussian_delta(1.0, mus=np.ones(2), weights=weights)


def test_targets_out_of_range_are_refused() -> None:
    mus = np.ones(2)
    for epsilon in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon"):
            averaged_gaussian_delta(epsilon, mus=mus)
        with pytest.raises(ValueError, match="epsilon"):
            fresh_passes_delta(epsilon, mus=mus, passes=2)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta"):
            averaged_gaussian_epsilon(delta, mus=mus)
        with pytest.raises(ValueError, match="delta"):
            fresh_passes_epsilon(delta, mus=mus, passes=2)
    for passes in (0, 10**6 + 1):
        with pytest.raises(ValueError, match="passes"):
            fresh_passes_epsilon(1e-5, mus=mus, passes=passes)
        with pytest.raises(ValueError, match="passes"):
            fresh_passes_delta(1.0, mus=mus, passes=passes)
    with pytest.raises(ValueError, match="not all zero"):
        averaged_pair(mus=np.zeros(2))


@pytest.mark.parametrize("seed", range(20))
def test_a_long_sum_is_not_rounded_down(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = np.random.default_rng(seed).uniform(0, 1, 2000)
    monkeypatch.setattr(random_order, "_upper_deltas", lambda *_: parts[None, :])
    found = averaged_gaussian_delta(1.0, mus=np.arange(2000.0, 0, -1))
    assert found >= sum((Fraction(one) for one in parts.tolist()), Fraction(0)) / 2000


# Few mus for many


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [40, 41, 5000])
def test_grouping_rounds_no_mu_down_and_loses_no_weight(count: int, weighted: bool) -> None:
    generator = np.random.default_rng(count)
    mus = generator.uniform(0, 1, count) ** 8  # down to far below SPAN
    mus[::7] = mus[0]
    weights = np.full(count, 1 / count) if weighted else None
    values, shares = group_mus(mus, weights, groups=40)
    assert len(values) <= 41
    assert math.isclose(np.sum(shares), 1.0, rel_tol=1e-11)
    # Stochastic order: above every level lies at least as much weight as before.
    for level in np.concatenate((values * (1 - 1e-9), mus)):
        assert np.sum(shares[values >= level]) >= np.mean(mus >= level) - 1e-12
    exact = np.unique(mus)[::-1][:20]
    assert np.array_equal(values[: len(exact)], exact)


def test_grouping_keeps_few_mus_as_they_are() -> None:
    values, shares = group_mus(np.array([0.2, 0.1, 0.2, 0.0]), None, groups=3)
    assert values.tolist() == [0.2, 0.1, 0.0]
    assert shares.tolist() == [0.5, 0.25, 0.25]


def test_grouping_of_mus_that_end_in_zero() -> None:
    values, shares = group_mus(np.array([3.0, 2.0, 0.0, 0.0]), None, groups=2)
    assert values.tolist() == pytest.approx([3.0, 2.0])
    assert shares.tolist() == [0.25, 0.75]
    zeros = np.concatenate((np.arange(4.0, 0.0, -1.0), np.zeros(3)))
    values, shares = group_mus(zeros, None, groups=4)
    assert np.all(values >= [4.0, 3.0, 2.0, 1e-5][: len(values)])
    values, shares = group_mus(np.array([3.0, 0.0, 0.0]), None, groups=2)
    assert values.tolist() == [3.0, 0.0]


def test_a_zero_alone_at_the_end_of_a_group() -> None:
    values, shares = group_mus(np.array([1.0, 0.5, 0.0]), None, groups=4 - 1)
    assert values.tolist() == [1.0, 0.5, 0.0]
    assert shares.tolist() == pytest.approx([1 / 3] * 3)


def test_a_million_places_cost_little_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    mus = decaying(10**6)
    quick = averaged_gaussian_epsilon(1e-6, mus=mus)
    monkeypatch.setattr(random_order, "GROUPS", 32 * GROUPS)
    slow = averaged_gaussian_epsilon(1e-6, mus=mus)
    assert slow * (1 - 1e-9) <= quick <= slow * (1 + 1e-3)


# Passes


@pytest.mark.parametrize("mus", [decaying(4), decaying(300), np.array([3.0, 0.0, 0.5])])
def test_the_pair_of_a_pass_is_nowhere_below_the_average_nor_far_above(mus: Array) -> None:
    pair = averaged_pair(mus=mus)
    losses = np.linspace(0.0, 8.0, 60)
    exact = np.array([averaged_gaussian_delta(float(loss), mus=mus) for loss in losses])
    for direction in Direction:
        upper = profiles(pair, direction=direction, losses=losses)[1]
        assert np.all(upper >= exact * (1 - 1e-9))
        assert np.all(upper <= exact * (1 + 2e-3) + 1e-12)


def test_one_pass_is_the_average_and_more_passes_cost_more() -> None:
    mus = decaying(50)
    epsilons = [fresh_passes_epsilon(1e-5, mus=mus, passes=count) for count in (1, 2, 5)]
    assert epsilons[0] == averaged_gaussian_epsilon(1e-5, mus=mus)
    assert epsilons[0] < epsilons[1] < epsilons[2]
    assert epsilons[2] < gaussian_epsilon(1e-5, mu=math.sqrt(5.0))  # the worst place told
    deltas = [fresh_passes_delta(2.0, mus=mus, passes=count) for count in (1, 2, 5)]
    assert deltas[0] == averaged_gaussian_delta(2.0, mus=mus)
    assert deltas[0] < deltas[1] < deltas[2]


def test_passes_are_composed_in_the_certified_way() -> None:
    mus = decaying(20)
    weights = np.full(20, 0.05)
    pair = averaged_pair(mus=mus, weights=weights)
    bracket = epsilon_bracket(((pair, 3),), delta=1e-6)
    found = fresh_passes_epsilon(1e-6, mus=mus, weights=weights, passes=3)
    assert bracket.lower <= found == bracket.upper


def test_a_pass_that_tells_all_in_one_place_has_that_mass_at_infinity() -> None:
    mus = np.array([1.0, math.inf])
    assert fresh_passes_delta(5.0, mus=mus, passes=2) == pytest.approx(0.75, abs=0.01)


# Against exact laws: all orders of a few records, steps that differ from record to record


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_law_over_all_orders_is_within_the_bound(seed: int) -> None:
    """Experiment of docs/theory/random_order.md: does the order tell more than the place?"""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(2, 5))
    slopes = generator.uniform(0.6, 1.15, count)
    shifts = generator.uniform(-0.5, 0.5, count)
    sensitivity, noise = float(generator.uniform(0.3, 2.0)), 1.0
    top = float(np.max(slopes))

    def law(order: Sequence[int], moved: float) -> tuple[float, float]:
        mean = variance = 0.0
        for record in order:
            mean = slopes[record] * mean + shifts[record] + (moved if record == 0 else 0.0)
            variance = slopes[record] ** 2 * variance + noise**2
        return mean, math.sqrt(variance)

    orders = list(permutations(range(count)))
    first = [law(order, sensitivity) for order in orders]
    second = [law(order, 0.0) for order in orders]
    left = np.arange(count, 0, -1.0)
    shares = np.array([1 / np.sum(top ** (-2 * np.arange(k))) for k in left])
    mus = sensitivity / noise * np.sqrt(shares)
    ratios = []
    for epsilon in (0.0, 0.2, 0.5, 1.0):
        bound = averaged_gaussian_delta(epsilon, mus=mus)
        for one, other in ((first, second), (second, first)):
            ratios.append(mixture_delta(one, other, epsilon) / bound)
    assert max(ratios) <= 1 + 1e-6
    assert max(ratios) > 0.2


def test_the_place_must_be_secret() -> None:
    """Told, the average is exceeded: the worst place alone has a larger delta."""
    mus = decaying(10)
    assert gaussian_delta(1.0, mu=1.0) > 2 * averaged_gaussian_delta(1.0, mus=mus)
