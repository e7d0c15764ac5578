"""Questions to the lattice whose numbers leave the range of doubles, or nearly do."""

from contextlib import suppress

import mpmath
import pytest

from accounting.events import Direction
from accounting.pld.lattice import parameters
from accounting.pld.lattice.lattice_bounds import lattice_delta, lattice_epsilon
from accounting.pld.lattice.plan import NotCertifiedError
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
)

REMOVE = Direction.REMOVE


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that leave the doubles
@pytest.mark.parametrize(
    ("pair", "count", "epsilon"),
    [
        (SampledGaussianPair(noise_multiplier=13.0, sampling_probability=0.9), 45, 1e308),
        (SampledGaussianPair(noise_multiplier=4e-21, sampling_probability=0.03), 1, 0.2),
        (DiscretePair(first=(3e-89, 1.0), second=(1.0, 7e-148)), 44, 10.0),
        (LaplacePair(scale=9e-213, sampling_probability=4e-46), 10**6, 1.0),
        (LaplacePair(scale=1e-310, sampling_probability=0.5), 3, 1.0),
        (GaussianPair(noise_multiplier=1e-300), 2, 1.0),
    ],
)
def test_what_leaves_the_range_of_doubles_has_one_error(
    pair: Pair, count: int, epsilon: float
) -> None:
    units = [(pair, count)]
    with suppress(NotCertifiedError):
        low, high = lattice_delta(units, direction=REMOVE, epsilon=epsilon, width=1e-10)
        assert 0 <= low <= high
    with suppress(NotCertifiedError):
        low, high = lattice_epsilon(units, direction=REMOVE, delta=1e-12, width=1e-10)
        assert 0 <= low <= high


@pytest.mark.parametrize("scale", [0.0108, 0.02])
def test_laplace_losses_far_apart_have_a_lattice(scale: float) -> None:
    units = [(LaplacePair(scale=scale, sampling_probability=1.0), 1)]
    for direction in Direction:
        low, high = lattice_epsilon(units, direction=direction, delta=1e-6, width=1e-3)
        assert low <= high
        assert high == pytest.approx(1 / scale, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-3, 0.0108, 0.5])
@pytest.mark.parametrize("q", [5e-324, 1e-200, 1e-3, 1 - 2.0**-53, 1.0])
def test_atoms_of_laplace_noise_lie_where_they_should(scale: float, q: float) -> None:
    pair = LaplacePair(scale=scale, sampling_probability=q)
    with mpmath.workdps(900):
        exact = [
            float(mpmath.log(1 - mpmath.mpf(q) + q * mpmath.exp(edge)))
            for edge in (1 / scale, -1 / scale)
        ]
    assert parameters.atoms(pair, REMOVE) == pytest.approx(exact, rel=1e-9, abs=1e-300)
