"""Whole passes of a shuffled loader: what some records lose, and add_or_remove_one above.

The records that lose much all contribute -1, but for one that contributes +1: wherever it falls, it
moves one of the released sums by two. Of a pass only the largest sum is looked at, which can only
make neighbours harder to tell apart. docs/theory/shuffle.md has the proofs.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.pairs import DensePair
from accounting.pld.profiles import NORMAL, NORMAL_SQUARED, TINY
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up
from accounting.work_limit import spend

_U: Final = UNIT_ROUNDOFF
CELLS: Final = 4000  # of a partition of the line; the loss inside one varies little
SPREAD: Final = 12.0  # standard deviations beyond the largest mean that cells take in
LOG_LEFT_OUT: Final = math.log(1e-16)  # of the largest sum's chance, below the first cell
NOISE_MIN: Final = 0.1  # below, pairs are those of this much noise: e^loss must stay a double


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
        sigma=noise_multiplier,
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
    of = _pass_of(max(noise_multiplier, NOISE_MIN), batches, steps, relation)
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
