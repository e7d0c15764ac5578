"""Dense pairs: from upper bounds of a profile at a grid of losses, and from masses of cells.

A profile is convex in a = e^l. Joining the dots of upper bounds of it, and taking the lower convex
hull of what is joined, stays above it; a pair has that profile whose Q-masses are the jumps of its
slope. The masses of a partition's cells are a pair that tells no more than the cell.
docs/theory/dense.md has the proofs.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from accounting import special
from accounting.pld.convex_hull import take_hull
from accounting.pld.lattice.discretization import suffix_sums, sum_error
from accounting.pld.pairs import DensePair
from accounting.pld.profiles import LIBRARY, NORMAL, NORMAL_SQUARED
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

_U: Final = UNIT_ROUNDOFF
FINE: Final = 0.01  # first step of a grid, in units of its scale
STEP_MAX: Final = 0.01  # nats, between the losses of a grid further out
FAR_POINTS: Final = 3000  # at most, of the part of a grid with equal steps
# Mass put at infinite loss: masses below it may underflow at the losses of a grid.
_FLOOR: Final = 1e-110
_VANISHED: Final = 1e-306  # above whatever tail of a Gaussian is told as zero
CELLS: Final = 4000  # of a partition of the line
SPREAD: Final = 14.0  # standard deviations beyond the means that a partition takes in


def loss_grid(*, scale: float, top: float) -> Array:
    """Losses from 0 to `top`: steps that grow from FINE scales to STEP_MAX.

    Args:
        scale: about the standard deviation of the loss, nats.
        top: nats, > 0.

    Returns:
        Rising losses, shape (k,). Any grid gives a true bound, a fine one a tight bound.
    """
    step = max(STEP_MAX, top / FAR_POINTS)
    scale = min(scale, step / FINE)
    # Where scale * sinh(FINE j) has grown to steps of that size.
    bend = math.acosh(max(1.0, step / (FINE * scale)))
    bend = max(min(bend, math.asinh(top / scale)), FINE)
    near = scale * np.sinh(np.linspace(0.0, bend, math.ceil(bend / FINE) + 1))
    far = np.arange(near[-1] + step, top + step, step)
    return np.concatenate((near, far))


def profile_pair(losses: Array, *, removed: Array, added: Array) -> DensePair:
    """The pair whose profiles join the dots of upper bounds at losses of both signs.

    Args:
        losses: l in nats, rising from 0, shape (k,), k >= 2.
        removed: upper bounds of the profile where a record is removed, at the losses.
        added: the same where it is added; equal to the other at l = 0.

    Returns:
        A dense pair whose profiles are at least the given ones, in both orders. Upper.
    """
    # At l = 0 both orders are the total variation; the larger bound is one for both.
    removed, added = removed.copy(), added.copy()
    removed[0] = added[0] = max(removed[0], added[0])
    removed, added = (np.minimum.accumulate(values) for values in (removed, added))
    up, down = _jumps(losses, removed), _jumps(losses, added)
    high = up * np.exp(losses[1:])
    # The rest is in the middle; where the two sides meet in a dent it is negative, and hulled.
    middle = 1.0 - math.fsum(high) - math.fsum(down) - float(removed[-1])
    both = np.concatenate((-losses[:0:-1], losses))
    p = np.concatenate((down[::-1], [middle], high))
    take_hull(p, losses=both)
    zero = len(losses) - 1
    q = p * np.exp(-both)
    # A kink that rounding puts below its loss would cut the corner: both sides are moved outward.
    p[both > 0] *= 1 + 8 * _U
    q[both < 0] *= 1 + 8 * _U
    if np.array_equal(removed, added):  # one side mirrors the other, to the last bit
        p[:zero], q[:zero] = q[:zero:-1], p[:zero:-1]
    ends = float(removed[-1]) + _FLOOR, float(added[-1]) + _FLOOR
    # The hull passes through its corners; between them it is a chord, as the pair's profile is.
    corners = p > 0
    excess = max(
        _excess(losses, removed * corners[zero:], q[zero + 1 :], ends[0]),
        _excess(losses, added * corners[zero::-1], p[zero - 1 :: -1], ends[1]),
    )
    # Below l = 0 the profile is at least its value there, and moving kinks cost it 8 roundoffs.
    factor = 1 + excess + 32 * _U / float(removed[0])
    return DensePair(
        first=(0.0, *(p[corners] * factor).tolist(), ends[0] * factor),
        second=(ends[1] * factor, *(q[corners] * factor).tolist(), 0.0),
    )


def _jumps(losses: Array, values: Array) -> Array:
    """Jumps, at all losses but the first, of the slope of what joins the dots over a = e^l."""
    slopes = np.diff(values) / (np.exp(losses[:-1]) * np.expm1(np.diff(losses)))
    return np.diff(slopes, append=0.0)


def _excess(losses: Array, needed: Array, second: Array, infinite: float) -> float:
    """By which share masses must grow for the profile to reach what is needed at the losses.

    H(l_j) = infinite + sum_{i > j} (x_i - x_(i-1)) W_i with x = e^l and W_i the mass of the second
    law from l_i on: nothing cancels.
    """
    rises = np.exp(losses[:-1]) * np.expm1(np.diff(losses))
    given = np.append(suffix_sums(rises * suffix_sums(second)), 0.0) + infinite
    given *= 1 - 3 * sum_error(len(losses)) - 8 * LIBRARY
    lacking = needed * (1 + 8 * _U) - given
    return max(0.0, float(np.max(lacking / given))) * (1 + 1e-12)


def cell_pair(
    first: Sequence[tuple[float, float]],
    second: Sequence[tuple[float, float]],
    *,
    noise_multiplier: float,
) -> DensePair:
    """Two mixtures of Gaussians of which only the cell is told that a draw falls in.

    Args:
        first: weights and means of P; the weights need not add up to one.
        second: weights and means of Q.
        noise_multiplier: the standard deviation of both, > 0.

    Returns:
        A dense pair that is dominated by (P, Q), where a record is removed. Lower: the masses of P
        are rounded down and those of Q up.
    """
    means = [mean for _, mean in (*first, *second)]
    reach = SPREAD * noise_multiplier
    edges = np.linspace(min(means) - reach, max(means) + reach, CELLS - 1)
    (p, p_error), (q, q_error) = (
        cell_masses(mixture, edges, noise_multiplier) for mixture in (first, second)
    )
    return DensePair(
        first=tuple(np.maximum(p - p_error, 0.0).tolist()),
        second=tuple((q + q_error + _VANISHED).tolist()),
    )


def cell_masses(
    mixture: Sequence[tuple[float, float]], edges: Array, sigma: float
) -> tuple[Array, Array]:
    """Masses of the cells between the edges and beyond them, and their absolute errors."""
    mass, error = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
    for weight, mean in mixture:
        spend(20 * len(edges))
        z = (edges - mean) / sigma
        off = _U * (NORMAL + NORMAL_SQUARED * z * z) + 8 * _U * (np.abs(edges) + abs(mean)) / sigma
        # Differences of whichever tail is the smaller; a tail's argument is off by roundoffs.
        below, above = special.ndtr(np.append(z, np.inf)), special.ndtr(-np.insert(z, 0, -np.inf))
        tail = np.minimum(special.ndtr(z), special.ndtr(-z)) * off * (1 + np.abs(z))
        part = np.where(
            np.append(z, np.inf) < 0,
            np.diff(below, prepend=0.0),
            -np.diff(above, append=0.0),
        )
        mass += weight * part
        error += weight * (np.append(tail, 0.0) + np.insert(tail, 0, 0.0) + 4 * _U * part)
    return np.maximum(mass, 0.0), error
