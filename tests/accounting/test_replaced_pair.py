"""The pair of a replaced record in both engines: tails, profile, moments, transform and decay."""

import math

import mpmath
import numpy as np
import pytest

from accounting.events import Direction
from accounting.pld.certified_composition import epsilon_bracket
from accounting.pld.contour import replaced_quadrature
from accounting.pld.contour.complex_moments import line_of, log_modulus
from accounting.pld.contour.real_moments import LADDER, NoMomentsError, log_moments
from accounting.pld.contour.replaced_quadrature import (
    log_replaced_tails,
    replaced_share,
    replaced_spacing,
    sides_at,
    turns,
)
from accounting.pld.contour.tilted_grids import theta_grid
from accounting.pld.lattice.lattice_bounds import lattice_epsilon
from accounting.pld.pairs import GaussianPair, Pair, ReplacedGaussianPair, SampledGaussianPair
from accounting.pld.profiles import profile, profiles
from accounting.pld.tails import tails

REMOVE, ADD = Direction.REMOVE, Direction.ADD
CASES = [(0.05, 0.01), (0.3, 0.5), (1.0, 1e-9), (1.0, 0.01), (1.0, 0.9), (3.0, 0.5), (100.0, 0.99)]
LOSSES = np.array([0.0, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 5.0, 50.0, 300.0])


def replaced(sigma: float, q: float) -> ReplacedGaussianPair:
    return ReplacedGaussianPair(noise_multiplier=sigma, sampling_probability=q)


def exact_tails(sigma: float, q: float, loss: float) -> tuple[object, ...]:
    """P(L > l), Q(L > l) and both of the rest, at 60 digits."""
    s, r, half = mpmath.mpf(sigma), mpmath.mpf(q), mpmath.mpf(loss) / 2
    x = s**2 * (half + mpmath.asinh((1 - r) * mpmath.sinh(half) / r * mpmath.exp(1 / s**2 / 2)))

    def above(mean: int, sign: int) -> object:
        return (1 - r) * mpmath.ncdf(-sign * x / s) + r * mpmath.ncdf(-sign * (x - mean) / s)

    return above(1, 1), above(-1, 1), above(1, -1), above(-1, -1)


@pytest.mark.parametrize(("sigma", "q"), [*CASES, (1e-3, 0.5), (1e6, 0.5)])
def test_tails_and_profile_are_right_to_their_stated_error(sigma: float, q: float) -> None:
    pair, losses = replaced(sigma, q), np.concatenate((-LOSSES[1:], LOSSES))
    found = tails(pair, direction=REMOVE, losses=losses)
    lower, upper = profiles(pair, direction=ADD, losses=losses)
    with mpmath.workdps(60):
        for i, loss in enumerate(losses):
            exact = exact_tails(sigma, q, float(loss))
            values = found.p_above[i], found.q_above[i], found.p_below[i], found.q_below[i]
            for value, truth in zip(values, exact, strict=True):
                assert abs(value - truth) <= found.error[i] * truth + 1e-290
            delta = exact[0] - mpmath.exp(mpmath.mpf(float(loss))) * exact[1]
            assert lower[i] <= delta <= upper[i]
            assert upper[i] - lower[i] <= 1e-7 * delta + 1e-40


def test_a_place_that_rounding_does_not_know_has_no_stated_accuracy() -> None:
    pair = replaced(1e-12, 0.5)
    at = tails(pair, direction=REMOVE, losses=np.array([1.0]))
    assert np.isinf(at.error[0])
    assert profile(pair, direction=REMOVE, epsilon=1.0)[1] == 1.0


def exact_moment(sigma: float, q: float, z: object) -> object:
    """E[S(x)^(1+z) S(-x)^-z] at 30 digits."""
    s, r = mpmath.mpf(sigma), mpmath.mpf(q)

    def ratio(x: object) -> object:
        return 1 - r + r * mpmath.exp((2 * x - 1) / (2 * s**2))  # type: ignore[operator]

    def integrand(x: object) -> object:
        power = mpmath.exp(z * (mpmath.log(ratio(x)) - mpmath.log(ratio(-x))))  # type: ignore[operator]
        return mpmath.npdf(x, 0, s) * ratio(x) * power

    top = 1 + 2 * float(mpmath.re(z)) + 12 * sigma
    return mpmath.quad(integrand, mpmath.linspace(-12 * sigma, top, 24))


@pytest.mark.parametrize(("sigma", "q"), [(0.6, 0.01), (1.0, 0.3), (1.0, 0.9), (4.0, 0.5)])
def test_moments_enclose_the_exact_ones(sigma: float, q: float) -> None:
    found = log_moments(replaced(sigma, q), REMOVE)
    assert np.array_equal(found, log_moments(replaced(sigma, q), ADD))
    with mpmath.workdps(30):
        for index in (5, 20, 40, 60, 70):
            exact = mpmath.log(exact_moment(sigma, q, mpmath.mpf(float(LADDER[index]))))
            assert exact <= found[index]
            assert found[index] <= exact * (1 + 1e-9) + 1e-10


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.3), (0.6, 0.9)])
def test_the_transform_is_the_exact_one_within_its_slack(sigma: float, q: float) -> None:
    pair, order, spacing = replaced(sigma, q), float(LADDER[60]), 0.7
    line = line_of(pair, REMOVE, order=order, spacing=spacing, nodes=16)
    offset, thetas = theta_grid(spacing, 15 * spacing)
    with mpmath.workdps(30):
        whole = exact_moment(sigma, q, mpmath.mpf(order))
        assert abs(line.log_moment - mpmath.log(whole)) <= line.log_moment_error
        for n in (1, 4, 15):
            z = mpmath.mpc(order, spacing * n)
            exact = exact_moment(sigma, q, z) / whole  # type: ignore[operator]
            computed = mpmath.exp(mpmath.mpmathify(complex(line.log_values[n])))
            slack = mpmath.expm1(mpmath.mpf(float(line.slack[n]))) * abs(computed)
            assert abs(exact - computed) <= slack
            assert slack <= 1e-10
            for fine in (False, True):
                moduli = log_modulus(
                    pair, REMOVE, order=order, offset=offset, thetas=thetas, fine=fine
                )
                bound = float(np.interp(spacing * n, thetas, moduli)) + 1e-6
                below = int(np.searchsorted(thetas, spacing * n)) - 1
                bound = max(bound, float(moduli[max(below, 0)]))
                assert mpmath.log(abs(exact)) <= bound


@pytest.mark.parametrize("q", [0.01, 0.3, 0.5])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0])
def test_both_phases_together_turn_by_no_more_than_one(q: float, sigma: float) -> None:
    assert turns(replaced(sigma, q)) == 1
    for phase in (0.3, 1.5, 2.5):
        x = np.linspace(-8 * sigma - 2, 8 * sigma + 2, 999)
        place = x + 1j * phase * sigma**2
        angles = [
            np.angle(1 - q + q * np.exp((2 * side - 1) / (2 * sigma**2)))
            for side in (place, -place)
        ]
        assert np.max(angles[0] - angles[1]) <= phase * (1 + 1e-12)


def test_beyond_one_half_both_phases_may_turn_by_more_than_one() -> None:
    q, sigma, phase = 0.95, 3.0, 1.0
    place = 0.0 + 1j * phase * sigma**2
    ratios = (1 - q + q * np.exp((2 * side - 1) / (2 * sigma**2)) for side in (place, -place))
    here, there = (float(np.angle(ratio)) for ratio in ratios)
    assert here - there > 1.5 * phase
    assert turns(replaced(sigma, q)) == 2


def test_the_tails_cover_what_a_grid_leaves_out() -> None:
    pair, order = replaced(1.0, 0.3), 2.0
    x = np.linspace(-40.0, 60.0, 200_001)
    sides = sides_at(x, pair)
    terms = np.exp(sides.exponents(order) - 0.5 * x * x) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    for left, right in ((-1.0, 4.0), (-3.0, 6.0), (-0.5, 1.0)):
        inside = (x >= left) & (x <= right)
        near = sides_at(x[inside], pair)
        bound = log_replaced_tails(pair, np.array([order]), x[inside], near)[0]
        assert math.log(float(np.sum(terms[~inside]))) <= bound


def test_a_grid_that_its_strip_allows_is_as_good_as_it_says() -> None:
    for q in (0.3, 0.9):
        pair, order, theta = replaced(1.0, q), 3.0, 2.0
        phase, h = replaced_spacing(pair, order=order, theta=theta, share=0.05)
        share = replaced_share(pair, order=order, theta=theta, phase=phase, h=h)
        assert 0 < share <= 0.06

        def total(step: float, pair: ReplacedGaussianPair = pair) -> complex:
            x = np.arange(-12.0, 20.0, step)
            sides = sides_at(x, pair)
            logs = sides.exponents(3.0) - 0.5 * x * x + 2j * sides.loss
            return complex(np.sum(np.exp(logs))) * step

        fine, moment = total(0.001), np.abs(total(0.001))
        x = np.arange(-12.0, 20.0, 0.001)
        moment = float(np.sum(np.exp(sides_at(x, pair).exponents(3.0) - 0.5 * x * x))) * 0.001
        assert abs(total(h) - fine) <= share * moment


def test_both_engines_give_one_answer() -> None:
    for sigma, q, count in ((1.0, 0.01, 1000), (0.6, 0.9, 3), (4.0, 0.004, 14_100)):
        units = [(replaced(sigma, q), count)]
        found = epsilon_bracket(units, delta=1e-5)
        assert found.upper - found.lower <= 1e-5 * found.upper
        other = lattice_epsilon(units, direction=ADD, delta=1e-5, width=1e-3)
        assert other[0] <= found.upper
        assert found.lower <= other[1]


def test_replaced_records_lose_more_than_one_and_less_than_two() -> None:
    for q, count in ((0.01, 100), (0.7, 5)):
        one = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=q)
        two = GaussianPair(noise_multiplier=0.5)
        pairs: tuple[Pair, ...] = one, replaced(1.0, q), two
        ends = [epsilon_bracket([(pair, count)], delta=1e-6) for pair in pairs]
        assert ends[0].upper < ends[1].lower
        assert ends[1].upper < ends[2].lower


def test_beside_other_pairs_it_is_composed_on_the_contour() -> None:
    units: list[tuple[Pair, int]] = [
        (replaced(1.0, 0.01), 500),
        (replaced(1.3, 0.02), 200),
        (GaussianPair(noise_multiplier=8.0), 3),
    ]
    found = epsilon_bracket(units, delta=1e-5)
    assert found.upper - found.lower <= 1e-7 * found.upper
    assert found.lower > epsilon_bracket(units[:2], delta=1e-5).upper


def test_too_little_noise_to_be_summed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoMomentsError, match="too little noise"):
        log_moments(replaced(1e-5, 0.5), REMOVE)
    monkeypatch.setattr(replaced_quadrature, "CUT", 1.5)
    log_moments.cache_clear()
    rough = log_moments(replaced(1.0, 0.3), REMOVE)
    monkeypatch.undo()
    log_moments.cache_clear()
    assert rough[50] >= log_moments(replaced(1.0, 0.3), REMOVE)[50] - 1e-12
