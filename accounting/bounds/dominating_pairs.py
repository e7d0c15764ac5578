"""Which pairs of distributions dominate an event: what the PLD accountant composes.

Where a theorem gives the Renyi curve of a dominating pair, the pair itself is kept here.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

from accounting.bounds.correlated_bounds import pass_steps
from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    REASON_FULL_OR_POISSON,
    REASON_MISSING_ANSWER,
    REASON_NO_SCHEMA,
    REASON_SELECTION,
    REPLACE_ONE,
    UNKNOWN_SAMPLER,
    EventBound,
    NoBoundError,
    Pairs,
    bound_of,
    filter_accepted,
    reason_without_noise,
    sensitivity_of,
)
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.sampled_pairs import batch_bounds
from accounting.event_counts import EventCounts
from accounting.events import (
    ApproximateDp,
    CyclicPoisson,
    Event,
    Full,
    Gaussian,
    Laplace,
    MatrixGaussian,
    MinSeparation,
    NeighboringRelation,
    NoNoise,
    Poisson,
    PrivateSelection,
    RandomizedResponse,
    Sampling,
    Unknown,
    Zcdp,
)
from accounting.gaussian import gaussian_dp
from accounting.guarantees import Assumption, Status, Theorem, theorem
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
    SymmetricPair,
    Units,
)
from accounting.renyi.declared import approximate_dp_rdp
from accounting.renyi.laplace import laplace_rdp, poisson_laplace_rdp
from accounting.renyi.poisson import poisson_gaussian_rdp
from accounting.renyi.pure import amplified_epsilon
from accounting.renyi.randomized_response import (
    randomized_response_null_rdp,
    randomized_response_rdp,
)
from accounting.renyi.revealed import revealed_sampling_rdp
from accounting.rounding import rounded_down
from accounting.subsampling.replaced_records import poisson_replace_tight_pair

Offered = tuple[tuple[EventBound[Pairs], ...], int]  # what bounds an event, and its units

REASON_ZCDP = (
    "A zCDP declaration bounds moments, not the loss: only the Renyi accountant serves it."
)


def pld_bounds(event: Event, relation: NeighboringRelation) -> tuple[EventBound[Pairs], ...]:
    """Every pair that is proved to dominate one unit of the event, the tightest first.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    match event.mechanism:
        case NoNoise():
            raise NoBoundError(reason_without_noise(event))
        case Zcdp():
            raise NoBoundError(REASON_ZCDP)
        case PrivateSelection():
            raise NoBoundError(REASON_SELECTION)
        case MatrixGaussian():
            return _correlated(event, relation)
        case Gaussian() | Laplace() | RandomizedResponse() | ApproximateDp() as mechanism:
            return _uncorrelated(mechanism, event.sampling, relation)
        case _:
            assert_never(event.mechanism)


def bounds_offered(
    counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> list[Offered]:
    """Return the accepted bounds of each event and how often they count, in an order of the events.

    Raises:
        NoBoundError: some event is dominated by no accepted pair; the text says why.
    """
    return [
        (filter_accepted(pld_bounds(event, relation), accept=accept), count)
        for event, count in counts.units()
    ]


def units_of(offered: Sequence[Offered], used: Sequence[EventBound[Pairs]]) -> Units:
    """Return the pairs of the bounds that were chosen, and how often each counts."""
    units: Counter[Pair] = Counter()
    for bound, (_, count) in zip(used, offered, strict=True):
        for pair, times in bound.loss:
            units[pair] += count * times
    return list(units.items())


def _uncorrelated(
    mechanism: Gaussian | Laplace | RandomizedResponse | ApproximateDp,
    sampling: Sampling,
    relation: NeighboringRelation,
) -> tuple[EventBound[Pairs], ...]:
    match sampling:
        case Full():
            return (_full(mechanism, relation),)
        case Unknown():
            full = _full(mechanism, relation)
            return (replace(full, assumptions=full.assumptions + UNKNOWN_SAMPLER),)
        case Poisson():
            q = sampling.sampling_probability
            full = _full(mechanism, relation)
            return (full,) if q == 1 else _sampled(mechanism, full, q, relation)
        case MinSeparation() | CyclicPoisson():
            raise NoBoundError(REASON_NO_SCHEMA)
        case _:
            if not isinstance(mechanism, Gaussian):
                raise NoBoundError(REASON_FULL_OR_POISSON)
            return batch_bounds(mechanism.noise_multiplier, sampling, relation)


def _correlated(event: Event, relation: NeighboringRelation) -> tuple[EventBound[Pairs], ...]:
    """A pass of correlated noise: its sampled blocks, or one Gaussian release."""
    if isinstance(event.sampling, CyclicPoisson):
        return pass_steps(event, relation, pld_bounds, _times)
    (release,) = gdp_bounds(event, relation)
    pair = GaussianPair(noise_multiplier=rounded_down(1 / release.loss, ulps=2))
    loss: Pairs = ((pair, 1),)
    return (EventBound(theorem=release.theorem, assumptions=release.assumptions, loss=loss),)


def _times(pairs: Pairs, count: int) -> Pairs:
    return tuple((pair, count * times) for pair, times in pairs)


def _full(
    mechanism: Gaussian | Laplace | RandomizedResponse | ApproximateDp,
    relation: NeighboringRelation,
) -> EventBound[Pairs]:
    # Sensitivities are powers of two: dividing by them does not round.
    reach = sensitivity_of(relation)
    match mechanism:
        case Gaussian():
            pair: Pair = GaussianPair(noise_multiplier=mechanism.noise_multiplier / reach)
            return bound_of(gaussian_dp, pair)
        case Laplace():
            pair = LaplacePair(scale=mechanism.noise_multiplier / reach, sampling_probability=1.0)
            return bound_of(laplace_rdp, pair)
        case RandomizedResponse():
            pair, theorem = answer_pair(mechanism, relation)
            return bound_of(theorem, pair)
        case ApproximateDp():
            pair = approximate_dp_pair(epsilon=mechanism.epsilon, delta=mechanism.delta)
            return bound_of(approximate_dp_rdp, pair)
        case _:
            assert_never(mechanism)


def answer_pair(
    mechanism: RandomizedResponse, relation: NeighboringRelation
) -> tuple[Pair, Theorem[..., Any]]:
    """The pair of a randomized response; each probability is off by a few roundoffs."""
    if relation is ADD_OR_REMOVE_ONE:
        raise NoBoundError(REASON_MISSING_ANSWER)
    p, k = mechanism.probability_of_truth, mechanism.categories
    other = (1 - p) / (k - 1)
    if relation is REPLACE_ONE:
        rest = (k - 2) * other
        pair = DiscretePair(first=(p, other, rest), second=(other, p, rest))
        return pair, randomized_response_rdp
    pair = DiscretePair(first=(p, 1 - p), second=(1 / k, (k - 1) / k))
    return pair, randomized_response_null_rdp


@theorem(
    id="poisson-replace",
    source="docs/theory/pld.md, Proposition 2; after Balle, Barthe and Gaboardi 2018, NeurIPS, "
    "arXiv:1807.01647v2, Theorem 2",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.POISSON_SAMPLING,),
)
def poisson_replace_pair(
    *,
    near: GaussianPair | LaplacePair,
    far: GaussianPair | LaplacePair,
    sampling_probability: float,
) -> SymmetricPair:
    """A symmetric pair that dominates a Poisson-sampled step when a record may be replaced.

    Without the record, with it and with its replacement, the sums are at distances of one, one and
    two norm bounds. With q the sampling probability, for a >= 1,

    H_a <= q ((1-c) H_a'(near) + c H_a'(far)), a' = 1 + (a-1)/q, c = a/a'

    and the relation is symmetric, which gives the rest.

    Args:
        near: the pair of the step without sampling at a distance of one norm bound.
        far: the same at two.
        sampling_probability: q, in (0, 1).

    Returns:
        The pair. Upper.
    """
    return SymmetricPair(near=near, far=far, sampling_probability=sampling_probability)


def approximate_dp_pair(*, epsilon: float, delta: float) -> DiscretePair:
    """The pair that dominates everything that is (epsilon, delta)-DP, and is it itself.

    With probability delta it tells all; otherwise it answers one bit truthfully with probability
    e^epsilon / (1 + e^epsilon) (Kairouz, Oh and Viswanath 2015, Theorem 3.3 and its proof).
    """
    truth = (1 - delta) / (1 + math.exp(-epsilon))
    lie = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    return DiscretePair(first=(delta, truth, lie, 0.0), second=(0.0, lie, truth, delta))


def _sampled(
    mechanism: Gaussian | Laplace | RandomizedResponse | ApproximateDp,
    full: EventBound[Pairs],
    q: float,
    relation: NeighboringRelation,
) -> tuple[EventBound[Pairs], ...]:
    match mechanism:
        case Gaussian():
            return _sampled_gaussian(mechanism.noise_multiplier, full, q, relation)
        case Laplace():
            return _sampled_laplace(mechanism.noise_multiplier, full, q, relation)
        case RandomizedResponse() | ApproximateDp():
            if isinstance(mechanism, ApproximateDp) and relation is ADD_OR_REMOVE_ONE:
                return (_amplified(mechanism, q),)
            return (_revealed(full, q), full)
        case _:
            assert_never(mechanism)


def _sampled_gaussian(
    sigma: float, full: EventBound[Pairs], q: float, relation: NeighboringRelation
) -> tuple[EventBound[Pairs], ...]:
    if relation is not REPLACE_ONE:
        pair = SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)
        return (bound_of(poisson_gaussian_rdp, pair),)
    tight = poisson_replace_tight_pair(noise_multiplier=sigma, sampling_probability=q)
    return bound_of(poisson_replace_tight_pair, tight), full


def _sampled_laplace(
    b: float, full: EventBound[Pairs], q: float, relation: NeighboringRelation
) -> tuple[EventBound[Pairs], ...]:
    if relation is not REPLACE_ONE:
        return (bound_of(poisson_laplace_rdp, LaplacePair(scale=b, sampling_probability=q)),)
    near = LaplacePair(scale=b, sampling_probability=1.0)
    far = LaplacePair(scale=b / 2, sampling_probability=1.0)
    return _replaced(near, far, q, full)


def _replaced(
    near: GaussianPair | LaplacePair,
    far: GaussianPair | LaplacePair,
    q: float,
    full: EventBound[Pairs],
) -> tuple[EventBound[Pairs], ...]:
    pair = poisson_replace_pair(near=near, far=far, sampling_probability=q)
    found = bound_of(poisson_replace_pair, pair)
    return replace(found, assumptions=found.assumptions + full.assumptions), full


def _revealed(full: EventBound[Pairs], q: float) -> EventBound[Pairs]:
    """Tell who was sampled: with probability 1 - q nothing else is told."""
    ((pair, _),) = full.loss
    assert isinstance(pair, DiscretePair)  # noqa: S101 (the only kind that is sampled this way)
    revealed = DiscretePair(
        first=(1 - q, *(q * p for p in pair.first)), second=(1 - q, *(q * p for p in pair.second))
    )
    found = bound_of(revealed_sampling_rdp, revealed)
    assumptions = found.assumptions + full.assumptions
    return replace(found, assumptions=assumptions, premises=(full.theorem,))


def _amplified(mechanism: ApproximateDp, q: float) -> EventBound[Pairs]:
    epsilon = amplified_epsilon(epsilon=mechanism.epsilon, sampling_probability=q)
    delta = min(mechanism.delta, q * mechanism.delta * (1 + 1e-15))
    declared = bound_of(approximate_dp_rdp, approximate_dp_pair(epsilon=epsilon, delta=delta))
    assumptions = declared.assumptions + amplified_epsilon.assumptions
    return replace(declared, assumptions=assumptions, premises=(amplified_epsilon,))


THEOREMS = (poisson_replace_pair,)
