"""Rough guesses at what a ledger spends: where a search begins. None of them bounds anything."""

import math
from typing import Final

from accounting.bounds.event_bounds import sensitivity_of
from accounting.event_counts import EventCounts
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    NonUniform,
    Poisson,
    RandomAllocation,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)

_MU_MAX: Final = 1e6
_SHARPER: Final = 1.2  # what is learnt of a shuffled order raises its rates by about as much


def estimated_mu(counts: EventCounts, relation: NeighboringRelation) -> float:
    """About the Gaussian DP of a ledger, as if its losses were normal."""
    reach = sensitivity_of(relation)
    squares = math.fsum(count * _square(event, reach) for event, count in counts.counted())
    return min(_MU_MAX, math.sqrt(squares))


def _square(event: Event, reach: float) -> float:
    """About the mu^2 that a unit adds."""
    match event.mechanism:
        case Gaussian(noise_multiplier=noise) | Laplace(noise_multiplier=noise):
            power = (reach / noise) ** 2
        case ApproximateDp(epsilon=epsilon):
            power = epsilon**2
        case Zcdp(rho=rho):
            power = 2 * rho
        case _:
            power = 1.0
    if isinstance(event.sampling, BallsAndBins | RandomAllocation):
        length = event.sampling.steps_per_pass
        places = 1
        if isinstance(event.sampling, RandomAllocation):
            places = event.sampling.participations
        return places * min(power, math.expm1(min(power, 600.0)) * places / length)
    if isinstance(event.sampling, Shuffle) and event.sampling.stops_early:
        length = event.sampling.steps_per_pass
        q = _SHARPER * event.sampling.batch_size / (event.sampling.dataset_size or math.inf)
        return min(power, length * q * q * math.expm1(min(power, 600.0)))
    q = _rate(event.sampling)
    return min(power, q * q * math.expm1(min(power, 600.0)))


def _rate(sampling: Sampling) -> float:
    """About the chance that a record is in a step, where a step's batch is drawn afresh."""
    match sampling:
        case Poisson(sampling_probability=q) | TruncatedPoisson(sampling_probability=q):
            return q
        case FixedSize() | WithReplacement():
            return sampling.batch_size / sampling.dataset_size
        case NonUniform(max_weight=weight):
            return weight
        case _:
            return 1.0


def on_lattice(event: Event, relation: NeighboringRelation) -> bool:
    """Whether the epsilon of such steps is found on a lattice, to a few parts in ten thousand."""
    plain = Full | Unknown | Cyclic | Shuffle
    if isinstance(event.sampling, Poisson):
        return relation is NeighboringRelation.REPLACE_ONE
    return not isinstance(event.sampling, plain)
