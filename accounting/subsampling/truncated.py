"""Poisson sampling with a cap on the batch: of a surplus a uniform subset is kept."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting import special
from accounting.events import Direction, NeighboringRelation, TruncatedPoisson
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.dense_pairs import profile_pair
from accounting.pld.pairs import DensePair, GaussianPair, Pair, SampledGaussianPair, SymmetricPair
from accounting.rounding import LIBRARY_ULPS, Array, rounded_down, rounded_up, sum_up
from accounting.subsampling.replaced_records import poisson_replace_tight_pair
from accounting.subsampling.special import grid_for, swapped_with_null, upper_profile

_SURE: Final = 1e-280  # below, a tail may be a double of few digits, or none
_EPSILON_MAX: Final = 700.0  # nats; beyond, e^epsilon is not finite
BINOMIAL_TAIL: Final = 1e-9  # relative error allowed for a binomial tail; tests see below 1e-11


@dataclass(frozen=True, slots=True)
class Branches:
    """What a step does, by how many of the others joined: below the cap, or at least the cap."""

    full_chance: float  # that at least the cap of the others joined; upper
    open_chance: float  # that fewer did; upper
    kept_rate: float  # chance of being in a batch of the cap's size, given enough others; upper
    taken_rate: float  # chance of being in the batch, whatever the others; lower


def branches(sampling: TruncatedPoisson, *, dataset_size: int) -> Branches:
    """The two branches for one record among `dataset_size`.

    With M ~ Bin(n-1, q) others: full_chance = P(M >= B), and the record is kept with probability
    q B / (M + 1), so that kept_rate full_chance = B P(Bin(n, q) > B) / n.
    """
    q, cap = sampling.sampling_probability, sampling.max_batch_size
    if cap >= dataset_size:
        return Branches(0.0, 1.0, q, q)
    full = binomial_tail(cap, dataset_size - 1, q)
    kept = binomial_tail(cap + 1, dataset_size, q) * cap / dataset_size
    low, high = full * (1 - BINOMIAL_TAIL), min(1.0, full * (1 + BINOMIAL_TAIL) + 1e-290)
    kept_low, kept_high = kept * (1 - BINOMIAL_TAIL), kept * (1 + BINOMIAL_TAIL)
    # The record is kept at most with the chance that it joined.
    rate = min(q, kept_high / low) if kept > _SURE and low > _SURE else q
    taken = rounded_down(q * max(0.0, 1 - high) + kept_low, ulps=4)
    return Branches(high, rounded_up(1 - low), rounded_up(rate, ulps=4), taken)


def binomial_tail(least: int, count: int, q: float) -> float:
    """P(Bin(count, q) >= least), 1 <= least <= count."""
    if q == 1:
        return 1.0
    return float(special.betainc(least, count - least + 1, q))


def _poisson(noise_multiplier: float, q: float) -> Pair:
    if q >= 1:
        return GaussianPair(noise_multiplier=noise_multiplier)
    return SampledGaussianPair(noise_multiplier=noise_multiplier, sampling_probability=q)


@theorem(
    id="truncated-poisson-gaussian",
    source="docs/theory/subsampling.md, Proposition 3; the decomposition as in Ganesh 2025, "
    "arXiv:2508.15089, Section 3",
    status=Status.DERIVED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE,),
    assumptions=(Assumption.TRUNCATED_POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def truncated_poisson_pair(*, noise_multiplier: float, sampling: TruncatedPoisson) -> DensePair:
    """A pair that dominates a step of truncated Poisson sampling, when a record is added.

    Tell whether at least the cap of the others joined. If fewer did, the step is Poisson-sampled;
    if not, the batch is full with or without the record, which takes another's place: Poisson
    sampling at half the noise, and at the rate at which a record is kept. The neighbour may be the
    larger or the smaller dataset: at every loss the larger of both profiles is taken.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sampling: with the declared dataset_size.

    Returns:
        The pair. Upper, in both orders.
    """
    q, half = sampling.sampling_probability, noise_multiplier / 2
    losses = grid_for(_poisson(half, q))
    removed, added = np.zeros_like(losses), np.zeros_like(losses)
    for size in (sampling.dataset_size, sampling.dataset_size + 1):
        found = branches(sampling, dataset_size=size)
        parts = (
            (found.open_chance, _poisson(noise_multiplier, q)),
            (found.full_chance, _poisson(half, found.kept_rate)),
        )
        removed = np.maximum(removed, _mix_profiles(parts, losses, Direction.REMOVE))
        added = np.maximum(added, _mix_profiles(parts, losses, Direction.ADD))
    return profile_pair(losses, removed=removed, added=added)


def _mix_profiles(
    parts: tuple[tuple[float, Pair], ...], losses: Array, direction: Direction
) -> Array:
    total = np.zeros_like(losses)
    for chance, pair in parts:
        if chance > 0:
            total += chance * upper_profile(pair, losses, direction)
    return np.asarray(np.minimum(total * (1 + 1e-15), 1.0))


@theorem(
    id="truncated-poisson-gaussian-special",
    source="docs/theory/replaced_records.md, Proposition 3; after Balle, Barthe and Gaboardi 2018, "
    "NeurIPS, arXiv:1807.01647v2, Theorem 2",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_SPECIAL,),
    assumptions=(Assumption.TRUNCATED_POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def truncated_poisson_special_pair(
    *, noise_multiplier: float, sampling: TruncatedPoisson
) -> DensePair:
    """A pair that dominates a step of truncated Poisson sampling, against a null record.

    As when a record is added, but with a full batch the step is one on a batch of fixed size, of
    which the record or the null record is part with the rate at which a record is kept.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sampling: with the dataset_size, which both neighbours have.

    Returns:
        The pair. Upper, in both orders.
    """
    q, found = sampling.sampling_probability, branches(sampling, dataset_size=sampling.dataset_size)
    below = _poisson(noise_multiplier, q)
    losses = grid_for(_poisson(noise_multiplier / 2, q))
    removed, added = (upper_profile(below, losses, direction) for direction in Direction)
    if found.full_chance > 0:
        swaps = swapped_with_null(
            noise_multiplier=noise_multiplier, rate=found.kept_rate, losses=losses
        )
        removed, added = (
            found.open_chance * open_profile + found.full_chance * swap
            for open_profile, swap in zip((removed, added), swaps, strict=True)
        )
    return profile_pair(
        losses,
        removed=np.minimum(removed * (1 + 1e-15), 1.0),
        added=np.minimum(added * (1 + 1e-15), 1.0),
    )


@theorem(
    id="truncated-poisson-gaussian-replace",
    source="docs/theory/replaced_records.md, Proposition 3; after Balle, Barthe and Gaboardi 2018, "
    "NeurIPS, arXiv:1807.01647v2, Theorem 2",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.TRUNCATED_POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def truncated_poisson_replace_pair(
    *, noise_multiplier: float, sampling: TruncatedPoisson
) -> DensePair:
    """A pair that dominates a step of truncated Poisson sampling, when a record is replaced.

    While the batch is open the step is a Poisson step; in a full batch another record is two norm
    bounds away, whether it stands for the record or is its replacement.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sampling: with the dataset_size, which both neighbours have.

    Returns:
        The pair. Upper; the same in both orders.
    """
    q, found = sampling.sampling_probability, branches(sampling, dataset_size=sampling.dataset_size)
    far = GaussianPair(noise_multiplier=noise_multiplier / 2)
    losses = grid_for(_poisson(noise_multiplier / 2, q))
    step: Pair = far
    if q < 1:
        step = poisson_replace_tight_pair(noise_multiplier=noise_multiplier, sampling_probability=q)
    swap: Pair = far
    if found.kept_rate < 1:
        swap = SymmetricPair(near=far, far=far, sampling_probability=found.kept_rate)
    parts = ((found.open_chance, step), (found.full_chance, swap))
    profile = _mix_profiles(parts, losses, Direction.REMOVE)
    return profile_pair(losses, removed=profile, added=profile)


@theorem(
    id="truncated-poisson-as-poisson",
    source="Chua et al. 2024, NeurIPS, arXiv:2411.04205, Theorem 3.3; every relation and mixed "
    "ledgers: docs/theory/subsampling.md, Proposition 9",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.TRUNCATED_POISSON_SAMPLING,),
)
def truncated_delta(delta: float, *, epsilon: float, failure: float) -> float:
    """Delta of steps whose batches are cut, from that of the same steps with whole batches.

    delta' = delta + (1 + e^epsilon) failure

    Cut and whole batches are the same unless some batch exceeds its cap, on either of the two
    neighbours, so that each side is within `failure` of its counterpart in total variation.

    Args:
        delta: of the steps with Poisson batches at this epsilon. Upper.
        epsilon: nats, >= 0.
        failure: that any batch exceeds its cap, for the larger of the neighbours. Upper.

    Returns:
        Delta. Upper, rounding included; may exceed one.
    """
    if epsilon > _EPSILON_MAX:
        return math.inf
    lost = rounded_up((1 + math.exp(epsilon)) * failure, ulps=LIBRARY_ULPS + 2)
    return sum_up([delta, lost])


def exceeds_cap(sampling: TruncatedPoisson, relation: NeighboringRelation) -> float:
    """P(Bin(n, q) > B): that one batch of the larger neighbour exceeds its cap. Upper."""
    larger = sampling.dataset_size + (relation is NeighboringRelation.ADD_OR_REMOVE_ONE)
    if sampling.max_batch_size >= larger:
        return 0.0
    tail = binomial_tail(sampling.max_batch_size + 1, larger, sampling.sampling_probability)
    return min(1.0, max(tail, _SURE) * (1 + 2 * BINOMIAL_TAIL))


THEOREMS = (
    truncated_poisson_pair,
    truncated_poisson_special_pair,
    truncated_poisson_replace_pair,
    truncated_delta,
)
