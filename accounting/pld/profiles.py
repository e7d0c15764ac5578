"""Profiles of one step's privacy loss, each with a bound on its own rounding error.

For a direction, P is its first law, Q its second and the loss is L = log dP/dQ. The profile is
H(l) = P(L > l) - e^l Q(L > l), the delta of one step at epsilon = l (for any real l).
docs/theory/lattice.md derives the formulas and the errors.
"""

import math
from functools import lru_cache
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from accounting import special
from accounting.events import Direction
from accounting.gaussian import log_gaussian_delta
from accounting.pld.pairs import (
    Atomic,
    DensePair,
    DiscretePair,
    GaussianPair,
    InterpolatedSteps,
    LaplacePair,
    Pair,
    ReplacedGaussianPair,
    SampledGaussianPair,
    SymmetricPair,
)
from accounting.rounding import (
    ERFCX_UNITS,
    LIBRARY_ULPS,
    UNIT_ROUNDOFF,
    Array,
    exact_sum,
    rounded_down,
    rounded_up,
)
from accounting.work_limit import cached_with_cost, spend

_U: Final = UNIT_ROUNDOFF
LIBRARY: Final = 2 * LIBRARY_ULPS * _U  # relative error of one library call
# The normal distribution function at z: relative error (16 + 8 z^2) u. Its argument is squared
# in an exponent; tests hold it against mpmath.
NORMAL: Final = 16.0
NORMAL_SQUARED: Final = 8.0
# A discrete pair's probabilities come from formulas of its parameters: relative error of each.
WRITTEN: Final = 8 * _U
KEPT: Final = 64  # outcomes of pairs that are kept in order
TINY: Final = 1e-290  # absolute error of everything here: underflow has no relative error
_FAR_ASINH: Final = 300.0  # beyond, in logarithms of its argument, asinh is a logarithm
NORMAL_FAR: Final = 40.0  # standard deviations, beyond which tails are below TINY
LOSS_MAX: Final = 350.0  # beyond, e^l times a tail could leave the range of doubles
Base = GaussianPair | LaplacePair  # without sampling
Smooth = (
    GaussianPair
    | SampledGaussianPair
    | ReplacedGaussianPair
    | LaplacePair
    | DensePair
    | SymmetricPair
    | InterpolatedSteps
)


class UnknownProfileError(ArithmeticError):
    """Several steps together have no profile here: they are composed on the contour alone."""


def profiles(pair: Pair, *, direction: Direction, losses: Array) -> tuple[Array, Array]:
    """The profile H at many losses, each certified.

    Below zero it is read off the other direction, H(l) = 1 - e^l + e^l H'(-l), in which no
    terms cancel.

    Args:
        pair: the dominating pair.
        direction: which law of the pair is first.
        losses: l in nats, of any sign, shape (k,), each of size at most LOSS_MAX.

    Returns:
        Lower and upper, shape (k,) each.
    """
    if isinstance(pair, DiscretePair):
        value, error = _discrete_profile(pair, direction, losses)
    else:
        value, error = np.empty_like(losses), np.empty_like(losses)
        below = losses < 0
        value[~below], error[~below] = _profile_above(pair, direction, losses[~below])
        low = losses[below]
        other = Direction.ADD if direction is Direction.REMOVE else Direction.REMOVE
        mirrored, off = _profile_above(pair, other, -low)
        power, rest = np.exp(low), _rest(pair, direction, low)
        value[below] = rest + power * mirrored
        error[below] = power * off + 3 * LIBRARY * value[below]
    return np.maximum(value - error - TINY, 0.0), value + error + TINY


def _rest(pair: Pair, direction: Direction, low: Array) -> Array:
    """P - e^l Q of all outcomes: 1 - e^l, but for pairs whose masses do not add up to one."""
    if not isinstance(pair, DensePair):
        return np.asarray(-np.expm1(low))
    first, second, gap = totals(pair)
    if direction is Direction.ADD:
        gap, second = -gap, first
    return np.asarray(gap - second * np.expm1(low))


@cached_with_cost(maxsize=KEPT)
def totals(pair: Atomic) -> tuple[float, float, float]:
    """What P and Q give all outcomes together, and by how much P exceeds Q; each rounded once."""
    spend(50 * len(pair.first))
    p, q = np.array(pair.first), np.array(pair.second)
    return exact_sum(p), exact_sum(q), exact_sum(np.concatenate([p, -q]))


def unsampled_loss(direction: Direction, q: float, losses: Array) -> tuple[Array, Array]:
    """The unsampled loss r at a sampled loss l, and a bound on its absolute error.

    REMOVE: e^r = 1 + (e^l - 1)/q. ADD: e^-r = 1 + (e^-l - 1)/q. Where the right side is negative
    no outcome has such a loss and r is infinite; where rounding decides that, so is the error.
    Where e^x would leave the range of doubles, log(1 + (e^x - 1)/q) is x - log q, but for e^-x.
    """
    sign = 1.0 if direction is Direction.REMOVE else -1.0
    if q == 1:
        return losses, np.zeros_like(losses)
    x = sign * losses
    far = x > LOSS_MAX
    y = np.expm1(np.minimum(x, LOSS_MAX)) / q
    off = (LIBRARY + _U) * np.abs(y)
    inside, unsure = 1 + y > 0, np.abs(1 + y) <= 4 * off
    safe = np.where(inside, y, 0.0)
    r = np.where(inside, np.log1p(safe), -np.inf)
    error = np.where(inside, 2 * off / (1 + safe) + LIBRARY * np.abs(np.log1p(safe)), 0.0)
    r = np.where(far, x - math.log(q), r)
    error = np.where(far, 2 * LIBRARY * (np.abs(x) - math.log(q)), error)
    return sign * r, np.where(unsure, np.inf, error)


@lru_cache(maxsize=KEPT)
def discrete_atoms(pair: Atomic, direction: Direction) -> tuple[Array, Array, Array]:
    """Losses in rising order, and what P and Q give them, read-only; losses may be infinite."""
    p, q = np.array(pair.first, dtype=np.float64), np.array(pair.second, dtype=np.float64)
    if direction is Direction.ADD:
        p, q = q, p
    used = (p > 0) | (q > 0)
    p, q = p[used], q[used]
    with np.errstate(divide="ignore"):
        losses = np.log(p) - np.log(q)
    order = np.argsort(losses, kind="stable")
    found = losses[order], p[order], q[order]
    for array in found:
        array.flags.writeable = False
    return found


def atom_errors(p: Array, q: Array) -> Array:
    """Absolute error of log p - log q for written p and q, and of comparing it with a loss."""
    with np.errstate(divide="ignore"):
        size = np.abs(np.log(p)) + np.abs(np.log(q))
    return np.asarray(2 * WRITTEN + 2 * LIBRARY * size, dtype=np.float64)


def near_atoms(
    atoms: Array, p: Array, q: Array, losses: Array
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], float]:
    """The slices of atoms that rounding may put on either side of each loss, and the rounding."""
    finite = np.isfinite(atoms)
    off = float(np.max(atom_errors(p[finite], q[finite]), initial=0.0))
    return (
        np.searchsorted(atoms, losses - off, side="left"),
        np.searchsorted(atoms, losses + off, side="right"),
        off,
    )


def base_profile(pair: Base, r: Array) -> tuple[Array, Array, Array]:
    """The profile h(r) without sampling, r >= 0, its absolute error and -h'(r) = e^r Q(L > r)."""
    spend(7000 + 24 * len(r))
    if isinstance(pair, LaplacePair):
        edge = 1 / pair.scale
        half = np.minimum(0.5 * (r - edge), 0.0)
        value = -np.expm1(half)
        error = np.where(half < 0, 2 * LIBRARY * value + 2 * _U * edge, 2 * _U * edge)
        error = np.where(r > edge * (1 + 4 * _U), 0.0, error)
        return value, error, np.where(error > 0, 0.5, 0.0)
    sigma = pair.noise_multiplier
    z_p, z_q = sigma * r - 0.5 / sigma, sigma * r + 0.5 / sigma
    first = special.ndtr(-z_p)
    # e^r phi(z_q) = phi(z_p), so that e^r Q is phi(z_p) times Mills' ratio at z_q > 0.
    second = 0.5 * np.exp(-0.5 * z_p * z_p) * special.erfcx(z_q / math.sqrt(2))
    z = np.maximum(np.abs(z_p), z_q)
    with np.errstate(invalid="ignore"):
        relative = _U * (NORMAL + ERFCX_UNITS + NORMAL_SQUARED * z * z)
        relative += 8 * _U * (z + 1) * (z + 1 / sigma)
        error = np.where(first > 0, relative * (first + second), 0.0)
    return np.maximum(first - second, 0.0), error, second


def _sampled_above(
    base: Base, q: float, direction: Direction, losses: Array
) -> tuple[Array, Array]:
    """REMOVE: q h(r). ADD: q e^l c h(-log c), c = e^-r, whose derivative by c is q e^l P(L > r)."""
    if direction is Direction.REMOVE or q == 1:
        r, dr = unsampled_loss(Direction.REMOVE, q, losses)
        value, error, slope = base_profile(base, r)
        return q * value, q * (error + 2 * slope * dr + 4 * _U * value)
    y = np.expm1(-losses) / q
    off = 2 * (LIBRARY + _U) * np.abs(y)
    c = np.maximum(1 + y, 0.0)
    s = np.where(c > 0, -np.log1p(np.maximum(y, -1 + _U)), 0.0)
    value, error, slope = base_profile(base, s)
    scale = q * np.exp(losses)
    moved = np.where(c > 0, off * (value + slope + error), np.where(1 + y > -off, off, 0.0))
    total = c * (error + 2 * slope * LIBRARY * np.abs(s)) + moved
    return scale * c * value, scale * (total + 2 * LIBRARY * c * value)


def _symmetric_above(pair: SymmetricPair, losses: Array) -> tuple[Array, Array]:
    q = pair.sampling_probability
    r, dr = unsampled_loss(Direction.REMOVE, q, losses)
    near, near_off, near_slope = base_profile(pair.near, r)
    far, far_off, far_slope = near, near_off, near_slope
    if pair.far != pair.near:
        far, far_off, far_slope = base_profile(pair.far, r)
    # c = e^l / e^r falls from 1 to q; 1 - c is written without a difference.
    c = np.exp(losses - r)
    less = (1 - q) * np.expm1(losses) / (q + np.expm1(losses))
    value = q * (less * near + c * far)
    error = less * (near_off + 2 * near_slope * dr) + c * (far_off + 2 * far_slope * dr)
    return value, q * error + (6 * LIBRARY + 2 * dr) * value


def replaced_loss(pair: ReplacedGaussianPair, losses: Array) -> tuple[Array, Array]:
    """R = x/sigma^2 at the x where the loss of a replaced record is l, and its absolute error.

    With c = q e^(-1/(2 sigma^2)), (1-q) + c e^r = e^l ((1-q) + c e^-r), which is solved by
    r = l/2 + asinh(B), B = (1-q) sinh(l/2) / c.
    """
    q, half = pair.sampling_probability, 0.5 / pair.noise_multiplier**2
    sizes = np.abs(losses)
    log_odds = math.log1p(-q) - math.log(q)
    with np.errstate(divide="ignore"):
        log_sinh = np.log(np.expm1(np.minimum(sizes, LOSS_MAX))) - 0.5 * np.minimum(sizes, LOSS_MAX)
    log_sinh = np.where(sizes > LOSS_MAX, 0.5 * sizes, log_sinh) - math.log(2)
    log_b = log_sinh + log_odds + half
    b = np.exp(np.minimum(log_b, _FAR_ASINH))
    near = np.log1p(b + b * b / (1 + np.sqrt(1 + b * b)))
    r = 0.5 * sizes + np.where(log_b < _FAR_ASINH, near, log_b + math.log(2))
    of_logs = np.abs(np.where(b > 0, log_sinh, 0.0)) + abs(log_odds) + half + sizes + 8
    error = 4 * LIBRARY * (of_logs * np.minimum(b, 1.0) + r)
    return np.copysign(r, losses), error


def _replaced_above(pair: ReplacedGaussianPair, losses: Array) -> tuple[Array, Array]:
    """H = q P(z_1) - (1-q) (e^l - 1) P(z_0) - q e^l P(z_-1), P the tail of a normal law.

    z_m = (x - m)/sigma at the x of the loss l. H is the greatest over x: that x is off costs it
    at most the density there times 4 dr sigma^2 dr, as the loss rises by 2/sigma^2 at most.
    """
    spend(9000 + 70 * len(losses))
    sigma, q = pair.noise_multiplier, pair.sampling_probability
    r, dr = replaced_loss(pair, losses)
    z, far, near = sigma * r, sigma * r + 1 / sigma, sigma * r - 1 / sigma
    first = q * special.ndtr(-near)
    # e^l P(z) = e^(l - z^2/2) times Mills' ratio at z >= 0, over sqrt(2 pi).
    with np.errstate(under="ignore"):
        middle, last = (
            0.5 * np.exp(losses - 0.5 * each * each) * special.erfcx(each / math.sqrt(2))
            for each in (z, far)
        )
        middle, last = (1 - q) * -np.expm1(-losses) * middle, q * last
        heights = (1 - q) * np.exp(-0.5 * z * z) + q * np.exp(-0.5 * near * near)
    most = np.maximum(far, np.abs(near))
    relative = _U * (NORMAL + ERFCX_UNITS + NORMAL_SQUARED * most * most + 8 * losses)
    relative += 8 * _U * (most + 1) * (most + 1 / sigma) + 4 * LIBRARY
    error = relative * (first + middle + last) + 8 * sigma * dr * dr * heights
    sure = (dr < 0.01) & (sigma * dr * (most + 1) < 0.1)
    vanished = near - sigma * dr > NORMAL_FAR  # so is P(L > l), which is more
    error = np.where(sure, error, np.where(vanished, 0.0, 1.0))
    return np.maximum(first - middle - last, 0.0), error


def _profile_above(pair: Smooth, direction: Direction, losses: Array) -> tuple[Array, Array]:
    """The profile at losses >= 0 and its absolute error."""
    match pair:
        case GaussianPair():
            return _sampled_above(pair, 1.0, direction, losses)
        case SampledGaussianPair():
            base = GaussianPair(noise_multiplier=pair.noise_multiplier)
            return _sampled_above(base, pair.sampling_probability, direction, losses)
        case LaplacePair():
            return _sampled_above(pair, pair.sampling_probability, direction, losses)
        case SymmetricPair():
            return _symmetric_above(pair, losses)
        case ReplacedGaussianPair():
            return _replaced_above(pair, losses)
        case DensePair():
            return _discrete_profile(pair, direction, losses)
        case InterpolatedSteps():
            raise UnknownProfileError
        case _:
            assert_never(pair)


def _discrete_profile(pair: Atomic, direction: Direction, losses: Array) -> tuple[Array, Array]:
    # An atom put on the wrong side of l by rounding has p - e^l q within the error given.
    atoms, p, q = discrete_atoms(pair, direction)
    place = np.searchsorted(atoms, losses, side="right")
    p_above = np.append(np.cumsum(p[::-1])[::-1], 0.0)
    p_sums, q_sums = p_above[place], np.append(np.cumsum(q[::-1])[::-1], 0.0)[place]
    x = np.exp(losses)
    first, last, off = near_atoms(atoms, p, q, losses)
    wrong = 2 * off * (p_above[first] - p_above[last])
    error = (len(p) * _U + WRITTEN + 2 * LIBRARY) * (p_sums + x * q_sums) + wrong
    return np.maximum(p_sums - x * q_sums, 0.0), error


# One step at full accuracy


def profile(pair: Pair, *, direction: Direction, epsilon: float) -> tuple[float, float]:
    """Delta of one step, in closed form.

    Args:
        pair: the dominating pair.
        direction: which law of the pair is first.
        epsilon: nats, >= 0.

    Returns:
        Lower and upper delta; relative width about 1e-12 where the step's loss is not tiny.

    Raises:
        ValueError: epsilon is negative, infinite or not a number.
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    match pair:
        case GaussianPair():
            bounds = _base_bounds(pair, epsilon, epsilon)
        case SampledGaussianPair():
            base = GaussianPair(noise_multiplier=pair.noise_multiplier)
            bounds = _sampled_bounds(base, pair.sampling_probability, direction, epsilon)
        case LaplacePair():
            bounds = _sampled_bounds(pair, pair.sampling_probability, direction, epsilon)
        case _:
            if epsilon > LOSS_MAX:
                return 0.0, profile(pair, direction=direction, epsilon=LOSS_MAX)[1]
            low, high = profiles(pair, direction=direction, losses=np.array([epsilon]))
            bounds = float(low[0]), float(high[0])
    return max(0.0, bounds[0]), min(1.0, bounds[1])


def _base_bounds(pair: Base, low: float, high: float) -> tuple[float, float]:
    """The unsampled profile, which falls, for an epsilon known to lie in [low, high]."""
    if isinstance(pair, LaplacePair):
        edge = 1 / pair.scale
        first, last = (0.5 * (end - edge) for end in (low, high))
        slack = 2 * _U * (edge + high)
        return (
            rounded_down(-math.expm1(min(0.0, last + slack)), ulps=LIBRARY_ULPS),
            rounded_up(-math.expm1(min(0.0, first - slack)), ulps=LIBRARY_ULPS),
        )
    mu = 1 / pair.noise_multiplier
    first, off = log_gaussian_delta(low, mu=rounded_up(mu))
    last, less = log_gaussian_delta(high, mu=rounded_down(mu))
    return (
        rounded_down(math.exp(last - less), ulps=LIBRARY_ULPS),
        rounded_up(math.exp(min(0.0, first + off)), ulps=LIBRARY_ULPS),
    )


def _sampled_bounds(
    base: Base, q: float, direction: Direction, epsilon: float
) -> tuple[float, float]:
    """REMOVE: q h(r). ADD: q e^epsilon c h(-log c), which rises in c."""
    if q == 1:
        return _base_bounds(base, epsilon, epsilon)
    if epsilon > LOSS_MAX:
        return 0.0, _sampled_bounds(base, q, direction, LOSS_MAX)[1]
    sign = 1.0 if direction is Direction.REMOVE else -1.0
    y = math.expm1(sign * epsilon) / q
    off = 2 * (LIBRARY + _U) * abs(y)
    if direction is Direction.REMOVE:
        low, high = (math.log1p(end) for end in (y - off, y + off))
        low, high = rounded_down(low, ulps=LIBRARY_ULPS), rounded_up(high, ulps=LIBRARY_ULPS)
        below, above = _base_bounds(base, max(0.0, low), high)
        return rounded_down(q * below), rounded_up(q * above)
    scale = q * math.exp(epsilon)
    below = above = 0.0
    if y - off > -1:
        s = rounded_up(-math.log1p(y - off), ulps=LIBRARY_ULPS)
        below = (1 + (y - off)) * _base_bounds(base, s, s)[0]
    if y + off > -1:
        s = rounded_down(-math.log1p(min(0.0, y + off)), ulps=LIBRARY_ULPS)
        above = (1 + min(0.0, y + off) + _U) * _base_bounds(base, max(0.0, s), max(0.0, s))[1]
    ulps = 2 * LIBRARY_ULPS
    return rounded_down(scale * below, ulps=ulps), rounded_up(scale * above, ulps=ulps)
