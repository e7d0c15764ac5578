"""Tails of one step's privacy loss, each with a bound on its own rounding error.

For a direction, P is its first law, Q its second and the loss is L = log dP/dQ.
docs/theory/lattice.md derives the formulas and the errors.
"""

from dataclasses import dataclass
from typing import Final, assert_never

import numpy as np

from accounting import special
from accounting.events import Direction
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
from accounting.pld.profiles import (
    LIBRARY,
    LOSS_MAX,
    NORMAL,
    NORMAL_FAR,
    NORMAL_SQUARED,
    TINY,
    WRITTEN,
    Base,
    UnknownProfileError,
    base_profile,
    discrete_atoms,
    near_atoms,
    profile,
    profiles,
    replaced_loss,
    unsampled_loss,
)
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

__all__ = ["LOSS_MAX", "TINY", "Tails", "profile", "profiles", "tails"]
# Of e that is still a double; a lattice of wide cells may end beyond.
_EXPONENT_MAX: Final = 700.0

_U: Final = UNIT_ROUNDOFF


@dataclass(frozen=True, slots=True)
class Tails:
    """Tail probabilities at k losses l, in nats; for one direction.

    Each is off by at most `error` relatively plus TINY. The error is infinite where rounding
    could put l on the wrong side of an atom; the values are then those of one of the sides.
    """

    p_above: Array  # P(L > l), shape (k,)
    q_above: Array  # Q(L > l), shape (k,)
    p_below: Array  # P(L <= l), shape (k,)
    q_below: Array  # Q(L <= l), shape (k,)
    error: Array  # relative, shape (k,)


def tails(pair: Pair, *, direction: Direction, losses: Array) -> Tails:
    """Tail probabilities of the loss of one step.

    Args:
        pair: the dominating pair.
        direction: which law of the pair is first.
        losses: l in nats, shape (k,), each of size at most LOSS_MAX.

    Returns:
        The tails, exact up to their `error`: a few units of roundoff in the body, growing with the
        square of the distance in standard deviations far out.
    """
    match pair:
        case GaussianPair():
            return _gaussian_tails(pair, losses, np.zeros_like(losses))
        case SampledGaussianPair():
            base = GaussianPair(noise_multiplier=pair.noise_multiplier)
            return _sampled_tails(base, pair.sampling_probability, direction, losses)
        case LaplacePair():
            return _sampled_tails(pair, pair.sampling_probability, direction, losses)
        case DiscretePair() | DensePair():
            return _discrete_tails(pair, direction, losses)
        case SymmetricPair():
            return _symmetric_tails(pair, losses)
        case ReplacedGaussianPair():
            return _replaced_tails(pair, losses)
        case InterpolatedSteps():
            raise UnknownProfileError
        case _:
            assert_never(pair)


def _gaussian_tails(pair: GaussianPair, r: Array, dr: Array) -> Tails:
    # The hazard rate of the normal law at z is at most |z| + 1, on either side.
    spend(6000 + 12 * len(r))
    sigma = pair.noise_multiplier
    z_p, z_q = sigma * r - 0.5 / sigma, sigma * r + 0.5 / sigma
    z = np.maximum(np.abs(z_p), np.abs(z_q))
    with np.errstate(invalid="ignore"):
        dz = sigma * dr + 4 * _U * (z + 1 / sigma)
        error = _U * (NORMAL + NORMAL_SQUARED * z * z) + 2 * (z + 1) * dz
    error = np.where(np.isinf(r) & (dr == 0), 0.0, error)
    return Tails(
        special.ndtr(-z_p), special.ndtr(-z_q), special.ndtr(z_p), special.ndtr(z_q), error
    )


def _laplace_tails(pair: LaplacePair, r: Array, dr: Array) -> Tails:
    spend(7000 + 100 * len(r))
    # Inside, the loss crosses r at x = (1 + b r) / 2, between the centres.
    edge = 1 / pair.scale
    inner = np.clip(r, -edge, edge)
    p_low = 0.5 * np.exp(0.5 * (inner - edge))
    q_high = 0.5 * np.exp(-0.5 * (inner + edge))
    low, high = r < -edge, r >= edge
    margin = dr + 4 * _U * edge
    error = np.where(low | high, 0.0, 2 * LIBRARY + 2 * dr + 4 * _U * edge)
    with np.errstate(invalid="ignore"):
        error = np.where(np.abs(np.abs(r) - edge) <= margin, np.inf, error)

    def cut(inside: Array, below: float, above: float) -> Array:
        return np.where(low, below, np.where(high, above, inside))

    return Tails(
        cut(1 - p_low, 1.0, 0.0),
        cut(q_high, 1.0, 0.0),
        cut(p_low, 0.0, 1.0),
        cut(1 - q_high, 0.0, 1.0),
        error,
    )


def _base_tails(pair: Base, r: Array, dr: Array) -> Tails:
    if isinstance(pair, GaussianPair):
        return _gaussian_tails(pair, r, dr)
    return _laplace_tails(pair, r, dr)


def _sampled_tails(base: Base, q: float, direction: Direction, losses: Array) -> Tails:
    """Mixed tails of the base pair at r(l): its two laws swap when its loss changes sign."""
    r, dr = unsampled_loss(direction, q, losses)
    inner = _base_tails(base, r, dr)
    error = inner.error + 4 * _U
    if direction is Direction.REMOVE:
        above = (1 - q) * inner.q_above + q * inner.p_above
        below = (1 - q) * inner.q_below + q * inner.p_below
        return Tails(above, inner.q_above, below, inner.q_below, error)
    above = (1 - q) * inner.p_above + q * inner.q_above
    below = (1 - q) * inner.p_below + q * inner.q_below
    return Tails(inner.p_above, above, inner.p_below, below, error)


def _replaced_tails(pair: ReplacedGaussianPair, losses: Array) -> Tails:
    """Tails of both mixtures at the x of each loss, which rises in x."""
    spend(9000 + 60 * len(losses))
    sigma, q = pair.noise_multiplier, pair.sampling_probability
    r, dr = replaced_loss(pair, losses)
    z = sigma * r
    most = np.abs(z) + 1 / sigma
    dz = sigma * dr + 4 * _U * (most + 1 / sigma)
    error = _U * (NORMAL + NORMAL_SQUARED * most * most) + 2 * (most + 1) * dz + 8 * _U
    unsure = (dz * (most + 1) > 0.1) & (np.abs(z) - 1 / sigma - dz < NORMAL_FAR)
    error = np.where(unsure, np.inf, error)

    def mixed(sign: float, mean: float) -> Array:
        each = special.ndtr(sign * z), special.ndtr(sign * (z - mean / sigma))
        return np.asarray((1 - q) * each[0] + q * each[1])

    return Tails(mixed(-1.0, 1.0), mixed(-1.0, -1.0), mixed(1.0, 1.0), mixed(1.0, -1.0), error)


def _discrete_tails(pair: Atomic, direction: Direction, losses: Array) -> Tails:
    atoms, p, q = discrete_atoms(pair, direction)
    spend(30_000 + 40 * len(losses) + 9 * len(atoms))
    place = np.searchsorted(atoms, losses, side="right")

    def sums(mass: Array) -> tuple[Array, Array]:
        above = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
        below = np.insert(np.cumsum(mass), 0, 0.0)
        return above[place], below[place]

    (p_above, p_below), (q_above, q_below) = sums(p), sums(q)
    first, last, _ = near_atoms(atoms, p, q, losses)
    error = np.where(last > first, np.inf, len(p) * _U + WRITTEN)
    return Tails(p_above, q_above, p_below, q_below, error)


def _symmetric_tails(pair: SymmetricPair, losses: Array) -> Tails:
    """Above zero Q(L > l) = -H'(a) with a = e^l; below, the laws swap and the loss is negated."""
    spend(6000 + 7 * len(losses))
    q, up = pair.sampling_probability, np.minimum(np.abs(losses), _EXPONENT_MAX)
    r, dr = unsampled_loss(Direction.REMOVE, q, up)
    near = far = _base_tails(pair.near, r, dr)
    h_near, near_off, _ = h_far, far_off, _ = base_profile(pair.near, r)
    if pair.far != pair.near:
        far = _base_tails(pair.far, r, dr)
        h_far, far_off, _ = base_profile(pair.far, r)
    c = np.exp(up - r)
    less = (1 - q) * np.expm1(up) / (q + np.expm1(up))
    gain = c * c * np.exp(-2 * up) * (1 - q) / q * q  # q |dc/da|, as dc/da = -(1-q)/q (c/a)^2
    slope = less * near.q_above + c * far.q_above + gain * np.maximum(h_far - h_near, 0.0)
    lower, upper = profiles(pair, direction=Direction.REMOVE, losses=up)
    p_high = 0.5 * (lower + upper) + np.exp(up) * slope
    with np.errstate(invalid="ignore", divide="ignore"):
        off = gain * (near_off + far_off + 2 * dr) / np.maximum(slope, TINY)
        spread = 0.5 * (upper - lower) / np.maximum(p_high, TINY)
    error = near.error + far.error + np.where(slope > 0, off + spread, 0.0) + 8 * LIBRARY
    error = np.where(np.abs(losses) > _EXPONENT_MAX, np.inf, error)
    flip = losses < 0
    rest_p, rest_q = np.maximum(1 - p_high, 0.0), np.maximum(1 - slope, 0.0)
    # One minus a tail magnifies its relative error where the tail is near one.
    with np.errstate(divide="ignore"):
        error = error * np.maximum(1.0, np.maximum(p_high, slope) / np.maximum(rest_p, TINY))
    return Tails(
        np.where(flip, rest_q, p_high),
        np.where(flip, rest_p, slope),
        np.where(flip, slope, rest_p),
        np.where(flip, p_high, rest_q),
        error,
    )
