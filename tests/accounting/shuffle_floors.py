"""What one shuffled pass loses at least, in closed form: to hold pairs and upper ends against.

The law of the largest sum is that of `largest_pair`, which answers of the service compose; here no
cell is cut, and the best threshold is searched.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from accounting import special
from accounting.events import NeighboringRelation
from accounting.pld.profiles import LIBRARY, TINY
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_down
from accounting.shuffling.full import _Pass, _pass_of, _tails

POINTS: Final = 257  # at which a threshold is tried, between those tried before
ROUNDS: Final = 5  # of narrowing the threshold; each by POINTS / 2
REACH: Final = 40.0  # standard deviations, where a tail is below 1e-300
NOISE_MIN: Final = 1e-6  # below, floors are those of this much noise: losses of 1e12 nats


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
    return np.asarray(128 * UNIT_ROUNDOFF * (1 + np.abs(logs)))


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
    of = _pass_of(max(noise_multiplier, NOISE_MIN), batches, steps, relation)

    def score(thresholds: Array) -> Array:
        kept = _kept(of, thresholds)
        logs = epsilon + _log_above(of, thresholds)
        lost = np.exp(np.minimum(logs + _log_error(logs), 1.0))
        return np.asarray(kept - lost)

    return max(0.0, rounded_down(_highest(score, 2.0 + REACH * of.sigma)))


def _kept(of: _Pass, thresholds: Array) -> Array:
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
    of = _pass_of(max(noise_multiplier, NOISE_MIN), batches, steps, relation)

    def score(thresholds: Array) -> Array:
        surplus = (_kept(of, thresholds) - delta) * (1 - LIBRARY)
        gained = np.log(np.maximum(surplus, TINY))
        gained = np.where(surplus > TINY, gained - _log_error(gained), -np.inf)
        return np.asarray(gained - _log_above(of, thresholds))

    highest = _highest(score, 2.0 + REACH * of.sigma)
    return max(0.0, rounded_down(highest)) if math.isfinite(highest) else 0.0
