"""A record whose place in a pass is uniform and secret: the average over its places.

With the place told, the last iterate is mu_j-GDP for the record in place j. Not telling it mixes
the places, and divergences that are jointly convex say how much that hides. docs/theory/
random_order.md has the proofs.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket
from accounting.pld.dense_pairs import loss_grid, profile_pair
from accounting.pld.pairs import DensePair
from accounting.pld.profiles import LOSS_MAX, NORMAL, NORMAL_SQUARED, TINY
from accounting.rounding import ERFCX_UNITS, UNIT_ROUNDOFF, Array, least_true

POSITIONS_MAX: Final = 10**7  # of an array; they are sorted, and then grouped
GROUPS: Final = 2048  # distinct mus that an average keeps: half of them as they are
PAIR_GROUPS: Final = 512  # the same where a profile is written down at thousands of losses
SPAN: Final = 1e-4  # of the largest mu that is grouped; smaller ones count as this share of it
TAIL: Final = 1e-40  # of a pass's profile: what is left where its grid ends is put at infinity
PASSES_MAX: Final = 10**6
_EPSILON_MAX: Final = 1e9  # nats; where the search gives up
Indices = npt.NDArray[np.intp]
_UP: Final = 1 + 1e-12  # covers the rounding of a sum of weights

_RELATIONS = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
_PASS = (
    Assumption.HIDDEN_ITERATES,
    Assumption.SECRET_ORDER,
    Assumption.INDEPENDENT_GAUSSIAN_NOISE,
)
_FRESH = (
    Assumption.HIDDEN_ITERATES,
    Assumption.FRESH_SECRET_ORDER,
    Assumption.INDEPENDENT_GAUSSIAN_NOISE,
    Assumption.PARAMETERS_FIXED_IN_ADVANCE,
)


def group_mus(mus: Array, weights: Array | None, *, groups: int) -> tuple[Array, Array]:
    """Few distinct mus, none below the one it stands for, and their weights.

    The larger half of `groups` is kept as it is: they decide delta. The rest is rounded up to
    points whose neighbours differ by a factor SPAN^(-2/groups), so by 0.9 % for GROUPS and 3.7 %
    for PAIR_GROUPS, or by less where the mus span less; with at most `groups` distinct mus nothing
    is rounded.

    Args:
        mus: not negative, may be infinite, shape (n,), 1 <= n <= POSITIONS_MAX.
        weights: of each, not negative, adding up to one; None: all alike.
        groups: how many may be left, about.

    Returns:
        (falling mus, their weights), shape (m,) each. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    mus = np.asarray(mus, dtype=np.float64)
    if mus.ndim != 1 or not 1 <= len(mus) <= POSITIONS_MAX or not np.all(mus >= 0):
        raise ValueError(f"mus has 1 to {POSITIONS_MAX} entries, and none is negative.")
    if weights is None:
        falling, shares = np.sort(mus)[::-1], None
    else:
        order = np.argsort(mus)[::-1]
        falling, shares = mus[order], checked_weights(weights, len(mus))[order]
    starts: Indices = np.flatnonzero(np.append(True, falling[1:] != falling[:-1]))
    if len(starts) > groups:
        starts, values = _round_up_groups(falling, starts, groups // 2)
    else:
        values = falling[starts]
    if shares is None:
        return values, np.diff(starts, append=len(mus)) / len(mus)
    return values, np.add.reduceat(shares, starts)


def _round_up_groups(falling: Array, starts: Indices, half: int) -> tuple[Indices, Array]:
    """Where groups start, and the mu that each is rounded up to."""
    exact, rest = starts[:half], falling[starts[half] :]
    top, least = rest[0], max(rest[-1], SPAN * rest[0])
    points = top * np.exp(np.linspace(0.0, math.log(least / top), half)) if top > 0 else rest
    points = points[: half if top > 0 else 1]
    # A group holds what is between its point and the next, the last one all that is smaller: none
    # is above its point, whatever rounding made of the points.
    edges = np.searchsorted(-rest, -points[1:], side="left")
    firsts = np.insert(edges, 0, 0)
    filled = np.diff(firsts, append=len(rest)) > 0
    return (
        np.concatenate((exact, starts[half] + firsts[filled])),
        np.concatenate((falling[exact], points[filled])),
    )


def checked_weights(weights: Array, count: int) -> Array:
    """Weights, scaled up if they add up to slightly less than one. Upper, shape (count,)."""
    shares = np.asarray(weights, dtype=np.float64)
    total = float(np.sum(shares)) if shares.shape == (count,) else math.nan
    if not (abs(total - 1) <= 1e-9 and np.all(shares >= 0)):
        raise ValueError("weights has one entry for each mu, none negative, adding up to one.")
    return shares * max(1.0, _UP / total)


def _upper_deltas(epsilons: Array, mus: Array) -> Array:
    """The delta of mu-GDP at epsilon >= 0; the shapes are broadcast. Upper, at most 1.

    Phi(-a) - e^epsilon Phi(-b), a = epsilon/mu - mu/2 and b = a + mu, where the second is phi(a)
    times Mills' ratio at b. The two cancel for small mu: the error is relative to their sum.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a = epsilons / mus - 0.5 * mus
        b = epsilons / mus + 0.5 * mus
        first = special.ndtr(-a)
        second = 0.5 * np.exp(-0.5 * a * a) * special.erfcx(b / math.sqrt(2))
        z = np.maximum(np.abs(a), b)
        relative = NORMAL + ERFCX_UNITS + NORMAL_SQUARED * z * z + 8 * (z + 1) * (z + mus)
        # At mu = 0, or far beyond it, nothing can be told; underflow is left to TINY.
        error = np.where(first > 0, UNIT_ROUNDOFF * relative * (first + second), 0.0)
        found = np.where(mus > 0, first - second + error, 0.0)
    return np.asarray(np.clip(found, 0.0, 1.0) + TINY)


def _average(epsilons: Array, values: Array, weights: Array) -> Array:
    """The weighted sum of the deltas at epsilons >= 0, shape (k,). Upper, at most 1."""
    deltas = _upper_deltas(epsilons[:, None], values)
    sums = deltas @ weights
    return np.asarray(np.minimum(sums * (1 + 2 * (len(values) + 2) * UNIT_ROUNDOFF), 1.0))


@theorem(
    id="random-order-average-delta",
    source="docs/theory/random_order.md, Theorem 1",
    status=Status.CONDITIONAL,
    relations=_RELATIONS,
    assumptions=_PASS,
)
def averaged_gaussian_delta(epsilon: float, *, mus: Array, weights: Array | None = None) -> float:
    """Delta at an epsilon of a release that is mu_j-GDP in place j, the place being secret.

    delta(epsilon) = sum over j of w_j delta_j(epsilon), with delta_j the profile of mu_j-GDP.

    Args:
        epsilon: nats, >= 0, finite.
        mus: mu_j >= 0 by place, shape (l,); bounds for the record in place j.
        weights: w_j, the chance of place j, shape (l,); all alike if left out.

    Returns:
        delta in [0, 1]. Upper; with more than GROUPS distinct mus the smaller ones are rounded up
        by at most 0.9 %, and rounding adds at most about 1e-14.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    values, shares = group_mus(mus, weights, groups=GROUPS)
    return float(_average(np.array([epsilon]), values, shares)[0])


@theorem(
    id="random-order-average",
    source="docs/theory/random_order.md, Theorem 1",
    status=Status.CONDITIONAL,
    relations=_RELATIONS,
    assumptions=_PASS,
)
def averaged_gaussian_epsilon(delta: float, *, mus: Array, weights: Array | None = None) -> float:
    """Epsilon at a delta of a release that is mu_j-GDP in place j, the place being secret.

    The least epsilon at which sum over j of w_j delta_j(epsilon), each rounded up, is at most
    delta. The average falls in epsilon, and the value returned has been evaluated.

    Args:
        delta: in (0, 1).
        mus: mu_j >= 0 by place, shape (l,); bounds for the record in place j.
        weights: w_j, the chance of place j, shape (l,); all alike if left out.

    Returns:
        epsilon in nats, >= 0; infinite above 1e9. Upper; as accurate as the delta.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    values, shares = group_mus(mus, weights, groups=GROUPS)

    def holds(epsilon: float) -> bool:
        return bool(_average(np.array([epsilon]), values, shares)[0] <= delta)

    if holds(0.0):
        return 0.0
    high = 1.0
    while not holds(high):
        high *= 2
        if high > _EPSILON_MAX:
            return math.inf
    return least_true(holds, low=0.0, high=high)


@theorem(
    id="random-order-pass",
    source="docs/theory/random_order.md, Theorem 1 and Theorem 2",
    status=Status.CONDITIONAL,
    relations=_RELATIONS,
    assumptions=_PASS,
)
def averaged_pair(*, mus: Array, weights: Array | None = None) -> DensePair:
    """A pair that dominates a release that is mu_j-GDP in place j, the place being secret.

    The averaged profile holds at every epsilon and in both orders at once. What joins it at many
    losses is the profile of a pair, and pairs of passes in fresh orders compose.

    Args:
        mus: mu_j >= 0 by place, shape (l,), not all zero; bounds for the record in place j.
        weights: w_j, the chance of place j, shape (l,); all alike if left out.

    Returns:
        The pair, the same in both orders. Upper; of more than PAIR_GROUPS distinct mus the smaller
        ones are rounded up by at most 3.7 %.

    Raises:
        ValueError: an argument is out of range.
    """
    values, shares = group_mus(mus, weights, groups=PAIR_GROUPS)
    if not values[0] > 0:
        raise ValueError("mus are not all zero.")

    def average(losses: Array) -> Array:
        return _average(losses, values, shares)

    top = 1.0
    while top < LOSS_MAX and average(np.array([top]))[0] > TAIL:
        top = min(LOSS_MAX, 1.25 * top)
    losses = loss_grid(scale=2.5 * float(average(np.zeros(1))[0]), top=top)
    deltas = average(losses)
    return profile_pair(losses, removed=deltas, added=deltas)


@theorem(
    id="random-order-passes",
    source="docs/theory/random_order.md, Theorem 2",
    status=Status.CONDITIONAL,
    relations=_RELATIONS,
    assumptions=_FRESH,
)
def fresh_passes_epsilon(
    delta: float, *, mus: Array, passes: int, weights: Array | None = None
) -> float:
    """Epsilon of passes in fresh secret orders, each mu_j-GDP for the record in place j.

    Given the iterate that a pass starts from, it is dominated by the averaged pair; so the iterates
    between passes may be shown, too.

    Args:
        delta: in (0, 1).
        mus: mu_j >= 0 by place within one pass, which starts from one iterate; shape (l,).
        passes: in [1, PASSES_MAX], all alike.
        weights: w_j, the chance of place j, shape (l,); all alike if left out.

    Returns:
        epsilon in nats, >= 0. Upper; as accurate as the pair and its composition.

    Raises:
        ValueError: an argument is out of range.
    """
    _require_passes(passes)
    if passes == 1:
        return averaged_gaussian_epsilon(delta, mus=mus, weights=weights)
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    pair = averaged_pair(mus=mus, weights=weights)
    return epsilon_bracket(((pair, passes),), delta=delta).upper


def fresh_passes_delta(
    epsilon: float, *, mus: Array, passes: int, weights: Array | None = None
) -> float:
    """Delta at an epsilon, by the same theorem as fresh_passes_epsilon. Upper, in [0, 1]."""
    _require_passes(passes)
    if passes == 1:
        return averaged_gaussian_delta(epsilon, mus=mus, weights=weights)
    if not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    pair = averaged_pair(mus=mus, weights=weights)
    return delta_bracket(((pair, passes),), epsilon=epsilon).upper


def _require_passes(passes: int) -> None:
    if not 1 <= passes <= PASSES_MAX:
        raise ValueError(f"passes lies in [1, {PASSES_MAX}].")


THEOREMS = (averaged_gaussian_delta, averaged_gaussian_epsilon, averaged_pair, fresh_passes_epsilon)
