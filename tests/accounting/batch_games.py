"""One pass that leaves records out, all but the record's place published, played exactly.

With m = n/b batches and k steps, R the law of all answers when no step holds the record, l_s and
l'_s the likelihood ratios of step s for either neighbour, the divergence of the transcripts is

H_a = E_R[((m - k)(1 - a) + D)+] / m,  D = sum over s of (l_s - a l'_s),

so that the best adaptive choice of contributions is a control problem with the state D. Its value
is convex in D: linear interpolation errs upwards, by a variance of about (spacing)^2/4 a step, and
what is compared with a bound is not below the truth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accounting.pld.certified_composition import delta_bracket
from accounting.pld.pairs import GaussianPair, SymmetricPair
from accounting.rounding import Array
from accounting.shuffling.shuffled_batches import shuffled_batches_pairs

# By how much an answer's mean differs with the record from without it, for either neighbour, norms
# of contributions being at most one. In units of the norm bound.
Action = tuple[float, float]
REPLACED: tuple[Action, ...] = (
    (2, 0), (0, 2), (2, 2), (2, 1), (1, 2), (1, -1), (1, 0), (0, 1),
)  # fmt: skip
NULL: tuple[Action, ...] = ((2, 1), (1, 0), (0, -1), (1.5, 0.5), (0.5, -0.5))
_QUADRATURE = 121
_POINTS = 3001


@dataclass(frozen=True)
class Pass:
    """Sizes of a pass, and its noise."""

    records: int
    batch: int
    steps: int
    noise: float

    @property
    def batches(self) -> float:
        """How many batches the records make, perhaps not a whole number."""
        return self.records / self.batch


def attained(one: Pass, *, epsilon: float, actions: Sequence[Action] = REPLACED) -> float:
    """The largest delta at an epsilon that an adaptive adversary reaches; from above."""
    z = np.linspace(-8.0, 8.0, _QUADRATURE)
    weights = np.exp(-0.5 * z * z)
    weights /= float(np.sum(weights))
    a, m = math.exp(epsilon), one.batches
    # Finest about zero, far finer than 2/noise: see the note above on interpolation.
    fine, reach = 1e-3 * min(1.0, 2 / one.noise), 30 * max(3 * one.steps * (1 + a), 10.0)
    half = fine * np.sinh(np.linspace(0.0, math.asinh(reach / fine), _POINTS // 2 + 1))
    grid = np.concatenate([-half[:0:-1], half])
    changes = [_ratio(z, v / one.noise) - a * _ratio(z, w / one.noise) for v, w in actions]
    value: Array = np.maximum((m - one.steps) * (1 - a) + grid, 0.0) / m
    for _ in range(one.steps):
        best = np.zeros_like(grid)
        for change in changes:
            moved = grid[:, None] + change
            beyond = np.maximum(moved - grid[-1], 0.0) / m  # there it has the slope 1/m
            best = np.maximum(best, (np.interp(moved, grid, value) + beyond) @ weights)
        value = best
    return float(np.interp(0.0, grid, value))


def _ratio(z: Array, v: float) -> Array:
    return np.asarray(np.exp(v * z - 0.5 * v * v), dtype=np.float64)


def claimed(one: Pass, *, epsilon: float, about: float, passes: int = 1) -> float:
    """The least delta that the theorem says, over some parts that are set aside.

    Args:
        one: the pass.
        epsilon: nats.
        about: a delta near the answer.
        passes: how many there are.
    """
    found = []
    for aside in (1e-7, 0.01 * about, 0.1 * about, 0.3 * about):
        pairs = shuffled_batches_pairs(
            noise_multiplier=one.noise,
            batch_size=one.batch,
            dataset_size=one.records,
            steps_per_pass=one.steps,
            passes=passes,
            delta=aside,
        )
        found.append(aside + delta_bracket(pairs, epsilon=epsilon, width=1e-2).upper)
    return min(found)


def said_by_rates(one: Pass, rates: Sequence[float], *, epsilon: float) -> float:
    """What a product of symmetrised pairs at given rates says: no bound, but for the right ones."""
    half = GaussianPair(noise_multiplier=0.5 * one.noise)
    pairs = tuple((SymmetricPair(near=half, far=half, sampling_probability=c), 1) for c in rates)
    return delta_bracket(pairs, epsilon=epsilon, width=1e-3).upper
