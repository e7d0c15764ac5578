import math
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from accounting.events import NeighboringRelation
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket
from accounting.pld.pairs import GaussianPair, SymmetricPair
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.fixed_size import fixed_size_gaussian_rdp, swap_rdp
from accounting.renyi.orders import ORDERS
from accounting.rounding import Array, rounded_up
from accounting.shuffling.partial import (
    DATASET_SIZE_MAX,
    RATES,
    THEOREMS,
    _landmarks,
    partial_shuffle_pairs,
    partial_shuffle_rdp,
)

PROPERTY = settings(deadline=None, max_examples=20)
FEW = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0])
Units = tuple[tuple[SymmetricPair, int], ...]


def pairs(n: int, b: int, k: int, *, sigma: float = 2.0) -> Units:
    return partial_shuffle_pairs(
        noise_multiplier=sigma, batch_size=b, dataset_size=n, steps_per_pass=k
    )


def curve(n: int, b: int, k: int, *, sigma: float = 2.0, orders: Array = FEW) -> Array:
    return partial_shuffle_rdp(
        noise_multiplier=sigma, batch_size=b, dataset_size=n, steps_per_pass=k, orders=orders
    )


def step_by_step(n: int, b: int, k: int, *, sigma: float = 2.0) -> Units:
    """Each step at its own rate."""
    half = GaussianPair(noise_multiplier=0.5 * sigma)
    rates = [rounded_up(b / (n - t * b)) for t in range(k)]
    return tuple(
        (SymmetricPair(near=half, far=half, sampling_probability=rate), 1) for rate in rates
    )


@st.composite
def passes(draw: st.DrawFn, records_max: int = 10**6) -> tuple[int, int, int]:
    """(dataset_size, batch_size, steps_per_pass) that leave a record out."""
    n = draw(st.integers(2, records_max))
    b = draw(st.integers(1, n - 1))
    b = draw(st.sampled_from([1, b, max(1, b // 100)]))
    return n, b, draw(st.integers(1, (n - 1) // b))


# Pairs


@pytest.mark.parametrize(("n", "b", "k"), [(1000, 1, RATES), (7, 2, 3), (60_000, 256, 5)])
def test_few_steps_keep_their_own_rates(n: int, b: int, k: int) -> None:
    found = pairs(n, b, k)
    assert found == step_by_step(n, b, k)
    for step, (pair, _) in enumerate(found):
        exact = Fraction(b, n - step * b)
        assert exact < Fraction(pair.sampling_probability) < exact * Fraction(1 + 1e-15)


def test_a_single_step_is_a_batch_of_fixed_size() -> None:
    half = GaussianPair(noise_multiplier=0.75)
    rate = rounded_up(30 / 1000)
    assert pairs(1000, 30, 1, sigma=1.5) == (
        (SymmetricPair(near=half, far=half, sampling_probability=rate), 1),
    )
    fixed = fixed_size_gaussian_rdp(
        noise_multiplier=1.5, batch_size=30, dataset_size=1000, orders=ORDERS
    )
    single = curve(1000, 30, 1, sigma=1.5, orders=ORDERS)
    np.testing.assert_allclose(single, fixed, rtol=1e-12)


@settings(deadline=None, max_examples=200)
@given(sizes=passes())
def test_every_step_is_counted_between_the_first_rate_and_the_last(
    sizes: tuple[int, int, int],
) -> None:
    n, b, k = sizes
    found = pairs(n, b, k)
    rates = [pair.sampling_probability for pair, _ in found]
    counts = [count for _, count in found]
    assert sum(counts) == k
    assert all(count >= 1 for count in counts)
    assert all(low < high for low, high in pairwise(rates))
    assert rates[0] == rounded_up(b / n)
    assert rates[-1] == rounded_up(b / (n - (k - 1) * b)) < 1
    assert len(found) <= 14 + math.log(rates[-1] / rates[0]) / math.log(1.25)
    # Steps are counted at no less than their rates together, and at little more.
    counted = math.fsum(rate * count for rate, count in zip(rates, counts, strict=True))
    exact = float(np.sum(b / (n - b * np.arange(k, dtype=np.float64))))
    assert exact * (1 - 1e-9) <= counted <= 1.03 * exact


@settings(deadline=None, max_examples=200)
@given(sizes=passes())
def test_a_run_of_several_steps_takes_at_most_half_of_what_is_left(
    sizes: tuple[int, int, int],
) -> None:
    n, b, k = sizes
    marks = _landmarks(n / b, k)
    assert marks[0] == 0
    assert marks[-1] == k - 1
    for start, end in pairwise(marks):
        assert end - start == 1 or n - start * b >= 2 * (end - start) * b


@pytest.mark.parametrize("left", [Fraction(4), Fraction(13, 2), Fraction(30), Fraction(1000)])
@pytest.mark.parametrize("steps", [2, 3, 4, 5, 9, 14, 15])
def test_a_published_coin_rounds_no_more_than_half_of_a_run_up(left: Fraction, steps: int) -> None:
    # Proposition 2, in rationals: `chances` says how many steps were rounded up so far, given that
    # the record has not come up; those that were rounded up least are rounded up first.
    left = max(left, Fraction(2 * steps))
    low, high = 1 / left, 1 / (left - steps)
    chances = {0: Fraction(1)}
    for step in range(steps):
        rate = 1 / (left - step)
        rest = (rate - low) / (high - low)
        after = Counter[int]()
        for level in sorted(chances):
            taken = min(rest, chances[level])
            rest -= taken
            after[level + 1] += taken * (1 - high)  # type: ignore[assignment]
            after[level] += (chances[level] - taken) * (1 - low)  # type: ignore[assignment]
        assert rest == 0
        assert sum(after.values()) == 1 - rate
        chances = {level: Fraction(c) / (1 - rate) for level, c in after.items() if c}
        assert max(chances) - min(chances) <= 1
    assert max(chances) <= steps // 2


@pytest.mark.parametrize(("n", "b", "k"), [(100, 4, 20), (40, 1, 36)])
def test_rounding_rates_adds_little_and_never_takes_away(n: int, b: int, k: int) -> None:
    rounded, own = pairs(n, b, k), step_by_step(n, b, k)
    assert len(rounded) < len(own)
    few, each = (delta_bracket(units, epsilon=1.0, width=1e-3) for units in (rounded, own))
    assert few.upper >= each.lower
    assert few.lower <= 1.1 * each.upper
    summed = sum(
        swap_rdp(noise_multiplier=2.0, rate=pair.sampling_probability, orders=FEW)
        for pair, _ in own
    )
    assert np.all(curve(n, b, k) >= summed * (1 - 1e-12))
    assert np.all(curve(n, b, k) <= 1.05 * summed)


def test_the_largest_dataset_has_rates_below_one() -> None:
    n = DATASET_SIZE_MAX
    assert all(0 < pair.sampling_probability < 1 for pair, _ in pairs(n, 1, n - 1))
    ((pair, _),) = pairs(n, n - 1, 1)
    assert pair.sampling_probability < 1


@pytest.mark.parametrize(
    ("n", "b", "k", "field"),
    [
        (1000, 1, 1000, "steps_per_pass"),
        (1000, 100, 10, "steps_per_pass"),
        (1001, 143, 7, "steps_per_pass"),
        (1000, 1, 0, "steps_per_pass"),
        (1000, 0, 1, "batch_size"),
        (2**50 + 1, 1, 1, "dataset_size"),
    ],
)
def test_a_pass_that_leaves_no_record_out_is_refused(n: int, b: int, k: int, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        pairs(n, b, k)
    with pytest.raises(ValueError, match=field):
        curve(n, b, k)


def test_orders_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="Orders lie in"):
        curve(1000, 1, 500, orders=np.array([1.0]))


def test_every_theorem_is_listed_and_refuses_to_add_or_remove() -> None:
    assert [one.id for one in THEOREMS] == ["partial-shuffle", "partial-shuffle-rdp"]
    for one in THEOREMS:
        assert NeighboringRelation.ADD_OR_REMOVE_ONE not in one.relations


# Figures: n = 1000, single records, delta = 1e-4, sigma = 2, from the second reader's own code

FIGURES = [  # steps a pass, passes, epsilon from moments, epsilon from profiles
    (1, 1000, 0.5114, 0.1399),
    (1, 10_000, 0.8508, 0.5045),
    (1, 50_000, 1.9889, 1.2484),
    (500, 2, 0.5956, 0.20827),
    (500, 20, 1.2046, 0.7464),
    (500, 100, 2.9544, 1.8568),
    (900, 1, 1.0236, 0.5171),
    (900, 11, 3.0014, 1.8804),
    (900, 55, 7.7178, 4.7967),
]


@lru_cache
def pass_curve(steps: int) -> Array:
    return curve(1000, 1, steps, orders=ORDERS)


@pytest.mark.parametrize(("steps", "count", "moments", "_"), FIGURES)
def test_moments_give_no_more_than_the_second_reader_found(
    steps: int, count: int, moments: float, _: float
) -> None:
    epsilon, _order = rdp_epsilon(rdp=count * pass_curve(steps), orders=ORDERS, delta=1e-4)
    assert 0.7 * moments < epsilon < moments


@pytest.mark.no_cover
@pytest.mark.parametrize(("steps", "count", "_", "profile"), FIGURES)
def test_profiles_give_what_the_second_reader_found(
    steps: int, count: int, _: float, profile: float
) -> None:
    units = tuple((pair, each * count) for pair, each in pairs(1000, 1, steps))
    epsilon = epsilon_bracket(units, delta=1e-4, width=3e-3).upper
    assert 0.985 * profile < epsilon < 1.005 * profile


# Properties


@PROPERTY
@given(sizes=passes(), sigma=st.floats(0.3, 30), share=st.floats(0, 0.8))
def test_more_steps_never_cost_less(
    sizes: tuple[int, int, int], sigma: float, share: float
) -> None:
    n, b, k = sizes
    # Rounding differs between the two: fewer steps must be fewer by more than it adds.
    fewer = max(1, int(share * k))
    assert np.all(curve(n, b, fewer, sigma=sigma) <= curve(n, b, k, sigma=sigma) * (1 + 1e-9))


@PROPERTY
@given(sizes=passes(), sigma=st.floats(0.3, 30), factor=st.floats(1.001, 3))
def test_more_noise_never_costs_more(
    sizes: tuple[int, int, int], sigma: float, factor: float
) -> None:
    assert np.all(curve(*sizes, sigma=sigma * factor) <= curve(*sizes, sigma=sigma) * (1 + 1e-7))


def delta_attained(epsilon: float, *, batches: int, steps: int, sigma: float) -> float:
    """What one pass of the star loses at least: is the largest answer above a threshold?

    All others contribute -1, the record 1 or -1; answers are shifted to mean 0 and 2.
    """
    share = steps / batches

    def lost(threshold: float) -> float:
        other, own = (special.log_ndtr((threshold - mean) / sigma) for mean in (0.0, 2.0))
        without = -math.expm1(steps * other)
        found = -share * math.expm1(own + (steps - 1) * other) + (1 - share) * without
        return found - math.exp(epsilon) * without

    grid = np.linspace(-2 * sigma, 2 + 8 * sigma, 400)
    best = grid[int(np.argmax([lost(float(one)) for one in grid]))]
    step = float(grid[1] - grid[0])
    found = optimize.minimize_scalar(
        lambda one: -lost(one), bounds=(best - step, best + step), method="bounded"
    )
    return max(0.0, -float(found.fun))


@pytest.mark.parametrize(
    ("batches", "steps", "sigma"),
    [(4, 3, 0.5), (10, 9, 1.0), (234, 117, 1.1), (1000, 1, 0.5), (50, 25, 0.7)],
)
def test_the_bound_is_above_what_a_dataset_loses(batches: int, steps: int, sigma: float) -> None:
    units = pairs(3 * batches, 3, steps, sigma=sigma)
    for epsilon in (0.0, 1.0):
        lower = delta_attained(epsilon, batches=batches, steps=steps, sigma=sigma)
        upper = delta_bracket(units, epsilon=epsilon, width=1e-3).upper
        assert lower < upper
        assert epsilon > 0 or lower > 0.1 * upper


# Large datasets


@pytest.mark.parametrize("sigma", [2.0, 5.0])
def test_for_large_datasets_the_bound_has_the_conjectured_form(sigma: float) -> None:
    # At a fixed order, C = sigma^2 (e^(4/sigma^2) - 1) does, which is below 16 from sigma = 2 on.
    n, k = 10**8, 5 * 10**7
    left_out = k / (n * (n - k))
    constant = curve(n, 1, k, sigma=sigma) * sigma**2 / (left_out * FEW)
    expected = sigma**2 * math.expm1(4 / sigma**2)
    assert expected < 16
    np.testing.assert_allclose(constant[:3], expected, rtol=0.01)
