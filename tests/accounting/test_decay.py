import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from accounting.events import Direction
from accounting.pld.contour.complex_moments import log_modulus
from accounting.pld.contour.real_moments import LADDER
from accounting.pld.contour.tilted_grids import Layers, layers_of, scan_of, spread_out, theta_grid
from accounting.pld.pairs import DiscretePair, GaussianPair, LaplacePair, SampledGaussianPair
from accounting.rounding import Array

REMOVE, ADD = Direction.REMOVE, Direction.ADD
# (noise multiplier, sampling probability, order): narrow and wide laws, two peaks, rates near one.
LAWS = [
    (1.0, 0.01, 2.0),
    (0.5, 0.3, 0.7),
    (0.25, 0.01, 1.0),
    (0.3, 0.9, 5.0),
    (4.0, 0.004, 30.0),
    (3.0, 1 - 1e-9, 8.0),
    (50.0, 0.5, 100.0),
    (0.15, 1e-3, 0.3),
]


def tilted(pair: SampledGaussianPair, direction: Direction, order: float) -> tuple[Array, Array]:
    """(losses, weights) of the tilted law on a grid far finer than anything the engine uses."""
    q, sigma = pair.sampling_probability, pair.noise_multiplier
    power = 1 + order if direction is REMOVE else -order
    x = np.linspace(-12 * sigma - max(0.0, -power), 12 * sigma + max(0.0, power), 200_001)
    u = (2 * x - 1) / (2 * sigma * sigma)
    loss = np.logaddexp(math.log1p(-q), math.log(q) + u)
    logs = power * loss - 0.5 * (x / sigma) ** 2
    weights = np.exp(logs - np.max(logs))
    return loss, weights / np.sum(weights)


def ladder_order(near: float) -> float:
    return float(LADDER[np.argmin(np.abs(LADDER - near))])


def test_spread_out_is_never_above_one_less_the_highest_sinc_from_there_on() -> None:
    t = np.arange(1e-4, 60, 1e-4)
    highest = np.maximum.accumulate(np.abs(np.sin(t) / t)[::-1])[::-1]
    assert np.all(spread_out(t) <= 1 - highest + 1e-15)


def test_spread_out_rises_from_zero_and_stays_below_one() -> None:
    t = np.concatenate(([0.0], np.geomspace(1e-9, 1e9, 200_001)))
    assert spread_out(np.array([1e200]))[0] < 1
    found = spread_out(t)
    assert found[0] == 0
    assert np.all(np.diff(found)[1:] >= -1e-12)
    assert np.all((found[1:] > 0) & (found[1:] < 1))


def test_spread_out_of_the_least_and_the_largest_numbers_overflows_nowhere() -> None:
    found = spread_out(np.array([0.0, 5e-324, 1e-310, 1e300, np.inf]))  # a warning is an error
    assert np.all(found[:3] == 0)
    assert np.all((found[3:] > 0.999) & (found[3:] < 1))


def test_spread_out_is_close_to_the_highest_sinc() -> None:
    t = np.arange(1e-3, 60, 1e-3)
    highest = np.maximum.accumulate(np.abs(np.sin(t) / t)[::-1])[::-1]
    assert np.all(spread_out(t)[t < 50] >= 0.93 * (1 - highest)[t < 50])


@pytest.mark.no_cover
@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(("sigma", "q", "near"), LAWS)
def test_layers_bound_the_modulus_at_every_theta_and_beyond(
    direction: Direction, sigma: float, q: float, near: float
) -> None:
    pair = SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)
    order = ladder_order(near)
    loss, weights = tilted(pair, direction, order)
    spread = math.sqrt(float(weights @ (loss - weights @ loss) ** 2))
    offset, thetas = theta_grid(0.02 / spread, 12 / spread)
    bound = log_modulus(pair, direction, order=order, offset=offset, thetas=thetas)
    exact = np.array([abs(np.exp(1j * theta * loss) @ weights) for theta in thetas])
    highest = np.maximum.accumulate(exact[::-1])[::-1]  # over what lies beyond, too
    assert np.all(np.exp(bound) >= highest - 1e-12)
    assert np.all(np.diff(bound) <= 1e-12)


@pytest.mark.parametrize(("sigma", "q", "near"), LAWS[:-1])
def test_layers_say_something(sigma: float, q: float, near: float) -> None:
    pair = SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)
    order = ladder_order(near)
    layers = scan_of(pair, REMOVE, order).layers
    assert 0.3 < float(np.sum(layers.masses)) <= 1
    loss, weights = tilted(pair, REMOVE, order)
    offset, thetas = theta_grid(1.0, 1.0)
    curved = 1 - abs(np.exp(1j * loss * 1e-2) @ weights)
    bound = layers.log_modulus(thetas * 1e-2, offset + math.floor(math.log(1e-2) / math.log(1.06)))
    assert np.all(bound <= -0.02 * curved)


def test_each_half_of_a_law_of_two_peaks_is_its_own_interval() -> None:
    # Two far blocks of equal mass: the whole has the interval of a block, never that of both.
    densities = np.where(np.abs(np.arange(-100, 101)) > 80, 1.0, 1e-30)
    h = 0.01
    densities = densities / (np.sum(densities) * h)
    layers = layers_of(
        densities=densities, weight=np.ones(201), power=1.0, sigma=1.0, h=h, drop=0.25
    )
    longest = 1.06 ** (layers.first + len(layers.masses) - 1)
    assert longest <= 0.2
    x = np.concatenate((np.linspace(-1, -0.8, 500), np.linspace(0.8, 1, 500)))
    offset, thetas = theta_grid(0.5, 40.0)
    exact = np.array([abs(np.mean(np.exp(1j * theta * x))) for theta in thetas])
    highest = np.maximum.accumulate(exact[::-1])[::-1]
    assert np.all(np.exp(layers.log_modulus(thetas, offset)) >= highest - 1e-3)


def one_cell(*, power: float, sigma: float, h: float, left: float, right: float) -> float:
    """The mass of the layers below a single cell of density one."""
    layers = layers_of(
        densities=np.ones(2),
        weight=np.array([left, right]),
        power=power,
        sigma=sigma,
        h=h,
        drop=0.25,
    )
    return float(np.sum(layers.masses))


def test_a_cell_has_the_slope_of_its_left_end_for_length_and_of_its_right_end_for_height() -> None:
    flat = one_cell(power=1.0, sigma=1.0, h=0.1, left=0.5, right=0.5)
    assert flat == pytest.approx(0.1, rel=2e-5)
    assert flat < 0.1
    assert one_cell(power=1.0, sigma=1.0, h=0.1, left=0.25, right=0.5) == pytest.approx(flat / 2)


@pytest.mark.parametrize("h", [0.09, 0.1, 0.11])
def test_a_length_is_rounded_down_to_the_grid(h: float) -> None:
    layers = layers_of(
        densities=np.ones(2), weight=np.ones(2), power=1.0, sigma=1.0, h=h, drop=0.25
    )
    assert len(layers.masses) == 1
    assert h / 1.06 * (1 - 1e-9) <= 1.06**layers.first <= h * (1 + 1e-12)


def test_a_density_may_sag_between_grid_points_by_what_its_curvature_allows() -> None:
    flat = one_cell(power=1.0, sigma=0.5, h=0.1, left=1.0, right=1.0)  # the bend is at most zero
    bent = one_cell(power=20.0, sigma=0.5, h=0.1, left=1.0, right=1.0)
    bend = 20 / (4 * 0.5**4) - 1 / 0.5**2
    assert bent == pytest.approx(flat * math.exp(-bend * 0.1**2 / 8))


def test_a_cell_counts_by_the_lower_of_its_ends() -> None:
    layers = layers_of(
        densities=np.array([1.0, 3.0]), weight=np.ones(2), power=1.0, sigma=1.0, h=0.1, drop=0.25
    )
    assert float(np.sum(layers.masses)) == pytest.approx(0.1, rel=2e-5)


@pytest.mark.parametrize(
    ("densities", "weight"),
    [
        (np.zeros(3), np.ones(3)),
        (np.full(3, np.nan), np.ones(3)),
        (np.full(3, np.inf), np.ones(3)),
        (np.ones(3), np.zeros(3)),  # the loss does not move: an atom
    ],
)
def test_where_nothing_is_known_the_modulus_is_at_most_one(densities: Array, weight: Array) -> None:
    layers = layers_of(densities=densities, weight=weight, power=1.0, sigma=1.0, h=0.1, drop=0.1)
    offset, thetas = theta_grid(0.1, 100.0)
    assert np.all(layers.log_modulus(thetas, offset) == 0)


def test_the_theta_grid_holds_both_ends() -> None:
    for low, high in [(0.3, 0.3), (1e-5, 2.0), (7.0, 1e9)]:
        offset, thetas = theta_grid(low, high)
        assert thetas[0] <= low * (1 + 1e-12)
        assert thetas[-1] >= high * (1 - 1e-12)
        assert thetas[0] == pytest.approx(1.06**offset)


def test_masses_and_lengths_meet_the_table_at_the_right_theta() -> None:
    # One uniform law on an interval of length 1.06^3: the bound is its own transform's envelope.
    layers = Layers(3, np.array([1.0]))
    offset, thetas = theta_grid(0.1, 3.0)
    exact = np.abs(np.sinc(thetas * 1.06**3 / 2 / math.pi))
    small = thetas * 1.06**3 < 5
    assert np.all(np.exp(layers.log_modulus(thetas, offset))[small] >= exact[small] * (1 - 1e-12))
    assert np.exp(layers.log_modulus(thetas, offset))[small] == pytest.approx(
        exact[small], abs=1e-4
    )


def test_finer_levels_lose_less() -> None:
    x = np.linspace(-5, 5, 401)
    densities = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)

    def mass(drop: float) -> float:
        layers = layers_of(
            densities=densities, weight=np.ones(401), power=1.0, sigma=1.0, h=0.025, drop=drop
        )
        return float(np.sum(layers.masses))

    assert mass(0.25) < mass(0.0625) < 1
    assert mass(0.0625) > 0.94


def test_discrete_losses_do_not_decay_and_a_gaussian_does() -> None:
    offset, thetas = theta_grid(0.1, 10.0)
    atoms = DiscretePair(first=(0.6, 0.4), second=(0.4, 0.6))
    assert not np.any(log_modulus(atoms, REMOVE, order=1.0, offset=offset, thetas=thetas))
    gaussian = GaussianPair(noise_multiplier=2.0)
    found = log_modulus(gaussian, REMOVE, order=1.0, offset=offset, thetas=thetas)
    assert np.all(found >= -0.125 * thetas * thetas)
    assert found == pytest.approx(-0.125 * thetas * thetas)


@pytest.mark.parametrize("near", [0.01, 1.0, 50.0, 1e5])
@pytest.mark.parametrize("b", [0.05, 0.5, 3.0, 100.0])
def test_laplace_noise_decays_to_its_atoms_at_every_theta_and_beyond(b: float, near: float) -> None:
    pair, order = LaplacePair(scale=b, sampling_probability=1.0), ladder_order(near)
    offset, thetas = theta_grid(0.1 * b, 300 * b)
    bound = log_modulus(pair, REMOVE, order=order, offset=offset, thetas=thetas)
    with mp.workdps(40):

        def moment(z: Any) -> Any:
            # Relative to e^(z/b): its modulus is that of the moment over e^(order/b).
            inner = 1 / (2 * z + 1)
            return (1 + inner + mp.exp(-(2 * z + 1) / mp.mpf(b)) * (1 - inner)) / 2

        real = moment(mp.mpf(order))
        exact = [mp.log(abs(moment(mp.mpc(order, theta))) / real) for theta in thetas]
        for i in range(0, len(thetas), 7):
            assert max(exact[i:]) <= mp.mpf(float(bound[i]))
    assert np.all(np.diff(bound) <= 0)
