"""Whole passes of a shuffled loader: what some records lose, and add_or_remove_one above.

The records that lose much all contribute -1, but for one that contributes +1: wherever it falls, it
moves one of the released sums by two. Of a pass only the largest sum is looked at, which can only
make neighbours harder to tell apart. docs/theory/shuffle.md has the proofs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.pairs import DensePair
from accounting.pld.profiles import LIBRARY, NORMAL, NORMAL_SQUARED, TINY
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_down, rounded_up
from accounting.work_limit import spend

_U: Final = UNIT_ROUNDOFF
CELLS: Final = 4000  # of a partition of the line; the loss inside one varies little
SPREAD: Final = 12.0  # standard deviations beyond the largest mean that cells take in
LOG_LEFT_OUT: Final = math.log(1e-16)  # of the largest sum's chance, below the first cell
POINTS: Final = 257  # at which a threshold is tried, between those tried before
ROUNDS: Final = 5  # of narrowing the threshold; each by POINTS / 2
REACH: Final = 40.0  # standard deviations, where a tail is below 1e-300
NOISE_MIN: Final = 1e-6  # below, floors are those of this much noise: losses of 1e12 nats
CELL_NOISE_MIN: Final = 0.1  # the same for pairs: e^loss must stay a double


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """The released sums of a pass, moved so that a sum without the record has mean 0."""

    sigma: float
    share: float  # chance that a released sum holds the record, to a roundoff
    rest: float  # chance that none does, to a roundoff
    steps: int
    other_mean: float  # of the sum that holds what is in the record's place under Q


def _pass_of(
    noise_multiplier: float, batches: int, steps: int, relation: NeighboringRelation
) -> _Pass:
    if not 1 <= steps <= batches:
        raise ValueError("A pass releases at least one and at most all of its batches.")
    # Under add_or_remove_one the last batch is not looked at: it alone has another size.
    looked_at = steps
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE and batches > 1:
        looked_at = min(steps, batches - 1)
    # What is in the place: nothing, another -1, or one record less in the only batch.
    alone = relation is NeighboringRelation.ADD_OR_REMOVE_ONE and batches == 1
    null = relation is NeighboringRelation.REPLACE_SPECIAL or alone
    return _Pass(
        sigma=max(noise_multiplier, NOISE_MIN),
        share=looked_at / batches,
        rest=(batches - looked_at) / batches,
        steps=looked_at,
        other_mean=1.0 if null else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _Tails:
    """Chances that the largest sum is below and above edges, and their relative errors."""

    below: Array
    above: Array
    below_error: Array
    above_error: Array


def _tails(of: _Pass, edges: Array, mean: float) -> _Tails:
    """The law of the largest sum if the one with the record has this mean.

    A product of distribution functions is the exponential of a sum of negative logarithms, and
    one minus it an expm1: both keep their relative precision.
    """
    spend(3 * len(edges))
    z = edges / of.sigma
    others = special.log_ndtr(z)
    joined = special.log_ndtr((edges - mean) / of.sigma) + (of.steps - 1) * others
    apart = of.steps * others
    # The logarithms are off by a few roundoffs, and where z > 0 by as much as the tail is.
    error = 2 * _U * (2 * NORMAL + NORMAL_SQUARED * np.maximum(z, 0.0) ** 2)
    return _Tails(
        below=of.share * np.exp(joined) + of.rest * np.exp(apart),
        above=-of.share * np.expm1(joined) - of.rest * np.expm1(apart),
        below_error=error * (1 - np.minimum(joined, apart)),
        above_error=error,
    )


def largest_pair(
    *, noise_multiplier: float, batches: int, steps: int, relation: NeighboringRelation
) -> DensePair:
    """The largest sum of a shuffled pass, of which only the cell is told that it falls in.

    P(W <= w) = (s/T) Phi((w-2)/sigma) Phi(w/sigma)^(s-1) + (1 - s/T) Phi(w/sigma)^s for s of T
    batches, and the same under Q with 1 for 2 (replace_special) or 0 (replace_one). Under
    add_or_remove_one it is that of replace_one without the last batch, or, where there is only one
    batch, that of replace_special.

    Args:
        noise_multiplier: sigma, > 0; the largest of the pass.
        batches: T, the records over batch_size, rounded up.
        steps: s, how many of them were released, in [1, T].
        relation: which records may differ.

    Returns:
        A pair that a pass attains at least, where the record is removed. Lower: masses of P are
        rounded down and those of Q up.

    Raises:
        ValueError: there are no steps, or more than batches.
    """
    of = _pass_of(max(noise_multiplier, CELL_NOISE_MIN), batches, steps, relation)
    # Phi(w/sigma)^s = e^LOG_LEFT_OUT at the first edge.
    start = -of.sigma * float(special.ndtri(-math.expm1(LOG_LEFT_OUT / of.steps)))
    edges = np.linspace(start, max(start, 2.0) + SPREAD * of.sigma, CELLS - 1)
    (p, p_error), (q, q_error) = (
        _cell_masses(_tails(of, edges, mean)) for mean in (2.0, of.other_mean)
    )
    return DensePair(
        first=tuple(np.maximum(p - p_error - TINY, 0.0).tolist()),
        second=tuple((q + q_error + TINY).tolist()),
    )


def _cell_masses(tails: _Tails) -> tuple[Array, Array]:
    """Masses of the cells between the edges and beyond them, and their absolute errors."""
    below, above = tails.below, tails.above
    # Differences of whichever tail is the smaller.
    left = np.append(below, 1.0) < 0.5
    mass = np.where(left, np.diff(below, prepend=0.0, append=1.0), 0.0)
    mass -= np.where(left, 0.0, np.diff(above, prepend=1.0, append=0.0))
    off_below, off_above = below * tails.below_error, above * tails.above_error
    error = np.where(
        left,
        np.append(off_below, 0.0) + np.insert(off_below, 0, 0.0),
        np.append(off_above, 0.0) + np.insert(off_above, 0, 0.0),
    )
    return mass, error + 4 * _U * np.abs(mass)


# One pass by itself


def _log_above(of: _Pass, thresholds: Array) -> Array:
    """Log of Q's chance that the largest sum is above. Upper, also where the chance underflows."""
    tails = _tails(of, thresholds, of.other_mean)
    with np.errstate(divide="ignore"):
        direct = np.log(tails.above * (1 + tails.above_error) + TINY)
        # The chance of any is at most the sum of the chances.
        union = np.logaddexp(
            np.log(of.share) + special.log_ndtr((of.other_mean - thresholds) / of.sigma),
            np.log(of.share * (of.steps - 1) + of.rest * of.steps)
            + special.log_ndtr(-thresholds / of.sigma),
        )
    union_error = _log_error(np.abs(union) + math.log(of.steps / of.share))
    return np.asarray(np.minimum(direct + _log_error(direct), union + union_error))


def _log_error(logs: Array) -> Array:
    # Their terms are right to a few dozen roundoffs of their size.
    return np.asarray(128 * _U * (1 + np.abs(logs)))


def _highest(score: Callable[[Array], Array], high: float) -> float:
    """The highest score found at thresholds in [0, high], by ever narrower grids. Lower."""
    best, low = -math.inf, 0.0
    for _ in range(ROUNDS):
        grid = np.linspace(low, high, POINTS)
        scores = score(grid)
        top = int(np.argmax(scores))
        best = max(best, float(scores[top]))
        low, high = float(grid[max(top - 1, 0)]), float(grid[min(top + 1, POINTS - 1)])
    return best


def shuffle_lower_delta(
    epsilon: float,
    *,
    noise_multiplier: float,
    batches: int,
    steps: int,
    relation: NeighboringRelation,
) -> float:
    """What delta at an epsilon is at least, after one shuffled pass.

    delta >= P(W > C) - e^epsilon Q(W > C) for the largest sum W and every C; see largest_pair.

    Args:
        epsilon: nats, >= 0.
        noise_multiplier: sigma, > 0; the largest of the pass.
        batches: T, the records over batch_size, rounded up.
        steps: s, how many of them were released, in [1, T].
        relation: which records may differ.

    Returns:
        delta in [0, 1]. Lower.

    Raises:
        ValueError: epsilon is negative or not finite, or there are no steps or too many.
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    of = _pass_of(noise_multiplier, batches, steps, relation)

    def score(thresholds: Array) -> Array:
        kept = _lower_tail(of, thresholds)
        logs = epsilon + _log_above(of, thresholds)
        lost = np.exp(np.minimum(logs + _log_error(logs), 1.0))
        return np.asarray(kept - lost)

    return max(0.0, rounded_down(_highest(score, 2.0 + REACH * of.sigma)))


def _lower_tail(of: _Pass, thresholds: Array) -> Array:
    """P's chance that the largest sum is above. Lower."""
    tails = _tails(of, thresholds, 2.0)
    return np.asarray(tails.above * (1 - tails.above_error) - TINY)


def shuffle_lower_epsilon(
    delta: float,
    *,
    noise_multiplier: float,
    batches: int,
    steps: int,
    relation: NeighboringRelation,
) -> float:
    """What epsilon at a delta is at least, after one shuffled pass.

    The inverse of shuffle_lower_delta: epsilon >= log((P(W > C) - delta) / Q(W > C)) for every C.

    Args:
        delta: in (0, 1).
        noise_multiplier: sigma, > 0; the largest of the pass.
        batches: T, the records over batch_size, rounded up.
        steps: s, how many of them were released, in [1, T].
        relation: which records may differ.

    Returns:
        epsilon in nats, >= 0. Lower.

    Raises:
        ValueError: delta is not in (0, 1), or there are no steps or too many.
    """
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    of = _pass_of(noise_multiplier, batches, steps, relation)

    def score(thresholds: Array) -> Array:
        surplus = (_lower_tail(of, thresholds) - delta) * (1 - LIBRARY)
        gained = np.log(np.maximum(surplus, TINY))
        gained = np.where(surplus > TINY, gained - _log_error(gained), -np.inf)
        return np.asarray(gained - _log_above(of, thresholds))

    highest = _highest(score, 2.0 + REACH * of.sigma)
    return max(0.0, rounded_down(highest)) if math.isfinite(highest) else 0.0


def noise_of_average(*, noise_multiplier: float, passes: int) -> float:
    """Noise of the mean of equal passes: what one order for all of them comes to.

    The record is in the same batch of each pass, so for the records that lose much the mean of
    the passes tells all there is. One pass with this noise bounds them from below.

    Args:
        noise_multiplier: sigma, > 0.
        passes: E, >= 1, all in the same order.

    Returns:
        sigma / sqrt(E). Upper: more noise makes a lower bound lower.
    """
    return rounded_up(noise_multiplier / math.sqrt(passes), ulps=2)


# From above, where a record is added or removed


@theorem(
    id="shuffle-add-remove",
    source="docs/theory/shuffle.md, Proposition 2",
    status=Status.DERIVED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE,),
    assumptions=(
        Assumption.FRESH_SECRET_ORDER,
        Assumption.ONE_STEP_PER_PASS,
        Assumption.INDEPENDENT_GAUSSIAN_NOISE,
    ),
)
def shuffle_add_remove_mu(
    *, noise_multiplier: float, batch_size: int, dataset_size: int, steps_per_pass: int
) -> float:
    """Gaussian DP of one shuffled pass when a record is added or removed.

    Without a record, the one in the last place takes its place, and nobody else moves. One sum then
    differs by two norm bounds and the last one by one, if it is released: mu = sqrt(5) / sigma, or
    2 / sigma if the last place is in no released batch. Both neighbours must have as many batches.

    Args:
        noise_multiplier: the least sigma of the pass's steps, > 0.
        batch_size: b, >= 1.
        dataset_size: n, the size that is declared, >= 1; the neighbours have one record more or
            less.
        steps_per_pass: steps of a pass, >= 1; n / b rounded up if the last, smaller batch is used.

    Returns:
        mu. Upper, to rounding.

    Raises:
        ValueError: a neighbour has more or fewer batches, or there are not so many.
    """
    whole, left_over = divmod(dataset_size, batch_size)
    if not 1 <= steps_per_pass <= whole + (left_over > 0):
        raise ValueError("A pass has at least one step and at most as many as batches.")
    if steps_per_pass > whole:
        if left_over == 1:
            raise ValueError("The last batch holds one record: without it there is a batch less.")
        return rounded_up(math.sqrt(5) / noise_multiplier, ulps=2)
    if steps_per_pass == whole and left_over == 0:
        raise ValueError("The batches are all full: one record more or less changes how many.")
    if steps_per_pass == whole and left_over == batch_size - 1:
        raise ValueError("A record more makes another full batch.")
    return rounded_up(2 / noise_multiplier)


THEOREMS = (shuffle_add_remove_mu,)
