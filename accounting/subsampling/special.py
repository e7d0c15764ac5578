"""A batch of fixed size, of which one record is set against a null record."""

from typing import Final

import numpy as np

from accounting.events import Direction, NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.dense_pairs import cell_pair, loss_grid, profile_pair
from accounting.pld.pairs import (
    DensePair,
    GaussianPair,
    Pair,
    SampledGaussianPair,
    SymmetricPair,
)
from accounting.pld.profiles import LOSS_MAX, profiles
from accounting.rounding import Array
from accounting.subsampling.replaced_records import exchanged_for_null

TAIL: Final = 1e-60  # of a profile: what it has left where its grid ends is put at infinity


def upper_profile(pair: Pair, losses: Array, direction: Direction = Direction.REMOVE) -> Array:
    """Upper bounds of a pair's profile at losses >= 0, shape (k,)."""
    return profiles(pair, direction=direction, losses=losses)[1]


def grid_for(*pairs: Pair) -> Array:
    """Losses on which profiles made of these pairs' are written down, shape (k,)."""
    start = sum(float(upper_profile(pair, np.zeros(1))[0]) for pair in pairs)
    top = 1.0
    while top < LOSS_MAX and any(
        float(upper_profile(pair, np.array([top]))[0]) > TAIL for pair in pairs
    ):
        top = min(LOSS_MAX, 1.25 * top)
    return loss_grid(scale=2.5 * start, top=top)


def swapped_with_null(
    *, noise_multiplier: float, rate: float, losses: Array
) -> tuple[Array, Array]:
    """Profiles of a step whose batch holds a record, or a null record in its place.

    For a >= 1, with g the chance of being in the batch, a' = 1 + (a-1)/g and c = a/a', they are at
    most g H_a'(N(0) || (1-c) N(2) + c N(1)) where the record comes first, and g h_1(a') where the
    null record does; h_s is the profile of N(s, sigma^2) and N(0, sigma^2).

    Returns:
        Upper bounds where the record is removed and where it is added, shape (k,) each.
    """
    near = GaussianPair(noise_multiplier=noise_multiplier)
    if rate >= 1:
        alone = upper_profile(near, losses)
        return alone, alone
    first = exchanged_for_null(
        noise_multiplier=noise_multiplier, rate=rate, copies=1, losses=losses
    )
    second = SymmetricPair(near=near, far=near, sampling_probability=rate)
    return np.asarray(first * (rate * (1 + 1e-15))), upper_profile(second, losses)


@theorem(
    id="fixed-size-gaussian-special",
    source="docs/theory/replaced_records.md, Proposition 2; after Balle, Barthe and Gaboardi 2018, "
    "NeurIPS, arXiv:1807.01647v2, Theorem 2",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_SPECIAL,),
    assumptions=(Assumption.FIXED_SIZE_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def fixed_size_special_pair(*, noise_multiplier: float, rate: float) -> DensePair:
    """A pair that dominates a step on a uniform batch of fixed size, against a null record.

    Two batches that hold the record and the null record are one norm bound apart, and a batch that
    holds neither may be two away. All others at -1 and the record at 1 attain the first order.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        rate: batch_size / dataset_size, rounded up, in (0, 1].

    Returns:
        The pair. Upper, in both orders.
    """
    far = GaussianPair(noise_multiplier=noise_multiplier / 2)
    widest = (
        far
        if rate >= 1
        else SampledGaussianPair(noise_multiplier=noise_multiplier / 2, sampling_probability=rate)
    )
    losses = grid_for(widest)
    removed, added = swapped_with_null(noise_multiplier=noise_multiplier, rate=rate, losses=losses)
    return profile_pair(losses, removed=removed, added=added)


def fixed_size_special_lower_pair(*, noise_multiplier: float, rate: float) -> DensePair:
    """What the records attain that all contribute -1, but for one that contributes 1 or nothing.

    Args:
        noise_multiplier: sigma, > 0.
        rate: batch_size / dataset_size, rounded down, in (0, 1).

    Returns:
        A pair dominated by ((1-g) N(0) + g N(2), (1-g) N(0) + g N(1)). Lower.
    """
    return cell_pair(
        [(1 - rate, 0.0), (rate, 2.0)],
        [(1 - rate, 0.0), (rate, 1.0)],
        noise_multiplier=noise_multiplier,
    )


THEOREMS = (fixed_size_special_pair,)
