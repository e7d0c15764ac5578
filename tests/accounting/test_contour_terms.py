"""Each error term of the contour engine covers what it is for, and reaches the sides it must."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from accounting.events import Direction
from accounting.pld.contour import complex_moments, quadrature, real_moments, tilted_grids
from accounting.pld.contour.complex_moments import line_of
from accounting.pld.contour.quadrature import (
    grid_spacing,
    log_left_tail,
    log_right_tail,
    losses_at,
    strip_share,
)
from accounting.pld.contour.real_moments import LADDER, log_moments
from accounting.pld.contour.tilted_grids import grid_of
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
)
from accounting.rounding import UNIT_ROUNDOFF, Array

REMOVE, ADD = Direction.REMOVE, Direction.ADD
PAIR = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=0.01)
SETTINGS = [(1.0, 0.01), (0.4, 0.3), (5.0, 1e-4), (2.0, 1 - 1e-9), (100.0, 0.9)]


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    """No test leaves a coarse line in a cache."""
    complex_moments.forget()
    log_moments.cache_clear()
    yield
    complex_moments.forget()
    log_moments.cache_clear()


def pair_of(sigma: float, q: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)


def power_of(direction: Direction, order: float) -> float:
    return 1 + order if direction is REMOVE else -order


def ladder_index(near: float) -> int:
    return int(np.argmin(np.abs(LADDER - near)))


def exact_moment(
    pair: SampledGaussianPair, direction: Direction, order: float, theta: float = 0.0
) -> Any:
    """M(order + i theta) by its definition, to thirty digits."""
    with mp.workdps(40):
        sigma, q = mp.mpf(pair.noise_multiplier), mp.mpf(pair.sampling_probability)
        power = 1 + mp.mpf(order) if direction is REMOVE else -mp.mpf(order)
        turn = mp.mpc(power, theta if direction is REMOVE else -theta)
        phase = min(mp.mpf(2), 12 / sigma)
        h = 2 * mp.pi * phase * sigma**2 / (85 + (phase * sigma) ** 2 / 2 + theta * phase)
        first = mp.floor((-13 * sigma + min(0, power)) / h)
        last = mp.ceil((13 * sigma + max(0, power)) / h)

        def term(j: int) -> Any:
            x = (first + j) * h
            u = (2 * x - 1) / (2 * sigma**2)
            return mp.exp(turn * mp.log1p(q * mp.expm1(u)) - x * x / (2 * sigma**2))

        total = mp.fsum(term(j) for j in range(int(last - first) + 1))
        total = total * h / (sigma * mp.sqrt(2 * mp.pi))
        return total if theta else total.real


# ---- the ratio on a grid, and what a sum over it leaves out


@pytest.mark.parametrize("sigma", [0.2, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("q", [1e-7, 0.3, 0.500001, 1 - 1e-3, 1 - 1e-12])
def test_the_loss_at_a_displaced_point_is_within_its_error(sigma: float, q: float) -> None:
    pair = pair_of(sigma, q)
    left, h = -9.7 * sigma, 0.37 * sigma
    x: Array = left + h * np.arange(60).astype(np.float64)
    found = losses_at(x, pair)
    with mp.workdps(50):
        for j in range(60):
            u = (2 * (mp.mpf(left) + j * mp.mpf(h)) - 1) / (2 * mp.mpf(sigma) ** 2)
            exact = mp.log1p(mp.mpf(q) * mp.expm1(u))
            assert abs(float(found.loss[j]) - exact) <= found.error[j]
            weight = mp.mpf(q) * mp.exp(u) / mp.exp(exact)
            assert abs(float(found.weight[j]) / weight - 1) < 1e-9


def test_the_loss_far_out_is_the_exponent_alone() -> None:
    pair = pair_of(0.02, 1e-5)
    found = losses_at(np.array([5.0]), pair)
    assert found.loss[0] == pytest.approx(math.log(1e-5) + 9 / (2 * 0.02**2), rel=1e-14)
    assert found.weight[0] == 1.0


@pytest.mark.parametrize("theta", [0.0, 3.0])
@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(("sigma", "q"), SETTINGS)
def test_a_coarse_sum_misses_the_integral_by_no_more_than_the_strip_bound(
    sigma: float, q: float, direction: Direction, theta: float
) -> None:
    pair, order = pair_of(sigma, q), 4.0
    power = power_of(direction, order)
    phase, h = grid_spacing(pair, power=power, theta=theta, share=0.1)
    share = strip_share(pair, power=power, theta=theta, phase=phase, h=h)
    assert 0.02 < share <= 0.1 * (1 + 1e-9)
    exact = complex(exact_moment(pair, direction, order, theta))
    sign = 1 if direction is REMOVE else -1
    size = float(exact_moment(pair, direction, order))
    worst = 0.0
    for offset in np.linspace(0, h, 9):
        begin = math.floor((-12 * sigma + min(0.0, power)) / h)
        x = offset + h * np.arange(begin, -begin + math.ceil(2 * abs(power) / h))
        loss = losses_at(x, pair).loss
        logs = power * loss + sign * 1j * theta * loss - 0.5 * (x / sigma) ** 2
        found = complex(np.sum(np.exp(logs))) * h / (sigma * math.sqrt(2 * math.pi))
        worst = max(worst, abs(found - exact) / size)
    assert 1e-11 < worst <= share


def test_the_strip_bound_grows_with_theta_with_the_noise_and_with_negative_powers() -> None:
    pair = pair_of(1.0, 0.01)
    at = {"power": 2.0, "theta": 0.0, "phase": 1.0, "h": 0.2}

    def exponent(pair: SampledGaussianPair, **changed: float) -> float:
        return math.log(strip_share(pair, **{**at, **changed}))

    base = exponent(pair)
    assert base == pytest.approx(math.log(2) + 0.5 - 2 * math.pi / 0.2)
    assert exponent(pair, theta=3.0) == pytest.approx(base + 3)
    assert exponent(pair, power=5.0) == pytest.approx(base)
    assert exponent(pair, power=-5.0) == pytest.approx(base - 5 * math.log(math.cos(0.5)))
    wide = pair_of(2.0, 0.01)
    assert exponent(wide) == pytest.approx(math.log(2) + 2 - 8 * math.pi / 0.2)


def test_a_grid_too_coarse_for_its_bound_is_refused() -> None:
    with pytest.raises(ArithmeticError, match="too coarse"):
        strip_share(pair_of(1.0, 0.01), power=2.0, theta=0.0, phase=1.0, h=10.0)


@pytest.mark.parametrize("order", [2.0, 8.0])
@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(("sigma", "q"), SETTINGS)
def test_tails_cover_what_a_short_sum_leaves_out(
    sigma: float, q: float, direction: Direction, order: float
) -> None:
    pair = pair_of(sigma, q)
    power = power_of(direction, order)
    h = 0.01 * min(sigma, sigma**2)
    x = np.arange(-12 * sigma + min(0.0, power), 12 * sigma + max(0.0, power), h)
    losses = losses_at(x, pair)
    terms = np.exp(power * losses.loss - 0.5 * (x / sigma) ** 2) * h / sigma
    terms /= math.sqrt(2 * math.pi)
    total = float(np.sum(terms))
    powers = np.array([power])
    for part in (1e-3, 0.02):
        first = int(np.searchsorted(np.cumsum(terms), part * total))
        last = int(np.searchsorted(np.cumsum(terms), (1 - part) * total))
        left = log_left_tail(
            pair,
            powers,
            left=float(x[first]),
            loss=float(losses.loss[first]),
            weight=float(losses.weight[first]),
        )
        right = log_right_tail(pair, powers, right=float(x[last]), loss=float(losses.loss[last]))
        for bound, exact in ((left, np.sum(terms[:first])), (right, np.sum(terms[last + 1 :]))):
            assert bound[0] >= math.log(exact)
    # With little noise an end between two peaks is bounded by its own, much higher, side.
    if sigma >= 1 and order < 4:
        assert max(left[0], right[0]) <= math.log(0.5 * total)


# ---- the ladder of real orders


@pytest.mark.no_cover
@pytest.mark.parametrize("what", ["fine", "coarse", "short"])
@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(("sigma", "q"), SETTINGS)
def test_the_ladder_is_above_the_moments_even_from_a_coarse_or_short_sum(
    sigma: float, q: float, direction: Direction, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "coarse":
        monkeypatch.setattr(real_moments, "TARGET", 0.2)
    if what == "short":
        monkeypatch.setattr(quadrature, "CUT", 2.0)
    pair = pair_of(sigma, q)
    found = log_moments(pair, direction)
    reach = int(np.sum(np.isfinite(log_moments(pair, REMOVE))))
    for index in {0, 30, reach // 2, reach - 1}:
        with mp.workdps(40):
            exact = mp.log(exact_moment(pair, direction, float(LADDER[index])))
            excess = float(mp.mpf(float(found[index])) - exact)
        assert excess >= 0
        if what == "fine" and LADDER[index] <= real_moments.ADD_ORDER_MAX:
            assert excess <= 1e-9 * (1 + abs(float(exact)))


def test_large_orders_of_an_added_record_are_bounded_by_the_removed_or_the_top() -> None:
    pair = pair_of(3.0, 0.2)
    found = log_moments(pair, ADD)
    large = LADDER > real_moments.ADD_ORDER_MAX
    certain = -LADDER * math.log1p(-0.2)
    least = np.minimum(certain, log_moments(pair, REMOVE))
    assert np.all(found[large] >= least[large])
    assert found[large] == pytest.approx(least[large])


CLOSED: list[tuple[Pair, Direction, Callable[[Any], Any]]] = [
    (
        GaussianPair(noise_multiplier=0.7),
        REMOVE,
        lambda z: mp.exp(z * (z + 1) / (2 * mp.mpf(0.7) ** 2)),
    ),
    (
        LaplacePair(scale=0.3, sampling_probability=1.0),
        ADD,
        lambda z: (
            (
                mp.exp(z / mp.mpf(0.3)) * (1 + 1 / (2 * z + 1))
                + mp.exp(-(z + 1) / mp.mpf(0.3)) * (1 - 1 / (2 * z + 1))
            )
            / 2
        ),
    ),
    (
        DiscretePair(first=(0.125, 0.625, 0.25, 0.0), second=(0.0, 0.25, 0.625, 0.125)),
        REMOVE,
        lambda z: mp.mpf(0.625) * mp.mpf(2.5) ** z + mp.mpf(0.25) * mp.mpf(0.4) ** z,
    ),
    (
        DiscretePair(first=(0.125, 0.625, 0.25), second=(0.375, 0.25, 0.375)),
        ADD,
        lambda z: (
            mp.mpf(0.375) * 3**z
            + mp.mpf(0.25) * mp.mpf(0.4) ** z
            + mp.mpf(0.375) * mp.mpf(1.5) ** z
        ),
    ),
]


@pytest.mark.parametrize(("pair", "direction", "moment"), CLOSED)
def test_the_ladder_of_closed_forms_is_above_them_by_roundoffs(
    pair: Pair, direction: Direction, moment: Callable[[Any], Any]
) -> None:
    found = log_moments(pair, direction)
    for index in range(0, len(LADDER), 5):
        with mp.workdps(40):
            exact = mp.log(moment(mp.mpf(float(LADDER[index]))))
            excess = float(mp.mpf(float(found[index])) - exact)
            assert 0 <= excess <= 1e-12 * (1 + float(abs(exact)))


# ---- lines


@pytest.mark.parametrize(("pair", "direction", "moment"), CLOSED)
@pytest.mark.parametrize("near", [1e-3, 0.5, 20.0])
def test_a_closed_line_is_within_its_slack(
    pair: Pair, direction: Direction, moment: Callable[[Any], Any], near: float
) -> None:
    order = float(LADDER[ladder_index(near)])
    line = line_of(pair, direction, order=order, spacing=0.37, nodes=40)
    with mp.workdps(40):
        base = mp.exp(mp.mpf(line.log_moment))
        assert abs(mp.log(moment(mp.mpf(order)) / base)) <= line.log_moment_error
        for n in (0, 1, 7, 39):
            theta = n * mp.mpf(0.37)
            exact = moment(mp.mpc(order, theta)) / moment(mp.mpf(order))
            found = mp.exp(mp.mpc(complex(line.log_values[n])))
            off = mp.log1p(abs(exact - found) / abs(found))
            assert off <= line.slack[n] + line.log_moment_error


@pytest.mark.no_cover
@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("near", [0.05, 2.0, 12.0])
@pytest.mark.parametrize(("sigma", "q"), SETTINGS)
def test_a_sampled_line_is_within_its_slack(
    sigma: float, q: float, near: float, direction: Direction
) -> None:
    pair, order = pair_of(sigma, q), float(LADDER[ladder_index(near)])
    if not math.isfinite(log_moments(pair, direction)[ladder_index(near)]):
        return
    line = line_of(pair, direction, order=order, spacing=0.5 * sigma, nodes=30)
    with mp.workdps(40):
        real = exact_moment(pair, direction, order)
        assert abs(mp.log(real) - mp.mpf(line.log_moment)) <= line.log_moment_error
        for n in (1, 5, 29):
            exact = exact_moment(pair, direction, order, 0.5 * sigma * n) / real
            found = mp.exp(mp.mpc(complex(line.log_values[n])))
            assert mp.log1p(abs(exact - found) / abs(found)) <= line.slack[n]
    assert np.all(line.slack[:5] < 1e-9)


@pytest.mark.parametrize("what", ["strip", "tails"])
def test_a_coarse_or_short_line_says_how_far_off_it_is(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "strip":
        monkeypatch.setattr(tilted_grids, "TARGET", 1e-3)
    else:
        monkeypatch.setattr(tilted_grids, "NEGLIGIBLE", 7.0)
    pair, order = pair_of(1.0, 0.3), float(LADDER[ladder_index(2.0)])
    line = line_of(pair, REMOVE, order=order, spacing=0.4, nodes=12)
    worst, real = 0.0, exact_moment(pair, REMOVE, order)
    off = abs(float(mp.log(real)) - line.log_moment)
    assert off <= line.log_moment_error
    for n in range(1, 12):
        exact = complex(exact_moment(pair, REMOVE, order, 0.4 * n) / real)
        found = complex(np.exp(line.log_values[n]))
        missed = math.log1p(abs(exact - found) / abs(found))
        assert missed <= line.slack[n]
        worst = max(worst, missed)
    assert worst > 1e-9  # far above rounding: only the term can cover it


def test_the_rounding_of_phases_and_of_weights_and_what_is_left_out_all_reach_the_slack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = float(LADDER[ladder_index(4.0)])

    def slack(name: str, value: Callable[..., Any] | None) -> Array:
        complex_moments.forget()
        with monkeypatch.context() as patch:
            if value is not None:
                patch.setattr(
                    complex_moments if hasattr(complex_moments, name) else tilted_grids, name, value
                )
            return line_of(PAIR, REMOVE, order=order, spacing=0.3, nodes=20).slack

    base = slack("", None)
    moduli = np.exp(line_of(PAIR, REMOVE, order=order, spacing=0.3, nodes=20).log_values.real)
    phases = slack("rounding_of_phases", lambda grid, theta: np.full(len(theta), 1e-3))
    assert phases == pytest.approx(base + np.log1p(1e-3 / moduli), rel=1e-3)
    strip = slack("strip_share", lambda *_, **__: 1e-3)
    assert strip == pytest.approx(base + np.log1p(2.01 * 1.01e-3 / moduli), rel=1e-3)
    weights = slack("rounding_of_weights", lambda x, *_: np.full(len(x), 1e-3))
    assert np.all(weights[1:] > base[1:] + 1e-4 * np.abs(1 - moduli[1:]))


def test_an_uneven_block_of_nodes_has_the_rounding_of_its_own_end() -> None:
    grid = grid_of(PAIR, REMOVE, float(LADDER[ladder_index(4.0)]), 8.0)
    theta = 0.02 * np.arange(23.0)  # blocks of four and one of three
    found = complex_moments.rounding_of_phases(grid, theta)
    assert len(found) == 23
    assert np.all(found[4:] <= 1e3 * UNIT_ROUNDOFF + 2 * found[-1])
    turns = np.minimum(2.0, np.multiply.outer(theta, np.abs(grid.losses)))
    weights = dataclasses.replace(grid, weight_errors=np.full_like(grid.weights, 1e-3))
    of_weights = complex_moments.rounding_of_phases(weights, theta) - found
    assert np.all(of_weights >= 2e-3 * (turns @ grid.weights) * (1 - 1e-9))
    losses = dataclasses.replace(grid, loss_errors=np.full_like(grid.weights, 1e-3))
    assert np.all(
        complex_moments.rounding_of_phases(losses, theta) - found >= 1e-3 * theta * (1 - 1e-9)
    )


def test_the_transform_of_an_uneven_number_of_nodes_is_the_plain_sum() -> None:
    grid = grid_of(PAIR, ADD, float(LADDER[ladder_index(4.0)]), 8.0)
    theta = 0.3 * np.arange(23.0)
    plain = np.expm1(1j * np.multiply.outer(theta, grid.losses)) @ grid.weights
    found = complex_moments._transform(grid.losses, grid.weights, theta)
    assert np.all(np.abs(found - plain) <= complex_moments.rounding_of_phases(grid, theta) + 1e-15)


def test_the_logarithm_of_a_value_near_zero_half_or_one_is_within_its_slack() -> None:
    rng = np.random.default_rng(7)
    sizes = np.concatenate((np.geomspace(1e-12, 1, 40), 1 - np.geomspace(1e-9, 0.5, 40)))
    true = -sizes * np.exp(0.3j * rng.normal(size=80)) + 1e-3j * sizes
    error = np.geomspace(1e-15, 1e-6, 80)[rng.permutation(80)]
    given = true + error * np.exp(2j * math.pi * rng.random(80))
    log_values, slack = complex_moments._logarithms(given, error)
    with mp.workdps(40):
        for v, log_value, allowed in zip(true, log_values, slack, strict=True):
            found = mp.exp(mp.mpc(complex(log_value)))
            off = abs(1 + mp.mpc(complex(v)) - found) / abs(found)
            assert mp.log1p(off) <= allowed * (1 + 1e-9)


def test_a_value_of_nothing_has_a_finite_logarithm_and_a_slack_that_covers_it() -> None:
    log_values, slack = complex_moments._logarithms(np.array([-1 + 0j]), np.array([1e-15]))
    assert math.isfinite(log_values[0].real)
    assert np.exp(log_values[0].real) * np.expm1(min(700.0, slack[0])) >= 1e-15
