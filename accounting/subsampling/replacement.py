"""Draws with replacement: a record may be in a batch more than once."""

import math
from typing import Final

import numpy as np

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.dense_pairs import cell_pair, profile_pair
from accounting.pld.pairs import DensePair, GaussianPair, SymmetricPair
from accounting.pld.profiles import NORMAL, NORMAL_SQUARED
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array, rounded_up
from accounting.subsampling.replaced_records import exchanged_for_null
from accounting.subsampling.special import TAIL, grid_for, upper_profile
from accounting.work_limit import spend

COPIES_MAX: Final = 400  # of one record in one batch that are told apart
_CHANCES: Final = 30_000  # points that the chances of all numbers of copies are taken for
_U: Final = UNIT_ROUNDOFF
CHANCE_ERROR: Final = 1e-11  # relative, of a chance of copies
_STILL: Final = 1e-10  # standard deviations, by which points fall at last
_FAR: Final = 40.0  # standard deviations, where a tail is below 1e-300


class TooManyCopiesError(ValueError):
    """A record is expected in a batch so often that its copies are not told apart."""


def copies(*, batch_size: int, dataset_size: int) -> tuple[Array, float]:
    """Chances of 0, 1, ... copies of a record among the draws, and of more copies than these.

    Returns:
        Chances, shape (k,), each off by a relative 1e-11 at most, and an upper bound of the rest,
        below 1e-60 unless no more are possible.

    Raises:
        TooManyCopiesError: more than COPIES_MAX copies are not unlikely enough.
    """
    if dataset_size == 1:
        raise TooManyCopiesError("Every draw is the same record.")
    rate, odds = 1 / dataset_size, 1 / (dataset_size - 1)
    if 2 * (batch_size - COPIES_MAX) * odds >= COPIES_MAX + 1:  # the chances never halve below
        raise TooManyCopiesError("A record may be in a batch too often.")
    spend(_CHANCES)
    logs = [batch_size * math.log1p(-rate)]
    for k in range(1, min(batch_size, COPIES_MAX) + 1):
        logs.append(logs[-1] + math.log((batch_size - k + 1) / k * odds))
        # From here on each chance is at most half of the one before.
        if logs[-1] < math.log(TAIL) and 2 * (batch_size - k) * odds < k + 1:
            return np.exp(np.array(logs)), 2 * math.exp(logs[-1])
    if len(logs) <= batch_size:
        raise TooManyCopiesError("A record may be in a batch too often.")
    return np.exp(np.array(logs)), 0.0


def chance_of_any(batch_size: int, dataset_size: int) -> float:
    """The chance that a record comes up at least once. Nearest, to a few roundoffs."""
    return -math.expm1(batch_size * math.log1p(-1 / dataset_size))


def symmetric_profile(
    distance: float, *, noise_multiplier: float, chances: Array, rate: float, losses: Array
) -> Array:
    """sum_k p_k h_(k distance)(a'), k >= 1. Upper, shape (m,)."""
    total = np.zeros_like(losses)
    for k in range(1, len(chances)):
        shifted = GaussianPair(noise_multiplier=noise_multiplier / (distance * k))
        pair = SymmetricPair(near=shifted, far=shifted, sampling_probability=rate)
        total += float(chances[k]) / rate * upper_profile(pair, losses)
    return total


def _exchanged_profile(
    *, noise_multiplier: float, chances: Array, rate: float, losses: Array
) -> Array:
    """sum_k p_k H_a'(N(0) || (1-c) N(2k) + c N(k)), k >= 1. Upper, shape (m,)."""
    total = np.zeros_like(losses)
    for k in range(1, len(chances)):
        each = exchanged_for_null(
            noise_multiplier=noise_multiplier, rate=rate, copies=k, losses=losses
        )
        total += float(chances[k]) * each
    return total


def _pair_from(
    *, noise_multiplier: float, batch_size: int, dataset_size: int, null: bool
) -> DensePair:
    """The pair of a record that is replaced by any other, or by a null record."""
    chances, rest = copies(batch_size=batch_size, dataset_size=dataset_size)
    # A larger chance dominates; what it takes from the weights p_k / g is below CHANCE_ERROR.
    rate = rounded_up(chance_of_any(batch_size, dataset_size), ulps=LIBRARY_ULPS)
    losses = loss_points(noise_multiplier, chances)
    added = symmetric_profile(
        1.0 if null else 2.0,
        noise_multiplier=noise_multiplier,
        chances=chances,
        rate=rate,
        losses=losses,
    )
    removed = added
    if null:
        removed = _exchanged_profile(
            noise_multiplier=noise_multiplier, chances=chances, rate=rate, losses=losses
        )
    first, second = (
        np.asarray(np.minimum(found * (1 + CHANCE_ERROR) + rest, 1.0)) for found in (removed, added)
    )
    return profile_pair(losses, removed=first, added=second)


def loss_points(noise_multiplier: float, chances: Array) -> Array:
    """Losses up to where even the most copies matter no more, shape (k,)."""
    pairs = [
        SymmetricPair(
            near=GaussianPair(noise_multiplier=noise_multiplier / (2 * k)),
            far=GaussianPair(noise_multiplier=noise_multiplier / (2 * k)),
            sampling_probability=float(chances[k]),
        )
        for k in range(1, len(chances))
        if 0 < chances[k] < 1
    ]
    return grid_for(*pairs)


@theorem(
    id="with-replacement-gaussian",
    source="Balle, Barthe and Gaboardi 2018, NeurIPS, arXiv:1807.01647v2, Theorem 10",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(Assumption.WITH_REPLACEMENT_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def with_replacement_pair(
    *, noise_multiplier: float, batch_size: int, dataset_size: int
) -> DensePair:
    """A pair that dominates a step on independent draws, when a record is replaced.

    With p_k the chance of k copies and g that of any, the profile at a >= 1 is at most
    sum_k p_k h_2k(1 + (a-1)/g), h_s that of N(s, sigma^2) and N(0, sigma^2); the relation is
    symmetric, which gives the rest. A null record is one of those that may replace.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        batch_size: draws, >= 1.
        dataset_size: a public constant, >= 2.

    Returns:
        The pair. Upper.

    Raises:
        TooManyCopiesError: a record is in a batch too often.
    """
    return _pair_from(
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        dataset_size=dataset_size,
        null=False,
    )


@theorem(
    id="with-replacement-gaussian-special",
    source="docs/theory/replaced_records.md, Proposition 4; after Balle, Barthe and Gaboardi 2018, "
    "NeurIPS, arXiv:1807.01647v2, Theorem 10",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_SPECIAL,),
    assumptions=(Assumption.WITH_REPLACEMENT_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def with_replacement_special_pair(
    *, noise_multiplier: float, batch_size: int, dataset_size: int
) -> DensePair:
    """A pair that dominates a step on independent draws, against a null record.

    With a' = 1 + (a-1)/g and c = a/a', the profile at a >= 1 is at most
    sum_k p_k H_a'(N(0) || (1-c) N(2k) + c N(k)) where the record comes first, and
    sum_k p_k h_k(a') where the null record does.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        batch_size: draws, >= 1.
        dataset_size: a public constant, >= 2.

    Returns:
        The pair. Upper, in both orders.

    Raises:
        TooManyCopiesError: a record is in a batch too often.
    """
    return _pair_from(
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        dataset_size=dataset_size,
        null=True,
    )


@theorem(
    id="with-replacement-gaussian-add-remove",
    source="docs/theory/subsampling.md, Proposition 5; mixtures as in Choquette-Choo et al. 2024, "
    "ICLR, arXiv:2310.15526v2, Lemma 4",
    status=Status.DERIVED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE,),
    assumptions=(Assumption.WITH_REPLACEMENT_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def with_replacement_add_remove_pair(
    *, noise_multiplier: float, batch_size: int, dataset_size: int
) -> DensePair:
    """A pair that dominates a step on independent draws, when a record is added or removed.

    Each of the record's k copies takes the place of a draw from the others, so the step is
    dominated by (sum_k p_k N(2k, sigma^2), N(0, sigma^2)).

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        batch_size: draws, >= 1.
        dataset_size: a public constant, >= 2; the larger of the two sizes.

    Returns:
        The pair. Upper, in both orders.

    Raises:
        TooManyCopiesError: a record is in a batch too often.
    """
    chances, rest = copies(batch_size=batch_size, dataset_size=dataset_size)
    losses = loss_points(noise_multiplier, chances)
    any_copy = chance_of_any(batch_size, dataset_size)
    removed, added = mixture_profiles(noise_multiplier, chances, any_copy, losses)
    return profile_pair(
        losses, removed=np.minimum(removed + rest, 1.0), added=np.minimum(added + rest, 1.0)
    )


def _crossings(noise_multiplier: float, chances: Array, log_ratios: Array) -> Array:
    """Where the likelihood ratio sum_k p_k e^((4 k x - 4 k^2) / (2 sigma^2)) has these values.

    Its logarithm is convex and rises, so that Newton's steps fall to the point from where the
    largest term alone has the value. Far out of the noise the points are cut off.
    """
    shifts = 2.0 * np.arange(len(chances))
    slopes = shifts / noise_multiplier**2
    logs = np.log(np.maximum(chances, 1e-300)) - 0.5 * (shifts / noise_multiplier) ** 2
    least = -_FAR * noise_multiplier
    x = np.full_like(log_ratios, shifts[-1] + _FAR * noise_multiplier)
    for log, slope in zip(logs[1:], slopes[1:], strict=True):
        x = np.minimum(x, (log_ratios - log) / slope)
    x = np.maximum(x, least)
    while True:
        spend(2 * len(x) * len(shifts))
        exponents = logs + np.multiply.outer(x, slopes) - log_ratios[:, None]
        terms = np.exp(np.minimum(exponents, 1.0))
        total = terms.sum(axis=1)
        fall = np.log(total) * total / np.maximum(terms @ slopes, 1e-300)
        fallen = np.maximum(x - np.maximum(fall, 0.0), least)
        if np.all(x - fallen <= _STILL * noise_multiplier):
            return np.asarray(fallen)
        x = fallen


def mixture_profiles(
    noise_multiplier: float, chances: Array, any_copy: float, losses: Array
) -> tuple[Array, Array]:
    """Profiles of (sum_k p_k N(2k), N(0)) in both orders. Upper, shape (k,) each.

    Both are maxima over x, so that a point that is off by rounding changes them in second order:
    P(X > x) - e^l Q(X > x) and Q(X <= x) - e^l P(X <= x), written without the copies' zeroth term.
    """
    shifts = 2.0 * np.arange(1, len(chances))

    def tails(x: Array, sign: float) -> tuple[Array, Array]:
        shifted = special.ndtr(sign * np.subtract.outer(x, shifts) / noise_multiplier)
        return shifted @ chances[1:], special.ndtr(sign * x / noise_multiplier)

    x = _crossings(noise_multiplier, chances, losses)
    some, none = tails(x, -1.0)
    none = none * (np.expm1(losses) + any_copy)
    removed = some - none + _slack(x, noise_multiplier) * (some + none)
    x = _crossings(noise_multiplier, chances, -losses)
    some, none = tails(x, 1.0)
    kept = -np.expm1(losses + math.log(chances[0]))
    some, none = some * np.exp(losses), none * np.maximum(kept, 0.0)
    added = none - some + _slack(x, noise_multiplier) * (some + none)
    return np.maximum(removed, 0.0) + 1e-290, np.maximum(added, 0.0) + 1e-290


def _slack(x: Array, noise_multiplier: float) -> Array:
    """Relative error of both terms: of the normal law, of the chances and of the products."""
    z = np.abs(x) / noise_multiplier
    return np.asarray(2 * _U * (NORMAL + NORMAL_SQUARED * (z + 4) ** 2) + 2 * CHANCE_ERROR)


def with_replacement_lower_pair(
    *, noise_multiplier: float, batch_size: int, dataset_size: int, null: bool
) -> DensePair:
    """What the records attain that all contribute -1, but for one that contributes 1.

    Args:
        noise_multiplier: sigma, > 0.
        batch_size: draws, >= 1.
        dataset_size: a public constant, >= 2.
        null: whether it is set against one that contributes nothing, or against one of the others.

    Returns:
        A pair dominated by (sum_k p_k N(2k), N(0)), or by (sum_k p_k N(2k), sum_k p_k N(k)). Lower.

    Raises:
        TooManyCopiesError: a record is in a batch too often.
    """
    chances, rest = copies(batch_size=batch_size, dataset_size=dataset_size)
    first = [(float(p) * (1 - CHANCE_ERROR), 2.0 * k) for k, p in enumerate(chances)]
    second = [(1.0, 0.0)]
    if null:
        second = [(float(p) * (1 + CHANCE_ERROR), float(k)) for k, p in enumerate(chances)]
        second.append((rest, 0.0))
    return cell_pair(first, second, noise_multiplier=noise_multiplier)


THEOREMS = (
    with_replacement_pair,
    with_replacement_special_pair,
    with_replacement_add_remove_pair,
)
