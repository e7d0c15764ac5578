"""Complex orders: the moments of a pair on a vertical line, and how fast they must decay along it.

phi(theta) = M(lam + i theta) / M(lam) is the characteristic function of the loss under the law
tilted by e^(lam L). A ledger's line is the product of its steps' lines, each to the power of its
count.
"""

import math
from dataclasses import dataclass
from typing import Final, assert_never

import numpy as np

from accounting.events import Direction
from accounting.pld.contour import tilted_grids
from accounting.pld.contour.interpolated_moments import log_modulus_of_steps
from accounting.pld.contour.real_moments import LADDER, NoMomentsError, finite_losses, log_moments
from accounting.pld.contour.tilted_grids import Grid, grid_of, scan_of
from accounting.pld.pairs import (
    DensePair,
    DiscretePair,
    GaussianPair,
    InterpolatedSteps,
    LaplacePair,
    MixturePair,
    Pair,
    ReplacedGaussianPair,
    SampledGaussianPair,
    SymmetricPair,
)
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array, ComplexArray
from accounting.work_limit import ByteCache, spend

LINES_BYTES: Final = 48 * 2**20
# Below this modulus a moment is noise; its slack then dwarfs it and the bracket stays sound.
_LEAST_MODULUS: Final = 1e-300
# Of steps between two pairs: how far apart, and how well known, the pairs' log moments must be.
_APART_MAX: Final = 600.0
_KNOWN: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Line:
    """The moments of one pair at lam + i n spacing, n = 0 .. nodes-1."""

    log_moment: float  # log M(lam), off by at most log_moment_error
    log_moment_error: float
    log_values: ComplexArray  # log phi, (nodes,), computed
    slack: Array  # (nodes,): log of 1 + |true phi - computed phi| / |computed phi|, upper

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.log_values.nbytes + self.slack.nbytes) + 512


_LINES: Final[ByteCache[Line]] = ByteCache(LINES_BYTES)


def forget() -> None:
    """Empty the caches of lines, grids and scans."""
    _LINES.clear()
    tilted_grids.forget()


def line_of(pair: Pair, direction: Direction, *, order: float, spacing: float, nodes: int) -> Line:
    """The line of a pair through the order `order` + 1. Cached by value.

    Raises:
        NoMomentsError: the pair is known by its tails alone.
    """
    key = (pair, direction, order, spacing, nodes)

    def made() -> Line:
        if isinstance(pair, InterpolatedSteps):
            ends = (
                line_of(one, direction, order=order, spacing=spacing, nodes=nodes)
                for one in (pair.near, pair.far)
            )
            found = _interpolate_line(pair, *ends)
        else:
            theta = np.asarray(spacing * np.arange(nodes), dtype=np.float64)
            found = _line(pair, direction, order, theta)
        found.log_values.flags.writeable = False
        found.slack.flags.writeable = False
        return found

    return _LINES.found(key, made)


def log_modulus(
    pair: Pair,
    direction: Direction,
    *,
    order: float,
    offset: int,
    thetas: Array,
    fine: bool = False,
) -> Array:
    """Log |phi| at the thetas and beyond each. Upper, shape (k,).

    Args:
        pair: whose moments.
        direction: the order of the pair.
        order: lam.
        offset: of `thetas` in the grid of decay.theta_grid.
        thetas: that grid.
        fine: whether to look closer, at a cost.
    """
    match pair:
        case GaussianPair():
            scaled = thetas / pair.noise_multiplier
            return np.asarray(-0.5 * scaled * scaled * (1 - 8 * UNIT_ROUNDOFF))
        case SampledGaussianPair() | ReplacedGaussianPair():
            return scan_of(pair, direction, order, fine).layers.log_modulus(thetas, offset)
        case LaplacePair():
            return _laplace_modulus(pair, direction, order, thetas)
        case DiscretePair():
            return np.zeros_like(thetas)  # atoms do not decay
        case InterpolatedSteps():
            near, far = (
                log_modulus(one, direction, order=order, offset=offset, thetas=thetas, fine=fine)
                for one in (pair.near, pair.far)
            )
            logs = log_moments(pair.near, direction)
            log_moment = float(logs[np.searchsorted(LADDER, order)])
            return log_modulus_of_steps(pair, near, far, log_moment)
        case SymmetricPair() | DensePair():
            raise NoMomentsError("How this pair's transform decays is not known.")
        case _:
            assert_never(pair)


def _laplace_modulus(pair: LaplacePair, direction: Direction, order: float, thetas: Array) -> Array:
    """Log |phi| of Laplace noise without sampling, at the thetas and beyond each. Upper.

    The loss has atoms at -1/b and 1/b and between them the density e^((l - 1/b)/2)/4. Tilted, that
    density rises, so its transform is at most twice its end value over theta, and at most its mass.
    """
    b = pair.scale
    log_moment = float(log_moments(pair, direction)[np.searchsorted(LADDER, order)])
    slack = 1 + 1e-12 * (1 + order / b)
    above = 0.5 * math.exp(order / b - log_moment) * slack
    below = 0.5 * math.exp(-(order + 1) / b - log_moment) * slack
    between = max(0.0, 1 - above - below)
    moduli = above + below + np.minimum(between, above / thetas)
    # The moment is known to a relative 1e-12, and so is its share that lies in atoms.
    return np.asarray(np.log(np.minimum(1.0, moduli + 1e-10)), dtype=np.float64)


def _interpolate_line(pair: InterpolatedSteps, near: Line, far: Line) -> Line:
    """The line of interpolated steps from those of their ends.

    With D = log A - log B, a step's moment is B (1 + s (e^D - 1)), and its phi - 1 is
    p (phi_A - 1) + (1 - p) (phi_B - 1) with p = s e^D / (1 + s (e^D - 1)).
    """
    nodes = len(near.log_values)
    spend(8 * len(pair.shares) * nodes)
    u = 64 * LIBRARY_ULPS * UNIT_ROUNDOFF
    difference = near.log_moment - far.log_moment
    known = near.log_moment_error + far.log_moment_error
    known += u * (abs(near.log_moment) + abs(far.log_moment))  # of the difference
    if not (known <= _KNOWN and difference <= _APART_MAX):
        raise NoMomentsError("The moments of the ends are too far apart or not known well.")
    one: ComplexArray = np.expm1(near.log_values)
    other: ComplexArray = np.expm1(far.log_values)
    one_error = np.exp(near.log_values.real) * np.expm1(np.minimum(near.slack, 700.0))
    other_error = np.exp(far.log_values.real) * np.expm1(np.minimum(far.slack, 700.0))
    one_error = one_error + u * np.abs(one)
    other_error = other_error + u * np.abs(other)
    log_values = np.zeros(nodes, dtype=np.complex128)
    slack, sizes = np.zeros(nodes), np.zeros(nodes)
    log_moment = log_moment_error = 0.0
    rounding = (len(pair.shares) + 2) * UNIT_ROUNDOFF
    for share, count in zip(pair.shares, pair.counts, strict=True):
        grown = 1 + share * math.expm1(difference)
        p, rest = share * math.exp(difference) / grown, (1 - share) / grown
        error = abs(p) * one_error + abs(rest) * other_error
        error += (1.001 * abs(p * rest) * known + u) * np.abs(one - other)
        logs, off = _logarithms(np.asarray(p * one + rest * other), error)
        log_values += count * logs
        slack += count * off
        sizes += count * np.abs(logs)
        log_grown = math.log1p(share * math.expm1(difference))
        log_moment += count * (far.log_moment + log_grown)
        each = 1.001 * (abs(p) * near.log_moment_error + abs(rest) * far.log_moment_error)
        size = abs(far.log_moment) + abs(log_grown) + abs(difference)
        log_moment_error += count * (each + (u + rounding) * size)
    return Line(log_moment, log_moment_error, log_values, slack + 2 * rounding * sizes)


def _line(pair: Pair, direction: Direction, order: float, theta: Array) -> Line:
    spend(10_000 + 25 * len(theta))
    match pair:
        case GaussianPair():
            return _gaussian(pair.noise_multiplier, order, theta)
        case SampledGaussianPair() | ReplacedGaussianPair():
            return _sampled_gaussian(pair, direction, order, theta)
        case LaplacePair():
            if pair.sampling_probability < 1:
                raise NoMomentsError("A sampled Laplace pair is known by its tails.")
            return _laplace(pair.scale, order, theta)
        case DiscretePair():
            return _discrete(pair, direction, order, theta)
        case SymmetricPair() | DensePair() | InterpolatedSteps():
            raise NoMomentsError("How this pair's transform decays is not known.")
        case _:
            assert_never(pair)


def _gaussian(sigma: float, order: float, theta: Array) -> Line:
    # M(z) = e^(z (z+1) / (2 sigma^2))
    variance = 1 / (sigma * sigma)
    log_values = 0.5 * variance * theta * (-theta + 1j * (2 * order + 1))
    log_moment = 0.5 * variance * order * (order + 1)
    return Line(
        log_moment,
        8 * UNIT_ROUNDOFF * log_moment,
        log_values,
        16 * UNIT_ROUNDOFF * np.abs(log_values),
    )


def _laplace(b: float, order: float, theta: Array) -> Line:
    z = order + 1j * theta
    inner = 1 / (2 * z + 1)
    # Both terms relative to e^(order/b), so that nothing overflows for small b.
    values = np.exp(1j * theta / b) * (1 + inner)
    values = 0.5 * (values + np.exp(-(z + order + 1) / b) * (2 * z * inner))
    size = 2 + (theta + 2 * order + 1) / b
    return _closed_form_line(values, order / b, 64 * LIBRARY_ULPS * UNIT_ROUNDOFF * size)


def _discrete(pair: DiscretePair, direction: Direction, order: float, theta: Array) -> Line:
    losses, probabilities, _ = finite_losses(pair, direction)
    if not len(losses):
        raise NoMomentsError("Every loss is infinite.")
    top = float(np.max(losses))
    weights = probabilities * np.exp(order * (losses - top))
    turned = np.exp(1j * np.multiply.outer(theta, losses))
    values = np.asarray(turned @ weights, dtype=np.complex128)
    log_ratios = np.abs(np.log(probabilities)) + 2  # a loss is off by roundoffs of its logarithms
    spread = float(weights @ (log_ratios + np.abs(losses)))
    size = 4 * len(losses) + LIBRARY_ULPS * 16 * (theta + 2 * order + 1) * (spread + 1)
    return _closed_form_line(values, order * top, UNIT_ROUNDOFF * (64 * LIBRARY_ULPS + size))


def _closed_form_line(moments: ComplexArray, log_scale: float, error: Array) -> Line:
    """A line from closed-form moments M e^-log_scale that are off by at most `error`."""
    least = float(moments[0].real)
    if not error[0] < 0.1 * least:
        raise NoMomentsError("The moment is lost in rounding.")
    log_values, slack = _logarithms(moments / least - 1, error / least + 16 * UNIT_ROUNDOFF)
    log_moment_error = float(error[0]) / least * 1.2
    log_moment_error += 8 * UNIT_ROUNDOFF * (abs(log_scale) + abs(math.log(least)) + 1)
    return Line(log_scale + math.log(least), log_moment_error, log_values, slack)


def _logarithms(beyond_one: ComplexArray, error: Array) -> tuple[ComplexArray, Array]:
    """(log of 1 + v, slack), given v and its absolute errors.

    Where |1 + v| > 1/2, log |1 + v| = log1p(2 Re v + |v|^2) / 2 keeps the relative accuracy of a
    small v.
    """
    real, imaginary = beyond_one.real, beyond_one.imag
    excess = real * (2 + real) + imaginary * imaginary
    moduli = np.maximum(np.hypot(1 + real, imaginary), _LEAST_MODULUS)
    near = 0.5 * np.log1p(np.maximum(excess, -0.9))
    log_values = np.where(excess > -0.75, near, np.log(moduli)) + 1j * np.arctan2(
        imaginary, 1 + real
    )
    slack = np.log1p((error + _LEAST_MODULUS) / moduli)
    slack = slack + 64 * LIBRARY_ULPS * UNIT_ROUNDOFF * np.abs(log_values)
    return np.asarray(log_values, dtype=np.complex128), slack


def _sampled_gaussian(pair: MixturePair, direction: Direction, order: float, theta: Array) -> Line:
    grid = grid_of(pair, direction, order, float(theta[-1]))
    spend(10_000 + 9 * len(grid.losses) * math.isqrt(len(theta)))
    beyond_one = _transform(grid.losses, grid.weights, theta)  # phi - 1
    error = rounding_of_phases(grid, theta) + 2.01 * grid.left_out
    log_values, slack = _logarithms(beyond_one, error)
    return Line(grid.log_moment, grid.log_moment_error, log_values, slack)


def rounding_of_phases(grid: Grid, theta: Array) -> Array:
    """Error of the sum of weights times e^(i theta loss) - 1, relative to M(lam). Upper, (nodes,).

    A relative error r of a weight, and the m roundoffs of summing m terms in three parts, count in
    proportion to |e^(i theta loss) - 1| <= d = min(2, theta |loss|), twice for the sum of the
    weights that divides; each part of the sum is at most 4 d. An error of the loss counts theta
    times. d rises in theta, so it is taken at the end of each block of nodes.
    """
    block = max(1, math.isqrt(len(theta)))
    ends = np.append(theta[block - 1 :: block], theta[-1])
    turns = np.minimum(2.0, np.multiply.outer(ends, np.abs(grid.losses)))
    sums = 16 * (len(grid.losses) + 4 * LIBRARY_ULPS) * UNIT_ROUNDOFF
    of_weights = turns @ (grid.weights * (grid.weight_errors + sums))
    of_weights += float(grid.weights @ grid.weight_errors) * (turns @ grid.weights)
    moved = grid.loss_errors + 8 * UNIT_ROUNDOFF * np.abs(grid.losses)
    of_losses = theta * float(grid.weights @ moved)
    return np.asarray(1.01 * (np.repeat(of_weights, block)[: len(theta)] + of_losses))


def _transform(losses: Array, weights: Array, theta: Array) -> ComplexArray:
    """sum_j weights_j (e^(i theta_n losses_j) - 1): two short tables of phases, one matrix product.

    With theta = a + b, e^(i(a+b)) - 1 = (e^(ia) - 1)(e^(ib) - 1) + (e^(ia) - 1) + (e^(ib) - 1):
    near theta loss = 0 nothing cancels.
    """
    nodes = len(theta)
    block = max(1, math.isqrt(nodes))
    fine = _turn(theta[:block], losses) * weights
    coarse = _turn(theta[::block], losses)
    both = coarse @ fine.T + fine.sum(axis=1) + (coarse @ weights)[:, None]
    return np.asarray(both.ravel()[:nodes], dtype=np.complex128)


def _turn(theta: Array, losses: Array) -> ComplexArray:
    # e^(i x) - 1 = -2 sin(x/2)^2 + i sin(x)
    x = np.multiply.outer(theta, losses)
    turned = np.empty(x.shape, dtype=np.complex128)
    half = np.sin(0.5 * x)
    turned.real = -2 * half * half
    turned.imag = np.sin(x)
    return turned
