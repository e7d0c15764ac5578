"""Which pair of distributions dominates an event: what the PLD accountant composes.

The theorems are those of bounds.py: each says that a step is dominated by a pair, and its Renyi
curve is that pair's. Here the pair itself is kept.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

from accounting.bounds import (
    ADD_OR_REMOVE_ONE,
    REASON_BATCHES_MOVE,
    REASON_FULL_OR_POISSON,
    REASON_MISSING_ANSWER,
    REASON_NO_NOISE,
    REPLACE_ONE,
    UNKNOWN_SAMPLER,
    EventBound,
    NoBoundError,
    sensitivity_of,
)
from accounting.events import (
    ApproximateDp,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    NoNoise,
    Poisson,
    RandomizedResponse,
    Sampling,
    Shuffle,
    Unknown,
    Zcdp,
)
from accounting.gaussian import gaussian_dp
from accounting.guarantees import Assumption, Status
from accounting.numerics import rounded_down, rounded_up
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
    SymmetricPair,
)
from accounting.renyi.declared import approximate_dp_rdp
from accounting.renyi.fixed_size import (
    fixed_size_gaussian_add_remove_rdp,
    fixed_size_gaussian_rdp,
)
from accounting.renyi.laplace import laplace_rdp, poisson_laplace_rdp
from accounting.renyi.passes import gaussian_per_pass_rdp
from accounting.renyi.poisson import poisson_gaussian_rdp
from accounting.renyi.pure import amplified_epsilon
from accounting.renyi.randomized_response import (
    randomized_response_null_rdp,
    randomized_response_rdp,
)
from accounting.renyi.revealed import revealed_sampling_rdp
from accounting.theorem import Theorem, theorem

REASON_ZCDP = (
    "A zCDP declaration bounds moments, not the loss: only the Renyi accountant serves it."
)


_EPSILON_LOWER_MAX: Final = 600.0


@dataclass(frozen=True, slots=True)
class Domination:
    """What bounds one unit of an event from above, and what from below."""

    upper: Pair  # dominates the unit in both orders
    lower: Pair | None  # dominated by what some dataset attains; None where none is known


def _bound(theorem: Theorem[..., Any], upper: Pair, lower: Pair | None) -> EventBound[Domination]:
    loss = Domination(upper, lower)
    return EventBound(theorem=theorem, assumptions=theorem.assumptions, loss=loss)


def pld_bounds(event: Event, relation: NeighboringRelation) -> tuple[EventBound[Domination], ...]:
    """Every pair that is proved to dominate one unit of the event, the tightest first.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    mechanism, sampling = event.mechanism, event.sampling
    match mechanism:
        case NoNoise():
            raise NoBoundError(REASON_NO_NOISE)
        case Zcdp():
            raise NoBoundError(REASON_ZCDP)
        case Gaussian() | Laplace() | RandomizedResponse() | ApproximateDp():
            pass
        case _:
            assert_never(mechanism)
    match sampling:
        case Full():
            return (_full(mechanism, relation),)
        case Unknown():
            full = _full(mechanism, relation)
            hidden = replace(full, loss=Domination(full.loss.upper, None))
            return (replace(hidden, assumptions=full.assumptions + UNKNOWN_SAMPLER),)
        case Poisson():
            q = sampling.sampling_probability
            full = _full(mechanism, relation)
            return (full,) if q == 1 else _sampled(mechanism, full, q, relation)
        case FixedSize() | Cyclic() | Shuffle():
            return (_in_batches(mechanism, sampling, relation),)
        case _:
            assert_never(sampling)


def attained(event: Event, relation: NeighboringRelation) -> Pair | None:
    """A pair that some mechanism and dataset as declared attain in one unit; None if unknown.

    What is attained does not depend on which theorems are accepted as upper bounds.
    """
    if isinstance(event.mechanism, Zcdp):
        if not isinstance(event.sampling, Full):
            return None
        # Gaussian noise of sigma^2 = 1/(2 rho) is rho-zCDP and no less; rounded towards more noise.
        noise = math.sqrt(0.5 / event.mechanism.rho)
        return GaussianPair(noise_multiplier=rounded_up(noise, ulps=4))
    try:
        return pld_bounds(event, relation)[0].loss.lower
    except NoBoundError:
        return None


def _in_batches(
    mechanism: Gaussian | Laplace | RandomizedResponse | ApproximateDp,
    sampling: Sampling,
    relation: NeighboringRelation,
) -> EventBound[Domination]:
    if not isinstance(mechanism, Gaussian):
        raise NoBoundError(REASON_FULL_OR_POISSON)
    if isinstance(sampling, FixedSize):
        return _fixed_size(mechanism.noise_multiplier, sampling, relation)
    if relation is ADD_OR_REMOVE_ONE:
        raise NoBoundError(REASON_BATCHES_MOVE)
    pair = GaussianPair(noise_multiplier=mechanism.noise_multiplier / sensitivity_of(relation))
    return _bound(gaussian_per_pass_rdp, pair, None)


def _fixed_size(
    sigma: float, sampling: FixedSize, relation: NeighboringRelation
) -> EventBound[Domination]:
    # A subset of fixed size exchanges one record for another: the means are two norm bounds apart.
    far = GaussianPair(noise_multiplier=sigma / 2)
    rate = sampling.batch_size / sampling.dataset_size
    theorem: Theorem[..., Any] = fixed_size_gaussian_rdp
    if relation is ADD_OR_REMOVE_ONE:
        theorem = fixed_size_gaussian_add_remove_rdp
    above, below = rounded_up(rate), rounded_down(rate)
    if above >= 1:
        return _bound(theorem, far, None)
    pair = SampledGaussianPair(noise_multiplier=sigma / 2, sampling_probability=above)
    attained = SampledGaussianPair(noise_multiplier=sigma / 2, sampling_probability=below)
    if relation is ADD_OR_REMOVE_ONE:
        return _bound(theorem, pair, attained)
    symmetric = SymmetricPair(near=far, far=far, sampling_probability=above)
    return _bound(theorem, symmetric, attained if relation is REPLACE_ONE else None)


def _full(
    mechanism: Gaussian | Laplace | RandomizedResponse | ApproximateDp,
    relation: NeighboringRelation,
) -> EventBound[Domination]:
    # Sensitivities are powers of two: dividing by them does not round.
    reach = sensitivity_of(relation)
    match mechanism:
        case Gaussian():
            pair: Pair = GaussianPair(noise_multiplier=mechanism.noise_multiplier / reach)
            return _bound(gaussian_dp, pair, pair)
        case Laplace():
            pair = LaplacePair(scale=mechanism.noise_multiplier / reach, sampling_probability=1.0)
            return _bound(laplace_rdp, pair, pair)
        case RandomizedResponse():
            pair, theorem = _answers(mechanism, relation)
            return _bound(theorem, pair, pair)
        case ApproximateDp():
            pair = approximate_dp_pair(epsilon=mechanism.epsilon, delta=mechanism.delta)
            # Beyond, e^-epsilon may vanish, which would overstate a lower bound.
            least = min(mechanism.epsilon, _EPSILON_LOWER_MAX)
            return _bound(
                approximate_dp_rdp, pair, approximate_dp_pair(epsilon=least, delta=mechanism.delta)
            )
        case _:
            assert_never(mechanism)


def _answers(
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
    full: EventBound[Domination],
    q: float,
    relation: NeighboringRelation,
) -> tuple[EventBound[Domination], ...]:
    match mechanism:
        case Gaussian():
            return _sampled_gaussian(mechanism.noise_multiplier, full, q, relation)
        case Laplace():
            return _sampled_laplace(mechanism.noise_multiplier, full, q, relation)
        case RandomizedResponse() | ApproximateDp():
            if isinstance(mechanism, ApproximateDp) and relation is ADD_OR_REMOVE_ONE:
                return (_amplified(mechanism, q),)
            return (_revealed(full, q), replace(full, loss=Domination(full.loss.upper, None)))
        case _:
            assert_never(mechanism)


def _sampled_gaussian(
    sigma: float, full: EventBound[Domination], q: float, relation: NeighboringRelation
) -> tuple[EventBound[Domination], ...]:
    pair = SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)
    if relation is not REPLACE_ONE:
        return (_bound(poisson_gaussian_rdp, pair, pair),)
    near, far = GaussianPair(noise_multiplier=sigma), GaussianPair(noise_multiplier=sigma / 2)
    return _replaced(near, far, q, full, pair)


def _sampled_laplace(
    b: float, full: EventBound[Domination], q: float, relation: NeighboringRelation
) -> tuple[EventBound[Domination], ...]:
    pair = LaplacePair(scale=b, sampling_probability=q)
    if relation is not REPLACE_ONE:
        return (_bound(poisson_laplace_rdp, pair, pair),)
    near = LaplacePair(scale=b, sampling_probability=1.0)
    far = LaplacePair(scale=b / 2, sampling_probability=1.0)
    return _replaced(near, far, q, full, pair)


def _replaced(
    near: GaussianPair | LaplacePair,
    far: GaussianPair | LaplacePair,
    q: float,
    full: EventBound[Domination],
    attained: Pair,
) -> tuple[EventBound[Domination], ...]:
    # A record may be replaced by one that contributes nothing: what add_or_remove_one attains is
    # attained here, too.
    found = _bound(
        poisson_replace_pair,
        poisson_replace_pair(near=near, far=far, sampling_probability=q),
        attained,
    )
    found = replace(found, assumptions=found.assumptions + full.assumptions)
    return found, replace(full, loss=Domination(full.loss.upper, attained))


def _revealed(full: EventBound[Domination], q: float) -> EventBound[Domination]:
    """Tell who was sampled: with probability 1 - q nothing else is told."""
    pair = full.loss.upper
    assert isinstance(pair, DiscretePair)  # noqa: S101 (the only kind that is sampled this way)
    revealed = DiscretePair(
        first=(1 - q, *(q * p for p in pair.first)), second=(1 - q, *(q * p for p in pair.second))
    )
    found = _bound(revealed_sampling_rdp, revealed, None)
    assumptions = found.assumptions + full.assumptions
    return replace(found, assumptions=assumptions, premises=(full.theorem,))


def _amplified(mechanism: ApproximateDp, q: float) -> EventBound[Domination]:
    epsilon = amplified_epsilon(epsilon=mechanism.epsilon, sampling_probability=q)
    delta = min(mechanism.delta, q * mechanism.delta * (1 + 1e-15))
    declared = _bound(approximate_dp_rdp, approximate_dp_pair(epsilon=epsilon, delta=delta), None)
    assumptions = declared.assumptions + amplified_epsilon.assumptions
    return replace(declared, assumptions=assumptions, premises=(amplified_epsilon,))


THEOREMS = (poisson_replace_pair,)
