"""What some mechanism and dataset as declared attain: the lower end of an answer.

It does not depend on which theorems are accepted as upper bounds. What is not known is left out,
which only lowers it: the other answers are a function of all answers.
"""

import math
from collections import Counter
from functools import partial
from typing import Final, assert_never

import numpy as np

from accounting import work_budgets
from accounting.bounds.dominating_pairs import answer_pair, approximate_dp_pair
from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    REPLACE_SPECIAL,
    NoBoundError,
    sensitivity_of,
)
from accounting.event_counts import EventCounts, pass_length, reveal_order
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    CyclicPoisson,
    Direction,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    MatrixGaussian,
    MinSeparation,
    NeighboringRelation,
    NoNoise,
    NonUniform,
    Poisson,
    PoissonUnit,
    PrivateSelection,
    RandomAllocation,
    RandomizedResponse,
    Reshuffle,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)
from accounting.pld.contour.real_moments import LADDER, LOG_BEST_SHARE, log_moments
from accounting.pld.pairs import (
    GaussianPair,
    LaplacePair,
    Pair,
    ReplacedGaussianPair,
    SampledGaussianPair,
    Units,
)
from accounting.rounding import rounded_down, rounded_up
from accounting.shuffling.allocation import NOISE_MAX, allocation_lower_pair
from accounting.shuffling.full import largest_pair, noise_of_average
from accounting.shuffling.mirrored_sums import STEPS_MAX, mirrored_lower_pair
from accounting.subsampling.replacement import TooManyCopiesError, with_replacement_lower_pair
from accounting.subsampling.special import fixed_size_special_lower_pair
from accounting.subsampling.truncated import branches
from accounting.subsampling.units import TooManyRowsError, poisson_unit_lower_pair
from accounting.work_limit import attempt

_EPSILON_MAX: Final = 600.0  # beyond, e^-epsilon may vanish, which would overstate a lower bound
_MIRRORED_NOISE: Final = 1.0  # from which a replaced record's own pair is always the larger
_LOG_ODDS: Final = LOG_BEST_SHARE - math.log(1e-5)  # for a usual delta
FEW: Final = 16  # distinct events, up to which the costlier instances are looked at


def lower_bound_units(counts: EventCounts, relation: NeighboringRelation) -> Units:
    """Pairs that the steps of a ledger attain together, and how often each. Lower.

    What takes more than its part of work_budgets.LOWER_BOUND is left out.
    """
    units: Counter[Pair] = Counter()
    fine = len(counts.steps) <= FEW
    sharing = Counter(event.sampling for event in counts.steps)
    for event in counts.steps:
        told = reveal_order(event)
        if told != event and told in counts.passes:  # which passes were used again is not known
            sharing.update((event.sampling, told.sampling) * 2)
    for event, count in counts.units():
        if pass_length(event) is None:
            pair = lower_bound_pair(event, relation, fine=fine)
            if pair is not None:
                units[pair] += count
        elif sharing[event.sampling] == 1:
            # With several noises in a pass it is not known which passes had which.
            passes = partial(_in_passes, event, counts, relation)
            units.update(attempt(work_budgets.LOWER_BOUND // len(counts.steps), passes) or {})
    return list(units.items())


def lower_bound_pair(
    event: Event, relation: NeighboringRelation, *, fine: bool = True
) -> Pair | None:
    """A pair that one step attains; None if none is known. Lower.

    Args:
        event: counted by step.
        relation: which record is set against which.
        fine: whether an instance without a closed form may be used where it says more.
    """
    mechanism, sampling = event.mechanism, event.sampling
    match mechanism:
        case NoNoise() | MatrixGaussian() | PrivateSelection():
            return None
        case Gaussian():
            return _gaussian(mechanism.noise_multiplier, event, relation, fine=fine)
        case Laplace():
            return _laplace(mechanism.noise_multiplier, event, relation)
        case RandomizedResponse() | ApproximateDp() | Zcdp():
            return _all_at_once(mechanism, relation) if isinstance(sampling, Full) else None
        case _:
            assert_never(mechanism)


def _all_at_once(
    mechanism: RandomizedResponse | ApproximateDp | Zcdp, relation: NeighboringRelation
) -> Pair | None:
    match mechanism:
        case RandomizedResponse():
            try:
                return answer_pair(mechanism, relation)[0]
            except NoBoundError:
                return None
        case ApproximateDp():
            least = min(mechanism.epsilon, _EPSILON_MAX)
            return approximate_dp_pair(epsilon=least, delta=mechanism.delta)
        case Zcdp():
            # Gaussian noise of sigma^2 = 1/(2 rho) is rho-zCDP and no less; rounded towards more.
            noise = math.sqrt(0.5 / mechanism.rho)
            return GaussianPair(noise_multiplier=rounded_up(noise, ulps=4))
        case _:
            assert_never(mechanism)


def _laplace(b: float, event: Event, relation: NeighboringRelation) -> Pair | None:
    match event.sampling:
        case Full() | Poisson(sampling_probability=1):
            return LaplacePair(scale=b / sensitivity_of(relation), sampling_probability=1.0)
        case Poisson(sampling_probability=q):
            # A record may be replaced by one that contributes nothing.
            return LaplacePair(scale=b, sampling_probability=q)
        case _:
            return None


def _gaussian(
    sigma: float, event: Event, relation: NeighboringRelation, *, fine: bool
) -> Pair | None:
    sampling = event.sampling
    match sampling:
        case Full() | Poisson(sampling_probability=1):
            return GaussianPair(noise_multiplier=sigma / sensitivity_of(relation))
        case Poisson(sampling_probability=q):
            return _sampled(sigma, q, relation)
        case PoissonUnit():
            return _of_several_rows(sigma, sampling) if fine else None
        case TruncatedPoisson() | FixedSize() | WithReplacement() | NonUniform():
            return _drawn_together(sigma, sampling, relation, fine=fine)
        case Unknown() | Cyclic() | Shuffle() | BallsAndBins() | RandomAllocation():
            return None
        case MinSeparation() | CyclicPoisson():  # which are of other noise
            return None
        case _:
            assert_never(sampling)


def _drawn_together(
    sigma: float,
    sampling: TruncatedPoisson | FixedSize | WithReplacement | NonUniform,
    relation: NeighboringRelation,
    *,
    fine: bool,
) -> Pair | None:
    match sampling:
        case TruncatedPoisson():
            # Others contribute nothing, so that only the record's own place in the batch shows.
            rate = branches(sampling, dataset_size=sampling.dataset_size).taken_rate
            return _sampled(sigma, rate, relation)
        case FixedSize():
            rate = sampling.batch_size / sampling.dataset_size
            return _swapped(sigma, rate, relation, fine=fine)
        case WithReplacement():
            return _with_replacement(sigma, sampling, relation) if fine else None
        case NonUniform():
            if relation is ADD_OR_REMOVE_ONE:
                return None
            return _swapped(sigma, sampling.max_weight, relation, fine=fine)
        case _:
            assert_never(sampling)


def _sampled(sigma: float, rate: float, relation: NeighboringRelation) -> Pair | None:
    """The record contributes 1, its replacement -1; a null record, or its absence, nothing."""
    if rate >= 1:
        return GaussianPair(noise_multiplier=sigma / sensitivity_of(relation))
    if rate <= 0:
        return None
    if relation is REPLACE_ONE:
        return ReplacedGaussianPair(noise_multiplier=sigma, sampling_probability=rate)
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=rate)


def _swapped(
    sigma: float, rate: float, relation: NeighboringRelation, *, fine: bool
) -> Pair | None:
    """All others contribute -1, the record 1: another takes its place, or a null record does."""
    if rate >= 1:
        if relation is ADD_OR_REMOVE_ONE:
            return None
        return GaussianPair(noise_multiplier=sigma / sensitivity_of(relation))
    below = rounded_down(rate)
    if relation is not REPLACE_SPECIAL:
        return SampledGaussianPair(noise_multiplier=sigma / 2, sampling_probability=below)
    if not fine:
        return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=below)
    return fixed_size_special_lower_pair(noise_multiplier=sigma, rate=below)


def _with_replacement(
    sigma: float, sampling: WithReplacement, relation: NeighboringRelation
) -> Pair | None:
    try:
        return with_replacement_lower_pair(
            noise_multiplier=sigma,
            batch_size=sampling.batch_size,
            dataset_size=sampling.dataset_size,
            null=relation is REPLACE_SPECIAL,
        )
    except TooManyCopiesError:
        return None


def _of_several_rows(sigma: float, sampling: PoissonUnit) -> Pair | None:
    """All rows of the record contribute 1; what they are exchanged for may contribute nothing."""
    rate = sampling.sampling_probability
    try:
        return poisson_unit_lower_pair(
            noise_multiplier=sigma, sampling_probability=rate, rows=sampling.rows
        )
    except TooManyRowsError:
        return None


# Passes


def _in_passes(event: Event, counts: EventCounts, relation: NeighboringRelation) -> dict[Pair, int]:
    """What the passes of an event attain together; empty where too little is known of them."""
    passes, steps = _surely_taken(event, counts)
    if not (isinstance(event.mechanism, Gaussian) and passes) or event.is_correlated:
        return {}
    sigma, sampling = event.mechanism.noise_multiplier, event.sampling
    match sampling:
        case Cyclic():
            # The order is public: the record is in one step of each pass.
            if relation is ADD_OR_REMOVE_ONE or steps < sampling.steps_per_pass:
                return {}
            return {GaussianPair(noise_multiplier=sigma / sensitivity_of(relation)): passes}
        case Shuffle():
            starts = counts.starts.get(event, 0)
            return _shuffled(sigma, sampling, relation, (passes, steps, starts))
        case _:
            assert isinstance(sampling, BallsAndBins | RandomAllocation)  # noqa: S101 (has passes)
            pair = _allocated(sigma, sampling, (passes, steps), relation)
            return {} if pair is None else {pair: passes}


def _allocated(
    sigma: float,
    sampling: BallsAndBins | RandomAllocation,
    taken: tuple[int, int],
    relation: NeighboringRelation,
) -> Pair | None:
    passes, steps = taken
    length = sampling.steps_per_pass
    many = sampling.participations if isinstance(sampling, RandomAllocation) else 1
    replaced = relation is REPLACE_ONE
    if many == 1:
        of_null = partial(
            allocation_lower_pair, noise_multiplier=sigma, steps_per_pass=length, steps=steps
        )
        if not (replaced and steps and sigma <= NOISE_MAX and steps <= STEPS_MAX):
            return of_null()
        mirrored = mirrored_lower_pair(noise_multiplier=sigma, steps_per_pass=length, steps=steps)
        # With little noise a pass is told by its largest answer, and a null record tells as much.
        if sigma >= _MIRRORED_NOISE or length == 1:
            return mirrored
        return _larger(mirrored, of_null(), passes)
    if steps < length:
        return None
    # Others contribute nothing, the record 1: the sum of a whole pass is N(k, t sigma^2) or N(0),
    # or N(-k, t sigma^2) if it is replaced.
    noise = sigma * math.sqrt(length) / many / sensitivity_of(relation)
    return GaussianPair(noise_multiplier=rounded_up(noise, ulps=2))


def _larger(one: Pair, other: Pair, count: int) -> Pair:
    """The one of two pairs that says more of so many passes, by moments. Either is attained."""
    costs = [
        float(np.min((count * log_moments(pair, Direction.REMOVE) + _LOG_ODDS) / LADDER))
        for pair in (one, other)
    ]
    return one if costs[0] >= costs[1] else other


def _surely_taken(event: Event, counts: EventCounts) -> tuple[int, int]:
    """(passes, steps of each) that were taken for certain: each start leaves at most one open."""
    length = pass_length(event) or 1
    begun, steps = counts.passes.get(event, 0), counts.steps.get(event, 0)
    if steps >= begun * length:
        return begun, length
    whole = begun - counts.starts.get(event, begun)
    return (whole, length) if whole > 0 else (min(begun, 1), -(-steps // max(begun, 1)))


def _shuffled(
    sigma: float,
    sampling: Shuffle,
    relation: NeighboringRelation,
    taken: tuple[int, int, int],
) -> dict[Pair, int]:
    if sampling.dataset_size is None:
        return {}
    passes, steps, starts = taken
    batches = -(-sampling.dataset_size // sampling.batch_size)
    if sampling.reshuffle is Reshuffle.ONCE:
        # Some order was used for at least this many passes.
        same = -(-passes // starts) if starts else 1
        sigma, passes = noise_of_average(noise_multiplier=sigma, passes=same), 1
    pair = largest_pair(noise_multiplier=sigma, batches=batches, steps=steps, relation=relation)
    return {pair: passes}
