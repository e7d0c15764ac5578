"""The contour engine's brackets: every error on its side, known answers, properties, caches."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from accounting.events import Direction
from accounting.gaussian import gaussian_bracket_epsilon, log_gaussian_delta
from accounting.pld.contour import complex_moments, contour_bounds, inversion
from accounting.pld.contour.complex_moments import Line, line_of
from accounting.pld.contour.contour_bounds import contour_delta, contour_epsilon, invert
from accounting.pld.contour.inversion import (
    Inversion,
    Placement,
    guess_near,
    log_alias,
    log_total_moments,
    log_truncations,
    moment_errors,
    scale_rounding,
    summation_rounding,
)
from accounting.pld.contour.real_moments import LADDER, log_moments
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    Pair,
    SampledGaussianPair,
    Units,
)
from accounting.rounding import Array

REMOVE, ADD = Direction.REMOVE, Direction.ADD


def sampled(sigma: float, q: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)


UNITS: Units = [(sampled(1.0, 0.01), 1000)]
# delta at an epsilon to 18 digits: the inversion integral in fixed-point arithmetic of 57 digits,
# with moments from trapezoidal sums of error 1e-40 and three times the engine's window (code of the
# reviewer, independent of this package).
KNOWN: list[tuple[Units, Direction, float, float, float]] = [
    (UNITS, REMOVE, 1.8, 1.2377358730614995795e-5, 2e-9),
    (UNITS, ADD, 1.4, 1.2290736827942198925e-5, 2e-9),
    ([(sampled(0.6, 1e-4), 100_000)], REMOVE, 1.9535, 1.0002705243666342386e-8, 2e-6),
    (
        [(sampled(4.0, 0.2), 50), (sampled(2.0, 0.05), 300)],
        ADD,
        2.0,
        5.9600908492249382103e-5,
        2e-9,
    ),
    ([(sampled(10.0, 0.3), 10**6)], REMOVE, 728.822, 9.9993888725706579524e-21, 1e-6),
    ([(sampled(1e4, 0.5), 10**9)], REMOVE, 7.511, 1.0007584932815990336e-5, 5e-4),
]
# (q, sigma, steps, direction, delta, lower, upper) from the table golden/sampling.json of the
# project's theory notes: brackets of an earlier prototype with another discretisation.
PROTOTYPE = [
    (256 / 60000, 1.1, 14040, ADD, 1e-5, 2.24154725220154, 2.241547252531323),
    (256 / 60000, 1.1, 14040, ADD, 1e-12, 3.7822913464505836, 3.7822913466128525),
    (256 / 60000, 1.1, 14040, REMOVE, 1e-16, 4.955032436873789, 4.9550324406786155),
    (256 / 60000, 1.1, 14040, REMOVE, 1e-20, 5.676458408191066, 5.6764584217651),
    (256 / 60000, 1.1, 14040, ADD, 1e-20, 4.96070848091962, 4.960708481043339),
    (256 / 60000, 1.1, 1000, ADD, 1e-5, 0.49262659979909895, 0.4926265998509696),
    (0.08192, 3.0, 2500, REMOVE, 1e-5, 6.57889585049381, 6.578895850608557),
    (0.08192, 3.0, 2500, ADD, 1e-5, 6.351934053445621, 6.3519340535838325),
    (1e-4, 0.6, 100_000, REMOVE, 1e-8, 1.9535569778151196, 1.9535698823283987),
    (1e-4, 0.6, 100_000, ADD, 1e-8, 0.5471096461871156, 0.5471096473631724),
    (1e-3, 0.8, 10**6, ADD, 1e-6, 10.400062930392108, 10.400062985542704),
    (0.01, 1.0, 1000, REMOVE, 1e-12, 3.9142981552288396, 3.9142981568025563),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """No patched line or grid outlives its test."""
    yield
    complex_moments.forget()
    log_moments.cache_clear()


def inverted(units: Units, direction: Direction, epsilon: float, share: float = 1e-9) -> Inversion:
    log_total = log_total_moments(units, direction)
    delta = contour_delta(units, direction, epsilon=epsilon, width=1e-3)[1]
    guess = guess_near(log_total, epsilon, math.log(delta))
    return invert(units, direction, guess, log_total, share=share)


def gaussian_delta(epsilon: float, mu: float) -> float:
    return math.exp(log_gaussian_delta(epsilon, mu=mu)[0])


# ---- known answers


@pytest.mark.parametrize(("units", "direction", "epsilon", "delta", "width"), KNOWN)
def test_delta_lies_in_its_bracket(
    units: Units, direction: Direction, epsilon: float, delta: float, width: float
) -> None:
    lower, upper = contour_delta(units, direction, epsilon=epsilon, width=1e-9)
    assert lower <= delta <= upper
    assert upper - lower <= width * delta


@pytest.mark.parametrize(("units", "direction", "epsilon", "delta", "width"), KNOWN)
def test_epsilon_lies_in_its_bracket(
    units: Units, direction: Direction, epsilon: float, delta: float, width: float
) -> None:
    lower, upper = contour_epsilon(units, direction, delta=delta, width=1e-9)
    assert lower <= epsilon * (1 + 1e-15)
    assert epsilon <= upper * (1 + 1e-15)
    assert upper - lower <= width * epsilon


@pytest.mark.parametrize(("q", "sigma", "steps", "direction", "delta", "low", "high"), PROTOTYPE)
def test_the_bracket_meets_that_of_the_prototype(
    q: float, sigma: float, steps: int, direction: Direction, delta: float, low: float, high: float
) -> None:
    units = [(sampled(sigma, q), steps)]
    lower, upper = contour_epsilon(units, direction, delta=delta, width=1e-7)
    assert lower <= high
    assert low <= upper
    assert upper - lower <= 1e-5 * upper


@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12, 1e-20])
@pytest.mark.parametrize("mu", [0.05, 1.0, 6.0])
def test_gaussian_steps_have_their_closed_form_inside(mu: float, delta: float) -> None:
    units: Units = [
        (GaussianPair(noise_multiplier=20 / mu), 100),
        (GaussianPair(noise_multiplier=10 / mu), 75),
    ]
    closed = gaussian_bracket_epsilon(delta, mu=(mu, mu))
    if closed[1] == 0:
        return
    lower, upper = contour_epsilon(units, REMOVE, delta=delta, width=1e-7)
    assert lower <= closed[1]
    assert closed[0] <= upper
    assert lower < upper


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_a_rate_next_to_one_is_next_to_the_full_batch(direction: Direction) -> None:
    units: Units = [(sampled(10.0, 1 - 1e-9), 100)]
    lower, upper = contour_epsilon(units, direction, delta=1e-12, width=1e-7)
    closed = gaussian_bracket_epsilon(1e-12, mu=(1.0, 1.0))[0]
    assert lower == pytest.approx(closed, rel=1e-6)
    assert upper == pytest.approx(closed, rel=1e-6)


def exact_binomial(epsilon: float, first: tuple[float, ...], second: tuple[float, ...]) -> Any:
    """delta of five discrete steps and one Gaussian of noise 2, by summing over outcomes."""
    with mp.workdps(40):
        total = mp.mpf(0)
        mu = mp.mpf(1) / 2
        for counts in [(a, b, 5 - a - b) for a in range(6) for b in range(6 - a)]:
            p = q = mp.mpf(math.factorial(5))
            for count, one, other in zip(counts, first, second, strict=True):
                p *= mp.mpf(one) ** count / mp.factorial(count)
                q *= mp.mpf(other) ** count / mp.factorial(count)
            if q == 0:
                total += p
                continue
            if p == 0:
                continue
            at = mp.mpf(epsilon) - mp.log(p / q)
            tail = mp.ncdf(mu / 2 - at / mu) - mp.exp(at) * mp.ncdf(-mu / 2 - at / mu)
            total += p * tail
        return total


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_discrete_steps_beside_noise_have_their_sum_inside(
    direction: Direction, epsilon: float
) -> None:
    first, second = (0.001953125, 0.625, 0.373046875), (0.0, 0.375, 0.625)
    units: Units = [
        (DiscretePair(first=first, second=second), 5),
        (GaussianPair(noise_multiplier=2.0), 1),
    ]
    forth = (first, second) if direction is REMOVE else (second, first)
    exact = exact_binomial(epsilon, *forth)
    lower, upper = contour_delta(units, direction, epsilon=epsilon, width=1e-7)
    assert lower <= exact <= upper
    assert upper - lower <= 1e-5 * exact


# ---- each error is in the bracket, on its side


def read_with(base: Inversion, epsilon: float, **changed: Any) -> tuple[float, float]:
    return dataclasses.replace(base, **changed).read(epsilon)


@pytest.mark.parametrize("field", ["moments_off", "truncated"])
def test_an_error_of_moments_or_of_the_cut_widens_both_sides(field: str) -> None:
    base = inverted(UNITS, REMOVE, 1.8)
    (lower, upper), value = base.read(1.8), base.estimate(1.8)[0]
    scale = math.exp(base.log_moment - base.order * 1.8)
    added = 1e-3 * value / scale
    low, high = read_with(base, 1.8, **{field: getattr(base, field) + added})
    assert high - upper == pytest.approx(1e-3 * value, rel=1e-3)
    assert lower - low == pytest.approx(1e-3 * value, rel=1e-3)


def test_an_error_of_the_real_moment_widens_both_sides() -> None:
    base = inverted(UNITS, REMOVE, 1.8)
    (lower, upper), value = base.read(1.8), base.estimate(1.8)[0]
    low, high = read_with(base, 1.8, log_errors=base.log_errors + 1e-3)
    assert high - upper == pytest.approx(1e-3 * value, rel=1e-2)
    assert lower - low == pytest.approx(1e-3 * value, rel=1e-2)
    low, high = read_with(base, 1.8, log_sizes=1e12)
    assert low < lower * (1 - 1e-4)
    assert high > upper * (1 + 1e-4)


@pytest.mark.parametrize("name", ["summation_rounding", "log_alias"])
def test_the_sum_s_rounding_widens_both_sides_and_the_wrapped_terms_the_lower(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = inverted(UNITS, REMOVE, 1.8)
    (lower, upper), value = base.read(1.8), base.estimate(1.8)[0]
    scale = math.exp(base.log_moment - base.order * 1.8)
    size = 1e-3 * value / scale
    if name == "log_alias":
        size = math.log(1e-3 * value) + base.order * 1.8
    monkeypatch.setattr(inversion, name, lambda *_, **__: size)
    low, high = base.read(1.8)
    assert lower - low == pytest.approx(1e-3 * value, rel=1e-3)
    assert high - upper == pytest.approx(0 if name == "log_alias" else 1e-3 * value, rel=1e-3)


def test_an_infinite_loss_adds_its_probability_to_both_sides() -> None:
    base = inverted(UNITS, REMOVE, 1.8)
    (lower, upper), value = base.read(1.8), base.estimate(1.8)[0]
    failing = dataclasses.replace(base, failure=(0.25, 0.5))
    assert failing.read(1.8) == (lower + 0.25, upper + 0.5)
    assert failing.estimate(1.8)[0] == value + 0.5


def test_the_lines_errors_reach_the_inversion(monkeypatch: pytest.MonkeyPatch) -> None:
    base = inverted(UNITS, REMOVE, 1.8)

    def worse(pair: Pair, direction: Direction, **at: Any) -> Line:
        line = line_of(pair, direction, **at)
        return Line(
            line.log_moment, line.log_moment_error + 1e-9, line.log_values, line.slack + 1e-9
        )

    monkeypatch.setattr(contour_bounds, "line_of", worse)
    found = inverted(UNITS, REMOVE, 1.8)
    kernel = 1 / np.abs((base.order + 1j * base.thetas) * (1 + base.order + 1j * base.thetas))
    moduli = np.exp(
        1000
        * line_of(
            UNITS[0][0], REMOVE, order=base.order, spacing=base.spacing, nodes=len(base.thetas)
        ).log_values.real
    )
    added = 1000 * 1e-9 * base.spacing / math.pi * float(kernel @ moduli)
    assert found.moments_off - base.moments_off == pytest.approx(added, rel=0.05)
    assert found.log_errors - base.log_errors == pytest.approx(1e-6, rel=1e-6)


def assembled(
    units: Units, *, order: float, window: float, nodes: int, truncated: float = 0.0
) -> Inversion:
    placed = Placement(int(np.argmin(np.abs(LADDER - order))), window)
    log_total = log_total_moments(units, REMOVE)
    return contour_bounds._assemble(units, REMOVE, placed, nodes, log_total, truncated=truncated)


@pytest.mark.parametrize("window", [3.0, 5.0, 8.0])
def test_a_short_window_wraps_what_the_lower_end_gives_back(window: float) -> None:
    units: Units = [(GaussianPair(noise_multiplier=1.0), 1)]
    exact = gaussian_delta(1.0, 1.0)
    found = assembled(units, order=1.5, window=window, nodes=200)
    (lower, upper), value = found.read(1.0), found.estimate(1.0)[0]
    assert value > exact * (1 + 1e-9)  # wrapped terms are never negative
    assert lower <= exact <= upper
    if window > 4:
        assert lower >= exact - 30 * (value - exact)  # the bound is not absurd


@pytest.mark.parametrize("window", [3.0, 8.0])
@pytest.mark.parametrize("order", [0.3, 1.5, 4.0])
def test_the_wrapped_terms_are_bounded_by_their_own_sum(order: float, window: float) -> None:
    units: Units = [(GaussianPair(noise_multiplier=1.0), 1)]
    index = int(np.argmin(np.abs(LADDER - order)))
    lam = float(LADDER[index])
    exact = 0.0
    for m in [m for m in range(-40, 13) if m]:
        epsilon = 1.0 + m * window
        delta = (
            gaussian_delta(epsilon, 1.0)
            if epsilon >= 0
            else 1 - math.exp(epsilon) + math.exp(epsilon) * gaussian_delta(-epsilon, 1.0)
        )
        exact += math.exp(lam * epsilon) * delta
    bound = log_alias(log_total_moments(units, REMOVE), index, window=window, epsilon=1.0)
    assert math.log(exact) <= bound <= math.log(exact) + 3


def test_without_other_orders_nothing_is_known_of_what_wraps_around() -> None:
    log_total = np.full_like(LADDER, np.inf)
    log_total[50] = 1.0
    assert log_alias(log_total, 50, window=5.0, epsilon=1.0) == math.inf
    assert log_alias(log_total, 115, window=5.0, epsilon=1.0) == math.inf


@pytest.mark.parametrize("nodes", [6, 12, 20])
def test_a_short_sum_leaves_out_no_more_than_it_says(nodes: int) -> None:
    units: Units = [(GaussianPair(noise_multiplier=1.0), 1)]
    window = 30.0
    spacing = 2 * math.pi / window
    thetas: Array = spacing * np.arange(nodes, 20_000).astype(np.float64)
    bound = float(np.exp(log_truncations(-0.5 * thetas * thetas, thetas, spacing))[0])
    short = assembled(units, order=1.5, window=window, nodes=nodes, truncated=bound)
    exact = gaussian_delta(1.0, 1.0)
    (lower, upper), value = short.read(1.0), short.estimate(1.0)[0]
    assert abs(value - exact) > 1e-8 * exact
    assert lower <= exact <= upper


def test_an_inversion_s_cut_is_the_bound_of_all_nodes_beyond_it() -> None:
    base = inverted(UNITS, REMOVE, 1.8, share=1e-3)
    longer = line_of(
        UNITS[0][0], REMOVE, order=base.order, spacing=base.spacing, nodes=4 * len(base.thetas)
    )
    thetas = base.spacing * np.arange(len(longer.slack))
    z = base.order + 1j * thetas
    sizes = np.exp(1000 * longer.log_values.real) / np.abs(z * (1 + z))
    missing = base.spacing / math.pi * float(np.sum(sizes[len(base.thetas) :]))
    assert 0 < missing <= base.truncated


def test_what_nodes_beyond_a_theta_add_is_at_most_the_bound_and_near_it() -> None:
    spacing = 0.25
    grid = np.exp(np.log(1.06) * np.arange(40, 120))
    bound = log_truncations(-0.01 * grid, grid, spacing)
    for i in (0, 13, 60):
        n = np.arange(math.ceil(grid[i] / spacing), 40_000)
        theta = n * spacing
        exact = float(np.sum(np.exp(-0.01 * theta) / theta**2)) * spacing / math.pi
        assert math.log(exact) <= bound[i] <= math.log(exact) + 0.4
    assert np.all(np.isneginf(log_truncations(np.full(3, -2000.0), grid[:3] * 1e200, 1e-200)))


def test_a_node_at_the_very_cut_counts() -> None:
    thetas = 2.0 * np.exp(math.log(1.06) * np.arange(100.0))
    exact = 2.0 / math.pi * sum(1 / (2.0 * n) ** 2 for n in range(1, 10_000))
    assert log_truncations(np.zeros(100), thetas, 2.0)[0] >= math.log(exact)


def test_errors_of_moments_cover_the_worst_phase() -> None:
    rng = np.random.default_rng(3)
    log_values, kernel = -np.linspace(0, 20, 50), np.linspace(1, 0.1, 50)
    slack = np.geomspace(1e-9, 5, 50)
    bound = moment_errors(log_values, slack, kernel, 0.2)
    true = np.exp(log_values) * np.expm1(slack) @ kernel * 0.2 / math.pi
    assert true <= bound <= 2 * true
    turned = np.exp(log_values) * np.expm1(slack) * np.exp(2j * math.pi * rng.random(50)) * kernel
    assert abs(0.2 / (2 * math.pi) * (2 * np.sum(turned) - turned[0])) <= bound
    assert math.isfinite(moment_errors(log_values, slack * 1e9, kernel, 0.2))


def test_the_rounding_of_the_sum_covers_what_it_loses() -> None:
    rng = np.random.default_rng(5)
    thetas, epsilon = 1e5 * np.arange(400.0), 30.0
    logs = -rng.random(400) + 1j * rng.random(400)
    terms = np.exp(logs - 1j * thetas * epsilon)
    with mp.workdps(40):
        exact = mp.fsum(
            mp.exp(mp.mpc(complex(a)) - 1j * mp.mpf(float(t)) * epsilon)
            for a, t in zip(logs, thetas, strict=True)
        )
        off = abs(mp.mpf(float(np.sum(np.real(terms)))) - exact.real)
    bound = summation_rounding(np.abs(terms), thetas, epsilon, math.pi)
    assert bound / 1e5 < off <= bound


def test_the_scale_s_error_is_infinite_when_it_is_not_small() -> None:
    assert scale_rounding(10.0, 0.5, 2.0, 3.0) == pytest.approx(math.expm1(0.5))
    assert scale_rounding(10.0, 0.0, 2.0, 3.0) > 16 * 20 * 2.0**-53
    assert scale_rounding(10.0, 1.0, 2.0, 3.0) == math.inf
