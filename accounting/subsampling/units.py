"""Units of several records: what a step tells of a person with up to so many rows."""

import math
from typing import Final

import numpy as np

from accounting.events import UNIT_ROWS_MAX, NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.dense_pairs import cell_pair, profile_pair
from accounting.pld.pairs import DensePair
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array, require, rounded_up
from accounting.subsampling.replacement import (
    CHANCE_ERROR,
    loss_points,
    mixture_profiles,
    symmetric_profile,
)
from accounting.work_limit import spend

ROWS_MAX: Final = UNIT_ROWS_MAX  # of one person
_TOLD_MAX: Final = 400  # rows in one batch that are told apart
_LEAST: Final = 1e-60  # a chance below which further rows are not told apart
_CHANCES: Final = 30_000  # points that the chances of all numbers of rows are taken for
_STEP: Final = 2.0  # the distance of the mixtures in `mixture_profiles`


class TooManyRowsError(ValueError):
    """More rows of a person are expected in one batch than are told apart."""


def rows_in_batch(rows: int, rate: float) -> tuple[Array, float]:
    """Chances of 0, 1, ... rows of a person in a Poisson batch, and of more rows than these.

    Returns:
        Chances, shape (k,), each off by a relative 1e-11 at most, and an upper bound of the rest.

    Raises:
        TooManyRowsError: more rows than are told apart are not unlikely enough.
    """
    spend(_CHANCES)
    odds = rate / (1 - rate)
    logs = [rows * math.log1p(-rate)]
    for k in range(1, min(rows, _TOLD_MAX) + 1):
        logs.append(logs[-1] + math.log((rows - k + 1) / k * odds))
        # From here on each chance is at most half of the one before.
        if logs[-1] < math.log(_LEAST) and 2 * (rows - k) * odds < k + 1:
            return np.exp(np.array(logs)), 2 * math.exp(logs[-1])
    if len(logs) <= rows:
        raise TooManyRowsError("A person may have too many rows in one batch.")
    return np.exp(np.array(logs)), 0.0


@theorem(
    id="poisson-unit",
    source="docs/theory/units.md, Proposition 1; the pair as in Charles et al. 2024, "
    "arXiv:2407.07737v1, Section 3",
    status=Status.DERIVED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(Assumption.POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def poisson_unit_pair(
    *, noise_multiplier: float, sampling_probability: float, rows: int
) -> DensePair:
    """A pair that dominates a Poisson step for a person with at most so many rows.

    (sum_j Binom(rows, q)(j) N(j, sigma^2), N(0, sigma^2)), whatever directions the contributions
    of the person have, each of norm at most one.

    Args:
        noise_multiplier: sigma, > 0; noise std over the norm bound of one row.
        sampling_probability: q, in (0, 1).
        rows: of one person, at most, in [1, ROWS_MAX].

    Returns:
        The pair. Upper, in both orders.

    Raises:
        ValueError: an argument is out of range.
        TooManyRowsError: a person may have too many rows in one batch.
    """
    require(0 < noise_multiplier < math.inf, "0 < noise_multiplier < inf")
    require(0 < sampling_probability < 1, "0 < sampling_probability < 1")
    require(1 <= rows <= ROWS_MAX, f"rows from 1 to {ROWS_MAX}")
    chances, rest = rows_in_batch(rows, sampling_probability)
    any_row = -math.expm1(rows * math.log1p(-sampling_probability))
    scaled = _STEP * noise_multiplier  # N(j, sigma^2) is N(2j, (2 sigma)^2), scaled
    losses = loss_points(scaled, chances)
    removed, added = mixture_profiles(scaled, chances, any_row, losses)
    return profile_pair(
        losses, removed=np.minimum(removed + rest, 1.0), added=np.minimum(added + rest, 1.0)
    )


@theorem(
    id="poisson-unit-replace",
    source="docs/theory/units.md, Proposition 3",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def poisson_unit_replace_pair(
    *, noise_multiplier: float, sampling_probability: float, rows: int
) -> DensePair:
    """A pair that dominates a Poisson step where each of up to so many rows is exchanged.

    With w_j the chance that j rows join and g that any does, the profile at a >= 1 is at most
    sum_j w_j h_2j(1 + (a-1)/g), h_s that of N(s, sigma^2) and N(0, sigma^2).

    Args:
        noise_multiplier: sigma, > 0; noise std over the norm bound of one row.
        sampling_probability: q, in (0, 1).
        rows: of one person, at most, in [1, ROWS_MAX].

    Returns:
        The pair. Upper, in both orders.

    Raises:
        ValueError: an argument is out of range.
        TooManyRowsError: a person may have too many rows in one batch.
    """
    require(0 < noise_multiplier < math.inf, "0 < noise_multiplier < inf")
    require(0 < sampling_probability < 1, "0 < sampling_probability < 1")
    require(1 <= rows <= ROWS_MAX, f"rows from 1 to {ROWS_MAX}")
    chances, rest = rows_in_batch(rows, sampling_probability)
    any_row = -math.expm1(rows * math.log1p(-sampling_probability))
    losses = loss_points(noise_multiplier, chances)
    # A larger chance dominates; what it takes from the weights w_j / g is below CHANCE_ERROR.
    found = symmetric_profile(
        _STEP,
        noise_multiplier=noise_multiplier,
        chances=chances,
        rate=min(rounded_up(any_row, ulps=LIBRARY_ULPS), 1 - UNIT_ROUNDOFF),
        losses=losses,
    )
    bound = np.asarray(np.minimum(found * (1 + CHANCE_ERROR) + rest, 1.0))
    return profile_pair(losses, removed=bound, added=bound)


def poisson_unit_lower_pair(
    *, noise_multiplier: float, sampling_probability: float, rows: int
) -> DensePair:
    """What a person attains whose rows all contribute the same vector of norm one.

    Returns:
        A pair dominated by that of `poisson_unit_pair` where the person is removed. Lower.
    """
    chances, _ = rows_in_batch(rows, sampling_probability)
    first = [(float(p) * (1 - CHANCE_ERROR), float(j)) for j, p in enumerate(chances)]
    return cell_pair(first, [(1.0, 0.0)], noise_multiplier=noise_multiplier)


@theorem(
    id="unit-gaussian",
    source="docs/theory/units.md, Proposition 2",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def unit_release_mu(*, noise_multiplier: float, rows: int, exchanged: bool) -> float:
    """A full batch, or a pass in which each row is once, is mu-GDP for a person with so many rows.

    Args:
        noise_multiplier: sigma, > 0; noise std over the norm bound of one row, the least of a pass.
        rows: of one person, at most, in [1, ROWS_MAX].
        exchanged: whether each of them is exchanged for another row, rather than for none.

    Returns:
        mu = rows / sigma, or twice that. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    require(0 < noise_multiplier < math.inf, "0 < noise_multiplier < inf")
    require(1 <= rows <= ROWS_MAX, f"rows from 1 to {ROWS_MAX}")
    return rounded_up((2 * rows if exchanged else rows) / noise_multiplier)


THEOREMS = (poisson_unit_pair, poisson_unit_replace_pair, unit_release_mu)
