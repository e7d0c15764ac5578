"""The tilted law of a sampled Gaussian pair on a grid: what its moments on a line are summed from.

A first scan finds where the law lives and the layers below it; a finer grid serves up to a theta.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.events import Direction
from accounting.pld.contour.decay_bounds import Layers, layers_of
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
from accounting.pld.pairs import ReplacedGaussianPair, SampledGaussianPair
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.work_limit import ByteCache

TARGET: Final = 1e-19  # share of the moment that discretisation may add
GRIDS_BYTES: Final = 64 * 2**20
SCANS_BYTES: Final = 32 * 2**20
GRID_POINTS_MAX: Final = 2**14  # beyond, the lattice is faster
SCAN_POINTS: Final = 512
SCAN_DROP: Final = 0.25
FINE: Final = 4  # times as many points and levels, where the first scan does not show enough decay
Mixed = SampledGaussianPair | ReplacedGaussianPair
NEGLIGIBLE: Final = 48.0  # nats below the density's peak


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


def grid_of(pair: Mixed, direction: Direction, order: float, reach: float) -> Grid:
    """The pair's tilted law on a grid that serves at least up to theta = reach. Cached by value."""
    step = math.ceil(2 * math.log2(max(reach, 1.0)))  # few sizes, so that lines can share a grid
    key = (pair, direction, order, step)
    return _GRIDS.found(key, lambda: _grid(pair, direction, order, 2.0 ** (0.5 * step)))


def _grid(pair: Mixed, direction: Direction, order: float, reach: float) -> Grid:
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


def scan_of(pair: Mixed, direction: Direction, order: float, fine: bool = False) -> Scan:
    """Where the tilted law lives, and layers below it. Cached by value.

    Args:
        pair: whose law.
        direction: the order of the pair.
        order: lam, one of LADDER.
        fine: whether to look closer, at a cost.
    """
    key = (pair, direction, order, fine)
    return _SCANS.found(key, lambda: _scan(pair, direction, order, FINE if fine else 1))


def _scan(pair: Mixed, direction: Direction, order: float, closer: int) -> Scan:
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


def _law(pair: Mixed, direction: Direction, order: float, x: Array) -> _Law:
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


def _range(pair: Mixed, direction: Direction, order: float) -> tuple[float, float]:
    if isinstance(pair, ReplacedGaussianPair):
        return replaced_range(pair, order=order)
    return widest_range(pair, power=_power(direction, order))


def _spacing(pair: Mixed, direction: Direction, order: float, theta: float) -> tuple[float, float]:
    if isinstance(pair, ReplacedGaussianPair):
        return replaced_spacing(pair, order=order, theta=theta, share=TARGET)
    return grid_spacing(pair, power=_power(direction, order), theta=theta, share=TARGET)


def _strip(
    pair: Mixed, direction: Direction, order: float, theta: float, grid: tuple[float, float]
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
