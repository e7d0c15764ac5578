"""Very many steps of almost nothing: moments of the losses that occur at all.

The moments of a sampled Gaussian step grow without bound beyond an order of about 2 sigma^2
log(1/q), because of losses that no billion steps will show. Without these, which count as infinite,
larger orders serve. docs/theory/pld.md, "Losses that do not occur", has the proof.
"""

import math
from contextlib import suppress
from typing import Final

import numpy as np

from accounting import special
from accounting.events import Direction
from accounting.pld.contour.contour_bounds import contour_epsilon
from accounting.pld.contour.inversion import NoDecayError
from accounting.pld.contour.real_moments import NoMomentsError, log_best_share
from accounting.pld.dense_pairs import cell_masses
from accounting.pld.pairs import DiscretePair, Pair, SampledGaussianPair, Units
from accounting.pld.profiles import LIBRARY
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

RARE_STEPS: Final = 10**7  # fewer are well served by the moments of all losses
RARE_PAIRS_MAX: Final = 8
_ORDERS: Final = np.geomspace(1.0, 1e8, 96)
_CELLS: Final = 2**13
_LEFT: Final = -9.0  # standard deviations; what lies below counts at its largest
_CUTS: Final = np.arange(0.0, 38.0, 0.125)
_TAIL: Final = 1 + 1e-9  # the library's tails are right to far fewer digits than that
_TOLD: Final = 48  # cells of x that a lower end is told of
_WIDTH: Final = 1e-4  # relative, aimed at for it
_TINY: Final = 1e-300  # tails beyond 37 standard deviations may be told as zero
_SHARE: Final = 1e-3  # of delta, for losses that count as infinite
_FAILURES: Final = (1e-6, 1e-9, 1e-13, 1e-20, 1e-40, 1e-80)  # tried where delta is asked for


def are_rare(units: Units) -> bool:
    """Whether losses are those of very many sampled Gaussian steps, of few kinds."""
    few = len(units) <= RARE_PAIRS_MAX and sum(count for _, count in units) >= RARE_STEPS
    return few and all(
        isinstance(pair, SampledGaussianPair) and pair.sampling_probability <= 0.5
        for pair, _ in units
    )


def rare_bracket(units: Units, direction: Direction, *, delta: float) -> tuple[float, float]:
    """Lower and upper epsilon at a delta; the lower one 0 where a record is added, or unknown."""
    lower, upper = 0.0, rare_epsilon(units, direction, delta=delta)
    if direction is Direction.REMOVE:
        with suppress(NoDecayError, NoMomentsError):
            lower = contour_epsilon(told_by_cell(units), direction, delta=delta, width=_WIDTH)[0]
    return lower, upper


def rare_epsilon(units: Units, direction: Direction, *, delta: float) -> float:
    """Epsilon at a delta, by the moments of losses that occur. Upper, nats, >= 0.

    Args:
        units: sampled Gaussian pairs and how often each counts.
        direction: which law of each pair is first.
        delta: in (0, 1).
    """
    logs, failed = _log_moments(units, direction, failure=_SHARE * delta)
    if not failed < delta:
        return math.inf
    target = math.log((delta - failed) * (1 - 4 * UNIT_ROUNDOFF))
    slack = 16 * UNIT_ROUNDOFF * (np.abs(logs) + abs(target) + 1)
    return max(0.0, float(np.min((logs - target + slack) / _ORDERS))) * (1 + 4 * UNIT_ROUNDOFF)


def rare_delta(units: Units, direction: Direction, *, epsilon: float) -> float:
    """Delta at an epsilon, by the moments of losses that occur. Upper, at most 1."""
    least = 1.0
    for failure in _FAILURES:
        logs, failed = _log_moments(units, direction, failure=failure)
        slack = 16 * UNIT_ROUNDOFF * (np.abs(logs) + _ORDERS * epsilon + 1)
        log_delta = min(0.0, float(np.min(logs - _ORDERS * epsilon + slack)))
        least = min(least, (failed + math.exp(log_delta)) * (1 + 8 * LIBRARY))
    return least


def _log_moments(units: Units, direction: Direction, *, failure: float) -> tuple[Array, float]:
    """Log c(lam) M(lam) of the composition, and the chance of losses left out. Both upper."""
    total, failed = log_best_share(_ORDERS) + 1e-13, 0.0
    for pair, count in units:
        assert isinstance(pair, SampledGaussianPair)  # noqa: S101 (are_rare told)
        cut, beyond = _cut(pair, direction, failure / (count * len(units)))
        failed += count * beyond
        total = total + count * np.log1p(_excess_moment(pair, direction, cut)) * (1 + 8 * LIBRARY)
    return np.asarray(total, dtype=np.float64), failed * (1 + 16 * UNIT_ROUNDOFF)


def _cut(pair: SampledGaussianPair, direction: Direction, mass: float) -> tuple[float, float]:
    """Where losses are cut off, in standard deviations of x, and the mass of P beyond. Upper.

    Where a record is added its loss falls in x, and is bounded: nothing is cut off.
    """
    q, shift = pair.sampling_probability, 1 / pair.noise_multiplier
    cuts = _CUTS + shift
    if direction is Direction.ADD:
        return float(cuts[-1]), 0.0
    beyond = ((1 - q) * special.ndtr(-cuts) + q * special.ndtr(-_CUTS)) * _TAIL + _TINY
    place = min(int(np.argmax(beyond <= mass)) if beyond[-1] <= mass else len(cuts), len(cuts) - 1)
    return float(cuts[place]), float(beyond[place])


def _excess_moment(pair: SampledGaussianPair, direction: Direction, cut: float) -> Array:
    """E_Q[S^b; x <= cut] - 1 at most, for b = 1 + lam (a record removed) or -lam (added).

    It is at most the mean of B(S) = S^b - 1 - b (S - 1) >= 0, as E_Q[S] = 1. B is convex in S, so
    on a cell it is at most its larger end, and the density is at most that at the end near zero.

    Returns:
        Upper, shape (96,); infinite where a double does not hold it.
    """
    spend(2 * _CELLS * len(_ORDERS))
    q, shift = pair.sampling_probability, 1 / pair.noise_multiplier
    powers = (1 + _ORDERS if direction is Direction.REMOVE else -_ORDERS)[:, None]
    x = np.linspace(_LEFT, cut, _CELLS + 1)
    exponents = shift * x - 0.5 * shift * shift
    size = np.append(1.0, np.abs(exponents)) + shift * (np.max(np.abs(x)) + shift)
    near = np.where(x[:-1] * x[1:] <= 0, 0.0, np.minimum(np.abs(x[:-1]), np.abs(x[1:])))
    mass = np.exp(-0.5 * near * near) * (np.diff(x) / math.sqrt(2 * math.pi))
    with np.errstate(over="ignore", invalid="ignore"):
        rises = np.append(-q, q * np.expm1(exponents))  # S - 1, and the least it can be
        grown = np.expm1(powers * np.log1p(rises))
        off = 64 * LIBRARY * (2 + size) * np.abs(powers * rises) * (2 + np.abs(grown))
        bent = np.maximum(grown - powers * rises, 0.0) + off
        cells = np.maximum(bent[:, 1:-1], bent[:, 2:])
        total = (cells * mass).sum(axis=1) + bent[:, 0] * float(special.ndtr(_LEFT)) * _TAIL
    if direction is Direction.ADD:  # beyond, B is at most lam S
        total = total + _ORDERS * (2 * float(special.ndtr(-_CUTS[-1])) * _TAIL + _TINY)
    total = total * (1 + (_CELLS + 64) * UNIT_ROUNDOFF)
    return np.asarray(np.where(np.isnan(total), np.inf, total), dtype=np.float64)


def told_by_cell(units: Units) -> Units:
    """Pairs that tell of each step only the cell that its x falls in, where a record is removed.

    Their losses are bounded, so that all orders have moments. Lower: the masses of P are rounded
    down and those of Q up.
    """
    found: list[tuple[Pair, int]] = []
    for pair, count in units:
        assert isinstance(pair, SampledGaussianPair)  # noqa: S101 (are_rare told)
        sigma, q = pair.noise_multiplier, pair.sampling_probability
        edges = np.linspace(-3.0 * sigma, 5.0 * sigma + 1.0, _TOLD - 1)
        (p, low), (other, high) = (
            cell_masses(mixture, edges, sigma)
            for mixture in ([(1 - q, 0.0), (q, 1.0)], [(1.0, 0.0)])
        )
        first, second = np.maximum(p - low, 0.0), other + high
        told = DiscretePair(first=tuple(first.tolist()), second=tuple(second.tolist()))
        found.append((told, count))
    return found
