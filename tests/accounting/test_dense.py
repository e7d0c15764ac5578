"""Pairs known by their masses: against pairs in closed form, and by their definitions."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.events import Direction
from accounting.pld import certified_composition, dense_pairs
from accounting.pld.certified_composition import epsilon_bracket, lower_epsilon
from accounting.pld.contour.real_moments import LADDER, log_moments
from accounting.pld.convex_hull import take_hull
from accounting.pld.dense_pairs import cell_pair, loss_grid, profile_pair
from accounting.pld.pairs import (
    DensePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
    SymmetricPair,
)
from accounting.pld.profiles import profiles
from accounting.rounding import Array
from accounting.subsampling.special import grid_for, upper_profile

CASES = [
    (SampledGaussianPair(noise_multiplier=1.1, sampling_probability=0.0043), 2000, 1e-5),
    (SampledGaussianPair(noise_multiplier=3.0, sampling_probability=0.08), 500, 1e-5),
    (SampledGaussianPair(noise_multiplier=0.5, sampling_probability=0.001), 1000, 1e-8),
    (GaussianPair(noise_multiplier=8.0), 50, 1e-12),
]


def tabulated(pair: Pair) -> DensePair:
    losses = grid_for(pair)
    removed, added = (upper_profile(pair, losses, direction) for direction in Direction)
    return profile_pair(losses, removed=removed, added=added)


@pytest.mark.parametrize(("pair", "steps", "delta"), CASES)
def test_a_table_answers_as_its_pair_does_from_above(pair: Pair, steps: int, delta: float) -> None:
    table = epsilon_bracket([(tabulated(pair), steps)], delta=delta)
    exact = epsilon_bracket([(pair, steps)], delta=delta)
    assert exact.lower <= table.upper <= exact.upper * (1 + 6e-4)


@pytest.mark.parametrize(("pair", "steps", "delta"), CASES)
@pytest.mark.parametrize("direction", Direction)
def test_a_table_lies_above_its_profile_everywhere(
    pair: Pair, steps: int, delta: float, direction: Direction
) -> None:
    del steps, delta
    losses = np.sort(np.random.default_rng(1).uniform(-6, 6, 400))
    least = profiles(pair, direction=direction, losses=losses)[0]
    table = profiles(tabulated(pair), direction=direction, losses=losses)[1]
    assert np.all(table >= least * (1 - 1e-12))
    assert np.all(table <= least * (1 + 1e-2) + 1e-7)


@pytest.mark.parametrize(("q", "noise", "steps"), [(0.01, 1.0, 1000), (0.1, 0.7, 20)])
def test_cells_tell_no_more_than_the_mixtures_and_little_less(
    q: float, noise: float, steps: int
) -> None:
    pair = cell_pair([(1 - q, 0.0), (q, 1.0)], [(1.0, 0.0)], noise_multiplier=noise)
    exact = epsilon_bracket(
        [(SampledGaussianPair(noise_multiplier=noise, sampling_probability=q), steps)], delta=1e-5
    )
    floor = lower_epsilon([(pair, steps)], delta=1e-5)
    assert exact.lower * (1 - 1e-3) <= floor <= exact.upper


def test_cells_do_not_take_a_tail_below_the_least_double_for_none() -> None:
    pair = cell_pair([(1.0, 80.0)], [(1.0, 0.0)], noise_multiplier=1.0)
    assert min(pair.second) > 0


def test_a_symmetric_table_is_symmetric_to_the_last_bit() -> None:
    far = GaussianPair(noise_multiplier=0.5)
    pair = SymmetricPair(near=far, far=far, sampling_probability=0.01)
    table = tabulated(pair)
    forth = sorted(zip(table.first, table.second, strict=True))
    assert forth == sorted(zip(table.second, table.first, strict=True))


def test_a_dent_in_the_bounds_is_hulled() -> None:
    # Not convex and not falling: what is true lies below the running least and its hull.
    losses = np.array([0.0, 0.1, 0.2, 0.3, 0.5, 1.0])
    bumpy = np.array([0.1, 0.12, 0.099, 0.02, 0.019, 0.0])
    pair = profile_pair(losses, removed=bumpy, added=bumpy)
    found = profiles(pair, direction=Direction.REMOVE, losses=losses)[1]
    assert np.all(np.diff(found) <= 1e-15)
    assert np.all(found <= np.minimum.accumulate(bumpy) * (1 + 1e-12) + 1e-13)
    assert found[0] == pytest.approx(0.1, rel=1e-9)  # corners are kept
    assert found[3] == pytest.approx(0.02, rel=1e-9)
    x = np.exp(losses)
    slopes = np.diff(found) / np.diff(x)
    assert np.all(np.diff(slopes) >= -1e-12)


@settings(deadline=None, max_examples=60)
@given(
    masses=st.lists(st.floats(-0.5, 1.0), min_size=3, max_size=40),
    steps=st.lists(st.floats(1e-3, 0.5), min_size=40, max_size=40),
)
def test_a_hull_is_the_greatest_convex_function_below_its_dots(
    masses: list[float], steps: list[float]
) -> None:
    losses: Array = np.asarray(np.cumsum(steps[: len(masses)]), dtype=np.float64)
    mass = np.array([*masses[:-1], 50.0])
    x = np.exp(losses)

    def profile(masses: Array) -> Array:
        return np.array([np.sum(np.maximum(masses * (1 - a / x), 0) * (x > a)) for a in x])

    def function(masses: Array) -> Array:
        return np.array([np.sum((masses / x * (x - a))[x > a]) for a in x])

    before = function(mass)
    take_hull(mass, losses=losses)
    after = function(mass)
    assert np.all(mass >= 0)
    assert np.all(after <= before + 1e-9)
    corners = mass > 0
    inner = corners & (np.arange(len(x)) < len(x) - 1)
    assert after[inner] == pytest.approx(before[inner], abs=1e-9)
    assert profile(mass) == pytest.approx(after, abs=1e-9)


def test_a_long_run_of_points_that_drag_each_other_leaves_in_turn() -> None:
    losses = np.linspace(0.0, 3.99, 400)
    mass = np.full(400, -1e-4)
    mass[0], mass[200], mass[-1] = 5.0, -3.0, 40.0
    total, other = mass.sum(), (mass * np.exp(-losses)).sum()
    take_hull(mass, losses=losses)
    assert np.all(mass >= 0)
    assert mass.sum() == pytest.approx(total, rel=1e-12)
    assert (mass * np.exp(-losses)).sum() == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize(
    ("scale", "top"), [(1e-3, 30.0), (0.5, 5.0), (1e-9, 300.0), (10.0, 2.0), (0.3, 1.0)]
)
def test_a_grid_rises_from_zero_to_its_end_in_steps_of_the_stated_sizes(
    scale: float, top: float
) -> None:
    grid = loss_grid(scale=scale, top=top)
    assert grid[0] == 0
    assert grid[-1] >= top * (1 - 1e-12)
    steps = np.diff(grid)
    assert np.all(steps > 0)
    assert steps[0] <= 1.01 * dense_pairs.FINE * scale
    assert np.max(steps) <= 1.05 * max(dense_pairs.STEP_MAX, top / dense_pairs.FAR_POINTS)


def test_moments_of_a_table_are_those_of_its_pair() -> None:
    pair = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=0.05)
    orders = (LADDER > 0.1) & (LADDER < 5)
    for direction in Direction:
        table, exact = (log_moments(one, direction)[orders] for one in (tabulated(pair), pair))
        assert np.all(table >= exact - 1e-11)
        assert table == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("q", [1e-3, 0.2])
def test_moments_of_a_symmetric_pair_bound_those_of_its_table(q: float) -> None:
    half = GaussianPair(noise_multiplier=0.8)
    pair = SymmetricPair(near=half, far=half, sampling_probability=q)
    orders = LADDER < 15
    bound = log_moments(pair, Direction.REMOVE)
    table = log_moments(tabulated(pair), Direction.REMOVE)
    assert np.all(bound[orders] >= table[orders] * (1 - 1e-3) - 1e-12)
    assert not np.any(np.isnan(bound))


def test_a_symmetric_pair_of_laplace_noise_has_no_known_moments() -> None:
    pair = LaplacePair(scale=1.0, sampling_probability=1.0)
    with pytest.raises(ValueError, match="known by its tails"):
        log_moments(SymmetricPair(near=pair, far=pair, sampling_probability=0.1), Direction.REMOVE)


def test_many_dense_pairs_are_bounded_by_their_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certified_composition, "LATTICE_PAIRS_MAX", 3)
    units: list[tuple[Pair, int]] = [
        (cell_pair([(1 - q, 0.0), (q, 1.0)], [(1.0, 0.0)], noise_multiplier=2.0), 60)
        for q in (0.01, 0.011, 0.012, 0.013)
    ]
    found = epsilon_bracket(units, delta=1e-5)
    assert found.engine is certified_composition.Engine.CONTOUR
    pair = SampledGaussianPair(noise_multiplier=2.0, sampling_probability=0.01)
    assert epsilon_bracket([(pair, 240)], delta=1e-5).lower <= found.upper < math.inf


def test_cells_have_no_more_of_the_one_law_and_no_less_of_the_other() -> None:
    pair = cell_pair([(0.9, 0.0), (0.1, 1.0)], [(1.0, 0.0)], noise_multiplier=0.7)
    edges = np.linspace(
        -dense_pairs.SPREAD * 0.7, 1 + dense_pairs.SPREAD * 0.7, dense_pairs.CELLS - 1
    )
    with mpmath.workdps(50):
        for i in range(1200, 2800, 40):
            low, high = (mpmath.mpf(float(edge)) / mpmath.mpf(0.7) for edge in edges[i - 1 : i + 1])
            plain = mpmath.ncdf(high) - mpmath.ncdf(low)
            step = 1 / mpmath.mpf(0.7)
            moved = mpmath.ncdf(high - step) - mpmath.ncdf(low - step)
            assert pair.first[i] <= mpmath.mpf(0.9) * plain + mpmath.mpf(0.1) * moved
            assert pair.second[i] >= plain


def test_a_table_reaches_every_corner_it_was_given_to_the_last_digit() -> None:
    pair = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=0.01)
    losses = np.linspace(0.0, 3.0, 120)
    removed, added = (upper_profile(pair, losses, direction) for direction in Direction)
    table = profile_pair(losses, removed=removed, added=added)
    with mpmath.workdps(40):
        for first, second, needed in (
            (table.first, table.second, removed),
            (table.second, table.first, added),
        ):
            for loss, value in list(zip(losses.tolist(), needed.tolist(), strict=True))[::7]:
                x = mpmath.exp(mpmath.mpf(loss))
                reached = mpmath.fsum(
                    max(mpmath.mpf(p) - x * mpmath.mpf(q), 0)
                    for p, q in zip(first, second, strict=True)
                )
                assert reached >= min(value, 1.0) * (1 - mpmath.mpf(10) ** -30)


def test_what_a_table_lacks_is_added_to_all_its_masses(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = np.linspace(0.0, 3.0, 50)
    values = 0.1 * np.exp(-3 * losses)
    plain = profile_pair(losses, removed=values, added=values)
    second = np.array(plain.second[-50:-1])
    assert dense_pairs._excess(losses, 2 * values, second, 2 * float(values[-1])) > 0.5
    monkeypatch.setattr(dense_pairs, "_excess", lambda *_: 0.5)
    grown = profile_pair(losses, removed=values, added=values)
    assert sum(grown.first) == pytest.approx(1.5 * sum(plain.first), rel=1e-9)
    assert sum(grown.second) == pytest.approx(1.5 * sum(plain.second), rel=1e-9)
