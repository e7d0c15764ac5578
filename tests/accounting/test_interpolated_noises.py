"""Many noises between few: coins above them, prolonged lines below."""

import math
from dataclasses import replace
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import special

from accounting.events import Direction
from accounting.pld import interpolated_noises
from accounting.pld.certified_composition import (
    delta_bracket,
    delta_in_order,
    epsilon_bracket,
    epsilon_in_order,
    lower_epsilon,
)
from accounting.pld.contour import complex_moments
from accounting.pld.contour.complex_moments import Line, line_of, log_modulus
from accounting.pld.contour.interpolated_moments import density_ratio
from accounting.pld.contour.real_moments import LADDER, NoMomentsError, log_moments
from accounting.pld.contour.tilted_grids import theta_grid
from accounting.pld.interpolated_noises import interpolate_above, interpolate_below
from accounting.pld.pairs import (
    GaussianPair,
    InterpolatedSteps,
    MixturePair,
    ReplacedGaussianPair,
    SampledGaussianPair,
    Units,
)
from accounting.pld.profiles import UnknownProfileError, profile, profiles
from accounting.pld.tails import tails
from accounting.rounding import Array

KINDS = (SampledGaussianPair, ReplacedGaussianPair)
CASES = [
    (kind, rate, noises)
    for kind in KINDS
    for rate in (1e-4, 0.02, 0.5)
    for noises in ((0.4, 0.6), (1.1, 2.2), (5.0, 40.0))
]
LOSSES = np.concatenate([-np.geomspace(1e-6, 8, 24)[::-1], [0.0], np.geomspace(1e-6, 8, 24)])
DELTA = 1e-5


def curve(kind: type[MixturePair], rate: float, noises: tuple[float, float], size: int) -> Units:
    low, high = noises
    return [
        (
            kind(
                noise_multiplier=low * (high / low) ** (n / (size - 1)), sampling_probability=rate
            ),
            1,
        )
        for n in range(size)
    ]


def only(units: Units | None) -> list[InterpolatedSteps]:
    assert units
    found = [pair for pair, _ in units if isinstance(pair, InterpolatedSteps)]
    assert len(found) == len(units)
    return found


def mixed(pair: InterpolatedSteps, share: float, direction: Direction) -> tuple[Array, Array]:
    """The profile of one step of a share, lower and upper."""
    near, far = (profiles(p, direction=direction, losses=LOSSES) for p in (pair.near, pair.far))
    rest = 1 - share
    ends = (far[1], far[0]) if rest < 0 else far
    return share * near[0] + rest * ends[0], share * near[1] + rest * ends[1]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("kind", "rate", "noises"), CASES)
def test_a_step_lies_between_its_line_and_its_coin(
    kind: type[MixturePair], rate: float, noises: tuple[float, float], direction: Direction
) -> None:
    units = curve(kind, rate, noises, 400)
    coins, lines = only(interpolate_above(units)), only(interpolate_below(units))
    steps = iter(units)
    checked = 0
    for coin, line in zip(coins, lines, strict=True):
        for above, below in zip(coin.shares, line.shares, strict=True):
            pair, _ = next(steps)
            checked += 1
            if checked % 8:
                continue
            low, high = profiles(pair, direction=direction, losses=LOSSES)
            assert np.all(mixed(coin, above, direction)[1] >= low)
            assert np.all(mixed(line, below, direction)[0] <= high)
    assert checked == 400


@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_those_of_the_total_variation_rounded_outward(kind: type[MixturePair]) -> None:
    distance = 2 if kind is ReplacedGaussianPair else 1
    units = curve(kind, 0.02, (0.9, 1.4), 400)
    steps = iter(units)

    def variation(pair: MixturePair) -> mpmath.mpf:
        return mpmath.erf(distance / (2 * mpmath.sqrt(2) * mpmath.mpf(pair.noise_multiplier)))

    def share(pair: MixturePair, ends: InterpolatedSteps) -> mpmath.mpf:
        low = variation(ends.far)
        return (variation(pair) - low) / (variation(ends.near) - low)

    with mpmath.workdps(40):
        for coin, line in zip(
            only(interpolate_above(units)), only(interpolate_below(units)), strict=True
        ):
            for above, below in zip(coin.shares, line.shares, strict=True):
                pair, _ = next(steps)
                assert isinstance(pair, kind)
                assert share(pair, coin) <= above <= 1
                assert 0 <= above <= share(pair, coin) + 1e-8
                assert 1 <= below <= share(pair, line)
                assert below >= share(pair, line) - 1e-8 or below == 1
                assert line.above == coin


def density(pair: MixturePair, losses: Array, direction: Direction) -> Array:
    """Of the loss under the first law, by differences of its tails in mpmath's digits."""
    found = []
    q, sigma = mpmath.mpf(pair.sampling_probability), mpmath.mpf(pair.noise_multiplier)
    sign = 1 if direction is Direction.REMOVE else -1
    for loss in losses:
        level = mpmath.e ** (sign * mpmath.mpf(float(loss)))

        def weight(x: mpmath.mpf, mean: int) -> mpmath.mpf:
            return q * mpmath.e ** ((2 * mean * x - 1) / (2 * sigma**2))

        if isinstance(pair, SampledGaussianPair):
            u = mpmath.log((level - 1 + q) / q)
            x = sigma**2 * u + mpmath.mpf(1) / 2
            slope = weight(x, 1) / (1 - q + weight(x, 1)) / sigma**2
            first = (1 - q + weight(x, 1)) if sign > 0 else mpmath.mpf(1)
        else:
            c = (1 - q) * (level - 1) / q * mpmath.e ** (1 / (2 * sigma**2))
            x = sigma**2 * mpmath.log((c + mpmath.sqrt(c * c + 4 * level)) / 2)
            here, there = 1 - q + weight(x, 1), 1 - q + weight(x, -1)
            slope = (weight(x, 1) / here + weight(x, -1) / there) / sigma**2
            first = here if sign > 0 else there
        found.append(first * mpmath.npdf(x, 0, sigma) / slope)
    return np.array(found)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("kind", KINDS)
def test_no_density_of_a_loss_exceeds_the_ratio(
    kind: type[MixturePair], direction: Direction
) -> None:
    sign = 1 if direction is Direction.REMOVE else -1
    with mpmath.workdps(40):
        for rate in (0.01, 0.4):
            least = math.log1p(-rate)  # no loss of one record is below it
            losses = LOSSES[least < LOSSES] if kind is SampledGaussianPair else LOSSES
            for one, other in pairwise((0.5, 0.7, 1.2, 1.25, 3.0)):
                near, far = (
                    kind(noise_multiplier=noise, sampling_probability=rate)
                    for noise in (one, other)
                )
                ratios = density(far, sign * losses, direction) / density(
                    near, sign * losses, direction
                )
                ratio = density_ratio(near, far)
                assert max(ratios) <= ratio
                assert max(ratios) >= 1


def test_a_line_towards_more_noise_has_a_negative_density() -> None:
    near, far = (
        SampledGaussianPair(noise_multiplier=noise, sampling_probability=0.1)
        for noise in (1.0, 1.1)
    )
    losses = np.array([2.0, 5.0])
    both = [density(pair, losses, Direction.REMOVE) for pair in (near, far)]
    assert 2 * both[1][1] - both[0][1] < 0  # at a share of -1, prolonged to more noise than far
    assert np.all(2 * both[0] - both[1] > 0)  # at a share of 2, to less noise than near


def test_coins_weighted_by_one_over_the_noise_are_exceeded() -> None:
    noises = (1.0, 1.2, 1.5)
    near, step, far = (
        SampledGaussianPair(noise_multiplier=noise, sampling_probability=0.1) for noise in noises
    )
    share = (1 / noises[1] - 1 / noises[2]) / (1 / noises[0] - 1 / noises[2])
    coin = InterpolatedSteps(near=near, far=far, shares=(share,), counts=(1,))
    low, _ = profiles(step, direction=Direction.REMOVE, losses=LOSSES)
    assert np.any(mixed(coin, share, Direction.REMOVE)[1] < low)


@pytest.mark.parametrize(
    ("kind", "rate", "noises"), [case for case in CASES if case[1] > 1e-3 and case[2][0] < 5]
)
def test_compositions_lie_between_lines_and_coins(
    kind: type[MixturePair], rate: float, noises: tuple[float, float]
) -> None:
    units = curve(kind, rate, noises, 160)
    above, below = interpolate_above(units), interpolate_below(units)
    assert above
    assert below
    for direction in Direction:
        exact = epsilon_in_order(units, direction, delta=DELTA, width=1e-8)
        assert epsilon_in_order(above, direction, delta=DELTA, width=1e-6) >= exact * (1 - 1e-8)
        delta = delta_in_order(units, direction, epsilon=exact, width=1e-8)
        assert delta_in_order(above, direction, epsilon=exact, width=1e-6) >= delta * (1 - 1e-8)
    found = epsilon_bracket(units, delta=DELTA)
    lower, upper = lower_epsilon(below, delta=DELTA), epsilon_bracket(above, delta=DELTA).upper
    assert lower <= found.upper
    assert upper - lower <= 4e-3 * upper
    assert upper >= found.lower
    epsilon = found.upper
    assert (
        delta_bracket(below, epsilon=epsilon).lower <= delta_bracket(units, epsilon=epsilon).upper
    )


def test_steps_that_count_often_are_as_many_steps() -> None:
    near, far = (
        SampledGaussianPair(noise_multiplier=noise, sampling_probability=0.1)
        for noise in (1.0, 1.1)
    )
    one = InterpolatedSteps(near=near, far=far, shares=(0.3, 0.8), counts=(200, 100))
    other = InterpolatedSteps(near=near, far=far, shares=(0.3, 0.3, 0.8), counts=(100,) * 3)
    alone = epsilon_bracket([(one, 1)], delta=DELTA)
    assert alone.upper == pytest.approx(epsilon_bracket([(other, 1)], delta=DELTA).upper, rel=1e-9)
    both = epsilon_bracket([(near, 140), (far, 160)], delta=DELTA)  # about as many of each
    assert alone.upper == pytest.approx(both.upper, rel=0.01)


def transform(pair: InterpolatedSteps, share: float, z: complex, direction: Direction) -> complex:
    """E[e^(z loss)] of a step, by quadrature."""
    total = 0j
    for end, weight in ((pair.near, share), (pair.far, 1 - share)):
        sigma, q = end.noise_multiplier, end.sampling_probability
        x = np.linspace(-14 * sigma, 14 * sigma + 1, 200_001)
        plus = np.log1p(q * np.expm1((2 * x - 1) / (2 * sigma**2)))
        minus = np.zeros_like(x)
        if isinstance(end, ReplacedGaussianPair):
            minus = np.log1p(q * np.expm1((-2 * x - 1) / (2 * sigma**2)))
        base = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
        first, loss = (
            (plus, plus - minus) if direction is Direction.REMOVE else (minus, minus - plus)
        )
        total += weight * complex(np.trapezoid(base * np.exp(first + z * loss), x))
    return total


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.3, 1.6])
def test_lines_ladders_and_moduli_are_those_of_the_quadrature(
    kind: type[MixturePair], share: float, direction: Direction
) -> None:
    nodes = [kind(noise_multiplier=x, sampling_probability=0.05) for x in (1.18, 1.2, 1.22)]
    coin = InterpolatedSteps(near=nodes[0], far=nodes[1], shares=(share - 1,), counts=(3,))
    pair = InterpolatedSteps(near=nodes[0], far=nodes[1], shares=(share,), counts=(3,))
    if share > 1:
        pair = InterpolatedSteps(
            near=nodes[1], far=nodes[2], shares=(share,), counts=(3,), above=coin
        )
    index = 60
    order, spacing = float(LADDER[index]), 0.7
    line = line_of(pair, direction, order=order, spacing=spacing, nodes=8)
    base = transform(pair, share, complex(order), direction).real
    assert line.log_moment == pytest.approx(3 * math.log(base), rel=1e-9)
    assert log_moments(pair, direction)[index] >= line.log_moment - line.log_moment_error
    values = [transform(pair, share, order + 1j * spacing * n, direction) / base for n in range(8)]
    assert np.allclose(np.exp(line.log_values), np.array(values) ** 3, rtol=1e-9, atol=1e-12)
    offset, thetas = theta_grid(spacing, 7 * spacing)
    moduli = log_modulus(pair, direction, order=order, offset=offset, thetas=thetas)
    for n, value in enumerate(values[1:], start=1):
        held = moduli[thetas <= spacing * n]
        assert len(held)
        assert 3 * math.log(abs(value)) <= held[-1] + 1e-12


def test_a_line_of_steps_has_no_profile_of_its_own() -> None:
    near, far = (
        SampledGaussianPair(noise_multiplier=noise, sampling_probability=0.1)
        for noise in (1.0, 1.1)
    )
    steps = InterpolatedSteps(near=near, far=far, shares=(0.5, 0.6), counts=(1, 1))
    with pytest.raises(UnknownProfileError):
        profile(steps, direction=Direction.REMOVE, epsilon=1.0)
    with pytest.raises(UnknownProfileError):
        tails(steps, direction=Direction.REMOVE, losses=LOSSES)
    assert epsilon_bracket([(steps, 1)], delta=DELTA).upper < math.inf  # it is not one step alone


def test_other_pairs_and_noises_out_of_range_stay_as_they_are() -> None:
    units = curve(KINDS[0], 0.02, (1, 2), 300)
    others: Units = [
        (GaussianPair(noise_multiplier=3.0), 2),
        (SampledGaussianPair(noise_multiplier=0.04, sampling_probability=0.02), 1),
        (SampledGaussianPair(noise_multiplier=1e7, sampling_probability=0.02), 1),
    ]
    for interpolate in (interpolate_above, interpolate_below):
        found = interpolate([*units, *others])
        assert found
        assert set(others) <= set(found)
        assert interpolate(units[::100]) is None  # it would save nothing
        assert interpolate(others) is None


@pytest.mark.parametrize(("low", "high"), [(0.13, 0.14), (0.05, 0.06)])
def test_noises_that_hardly_differ_from_none_are_not_told_apart(low: float, high: float) -> None:
    units = curve(KINDS[1], 0.02, (low, high), 300)  # v is 1, up to 1e-11
    assert special.erfc(1 / (math.sqrt(2) * 0.14)) < 1e-11
    assert interpolate_above(units) is None
    assert interpolate_below(units) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowded_cell_has_few_shares_rounded_outward(kind: type[MixturePair]) -> None:
    units = curve(kind, 0.02, (1.0, 1.0001), 400)
    (coin,), (line,) = only(interpolate_above(units)), only(interpolate_below(units))
    assert len(coin.shares) <= 2
    assert len(line.shares) <= 2
    assert sum(coin.counts) == sum(line.counts) == 400
    exact = epsilon_bracket([(units[0][0], 400)], delta=DELTA)
    assert epsilon_bracket([(coin, 1)], delta=DELTA).upper >= exact.lower * (1 - 1e-4)
    assert lower_epsilon([(line, 1)], delta=DELTA) <= exact.upper


@pytest.mark.parametrize("spacing", [0.005, 0.007, 0.04])
def test_a_noise_lies_between_its_nodes_wherever_rounding_puts_it(spacing: float) -> None:
    for place in range(-1200, 900, 7):
        node = interpolated_noises._noise_at(place, spacing)
        for noise in (math.nextafter(node, 0), node, math.nextafter(node, math.inf)):
            found = interpolated_noises._place(noise, spacing)
            far = interpolated_noises._noise_at(found, spacing)
            assert interpolated_noises._noise_at(found + 1, spacing) < noise <= far


def test_moments_far_apart_are_not_interpolated_on_a_line() -> None:
    near, far = (
        ReplacedGaussianPair(noise_multiplier=noise, sampling_probability=0.9) for noise in (1, 2)
    )
    steps = InterpolatedSteps(near=near, far=far, shares=(0.5,), counts=(1,))
    logs = log_moments(steps, Direction.REMOVE)  # without a warning
    index = int(np.flatnonzero(np.isfinite(logs))[-1])
    assert logs[index] >= log_moments(near, Direction.REMOVE)[index] - 1
    ends = [
        Line(log_moment, 0.0, np.zeros(3, dtype=np.complex128), np.zeros(3))
        for log_moment in (700.0, 50.0)
    ]
    with pytest.raises(NoMomentsError):
        complex_moments._interpolate_line(steps, *ends)
    unsure = [replace(one, log_moment=1.0, log_moment_error=1e-3) for one in ends]
    with pytest.raises(NoMomentsError):
        complex_moments._interpolate_line(steps, *unsure)
