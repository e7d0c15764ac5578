"""Steps as (epsilon, delta): what was declared of them, or what pure noise gives."""

import math
from fractions import Fraction
from typing import Final

from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    REASON_FULL_OR_POISSON,
    REASON_MISSING_ANSWER,
    REPLACE_ONE,
    NoBoundError,
    sensitivity_of,
)
from accounting.events import (
    ApproximateDp,
    Event,
    Full,
    Laplace,
    NeighboringRelation,
    Poisson,
    RandomizedResponse,
    Unknown,
)
from accounting.guarantees import Status
from accounting.renyi.pure import amplified_epsilon
from accounting.rounding import LIBRARY_ULPS, rounded_up

REASON_NOT_BOUNDED: Final = "The step has no epsilon at the delta that it declares."
REASON_NOT_ACCEPTED: Final = "Its bound has a status that is not accepted."


def epsilon_delta(
    event: Event, relation: NeighboringRelation, accept: frozenset[Status]
) -> tuple[float, float]:
    """(epsilon, delta) of one step whatever came before. Upper.

    Raises:
        NoBoundError: it has none that is accepted; such as Gaussian noise.
    """
    mechanism, sampling = event.mechanism, event.sampling
    epsilon, delta = _full(event, relation)
    declared = isinstance(mechanism, ApproximateDp)
    if (Status.DECLARED if declared else Status.PUBLISHED) not in accept:
        raise NoBoundError(REASON_NOT_ACCEPTED)
    if isinstance(sampling, Full | Unknown):
        return epsilon, delta
    if not isinstance(sampling, Poisson):
        raise NoBoundError(REASON_FULL_OR_POISSON)
    amplifies = relation is ADD_OR_REMOVE_ONE if declared else _tells_absence(event, relation)
    if not amplifies or Status.PUBLISHED not in accept:
        return epsilon, delta  # averaging over who was sampled cannot hurt
    q = sampling.sampling_probability
    failed = min(delta, rounded_up(q * delta)) if delta else 0.0
    return amplified_epsilon(epsilon=epsilon, sampling_probability=q), failed


def _tells_absence(event: Event, relation: NeighboringRelation) -> bool:
    """Whether a record that was not drawn leaves the step as it is without the record."""
    return isinstance(event.mechanism, Laplace) and relation is not REPLACE_ONE


def _full(event: Event, relation: NeighboringRelation) -> tuple[float, float]:
    """Without sampling."""
    mechanism = event.mechanism
    match mechanism:
        case ApproximateDp():
            return mechanism.epsilon, mechanism.delta
        case Laplace():
            return rounded_up(sensitivity_of(relation) / mechanism.noise_multiplier), 0.0
        case RandomizedResponse():
            return _response(mechanism, relation), 0.0
        case _:
            raise NoBoundError(REASON_NOT_BOUNDED)


def _response(mechanism: RandomizedResponse, relation: NeighboringRelation) -> float:
    """The largest log ratio of an answer's probabilities. Upper, nats."""
    if relation is ADD_OR_REMOVE_ONE:
        raise NoBoundError(REASON_MISSING_ANSWER)
    truth = Fraction(mechanism.probability_of_truth)  # exact: near chance little is left
    other = (1 - truth) / (mechanism.categories - 1)
    if relation is REPLACE_ONE:
        ratios = [truth / other]
    else:  # a null record reports each category alike
        ratios = [truth * mechanism.categories, other * mechanism.categories]
    return max(
        rounded_up(math.log1p(float(max(ratio, 1 / ratio) - 1)), ulps=2 * LIBRARY_ULPS)
        for ratio in ratios
    )
