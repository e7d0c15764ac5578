"""Passes in which each record's steps are drawn uniformly: balls and bins, random allocation.

The likelihood ratio of a pass of T steps is at most as spread as the mean of T independent
lognormal variables, and for some dataset it is just that. docs/theory/allocation.md has the proofs.
"""

import math
from typing import Final

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.pairs import DensePair, GaussianPair
from accounting.rounding import UNIT_ROUNDOFF
from accounting.shuffling.sums import mean_table
from accounting.work_limit import cached_with_cost

PAIRS_KEPT: Final = 64  # of each kind, 0.1 MB each
NOISE_MIN: Final = 0.1  # below, ratios leave the range of doubles
NOISE_MAX: Final = 1e3  # above, they are too near one
# An upper table's mass is one and up to 6e-12 a step, and more from some noise on; for a longer
# pass it is that of this many steps, which is above it.
STEPS_MAX: Final = 10**7
NOISE_PLENTY: Final = 10.0
LOWER_STEPS_MAX: Final = 10**9  # beyond, nothing is claimed from below


def _check(noise_multiplier: float, steps_per_pass: int) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise ValueError("noise_multiplier is positive and finite.")
    if not steps_per_pass >= 1:
        raise ValueError("steps_per_pass is at least one.")


@cached_with_cost(maxsize=PAIRS_KEPT)
def _upper_pair(sigma: float, steps: int) -> DensePair | GaussianPair:
    if steps == 1 or not NOISE_MIN <= sigma <= NOISE_MAX:
        return GaussianPair(noise_multiplier=sigma)
    most = int(STEPS_MAX / max(1.0, sigma / NOISE_PLENTY))
    table = mean_table(sigma, min(steps, most), upper=True)
    return DensePair(
        first=(*(table.places * table.masses).tolist(), table.infinite),
        second=(*table.masses.tolist(), 0.0),
    )


_RELATIONS: Final = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)


@theorem(
    id="balls-and-bins",
    source="Chua et al. 2025, AISTATS (Balls-and-Bins Sampling for DP-SGD), arXiv:2412.16802, "
    "Section 4; proved, and the law of its ratio found, in docs/theory/allocation.md",
    status=Status.PUBLISHED,
    relations=_RELATIONS,
    assumptions=(Assumption.BALLS_AND_BINS_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def allocation_pair(*, noise_multiplier: float, steps_per_pass: int) -> DensePair | GaussianPair:
    """The pair that dominates a pass in which each record is in one step, uniformly.

    P = (1/T) sum_t N(e_t, sigma^2 I) and Q = N(0, sigma^2 I) in T dimensions, so that under Q

    S = dP/dQ = (1/T) sum_t e^(z_t/sigma - 1/(2 sigma^2)),  z_t independent standard normal.

    It dominates in both orders, whatever a contribution owes to earlier answers, and a pass that
    stops early is no worse. The law of S is a table of atoms that every rounding has spread.

    Args:
        noise_multiplier: sigma, > 0; the least of the pass.
        steps_per_pass: T, >= 1.

    Returns:
        A pair that dominates a pass. Upper: epsilon is in excess by about 3e-4 of itself for
        T = 1000, by 1e-3 for T = 1e7. One step a pass, and noise outside [0.1, 1e3], give the
        Gaussian pair, which dominates a pass however its records are placed.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(noise_multiplier, steps_per_pass)
    return _upper_pair(noise_multiplier, steps_per_pass)


@theorem(
    id="random-allocation",
    source="Feldman and Shenfeld 2025, NeurIPS (Privacy Amplification by Random Allocation), "
    "arXiv:2502.08202v4, Section 3; proved in docs/theory/allocation.md",
    status=Status.PUBLISHED,
    relations=_RELATIONS,
    assumptions=(Assumption.RANDOM_ALLOCATION_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def random_allocation_pairs(
    *, noise_multiplier: float, steps_per_pass: int, participations: int
) -> tuple[tuple[DensePair | GaussianPair, int], ...]:
    """Pairs that dominate a pass in which each record is in k steps of T, a uniform set of them.

    Deal steps at random into k blocks of floor(T/k), leave the rest, and take one step of each
    block, uniformly: this draws such a set. Tell how they were dealt, and the ratio is a product of
    those of the blocks.

    Args:
        noise_multiplier: sigma, > 0; the least of the pass.
        steps_per_pass: T, >= 1.
        participations: k, in [1, T].

    Returns:
        Pairs, and how often each counts: k in all. Upper; blocks as allocation_pair has them.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(noise_multiplier, steps_per_pass)
    if not 1 <= participations <= steps_per_pass:
        raise ValueError("participations lie in [1, steps_per_pass].")
    pair = _upper_pair(noise_multiplier, steps_per_pass // participations)
    return ((pair, participations),)


@cached_with_cost(maxsize=PAIRS_KEPT)
def allocation_lower_pair(
    *, noise_multiplier: float, steps_per_pass: int, steps: int
) -> DensePair | GaussianPair:
    """What balls and bins attain where `steps` of a pass were released and the record is removed.

    The others contribute nothing, and the record its full norm in one direction. If its step is not
    among the s that were released nothing differs: S = 1 - s/T + (s/T) S_s.

    Args:
        noise_multiplier: sigma, > 0; the largest of the pass.
        steps_per_pass: T, >= 1.
        steps: s, in [0, T].

    Returns:
        A pair that the pass dominates where the record is removed. Lower: the masses need not add
        up to one. Below noise of 0.1 it is the pair of that noise; above 1e3, and for more than 1e9
        steps, of no release at all.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(noise_multiplier, steps_per_pass)
    if not 0 <= steps <= steps_per_pass:
        raise ValueError("steps lie in [0, steps_per_pass].")
    if steps == steps_per_pass == 1:
        return GaussianPair(noise_multiplier=noise_multiplier)
    if not (noise_multiplier <= NOISE_MAX and 1 <= steps <= LOWER_STEPS_MAX):
        return DensePair(first=(1.0,), second=(1.0,))
    table = mean_table(max(noise_multiplier, NOISE_MIN), steps, upper=False)
    rest, share = (steps_per_pass - steps) / steps_per_pass, steps / steps_per_pass
    places = (rest + share * table.places) * (1 - 8 * UNIT_ROUNDOFF)
    return DensePair(
        first=tuple((places * table.masses).tolist()), second=tuple(table.masses.tolist())
    )


THEOREMS = (allocation_pair, random_allocation_pairs)
