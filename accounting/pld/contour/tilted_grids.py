"""The tilted law of a sampled Gaussian pair on a grid, and how small its transform must be.

A first scan finds where the law lives and the layers below it; a finer grid serves up to a theta.

Layers are uniform laws below a density. A measure below a law that is a sum of uniform measures, of
mass p_l on an interval of length s_l, gives

    |phi(theta)| <= 1 - sum_l p_l (1 - |sinc(theta s_l / 2)|),

because the transform of a uniform law has that modulus whatever its centre. The superlevel sets of
a density below the law's are such intervals.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.events import Direction
from accounting.pld.contour.quadrature import (
    grid_points,
    grid_spacing,
    log_tails,
    losses_at,
    strip_share,
    widest_range,
)
from accounting.pld.contour.real_moments import LADDER, NoMomentsError, log_moments
from accounting.pld.contour.replaced_quadrature import (
    log_replaced_tails,
    replaced_range,
    replaced_share,
    replaced_spacing,
    sides_at,
)
from accounting.pld.pairs import MixturePair, ReplacedGaussianPair
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.work_limit import ByteCache

TARGET: Final = 1e-19  # share of the moment that discretisation may add
GRIDS_BYTES: Final = 64 * 2**20
SCANS_BYTES: Final = 32 * 2**20
GRID_POINTS_MAX: Final = 2**14  # beyond, the lattice is faster
SCAN_POINTS: Final = 512
SCAN_DROP: Final = 0.25
FINE: Final = 4  # times as many points and levels, where the first scan does not show enough decay
NEGLIGIBLE: Final = 48.0  # nats below the density's peak
_RATIO: Final = 1.06  # of the geometric grids of theta and of lengths: rounding down costs 6 %
_LOG_RATIO: Final = math.log(_RATIO)
_LEVELS_SPAN: Final = 40.0  # nats of the density that are resolved, below its maximum
# |sinc| falls to its highest side lobe here, and 1/t is below that lobe from there on.
_LOBE: Final = 0.2173
_LOBE_END: Final = 1 / _LOBE


# Layers below a density


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


# Grids of a tilted law


@dataclass(frozen=True, slots=True)
class Grid:
    """The tilted law of a sampled Gaussian pair on grid points, good up to some theta."""

    losses: Array  # (m,)
    loss_errors: Array  # (m,)
    weights: Array  # (m,), adding up to one
    weight_errors: Array  # (m,), relative
    log_moment: float
    log_moment_error: float
    left_out: float  # by the sum, at any theta it serves, relative to M(lam)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(4 * self.losses.nbytes) + 2048


@dataclass(frozen=True, slots=True)
class Scan:
    """A first look at the tilted law of a sampled Gaussian pair."""

    left: float  # beyond both ends the law is negligible; its tails are bounded and added
    right: float
    layers: Layers

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.layers.masses.nbytes) + 512


_GRIDS: Final[ByteCache[Grid]] = ByteCache(GRIDS_BYTES)
_SCANS: Final[ByteCache[Scan]] = ByteCache(SCANS_BYTES)


def forget() -> None:
    """Empty the caches of grids and scans."""
    _GRIDS.clear()
    _SCANS.clear()


def grid_of(pair: MixturePair, direction: Direction, order: float, reach: float) -> Grid:
    """The pair's tilted law on a grid that serves at least up to theta = reach. Cached by value."""
    step = math.ceil(2 * math.log2(max(reach, 1.0)))  # few sizes, so that lines can share a grid
    key = (pair, direction, order, step)
    return _GRIDS.found(key, lambda: _grid(pair, direction, order, 2.0 ** (0.5 * step)))


def _grid(pair: MixturePair, direction: Direction, order: float, reach: float) -> Grid:
    sigma = pair.noise_multiplier
    phase, h = _spacing(pair, direction, order, reach)
    scan = scan_of(pair, direction, order)
    left, right = scan.left, scan.right
    if not right - left < GRID_POINTS_MAX * h:
        raise NoMomentsError("The transform turns too fast to be summed.")
    x = grid_points(left, right, h)
    law = _law(pair, direction, order, x)
    top = float(np.max(law.logs))
    weights = np.exp(law.logs - top)
    total = math.fsum(weights)
    weights /= total
    log_moment = top + math.log(total) + math.log(h / (sigma * math.sqrt(2 * math.pi)))
    share = _strip(pair, direction, order, reach, (phase, h))
    left_out = 1.01 * (share + math.exp(min(0.0, law.log_tail - log_moment)))
    if not left_out < 0.01:
        raise NoMomentsError("The sum leaves out too much.")
    weight_errors = law.log_errors
    log_moment_error = 1.01 * (left_out + float(weights @ weight_errors))
    log_moment_error += 8 * UNIT_ROUNDOFF * (abs(top) + abs(log_moment) + 4)
    return Grid(
        losses=law.losses,
        loss_errors=law.loss_errors,
        weights=weights,
        weight_errors=weight_errors,
        log_moment=log_moment,
        log_moment_error=log_moment_error,
        left_out=left_out,
    )


def scan_of(pair: MixturePair, direction: Direction, order: float, fine: bool = False) -> Scan:
    """Where the tilted law lives, and layers below it. Cached by value.

    Args:
        pair: whose law.
        direction: the order of the pair.
        order: lam, one of LADDER.
        fine: whether to look closer, at a cost.
    """
    key = (pair, direction, order, fine)
    return _SCANS.found(key, lambda: _scan(pair, direction, order, FINE if fine else 1))


def _scan(pair: MixturePair, direction: Direction, order: float, closer: int) -> Scan:
    sigma = pair.noise_multiplier
    left, right = _range(pair, direction, order)
    h = (right - left) / (closer * SCAN_POINTS)
    x = grid_points(left, right, h)
    law = _law(pair, direction, order, x)
    kept = np.flatnonzero(law.logs >= np.max(law.logs) - NEGLIGIBLE)
    ends = slice(max(kept[0] - 1, 0), min(kept[-1] + 2, len(x)))
    # The ladder bounds the moment from above, hence these densities are below the law's.
    log_moment = float(log_moments(pair, direction)[np.searchsorted(LADDER, order)])
    densities = np.exp(law.logs[ends] - log_moment) / (sigma * math.sqrt(2 * math.pi))
    layers = layers_of(
        densities=densities,
        weight=law.weight[ends],
        falling=None if law.falling is None else law.falling[ends],
        power=law.power,
        sigma=sigma,
        h=h,
        drop=SCAN_DROP / closer,
    )
    first, last = float(x[ends][0]), float(x[ends][-1])
    return Scan(min(first, 0.0) if law.power > 0 else first, last, layers)


# The law of either kind of pair


@dataclass(frozen=True, slots=True)
class _Law:
    """The tilted law at grid points, but for its normalisation."""

    logs: Array  # of the density of x, (m,)
    log_errors: Array  # absolute, (m,)
    losses: Array  # in the order that is asked for, (m,)
    loss_errors: Array  # (m,)
    weight: Array  # what of the loss's slope times sigma^2 rises in x, (m,)
    falling: Array | None  # what falls in x, (m,), if anything
    power: float  # of the ratio that bends the density upward
    log_tail: float  # of what lies beyond the points


def _law(pair: MixturePair, direction: Direction, order: float, x: Array) -> _Law:
    sigma = pair.noise_multiplier
    normal = 0.5 * (x / sigma) ** 2
    if isinstance(pair, ReplacedGaussianPair):
        sides = sides_at(x, pair)
        return _Law(
            logs=sides.exponents(order) - normal,
            log_errors=rounding_of_weights(
                x, sides.sizes(order), sides.exponent_errors(order), sigma
            ),
            losses=sides.loss,
            loss_errors=sides.loss_errors,
            weight=sides.here.weight,
            falling=sides.there.weight,
            power=1 + order,
            log_tail=float(log_replaced_tails(pair, np.array([order]), x, sides)[0]),
        )
    removed = direction is Direction.REMOVE
    power = _power(direction, order)
    losses = losses_at(x, pair)
    return _Law(
        logs=power * losses.loss - normal,
        log_errors=rounding_of_weights(
            x, abs(power) * np.abs(losses.loss), abs(power) * losses.error, sigma
        ),
        losses=losses.loss if removed else -losses.loss,
        loss_errors=losses.error,
        weight=losses.weight,
        falling=None,
        power=power,
        log_tail=float(log_tails(pair, np.array([power]), x, losses)[0]),
    )


def _power(direction: Direction, order: float) -> float:
    return 1 + order if direction is Direction.REMOVE else -order


def _range(pair: MixturePair, direction: Direction, order: float) -> tuple[float, float]:
    if isinstance(pair, ReplacedGaussianPair):
        return replaced_range(pair, order=order)
    return widest_range(pair, power=_power(direction, order))


def _spacing(
    pair: MixturePair, direction: Direction, order: float, theta: float
) -> tuple[float, float]:
    if isinstance(pair, ReplacedGaussianPair):
        return replaced_spacing(pair, order=order, theta=theta, share=TARGET)
    return grid_spacing(pair, power=_power(direction, order), theta=theta, share=TARGET)


def _strip(
    pair: MixturePair, direction: Direction, order: float, theta: float, grid: tuple[float, float]
) -> float:
    phase, h = grid
    if isinstance(pair, ReplacedGaussianPair):
        return replaced_share(pair, order=order, theta=theta, phase=phase, h=h)
    return strip_share(pair, power=_power(direction, order), theta=theta, phase=phase, h=h)


def rounding_of_weights(x: Array, sizes: Array, errors: Array, sigma: float) -> Array:
    """Relative error of each weight. Upper, (m,).

    A weight is an exponential, off by the rounding of its exponent; the displacement of its grid
    point by the rounding of its place is included.

    Args:
        x: grid points.
        sizes: the moduli of what is added up to the logarithm of the ratio's power.
        errors: how far the ratio's rounding puts that logarithm off.
        sigma: noise multiplier.
    """
    displaced = (np.abs(x) + abs(float(x[0]))) * np.abs(x) / sigma**2
    of_exponents = displaced + sizes + 2 * LIBRARY_ULPS
    return np.asarray(16 * UNIT_ROUNDOFF * of_exponents + errors)
