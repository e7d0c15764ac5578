"""Which theorems bound an event: every stated bound, or the reason why there is none."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar, assert_never

import numpy as np

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
from accounting.numerics import Array, rounded_up, sum_up
from accounting.renyi.declared import approximate_dp_rdp, zcdp_rdp
from accounting.renyi.fixed_size import (
    fixed_size_gaussian_add_remove_rdp,
    fixed_size_gaussian_rdp,
    poisson_gaussian_replace_rdp,
)
from accounting.renyi.laplace import laplace_rdp, poisson_laplace_rdp
from accounting.renyi.orders import ORDERS
from accounting.renyi.passes import gaussian_per_pass_rdp
from accounting.renyi.poisson import gaussian_rdp, poisson_gaussian_rdp
from accounting.renyi.pure import amplified_epsilon
from accounting.renyi.randomized_response import (
    randomized_response_null_rdp,
    randomized_response_rdp,
)
from accounting.renyi.revealed import revealed_sampling_rdp
from accounting.theorem import Theorem

ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE

CACHE_ENTRIES = 32768  # of about 2 kB each: distinct events, never steps

REASON_NO_NOISE = "A step ran without noise: it has no finite epsilon."
REASON_BATCHES_MOVE = (
    "Under add_or_remove_one a record's absence moves every later record of a cyclic or shuffled "
    "pass into another batch: no bound is proved. Use replace_special or replace_one."
)
REASON_NOT_GAUSSIAN_DP = (
    "Under add_or_remove_one a batch of fixed size is not bounded as one Gaussian release."
)
REASON_NOT_GAUSSIAN = "A step that adds no Gaussian noise is not a Gaussian release."
REASON_FULL_OR_POISSON = (
    "Without Gaussian noise, only full or poisson sampling is accounted so far."
)
REASON_MISSING_ANSWER = (
    "Under add_or_remove_one a record's absence leaves out its randomized response, which anyone "
    "can see: there is no finite bound. Use replace_special or replace_one."
)

L = TypeVar("L")
StepMechanism = Laplace | RandomizedResponse | ApproximateDp | Zcdp  # counted by step


class NoBoundError(ValueError):
    """No accepted theorem bounds the event; the text says why."""


@dataclass(frozen=True, kw_only=True)
class EventBound(Generic[L]):
    """A theorem applied to one unit of an event: a step, or a pass where passes count."""

    theorem: Theorem[..., L]
    assumptions: tuple[Assumption, ...]
    loss: L  # upper: a Renyi curve on ORDERS, read-only, or mu
    delta: float = 0.0  # upper; the probability that the unit fails and the loss does not hold
    premises: tuple[Theorem[..., Any], ...] = ()  # what the theorem was applied to

    @property
    def theorems(self) -> tuple[Theorem[..., Any], ...]:
        """Everything the bound rests on."""
        return (self.theorem, *self.premises)


def _renyi(theorem: Theorem[..., Array], *extra: Assumption, **given: Any) -> EventBound[Array]:
    curve = theorem(orders=ORDERS, **given)
    curve.flags.writeable = False
    return EventBound(theorem=theorem, assumptions=theorem.assumptions + extra, loss=curve)


def sensitivity_of(relation: NeighboringRelation) -> float:
    """How far one record can move a sum in which it keeps its place, in norm bounds."""
    return 2.0 if relation is REPLACE_ONE else 1.0


# Of an unknown sampler only this is assumed: a record joins a step at most once, and neither its
# presence nor its content decides who else does.
UNKNOWN_SAMPLER = (Assumption.OTHERS_UNAFFECTED,)


@lru_cache(maxsize=CACHE_ENTRIES)
def renyi_bounds(event: Event, relation: NeighboringRelation) -> tuple[EventBound[Array], ...]:
    """Every Renyi curve that is proved for one unit of the event under the relation.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    mechanism = event.mechanism
    match mechanism:
        case Gaussian():
            return _gaussian(mechanism.noise_multiplier, event.sampling, relation)
        case Laplace() | RandomizedResponse() | ApproximateDp() | Zcdp():
            return _by_step(mechanism, event.sampling, relation)
        case NoNoise():
            raise NoBoundError(REASON_NO_NOISE)
        case _:
            assert_never(mechanism)


def _gaussian(
    sigma: float, sampling: Sampling, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    # Given who was sampled, a step is a Gaussian release; averaging over the sampling cannot hurt.
    full = {"noise_multiplier": sigma, "sensitivity": sensitivity_of(relation)}
    match sampling:
        case Full():
            return (_renyi(gaussian_rdp, **full),)
        case Unknown():
            return (_renyi(gaussian_rdp, *UNKNOWN_SAMPLER, **full),)
        case Poisson():
            return _poisson(sigma, sampling, relation)
        case FixedSize():
            return _fixed_size(sigma, sampling, relation)
        case Cyclic() | Shuffle():
            if relation is ADD_OR_REMOVE_ONE:
                raise NoBoundError(REASON_BATCHES_MOVE)
            return (_renyi(gaussian_per_pass_rdp, **full),)
        case _:
            assert_never(sampling)


def _poisson(
    sigma: float, sampling: Poisson, relation: NeighboringRelation
) -> tuple[EventBound[Array], ...]:
    given = {"noise_multiplier": sigma, "sampling_probability": sampling.sampling_probability}
    if relation is not REPLACE_ONE:
        return (_renyi(poisson_gaussian_rdp, **given),)
    full = _renyi(gaussian_rdp, noise_multiplier=sigma, sensitivity=2.0)
    return (_renyi(poisson_gaussian_replace_rdp, **given), full)


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
    return (subset, _renyi(gaussian_rdp, noise_multiplier=sigma, sensitivity=1.0))


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
        case FixedSize() | Cyclic() | Shuffle():
            raise NoBoundError(REASON_FULL_OR_POISSON)
        case _:
            assert_never(sampling)


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


def gdp_bounds(event: Event, relation: NeighboringRelation) -> tuple[EventBound[float], ...]:
    """The Gaussian DP of one unit of the event under the relation.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    if not isinstance(event.mechanism, Gaussian):
        silent = isinstance(event.mechanism, NoNoise)
        raise NoBoundError(REASON_NO_NOISE if silent else REASON_NOT_GAUSSIAN)
    mu = gaussian_dp(
        noise_multiplier=event.mechanism.noise_multiplier, sensitivity=sensitivity_of(relation)
    )
    extra: tuple[Assumption, ...] = ()
    theorem: Theorem[..., Any] = gaussian_dp
    match event.sampling:
        case Full() | Poisson():
            pass
        case Unknown():
            extra = UNKNOWN_SAMPLER
        case FixedSize():
            if relation is ADD_OR_REMOVE_ONE:
                raise NoBoundError(REASON_NOT_GAUSSIAN_DP)
        case Cyclic() | Shuffle():
            if relation is ADD_OR_REMOVE_ONE:
                raise NoBoundError(REASON_BATCHES_MOVE)
            theorem = gaussian_per_pass_rdp
        case _:
            assert_never(event.sampling)
    return (EventBound(theorem=theorem, assumptions=theorem.assumptions + extra, loss=mu),)


def accepted(
    bounds: tuple[EventBound[L], ...], *, accept: frozenset[Status]
) -> tuple[EventBound[L], ...]:
    """The bounds all of whose theorems have an accepted status.

    Raises:
        NoBoundError: none has.
    """
    chosen = tuple(
        bound for bound in bounds if accept.issuperset(one.status for one in bound.theorems)
    )
    if not chosen:
        statuses = ", ".join(sorted({one.status for bound in bounds for one in bound.theorems}))
        raise NoBoundError(f"Every bound for this event is {statuses}, which is not accepted.")
    return chosen


def least_curve(bounds: tuple[EventBound[Array], ...]) -> Array:
    """The least of the curves, order by order. Upper, nats, shape (len(ORDERS),)."""
    curve = bounds[0].loss
    for bound in bounds[1:]:
        curve = np.minimum(curve, bound.loss)
    return curve


def failure(bounds: tuple[EventBound[Array], ...]) -> float:
    """The probability with which a unit may fail its least_curve. Upper."""
    if not any(bound.delta for bound in bounds):  # nearly always
        return 0.0
    curve = least_curve(bounds)
    return max(bound.delta for bound in bounds if np.any(bound.loss == curve))


def total_failure(units: Iterable[tuple[tuple[EventBound[Array], ...], int]]) -> float:
    """The probability that any unit fails: at most the sum over units. Upper; 0 if none can."""
    failures = [count * failure(bounds) for bounds, count in units]
    return sum_up([rounded_up(delta) for delta in failures if delta])
