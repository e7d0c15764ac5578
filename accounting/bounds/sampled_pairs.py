"""Which pairs dominate a Gaussian step, or a pass, by how its batches are drawn."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, assert_never

from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    REPLACE_SPECIAL,
    EventBound,
    Pairs,
    bound_of,
)
from accounting.bounds.gdp_bounds import gdp_bounds, reach
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Gaussian,
    NeighboringRelation,
    NonUniform,
    PoissonUnit,
    RandomAllocation,
    Reshuffle,
    Shuffle,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.guarantees import Theorem
from accounting.pld.pairs import GaussianPair, Pair, SampledGaussianPair, SymmetricPair
from accounting.renyi.fixed_size import (
    fixed_size_gaussian_add_remove_rdp,
    fixed_size_gaussian_rdp,
)
from accounting.rounding import rounded_down, rounded_up
from accounting.shuffling.allocation import allocation_pair, random_allocation_pairs
from accounting.shuffling.clones import clones_pair
from accounting.shuffling.partial import DATASET_SIZE_MAX, partial_shuffle_pairs
from accounting.subsampling.curves import non_uniform_rdp
from accounting.subsampling.replacement import (
    TooManyCopiesError,
    with_replacement_add_remove_pair,
    with_replacement_pair,
    with_replacement_special_pair,
)
from accounting.subsampling.special import fixed_size_special_pair
from accounting.subsampling.truncated import (
    truncated_poisson_pair,
    truncated_poisson_replace_pair,
    truncated_poisson_special_pair,
)
from accounting.subsampling.units import (
    TooManyRowsError,
    poisson_unit_pair,
    poisson_unit_replace_pair,
)
from accounting.work_limit import cached_with_cost

CACHE_ENTRIES: Final = 256  # of dense pairs of about 0.2 MB

Batches = (
    TruncatedPoisson
    | FixedSize
    | WithReplacement
    | Cyclic
    | Shuffle
    | BallsAndBins
    | RandomAllocation
    | NonUniform
    | PoissonUnit
)


@cached_with_cost(maxsize=CACHE_ENTRIES)
def batch_bounds(
    sigma: float, sampling: Batches, relation: NeighboringRelation
) -> tuple[EventBound[Pairs], ...]:
    """Every pair that is proved to dominate one unit, the tightest first.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    match sampling:
        case FixedSize():
            return _fixed_size(sigma, sampling, relation)
        case TruncatedPoisson():
            return (_truncated(sigma, sampling, relation), _release(sigma, sampling, relation))
        case WithReplacement():
            release = _release(sigma, sampling, relation)
            return (*_with_replacement(sigma, sampling, relation), release)
        case PoissonUnit():
            release = _release(sigma, sampling, relation)
            return (*_of_several_rows(sigma, sampling, relation), release)
        case NonUniform():
            release = _release(sigma, sampling, relation)
            c = sampling.max_weight
            return (release,) if c == 1 else (bound_of(non_uniform_rdp, _swap(sigma, c)), release)
        case Cyclic() | Shuffle():
            return (*_shuffled(sigma, sampling, relation), _release(sigma, sampling, relation))
        case BallsAndBins() | RandomAllocation():
            return (*_allocated(sigma, sampling, relation), _release(sigma, sampling, relation))
        case _:
            assert_never(sampling)


def _release(sigma: float, sampling: Batches, relation: NeighboringRelation) -> EventBound[Pairs]:
    """One Gaussian release: what is left when the sampling is told."""
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)
    (found,) = gdp_bounds(event, relation)
    noise = rounded_down(1 / found.loss, ulps=2)
    if not (isinstance(sampling, Shuffle) and relation is ADD_OR_REMOVE_ONE):
        distance = reach(sampling, relation)
        noise = sigma / distance if distance in (1.0, 2.0) else rounded_down(sigma / distance)
    pair = GaussianPair(noise_multiplier=noise)
    return EventBound(theorem=found.theorem, assumptions=found.assumptions, loss=((pair, 1),))


def _swap(sigma: float, rate: float) -> SymmetricPair:
    # One record is exchanged for another: the means are two norm bounds apart.
    far = GaussianPair(noise_multiplier=sigma / 2)
    return SymmetricPair(near=far, far=far, sampling_probability=rate)


def _fixed_size(
    sigma: float, sampling: FixedSize, relation: NeighboringRelation
) -> tuple[EventBound[Pairs], ...]:
    rate = rounded_up(sampling.batch_size / sampling.dataset_size)
    if rate >= 1:
        reach = 1.0 if relation is REPLACE_SPECIAL else 2.0
        theorem: Theorem[..., Any] = fixed_size_gaussian_rdp
        if relation is ADD_OR_REMOVE_ONE:
            theorem = fixed_size_gaussian_add_remove_rdp
        return (bound_of(theorem, GaussianPair(noise_multiplier=sigma / reach)),)
    if relation is ADD_OR_REMOVE_ONE:
        pair = SampledGaussianPair(noise_multiplier=sigma / 2, sampling_probability=rate)
        return (bound_of(fixed_size_gaussian_add_remove_rdp, pair),)
    swapped = bound_of(fixed_size_gaussian_rdp, _swap(sigma, rate))
    if relation is REPLACE_ONE:
        return (swapped,)
    special = fixed_size_special_pair(noise_multiplier=sigma, rate=rate)
    return (bound_of(fixed_size_special_pair, special), swapped)


def _truncated(
    sigma: float, sampling: TruncatedPoisson, relation: NeighboringRelation
) -> EventBound[Pairs]:
    found = {
        ADD_OR_REMOVE_ONE: truncated_poisson_pair,
        REPLACE_SPECIAL: truncated_poisson_special_pair,
        REPLACE_ONE: truncated_poisson_replace_pair,
    }[relation]
    return bound_of(found, found(noise_multiplier=sigma, sampling=sampling))


def _with_replacement(
    sigma: float, sampling: WithReplacement, relation: NeighboringRelation
) -> tuple[EventBound[Pairs], ...]:
    theorems: tuple[Theorem[..., Any], ...] = {
        ADD_OR_REMOVE_ONE: (with_replacement_add_remove_pair,),
        REPLACE_SPECIAL: (with_replacement_special_pair, with_replacement_pair),
        REPLACE_ONE: (with_replacement_pair,),
    }[relation]

    def bound(theorem: Callable[..., Pair]) -> Pair:
        return theorem(
            noise_multiplier=sigma,
            batch_size=sampling.batch_size,
            dataset_size=sampling.dataset_size,
        )

    try:
        return tuple(bound_of(theorem, bound(theorem)) for theorem in theorems)
    except TooManyCopiesError:
        return ()


def _of_several_rows(
    sigma: float, sampling: PoissonUnit, relation: NeighboringRelation
) -> tuple[EventBound[Pairs], ...]:
    found = poisson_unit_replace_pair if relation is REPLACE_ONE else poisson_unit_pair
    rate, rows = sampling.sampling_probability, sampling.rows
    try:
        pair = found(noise_multiplier=sigma, sampling_probability=rate, rows=rows)
    except TooManyRowsError:
        return ()
    return (bound_of(found, pair),)


def _shuffled(
    sigma: float, sampling: Cyclic | Shuffle, relation: NeighboringRelation
) -> tuple[EventBound[Pairs], ...]:
    """What a secret order adds to one Gaussian release a pass, where something is proved."""
    if isinstance(sampling, Cyclic) or relation is ADD_OR_REMOVE_ONE:
        return ()
    size, length = sampling.dataset_size, sampling.steps_per_pass
    if size is not None and size <= DATASET_SIZE_MAX and sampling.stops_early:
        pairs = partial_shuffle_pairs(
            noise_multiplier=sigma,
            batch_size=sampling.batch_size,
            dataset_size=size,
            steps_per_pass=length,
        )
        return (replace(bound_of(partial_shuffle_pairs), loss=pairs),)
    fresh = sampling.reshuffle is Reshuffle.EACH_PASS
    if not (fresh and sampling.batch_size == 1 and size == length):
        return ()
    pair = clones_pair(noise_multiplier=sigma, steps_per_pass=length)
    return () if pair is None else (bound_of(clones_pair, pair),)


def _allocated(
    sigma: float, sampling: BallsAndBins | RandomAllocation, relation: NeighboringRelation
) -> tuple[EventBound[Pairs], ...]:
    if relation is REPLACE_ONE:  # known through a null record alone, for a whole ledger at once
        return ()
    if isinstance(sampling, BallsAndBins):
        length = sampling.steps_per_pass
        pair = allocation_pair(noise_multiplier=sigma, steps_per_pass=length)
        return (bound_of(allocation_pair, pair),)
    pairs = random_allocation_pairs(
        noise_multiplier=sigma,
        steps_per_pass=sampling.steps_per_pass,
        participations=sampling.participations,
    )
    found = bound_of(random_allocation_pairs)
    return (replace(found, loss=pairs),)
