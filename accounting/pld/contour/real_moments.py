"""Real orders: upper bounds of the moments of every pair, on one fixed ladder.

M(lam) = E[e^(lam L)] is the moment of the loss L under the first law of the direction; lam + 1 is
the Renyi order. The ladder serves to choose where to invert the transform and to bound what lies
outside the window of the inversion (contour.py). docs/theory/contour.md derives every term.
"""

import math
from typing import Final, assert_never

import numpy as np

from accounting.events import Direction
from accounting.pld.contour.interpolated_moments import log_moments_of_coins
from accounting.pld.contour.quadrature import (
    grid_points,
    grid_spacing,
    log_tails,
    losses_at,
    strip_share,
    widest_range,
)
from accounting.pld.contour.replaced_quadrature import (
    log_replaced_tails,
    one_sided,
    replaced_range,
    replaced_share,
    replaced_spacing,
    sides_at,
)
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
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.work_limit import cached_with_cost, spend

# From ledgers with an epsilon of millions to ledgers with one of millionths; close together where
# the orders of training runs lie, so that some order is within 6 % of the best.
LADDER: Final[Array] = np.concatenate(
    [
        np.geomspace(1e-6, 0.05, 24, endpoint=False),
        np.geomspace(0.05, 100, 68, endpoint=False),
        np.geomspace(100, 1e6, 24),
    ]
)
LADDER.flags.writeable = False
# Moments beyond e^600 are not needed: the bound they give is worse than that of smaller orders.
LOG_MOMENT_MAX: Final = 600.0
CACHE_ENTRIES: Final = 16384  # of 0.9 kB each
# Where a record is added, larger orders would need a much finer grid. There the moment is bounded
# by the one where it is removed, which is never smaller (docs/theory/renyi.md, Proposition 1), and
# by the largest loss there is.
ADD_ORDER_MAX: Final = 100.0
GRID_POINTS_MAX: Final = 2**16
TARGET: Final = 1e-15  # share of the moment that discretisation may add


class NoMomentsError(ValueError):
    """The pair's moments are not known in closed form or by quadrature."""


def log_best_share(orders: Array) -> Array:
    """Log c(lam), c = max over l > 0 of (1 - e^-l) e^(-lam l) = (lam/(lam+1))^lam / (lam+1).

    It makes delta(epsilon) <= c(lam) M(lam) e^(-lam epsilon). Exact to rounding.
    """
    return np.asarray(-orders * np.log1p(1 / orders) - np.log1p(orders), dtype=np.float64)


LOG_BEST_SHARE: Final[Array] = log_best_share(LADDER) + 1e-13
LOG_BEST_SHARE.flags.writeable = False


@cached_with_cost(maxsize=CACHE_ENTRIES)
def log_moments(pair: Pair, direction: Direction) -> Array:
    """Log M on LADDER. Upper, shape (116,), read-only; infinite where it is not evaluated.

    Raises:
        NoMomentsError: the pair is known by its tails alone.
    """
    match pair:
        case GaussianPair():
            found = _gaussian(pair.noise_multiplier)
        case SampledGaussianPair():
            found = _sampled_gaussian(pair, direction)
        case ReplacedGaussianPair():
            found = _replaced_gaussian(pair)
        case LaplacePair():
            found = _laplace(pair)
        case DiscretePair() | DensePair():
            found = log_moments_of_atoms(pair, direction, LADDER)
        case SymmetricPair():
            found = _symmetric(pair)
        case InterpolatedSteps():
            coins = pair.above or pair  # which dominate, so that their moments are no smaller
            spend(2 * len(coins.shares) * len(LADDER))
            found = log_moments_of_coins(
                coins, log_moments(coins.near, direction), log_moments(coins.far, direction)
            )
        case _:
            assert_never(pair)
    found.flags.writeable = False
    return found


def _gaussian(sigma: float) -> Array:
    exponents = LADDER * (LADDER + 1) / (2 * sigma * sigma)
    return np.asarray(exponents * (1 + 8 * UNIT_ROUNDOFF), dtype=np.float64)


def _laplace(pair: LaplacePair) -> Array:
    if pair.sampling_probability < 1:
        raise NoMomentsError("A sampled Laplace pair is known by its tails.")
    b = pair.scale
    # (e^(lam/b) (1 + 1/(2 lam + 1)) + e^(-(lam+1)/b) (1 - 1/(2 lam + 1))) / 2
    inner = 1 / (2 * LADDER + 1)
    found = np.logaddexp(
        LADDER / b + np.log1p(inner), -(LADDER + 1) / b + np.log(2 * LADDER) + np.log(inner)
    ) - math.log(2)
    slack = 16 * LIBRARY_ULPS * UNIT_ROUNDOFF * (2 + LADDER / b + (LADDER + 1) / b)
    # The exponents are added to logarithms of size |log(2 lam)|, at most 15 on the ladder.
    return np.asarray(found + slack + 64 * LIBRARY_ULPS * UNIT_ROUNDOFF, dtype=np.float64)


def finite_losses(pair: Atomic, direction: Direction) -> tuple[Array, Array, float]:
    """(losses, their probabilities under the first law, the probability of an infinite loss)."""
    first = np.array(pair.first if direction is Direction.REMOVE else pair.second)
    second = np.array(pair.second if direction is Direction.REMOVE else pair.first)
    both = (first > 0) & (second > 0)
    losses = np.log(first[both]) - np.log(second[both])
    return losses, first[both], math.fsum(first[(first > 0) & (second <= 0)])


def log_moments_of_atoms(pair: Atomic, direction: Direction, orders: Array) -> Array:
    """Log E[e^(lam L)] of finite losses at orders lam > 0, shape (k,). Upper."""
    losses, probabilities, _ = finite_losses(pair, direction)
    spend(10_000 + 9 * len(orders) * len(losses) // 4)
    if not len(losses):
        return np.full_like(orders, -1e4)  # nothing but infinite losses
    exponents = orders[:, None] * losses + np.log(probabilities)
    tops = np.max(exponents, axis=1)
    found = tops + np.log(np.sum(np.exp(exponents - tops[:, None]), axis=1))
    log_sizes = 1 + float(np.max(np.abs(np.log(probabilities))))
    size = np.max(np.abs(exponents), axis=1) + (1 + orders) * log_sizes
    slack = UNIT_ROUNDOFF * (16 * LIBRARY_ULPS * (size + 2) + len(losses))
    return np.asarray(found + slack, dtype=np.float64)


def _symmetric(pair: SymmetricPair) -> Array:
    """E[e^(lam L)] <= E_Q[S^(1+lam)] + E_Q[S^-lam] - 1, S the ratio of the pair that it is made of.

    That is the sum of both orders' moments less one (docs/theory/renyi.md, Proposition 3).
    """
    if isinstance(pair.far, LaplacePair):
        raise NoMomentsError("A sampled Laplace pair is known by its tails.")
    whole = SampledGaussianPair(
        noise_multiplier=pair.far.noise_multiplier, sampling_probability=pair.sampling_probability
    )
    removed, added = (log_moments(whole, direction) for direction in Direction)
    with np.errstate(over="ignore"):
        less = np.log1p(np.expm1(removed) + np.expm1(added))
    # Where an exponential overflows the sum is at most twice the larger.
    rough = np.maximum(removed, added) + math.log(2)
    return np.asarray(np.minimum(less, rough) + 16 * LIBRARY_ULPS * UNIT_ROUNDOFF, dtype=np.float64)


def _reach(pair: SampledGaussianPair, direction: Direction) -> int:
    """How many orders of the ladder are evaluated: those whose moments stay within bounds."""
    q, sigma = pair.sampling_probability, pair.noise_multiplier
    grown = LADDER * (LADDER + 1) / (2 * sigma * sigma)
    if direction is Direction.REMOVE:
        least = grown + (1 + LADDER) * math.log(q)  # E[S^(1+lam)] is at least this one term
        return max(2, int(np.searchsorted(least > LOG_MOMENT_MAX, True)))
    most = np.minimum(-LADDER * math.log1p(-q), grown)  # E[S^-lam] is at most this
    beyond = (most > LOG_MOMENT_MAX) | (LADDER > ADD_ORDER_MAX)
    return max(2, int(np.searchsorted(beyond, True)))


def _sampled_gaussian(pair: SampledGaussianPair, direction: Direction) -> Array:
    sigma = pair.noise_multiplier
    reach = _reach(pair, direction)
    orders = LADDER[:reach]
    powers = 1 + orders if direction is Direction.REMOVE else -orders
    phase, h = grid_spacing(pair, power=float(powers[-1]), theta=0.0, share=TARGET)
    left, right = widest_range(pair, power=float(powers[-1]))
    if not right - left < GRID_POINTS_MAX * h:
        raise NoMomentsError("There is too little noise for the moments to be summed.")
    x = grid_points(left, right, h)
    spend(2 * reach * len(x))
    losses = losses_at(x, pair)
    exponents = np.multiply.outer(powers, losses.loss)
    exponents -= 0.5 * (x / sigma) ** 2
    tops = np.max(exponents, axis=1)
    exponents -= tops[:, None]
    np.exp(exponents, out=exponents)
    sums = exponents.sum(axis=1)
    logs = tops + np.log(sums) + math.log(h / (sigma * math.sqrt(2 * math.pi)))
    size = 0.5 * (x[0] ** 2 + x[-1] ** 2) / sigma**2 + np.abs(powers) * np.max(np.abs(losses.loss))
    slack = UNIT_ROUNDOFF * (32 * LIBRARY_ULPS * (size + 2) + 2 * len(x))
    total = np.logaddexp(logs + slack, log_tails(pair, powers, x, losses))
    share = strip_share(pair, power=float(powers[-1]), theta=0.0, phase=phase, h=h)
    if direction is Direction.REMOVE:
        found = np.full_like(LADDER, np.inf)
    else:
        certain = (
            -LADDER * math.log1p(-pair.sampling_probability) * (1 + 16 * UNIT_ROUNDOFF)
        )  # S is at least 1 - q
        found = np.minimum(certain, log_moments(pair, Direction.REMOVE))
    # E[S^e] is at most what was found plus `share` of itself.
    found[:reach] = total - np.log1p(-share) + 8 * UNIT_ROUNDOFF
    return found


def _replaced_gaussian(pair: ReplacedGaussianPair) -> Array:
    """The same of the pair of a replaced record, whose orders are alike."""
    sigma = pair.noise_multiplier
    reach = _reach(one_sided(pair), Direction.REMOVE)
    orders = LADDER[:reach]
    top = float(orders[-1])
    phase, h = replaced_spacing(pair, order=top, theta=0.0, share=TARGET)
    left, right = replaced_range(pair, order=top)
    if not right - left < GRID_POINTS_MAX * h:
        raise NoMomentsError("There is too little noise for the moments to be summed.")
    x = grid_points(left, right, h)
    spend(2 * reach * len(x))
    sides = sides_at(x, pair)
    exponents = np.multiply.outer(1 + orders, sides.here.loss)
    exponents -= np.multiply.outer(orders, sides.there.loss)
    exponents -= 0.5 * (x / sigma) ** 2
    tops = np.max(exponents, axis=1)
    exponents -= tops[:, None]
    np.exp(exponents, out=exponents)
    logs = tops + np.log(exponents.sum(axis=1)) + math.log(h / (sigma * math.sqrt(2 * math.pi)))
    size = 0.5 * (x[0] ** 2 + x[-1] ** 2) / sigma**2 + (1 + 2 * orders) * (
        np.max(np.abs(sides.here.loss)) + np.max(np.abs(sides.there.loss))
    )
    slack = UNIT_ROUNDOFF * (32 * LIBRARY_ULPS * (size + 2) + 2 * len(x))
    slack = slack + (1 + 2 * orders) * float(np.max(sides.here.error + sides.there.error))
    total = np.logaddexp(logs + slack, log_replaced_tails(pair, orders, x, sides))
    share = replaced_share(pair, order=top, theta=0.0, phase=phase, h=h)
    found = np.full_like(LADDER, np.inf)
    found[:reach] = total - np.log1p(-share) + 8 * UNIT_ROUNDOFF
    return found
