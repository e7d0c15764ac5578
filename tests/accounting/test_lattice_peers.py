"""Brackets against values of dp_accounting 0.6.0, whose one figure is pessimistic, one optimistic.

Ours must meet theirs, and is above the pessimistic one by at most its own width.
"""

import math

import pytest

from accounting.events import Direction
from accounting.pld.lattice.lattice_bounds import lattice_epsilon
from accounting.pld.pairs import DiscretePair, GaussianPair, LaplacePair, Pair, SampledGaussianPair

WIDTH = 5e-4


def _laplace(b: float, q: float = 1.0) -> LaplacePair:
    return LaplacePair(scale=b, sampling_probability=q)


def _sampled(q: float, sigma: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)


def _response(p: float, k: int) -> DiscretePair:
    """One of k answers: uniformly at random with probability p, else the true one."""
    truth, lie = 1 - p + p / k, p / k
    rest = ((k - 2) * lie,) if k > 2 else ()
    return DiscretePair(first=(truth, lie, *rest), second=(lie, truth, *rest))


PEERS: list[tuple[list[tuple[Pair, int]], float, float, float]] = [
    ([(_laplace(1.0), 1)], 1e-5, 0.99996, 0.99998),
    ([(_laplace(10.0), 100)], 1e-6, 4.692623736644827, 4.692667416171922),
    ([(_laplace(20.0), 1000)], 1e-6, 8.204198723278054, 8.204440347416849),
    ([(_laplace(50.0), 10000)], 1e-8, 12.58816082821656, 12.694619124946271),
    ([(_laplace(1.0, 0.01), 1000)], 1e-5, 1.1082165257220062, 1.1237684060322108),
    ([(_laplace(2.0, 0.1), 200)], 1e-5, 2.780583697547297, 2.7835883896165763),
    ([(_laplace(1.0, 0.05), 50)], 1e-5, 1.32610464975075, 1.3263485685217293),
    ([(_laplace(5.0, 0.01), 10000)], 1e-6, 0.7230819218713953, 0.8091092200250093),
    (
        [(GaussianPair(noise_multiplier=5.0), 10), (_laplace(10.0), 10)],
        1e-6,
        3.2731558648862227,
        3.2732600082444474,
    ),
    # Composed by repeated self-composition: the peer's composed event of these is one step's.
    ([(_response(0.5, 2), 1)], 1e-6, 1.0985986666657779, 1.0986186666657778),
    ([(_response(0.8, 2), 100)], 1e-5, 23.65353052940474, 23.658322864177915),
    ([(_response(0.5, 4), 10)], 1e-6, 16.09409004279226, 16.09489004279226),
    ([(_response(0.95, 100), 100)], 1e-5, 31.822585640272685, 31.822973224663546),
    ([(_sampled(0.01, 1.0), 500), (_sampled(0.02, 2.0), 1000)], 1e-6, 0.0, 2.1623813599851553),
]


@pytest.mark.parametrize(("units", "delta", "optimistic", "pessimistic"), PEERS, ids=str)
def test_brackets_meet_those_of_peers(
    units: list[tuple[Pair, int]], delta: float, optimistic: float, pessimistic: float
) -> None:
    ends = [lattice_epsilon(units, direction=d, delta=delta, width=WIDTH) for d in Direction]
    low, high = max(low for low, _ in ends), max(high for _, high in ends)
    assert high - low <= 2 * WIDTH * high
    assert low <= pessimistic * (1 + 1e-6)
    assert optimistic <= high
    assert high <= pessimistic * (1 + 2 * WIDTH)
    assert math.isfinite(high)
