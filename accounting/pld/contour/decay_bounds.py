"""How small a characteristic function must be: layers of uniform laws below a density.

A measure below a law that is a sum of uniform measures, of mass p_l on an interval of length s_l,
gives

    |phi(theta)| <= 1 - sum_l p_l (1 - |sinc(theta s_l / 2)|),

because the transform of a uniform law has that modulus whatever its centre. The superlevel sets of
a density below the law's are such intervals.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.rounding import Array

_RATIO: Final = 1.06  # of the geometric grids of theta and of lengths: rounding down costs 6 %
_LOG_RATIO: Final = math.log(_RATIO)
_LEVELS_SPAN: Final = 40.0  # nats of the density that are resolved, below its maximum
# |sinc| falls to its highest side lobe here, and 1/t is below that lobe from there on.
_LOBE: Final = 0.2173
_LOBE_END: Final = 1 / _LOBE


def spread_out(t: Array) -> Array:
    """1 - max over t' >= t of |sin(t') / t'|. Lower, rising in t, in [0, 1)."""
    near = np.minimum(t, 1.0)  # whose square is in the range of doubles
    small = near * near / 6 * (1 - near * near / 20)
    within = np.clip(t, 0.1, _LOBE_END)  # where it is looked up, and where nothing overflows
    middle = 1 - np.sin(within) / within
    far = 1 - 1 / np.maximum(t, _LOBE_END)
    found = np.where(t < _LOBE_END, np.minimum(middle, 1 - _LOBE), far)
    return np.asarray(np.where(t < 0.1, small, found) * (1 - 1e-12))


@dataclass(frozen=True, slots=True)
class Layers:
    """Masses of uniform layers by the length of their interval: ratio^first, ratio^(first+1), .."""

    first: int
    masses: Array  # lower; they add up to at most one

    @classmethod
    def none(cls) -> "Layers":
        """Nothing known: |phi| <= 1."""
        return cls(0, np.zeros(0))

    def log_modulus(self, thetas: Array, offset: int) -> Array:
        """Log |phi| on ratio^offset, ratio^(offset+1), ... and beyond each. Upper, shape (m,).

        `thetas` is that grid; only its length is used.
        """
        if not len(self.masses):
            return np.zeros(len(thetas))
        size = len(self.masses)
        powers = offset + self.first + np.arange(len(thetas) + size - 1)
        table = spread_out(0.5 * np.exp(_LOG_RATIO * powers * (1 - 1e-14)) * (1 - 1e-9))
        spread = np.correlate(table, self.masses, mode="valid")
        return np.log1p(-np.minimum(spread * (1 - 1e-12), 1 - 1e-15))


def theta_grid(low: float, high: float) -> tuple[int, Array]:
    """(offset, values): the powers of the ratio from just below `low` to `high`."""
    offset = math.floor(math.log(low) / _LOG_RATIO)
    count = math.ceil(math.log(high) / _LOG_RATIO) - offset + 1
    return offset, np.exp(_LOG_RATIO * (offset + np.arange(count)))


def layers_of(
    *,
    densities: Array,
    weight: Array,
    power: float,
    sigma: float,
    h: float,
    drop: float,
    falling: Array | None = None,
) -> Layers:
    """Layers below the tilted law of the loss of a sampled Gaussian pair.

    Between grid points the tilted density of x is at least the smaller of its ends times e^(-k
    h^2/8), k = max(0, power/(4 sigma^4) - 1/sigma^2) bounding its logarithm's second derivative.
    The loss has slope w/sigma^2 with w rising, so a cell's density of the loss is at least that
    over the slope at its right end, and its length at least h times the slope at its left end.

    Args:
        densities: of x under the tilted law at the points, off by a relative 1e-6 at most; (m,).
        weight: w at the points, in (0, 1), (m,).
        power: of the ratio in the tilted law.
        sigma: noise multiplier.
        h: spacing of the points.
        drop: nats between levels; what it rounds away is lost.
        falling: a second weight, which is added and falls in x, (m,); if any.
    """
    variance = sigma * sigma
    bend = max(0.0, power / (4 * variance * variance) - 1 / variance)
    least = np.minimum(densities[:-1], densities[1:]) * math.exp(-0.125 * bend * h * h) * (1 - 1e-5)
    flattest, steepest = weight[:-1], weight[1:]
    if falling is not None:
        flattest, steepest = flattest + falling[1:], steepest + falling[:-1]
    lengths = h * (flattest / variance)
    heights = least / np.maximum(steepest / variance, 1e-300)
    top = float(np.max(heights))
    if not (top > 0 and math.isfinite(top)):
        return Layers.none()
    levels = top * np.exp(-drop * np.arange(math.ceil(_LEVELS_SPAN / drop)))
    # Where each level set begins and ends, all levels in one flat pass.
    above = np.zeros((len(levels), len(heights) + 2), dtype=np.bool_)
    above[:, 1:-1] = heights >= levels[:, None]
    flat = above.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    level, begin = np.divmod(changes[::2], len(heights) + 2)
    end = changes[1::2] - level * (len(heights) + 2)
    ends = np.concatenate(([0.0], np.cumsum(lengths)))
    sizes = np.maximum(ends[end] - ends[begin] - 1e-12 * ends[end], 0.0)
    masses = levels[level] * -math.expm1(-drop) * (1 - 1e-9) * sizes
    kept = sizes > 0
    if not np.any(kept):
        return Layers.none()
    bins = np.floor(np.log(sizes[kept]) / _LOG_RATIO).astype(np.int64)
    first = int(np.min(bins))
    found = np.bincount(bins - first, masses[kept]) * (1 - 1e-9)
    return Layers(first, np.asarray(found, dtype=np.float64))
