"""Which Renyi curves bound an event: every one that is stated, or the reason why there is none."""

from dataclasses import replace
from typing import Any, Final, assert_never

import numpy as np

from accounting.bounds.correlated_bounds import pass_steps
from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    REASON_FULL_OR_POISSON,
    REASON_MISSING_ANSWER,
    REASON_NO_SCHEMA,
    REPLACE_ONE,
    UNKNOWN_SAMPLER,
    EventBound,
    NoBoundError,
    reason_without_noise,
    sensitivity_of,
)
from accounting.bounds.gdp_bounds import gdp_bounds, reach, sampler_of
from accounting.bounds.selection_bounds import require_base, selection_bounds
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
    NoNoise,
    NonUniform,
    Poisson,
    PoissonUnit,
    PrivateSelection,
    RandomAllocation,
    RandomizedResponse,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)
from accounting.guarantees import Assumption, Theorem
from accounting.renyi.allocation import allocation_rdp, random_allocation_rdp
from accounting.renyi.declared import approximate_dp_rdp, zcdp_rdp
from accounting.renyi.fixed_size import (
    fixed_size_gaussian_add_remove_rdp,
    fixed_size_gaussian_rdp,
    poisson_gaussian_replace_rdp,
)
from accounting.renyi.laplace import laplace_rdp, poisson_laplace_rdp
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import gaussian_rdp, poisson_gaussian_rdp
from accounting.renyi.pure import amplified_epsilon
from accounting.renyi.randomized_response import (
    randomized_response_null_rdp,
    randomized_response_rdp,
)
from accounting.renyi.revealed import revealed_sampling_rdp
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up
from accounting.shuffling.partial import DATASET_SIZE_MAX, partial_shuffle_rdp
from accounting.subsampling.curves import (
    likely_copies,
    non_uniform_rdp,
    poisson_unit_rdp,
    truncated_poisson_rdp,
    unit_lost,
    with_replacement_rdp,
)
from accounting.subsampling.replacement import TooManyCopiesError
from accounting.subsampling.units import TooManyRowsError
from accounting.work_limit import cached_with_cost, spend

_CURVE: Final = 5000  # points that even the plainest curve is taken for
CACHE_ENTRIES: Final = 32768  # of about 2 kB each: distinct events, never steps

StepMechanism = Laplace | RandomizedResponse | ApproximateDp | Zcdp  # counted by step


def _renyi(theorem: Theorem[..., Array], *extra: Assumption, **given: Any) -> EventBound[Array]:
    spend(_CURVE)
    curve = theorem(orders=ORDERS, **given)
    curve.flags.writeable = False
    return EventBound(theorem=theorem, assumptions=theorem.assumptions + extra, loss=curve)


@cached_with_cost(maxsize=CACHE_ENTRIES)
def renyi_bounds(event: Event, relation: NeighboringRelation) -> tuple[EventBound[Array], ...]:
    """Every Renyi curve that is proved for one unit of the event under the relation.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    mechanism = event.mechanism
    match mechanism:
        case Gaussian():
            return _gaussian(mechanism.noise_multiplier, event, relation)
        case Laplace() | RandomizedResponse() | ApproximateDp() | Zcdp():
            return _by_step(mechanism, event.sampling, relation)
        case MatrixGaussian():
            return _correlated(event, relation)
        case NoNoise():
            raise NoBoundError(reason_without_noise(event))
        case PrivateSelection():
            require_base(mechanism.base, event.sampling)
            return selection_bounds(mechanism, renyi_bounds(mechanism.base, relation), relation)
        case _:
            assert_never(mechanism)


def _gaussian(
    sigma: float, event: Event, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    sampling = event.sampling
    match sampling:
        case Full() | Unknown():
            return (_release(sigma, sampling, relation),)
        case Poisson():
            return _poisson(sigma, sampling, relation)
        case FixedSize():
            return _fixed_size(sigma, sampling, relation)
        case TruncatedPoisson() | WithReplacement() | NonUniform() | PoissonUnit():
            release = _release(sigma, sampling, relation)
            return (*_drawn_afresh(sigma, sampling, relation), release)
        case Cyclic() | Shuffle() | BallsAndBins() | RandomAllocation():
            return _in_passes(sigma, event, relation)
        case MinSeparation() | CyclicPoisson():
            raise NoBoundError(REASON_NO_SCHEMA)
        case _:
            assert_never(sampling)


def _correlated(event: Event, relation: NeighboringRelation) -> tuple[EventBound[Array], ...]:
    if isinstance(event.sampling, CyclicPoisson):
        return pass_steps(event, relation, renyi_bounds, _times)
    return (_of_release(event, relation),)


def _times(curve: Array, count: int) -> Array:
    found = curve * count * (1 + 4 * UNIT_ROUNDOFF)
    found.flags.writeable = False
    return np.asarray(found)


def _of_release(event: Event, relation: NeighboringRelation) -> EventBound[Array]:
    """The curve of what is one Gaussian release."""
    (release,) = gdp_bounds(event, relation)
    curve = ORDERS * (0.5 * rounded_up(release.loss * release.loss, ulps=2))
    curve.flags.writeable = False
    return EventBound(theorem=release.theorem, assumptions=release.assumptions, loss=curve)


def _release(sigma: float, sampling: Sampling, relation: NeighboringRelation) -> EventBound[Array]:
    """Given who was sampled, a step is a Gaussian release; averaging over it cannot hurt."""
    given = {"noise_multiplier": sigma, "sensitivity": reach(sampling, relation)}
    return _renyi(gaussian_rdp, *sampler_of(sampling), **given)


def _poisson(
    sigma: float, sampling: Poisson, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    given = {"noise_multiplier": sigma, "sampling_probability": sampling.sampling_probability}
    if relation is not REPLACE_ONE:
        return (_renyi(poisson_gaussian_rdp, **given),)
    return (
        _renyi(poisson_gaussian_replace_rdp, **given),
        _release(sigma, sampling, relation),
    )


def _fixed_size(
    sigma: float, sampling: FixedSize, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    given = {
        "noise_multiplier": sigma,
        "batch_size": sampling.batch_size,
        "dataset_size": sampling.dataset_size,
    }
    if relation is ADD_OR_REMOVE_ONE:
        return (_renyi(fixed_size_gaussian_add_remove_rdp, **given),)
    subset = _renyi(fixed_size_gaussian_rdp, **given)
    if relation is REPLACE_ONE:
        return (subset,)
    return (subset, _release(sigma, sampling, relation))


def _drawn_afresh(
    sigma: float,
    sampling: TruncatedPoisson | WithReplacement | NonUniform | PoissonUnit,
    relation: NeighboringRelation,
) -> tuple[EventBound[Array], ...]:
    match sampling:
        case TruncatedPoisson():
            given = {"sampling": sampling, "relation": relation}
            return (_renyi(truncated_poisson_rdp, noise_multiplier=sigma, **given),)
        case WithReplacement():
            return _with_replacement(sigma, sampling, relation)
        case NonUniform():
            c = sampling.max_weight
            return (_renyi(non_uniform_rdp, noise_multiplier=sigma, max_weight=c),)
        case PoissonUnit():
            return _of_several_rows(sigma, sampling, relation)
        case _:
            assert_never(sampling)


def _with_replacement(
    sigma: float, sampling: WithReplacement, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    size = {"batch_size": sampling.batch_size, "dataset_size": sampling.dataset_size}
    try:
        _, beyond = likely_copies(**size)
        bound = _renyi(with_replacement_rdp, noise_multiplier=sigma, relation=relation, **size)
    except TooManyCopiesError:
        return ()
    return (replace(bound, delta=beyond),)


def _of_several_rows(
    sigma: float, sampling: PoissonUnit, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    rate, rows = sampling.sampling_probability, sampling.rows
    try:
        lost = unit_lost(
            noise_multiplier=sigma, sampling_probability=rate, rows=rows, relation=relation
        )
    except TooManyRowsError:
        return ()
    bound = _renyi(
        poisson_unit_rdp,
        noise_multiplier=sigma,
        sampling_probability=rate,
        rows=rows,
        relation=relation,
    )
    return (replace(bound, delta=lost),)


def _in_passes(
    sigma: float, event: Event, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    """Curves of a pass: what the sampling hides, if that is known, and a Gaussian release."""
    sampling = event.sampling
    plain = _of_release(event, relation)
    if (
        isinstance(sampling, Shuffle)
        and _leaves_records_out(sampling)
        and relation is not ADD_OR_REMOVE_ONE
    ):
        stopped = _renyi(
            partial_shuffle_rdp,
            noise_multiplier=sigma,
            batch_size=sampling.batch_size,
            dataset_size=sampling.dataset_size,
            steps_per_pass=sampling.steps_per_pass,
        )
        return (stopped, plain)
    if isinstance(sampling, BallsAndBins) and relation is not REPLACE_ONE:
        length = sampling.steps_per_pass
        return (_renyi(allocation_rdp, noise_multiplier=sigma, steps_per_pass=length), plain)
    if isinstance(sampling, RandomAllocation) and relation is not REPLACE_ONE:
        allocated = _renyi(
            random_allocation_rdp,
            noise_multiplier=sigma,
            steps_per_pass=sampling.steps_per_pass,
            participations=sampling.participations,
        )
        return (allocated, plain)
    return (plain,)


def _leaves_records_out(sampling: Shuffle) -> bool:
    size = sampling.dataset_size
    return sampling.stops_early and size is not None and size <= DATASET_SIZE_MAX


def _by_step(
    mechanism: StepMechanism, sampling: Sampling, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    full = _full(mechanism, relation)
    match sampling:
        case Full():
            return (full,)
        case Unknown():
            return (replace(full, assumptions=full.assumptions + UNKNOWN_SAMPLER),)
        case Poisson():
            q = sampling.sampling_probability
            return (full,) if q == 1 else _sampled(mechanism, full, q, relation)
        case _:
            raise NoBoundError(REASON_FULL_OR_POISSON)


def _full(mechanism: StepMechanism, relation: NeighboringRelation) -> EventBound[Array]:
    match mechanism:
        case Laplace():
            noise, reach = mechanism.noise_multiplier, sensitivity_of(relation)
            return _renyi(laplace_rdp, noise_multiplier=noise, sensitivity=reach)
        case RandomizedResponse():
            if relation is ADD_OR_REMOVE_ONE:
                raise NoBoundError(REASON_MISSING_ANSWER)
            replaced = relation is REPLACE_ONE
            return _renyi(
                randomized_response_rdp if replaced else randomized_response_null_rdp,
                probability_of_truth=mechanism.probability_of_truth,
                categories=mechanism.categories,
            )
        case ApproximateDp():
            declared = _renyi(approximate_dp_rdp, epsilon=mechanism.epsilon)
            return replace(declared, delta=mechanism.delta)
        case Zcdp():
            return _renyi(zcdp_rdp, rho=mechanism.rho)
        case _:
            assert_never(mechanism)


def _sampled(
    mechanism: StepMechanism, full: EventBound[Array], q: float, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    if isinstance(mechanism, Laplace) and relation is not REPLACE_ONE:
        b = mechanism.noise_multiplier
        return (_renyi(poisson_laplace_rdp, noise_multiplier=b, sampling_probability=q),)
    # Never more than without sampling; a product that underflows is rounded up, too.
    delta = min(full.delta, rounded_up(q * full.delta)) if full.delta else 0.0
    if isinstance(mechanism, ApproximateDp) and relation is ADD_OR_REMOVE_ONE:
        epsilon = amplified_epsilon(epsilon=mechanism.epsilon, sampling_probability=q)
        declared = _renyi(approximate_dp_rdp, *amplified_epsilon.assumptions, epsilon=epsilon)
        return (replace(declared, delta=delta, premises=(amplified_epsilon,)),)
    revealed = _renyi(
        revealed_sampling_rdp, *full.assumptions, rdp=full.loss, sampling_probability=q
    )
    return (replace(revealed, delta=delta, premises=(full.theorem,)), full)
