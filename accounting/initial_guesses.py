"""Rough guesses at what a ledger spends: where a search begins. None of them bounds anything."""

import math
from typing import Final

from accounting.bounds.event_bounds import sensitivity_of
from accounting.event_counts import EventCounts
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    CyclicPoisson,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    MatrixGaussian,
    MinSeparation,
    NeighboringRelation,
    NonUniform,
    Poisson,
    PoissonUnit,
    RandomAllocation,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)
from accounting.gaussian import gaussian_mu

_MU_MAX: Final = 1e6
_APART: Final = 1.1  # a factor between values that a slope is guessed from
_SHARPER: Final = 1.2  # what is learnt of a shuffled order raises its rates by about as much


def estimated_mu(counts: EventCounts, relation: NeighboringRelation) -> float:
    """About the Gaussian DP of a ledger, as if its losses were normal."""
    reach = sensitivity_of(relation)
    squares = math.fsum(count * _square(event, reach) for event, count in counts.counted())
    return min(_MU_MAX, math.sqrt(squares))


def estimated_slope(
    counts: EventCounts,
    safer: EventCounts,
    relation: NeighboringRelation,
    epsilon: float,
    delta: float,
) -> float:
    """About log of epsilon at counts over that at safer ones, where epsilon is near this one.

    Zero where nothing is spent.
    """
    first, second = (estimated_mu(one, relation) for one in (counts, safer))
    if not 0 < second < first:
        return 0.0
    mu = gaussian_mu(epsilon, delta=delta), gaussian_mu(_APART * epsilon, delta=delta)
    return math.log(first / second) * math.log(_APART) / math.log(mu[1] / mu[0])


def _power(event: Event, reach: float) -> float:
    """About the mu^2 of a step on a full batch, where a record moves the sum this far."""
    match event.mechanism:
        case Gaussian(noise_multiplier=noise) | Laplace(noise_multiplier=noise):
            return (reach / noise) ** 2
        case ApproximateDp(epsilon=epsilon):
            return epsilon**2
        case Zcdp(rho=rho):
            return 2 * rho
    return 1.0


def _displaces(sampling: Sampling) -> bool:
    """Whether a record that joins or leaves takes the place of another."""
    early = isinstance(sampling, Shuffle) and sampling.stops_early
    return early or isinstance(sampling, FixedSize | WithReplacement | NonUniform)


def _square(event: Event, reach: float) -> float:
    """About the mu^2 that a unit adds."""
    if isinstance(event.mechanism, MatrixGaussian):
        correlated = event.mechanism
        power = (reach / correlated.noise_multiplier) ** 2 * correlated.sensitivity_squared
        return _of_correlated(event.sampling, power)
    reach = 2.0 if _displaces(event.sampling) else reach
    power = _power(event, reach)
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
    if isinstance(event.sampling, Poisson | TruncatedPoisson) and reach > 1:
        return min(power, 2 * q * q * math.expm1(min(power / reach**2, 600.0)))  # one, then another
    return min(power, q * q * math.expm1(min(power, 600.0)))


def _of_correlated(sampling: Sampling, power: float) -> float:
    """About the mu^2 of a pass, from that of a release of its longest column, or of all of it."""
    if not isinstance(sampling, CyclicPoisson):
        return power
    q, blocks = sampling.sampling_probability, sampling.steps_per_pass / sampling.cycle_length
    return blocks * min(power, q * q * math.expm1(min(power, 600.0)))


def _rate(sampling: Sampling) -> float:
    """About the chance that a record is in a step, where a step's batch is drawn afresh."""
    match sampling:
        case Poisson(sampling_probability=q) | TruncatedPoisson(sampling_probability=q):
            return q
        case PoissonUnit(sampling_probability=q, rows=rows):
            return min(1.0, q * rows)
        case FixedSize() | WithReplacement():
            return sampling.batch_size / sampling.dataset_size
        case NonUniform(max_weight=weight):
            return weight
        case _:
            return 1.0


def on_lattice(event: Event, relation: NeighboringRelation) -> bool:
    """Whether the epsilon of such steps is found on a lattice, to a few parts in ten thousand."""
    plain = Full | Unknown | Cyclic | Shuffle | MinSeparation
    if isinstance(event.sampling, Poisson | CyclicPoisson):
        return relation is NeighboringRelation.REPLACE_ONE
    return not isinstance(event.sampling, plain)
