"""Compositions of few discrete outcomes: every way the outcomes can be counted, exactly.

After k uses of a pair with m outcomes all that matters is how often each came up. Where these
counts are few the composition is itself a pair of finitely many outcomes, and its profile a sum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting import special
from accounting.events import Direction
from accounting.pld.pairs import DiscretePair
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array
from accounting.work_limit import cached_with_cost, spend

OUTCOMES_MAX: Final = 100_000  # of the composition, counted together
# A probability of a pair comes from its parameters, each is off by a few roundoffs.
_INPUT_ULPS: Final = 8


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Probabilities of a composition's outcomes under both laws, in logarithms; (n,)."""

    first: Array
    second: Array
    error: Array  # bound on the absolute error of either logarithm


def find_few_counts(
    units: Sequence[tuple[DiscretePair, int]],
) -> tuple[tuple[DiscretePair, int], ...] | None:
    """The units, if their counts are few; else None."""
    size = 1
    for pair, count in units:
        ways = math.comb(count + len(pair.first) - 1, len(pair.first) - 1)
        if ways > OUTCOMES_MAX or size * ways > OUTCOMES_MAX:
            return None
        size *= ways
    return tuple(units)


def counted_delta(
    units: tuple[tuple[DiscretePair, int], ...], *, direction: Direction, epsilon: float
) -> tuple[float, float]:
    """(lower, upper) delta: the sum of (P - e^epsilon Q) over outcomes where it is positive.

    An error r of a logarithm changes its outcome's share by at most the factor e^r either way.
    """
    outcomes = _outcomes(units)
    removed = direction is Direction.REMOVE
    above = outcomes.first if removed else outcomes.second
    below = (outcomes.second if removed else outcomes.first) + epsilon
    error = outcomes.error + 4 * UNIT_ROUNDOFF * (1 + epsilon)
    upper = _positive_part(above + error, below - error)
    # What underflows is rounded up, to a least double for each outcome that counts.
    upper += 5e-324 * int(np.count_nonzero(above + error > below - error))
    lower = _positive_part(above - error, below + error)
    rounding = (len(above) + 16 * LIBRARY_ULPS) * UNIT_ROUNDOFF
    return lower * (1 - rounding), min(1.0, upper * (1 + rounding))


def _positive_part(above: Array, below: Array) -> float:
    # e^a - e^b = e^a (1 - e^(b-a)), without cancellation where a is only just above b.
    more = above > below
    with np.errstate(under="ignore"):
        parts = np.exp(above[more]) * -np.expm1(below[more] - above[more])
    return math.fsum(parts)


@cached_with_cost(maxsize=16)
def _outcomes(units: tuple[tuple[DiscretePair, int], ...]) -> Outcomes:
    first, second, error = np.zeros(1), np.zeros(1), np.zeros(1)
    for pair, count in units:
        more = _of_one(pair, count)
        first = np.add.outer(first, more.first).ravel()
        second = np.add.outer(second, more.second).ravel()
        error = np.add.outer(error, more.error).ravel()
    sizes = np.where(np.isfinite(first), np.abs(first), 0.0)
    sizes += np.where(np.isfinite(second), np.abs(second), 0.0)
    return Outcomes(first, second, error + len(units) * UNIT_ROUNDOFF * sizes)


def _of_one(pair: DiscretePair, count: int) -> Outcomes:
    """All counts of one pair's outcomes: multinomial probabilities."""
    counts = _compositions(count, len(pair.first))
    spend(10 * counts.size)
    ways = float(special.gammaln(count + 1)) - np.sum(special.gammaln(counts + 1), axis=1)
    size = float(special.gammaln(count + 1)) + np.sum(special.gammaln(counts + 1), axis=1)
    logs = []
    for probabilities in (pair.first, pair.second):
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = counts * np.log(np.array(probabilities))
        terms = np.where(counts == 0, 0.0, terms)
        logs.append(ways + np.sum(terms, axis=1))
        size = size + np.sum(np.where(np.isfinite(terms), np.abs(terms), 0.0), axis=1)
    error = UNIT_ROUNDOFF * (16 * LIBRARY_ULPS * (size + 1) + 2 * _INPUT_ULPS * count)
    return Outcomes(logs[0], logs[1], np.asarray(error))


def _compositions(total: int, parts: int) -> Array:
    """Every way to write `total` as an ordered sum of `parts` counts; shape (n, parts)."""
    if parts == 1:
        return np.array([[float(total)]])
    blocks = []
    for first in range(total + 1):
        rest = _compositions(total - first, parts - 1)
        blocks.append(np.column_stack([np.full(len(rest), float(first)), rest]))
    return np.concatenate(blocks)
