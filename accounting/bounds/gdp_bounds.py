"""Events as Gaussian releases: tell who was sampled, and a step or a pass is one.

This is every sampling's published fallback: averaging over the sampling cannot hurt.
"""

import math
from typing import Any, assert_never

from accounting.bounds.correlated_bounds import pass_release
from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    REASON_BATCHES_MOVE,
    REASON_NO_SCHEMA,
    REASON_NOT_GAUSSIAN,
    REASON_NOT_GAUSSIAN_DP,
    REASON_SELECTION,
    REASON_WEIGHTS,
    UNKNOWN_SAMPLER,
    EventBound,
    NoBoundError,
    reason_without_noise,
    sensitivity_of,
)
from accounting.events import (
    BallsAndBins,
    Cyclic,
    CyclicPoisson,
    Event,
    FixedSize,
    Full,
    Gaussian,
    MatrixGaussian,
    MinSeparation,
    NeighboringRelation,
    NoNoise,
    NonUniform,
    Poisson,
    PoissonUnit,
    PrivateSelection,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
)
from accounting.gaussian import gaussian_dp
from accounting.guarantees import Assumption, Theorem
from accounting.renyi.passes import gaussian_per_pass_rdp
from accounting.rounding import rounded_up
from accounting.shuffling.full import shuffle_add_remove_mu


def reach(sampling: Sampling, relation: NeighboringRelation) -> float:
    """How far one record can move the sums of a unit whose sampling is told, in norm bounds.

    A unit is a step, or a pass where passes count; over a pass distances add up in squares.

    Raises:
        NoBoundError: batches move as a whole; the text is the reason.
    """
    alone, grows = sensitivity_of(relation), relation is ADD_OR_REMOVE_ONE
    match sampling:
        case Full() | Unknown() | Poisson() | BallsAndBins():
            return alone
        case PoissonUnit():
            return alone * sampling.rows
        case RandomAllocation():
            return rounded_up(alone * math.sqrt(sampling.participations))
        case TruncatedPoisson():
            return 2.0 if grows else alone  # the record may take another's place
        case WithReplacement():
            return sampling.batch_size * (2.0 if grows else alone)
        case FixedSize() | NonUniform() | Cyclic() | Shuffle() | MinSeparation() | CyclicPoisson():
            if grows or isinstance(sampling, MinSeparation | CyclicPoisson):
                raise NoBoundError(_why_not(sampling))
            return alone
        case _:
            assert_never(sampling)


def _why_not(
    sampling: FixedSize | NonUniform | Cyclic | Shuffle | MinSeparation | CyclicPoisson,
) -> str:
    match sampling:
        case MinSeparation() | CyclicPoisson():
            return REASON_NO_SCHEMA
        case FixedSize():
            return REASON_NOT_GAUSSIAN_DP
        case NonUniform():
            return REASON_WEIGHTS
        case Cyclic() | Shuffle():
            return REASON_BATCHES_MOVE
        case _:
            assert_never(sampling)


def gdp_bounds(event: Event, relation: NeighboringRelation) -> tuple[EventBound[float], ...]:
    """The Gaussian DP of one unit of the event under the relation.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    if isinstance(event.mechanism, MatrixGaussian):
        return (pass_release(event, relation),)
    if isinstance(event.mechanism, PrivateSelection):
        raise NoBoundError(REASON_SELECTION)
    if not isinstance(event.mechanism, Gaussian):
        silent = isinstance(event.mechanism, NoNoise)
        raise NoBoundError(reason_without_noise(event) if silent else REASON_NOT_GAUSSIAN)
    sigma, sampling = event.mechanism.noise_multiplier, event.sampling
    if isinstance(sampling, Shuffle) and relation is ADD_OR_REMOVE_ONE:
        return (_reshuffled(sigma, sampling),)
    mu = gaussian_dp(noise_multiplier=sigma, sensitivity=reach(sampling, relation))
    theorem: Theorem[..., Any] = gaussian_dp
    if isinstance(sampling, Cyclic | Shuffle | BallsAndBins):
        theorem = gaussian_per_pass_rdp
    assumptions = theorem.assumptions + sampler_of(sampling)
    return (EventBound(theorem=theorem, assumptions=assumptions, loss=mu),)


def sampler_of(sampling: Sampling) -> tuple[Assumption, ...]:
    """What is assumed of the sampler even where it is told who was sampled."""
    match sampling:
        case Full() | Cyclic() | Shuffle():  # nothing, or one step a pass
            return ()
        case Unknown():
            return UNKNOWN_SAMPLER
        case Poisson() | PoissonUnit():
            return (Assumption.POISSON_SAMPLING,)
        case TruncatedPoisson():
            return (Assumption.TRUNCATED_POISSON_SAMPLING,)
        case FixedSize():
            return (Assumption.FIXED_SIZE_SAMPLING,)
        case WithReplacement():
            return (Assumption.WITH_REPLACEMENT_SAMPLING,)
        case _:
            return _allocated_or_weighted(sampling)


def _allocated_or_weighted(
    sampling: BallsAndBins | RandomAllocation | NonUniform | MinSeparation | CyclicPoisson,
) -> tuple[Assumption, ...]:
    match sampling:
        case BallsAndBins():
            return (Assumption.BALLS_AND_BINS_SAMPLING,)
        case RandomAllocation():
            return (Assumption.RANDOM_ALLOCATION_SAMPLING,)
        case NonUniform():
            return (Assumption.DATA_INDEPENDENT_WEIGHTS,)
        case MinSeparation() | CyclicPoisson():
            raise NoBoundError(REASON_NO_SCHEMA)
        case _:
            assert_never(sampling)


def _reshuffled(sigma: float, sampling: Shuffle) -> EventBound[float]:
    """One pass when a record is added or removed.

    Raises:
        NoBoundError: the batches of the neighbours do not correspond.
    """
    if sampling.dataset_size is None:
        raise NoBoundError(REASON_BATCHES_MOVE)
    try:
        mu = shuffle_add_remove_mu(
            noise_multiplier=sigma,
            batch_size=sampling.batch_size,
            dataset_size=sampling.dataset_size,
            steps_per_pass=sampling.steps_per_pass,
        )
    except ValueError:
        raise NoBoundError(REASON_BATCHES_MOVE) from None
    assumptions = shuffle_add_remove_mu.assumptions
    if sampling.reshuffle is Reshuffle.ONCE:  # the coupling is the same in every pass
        fresh, secret = Assumption.FRESH_SECRET_ORDER, Assumption.SECRET_ORDER
        assumptions = tuple(secret if one is fresh else one for one in assumptions)
    return EventBound(theorem=shuffle_add_remove_mu, assumptions=assumptions, loss=mu)
