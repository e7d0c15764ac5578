"""Which theorems bound an event: every stated bound, or the reason why there is none."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, assert_never

import numpy as np

from accounting.events import (
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    NeighboringRelation,
    NoNoise,
    Poisson,
    Shuffle,
    Unknown,
)
from accounting.gaussian import gaussian_dp
from accounting.guarantees import Assumption, Status
from accounting.numerics import Array
from accounting.renyi.fixed_size import (
    fixed_size_gaussian_add_remove_rdp,
    fixed_size_gaussian_rdp,
    poisson_gaussian_replace_rdp,
)
from accounting.renyi.orders import ORDERS
from accounting.renyi.passes import gaussian_per_pass_rdp
from accounting.renyi.poisson import gaussian_rdp, poisson_gaussian_rdp
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

L = TypeVar("L")


class NoBoundError(ValueError):
    """No accepted theorem bounds the event; the text says why."""


@dataclass(frozen=True, kw_only=True)
class EventBound(Generic[L]):
    """A theorem applied to one unit of an event: a step, or a pass where passes count."""

    theorem: Theorem[..., L]
    assumptions: tuple[Assumption, ...]
    loss: L  # upper: a Renyi curve on ORDERS, read-only, or mu


def _renyi(theorem: Theorem[..., Array], *extra: Assumption, **given: Any) -> EventBound[Array]:
    curve = theorem(orders=ORDERS, **given)
    curve.flags.writeable = False
    return EventBound(theorem=theorem, assumptions=theorem.assumptions + extra, loss=curve)


def sensitivity_of(relation: NeighboringRelation) -> float:
    """How far one record can move a sum in which it keeps its place, in norm bounds."""
    return 2.0 if relation is REPLACE_ONE else 1.0


def _noise_multiplier(event: Event) -> float:
    match event.mechanism:
        case Gaussian():
            return event.mechanism.noise_multiplier
        case NoNoise():
            raise NoBoundError(REASON_NO_NOISE)
        case _:
            assert_never(event.mechanism)


# Of an unknown sampler only this is assumed: a record joins a step at most once, and neither its
# presence nor its content decides who else does.
_UNKNOWN = (Assumption.OTHERS_UNAFFECTED,)


@lru_cache(maxsize=CACHE_ENTRIES)
def renyi_bounds(event: Event, relation: NeighboringRelation) -> tuple[EventBound[Array], ...]:
    """Every Renyi curve that is proved for one unit of the event under the relation.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    sigma = _noise_multiplier(event)
    # Given who was sampled, a step is a Gaussian release; averaging over the sampling cannot hurt.
    full = {"noise_multiplier": sigma, "sensitivity": sensitivity_of(relation)}
    sampling = event.sampling
    match sampling:
        case Full():
            return (_renyi(gaussian_rdp, **full),)
        case Unknown():
            return (_renyi(gaussian_rdp, *_UNKNOWN, **full),)
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


def gdp_bounds(event: Event, relation: NeighboringRelation) -> tuple[EventBound[float], ...]:
    """The Gaussian DP of one unit of the event under the relation.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    sigma = _noise_multiplier(event)
    mu = gaussian_dp(noise_multiplier=sigma, sensitivity=sensitivity_of(relation))
    extra: tuple[Assumption, ...] = ()
    theorem: Theorem[..., Any] = gaussian_dp
    match event.sampling:
        case Full() | Poisson():
            pass
        case Unknown():
            extra = _UNKNOWN
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
    """The bounds whose theorems have an accepted status.

    Raises:
        NoBoundError: none has.
    """
    chosen = tuple(bound for bound in bounds if bound.theorem.status in accept)
    if not chosen:
        statuses = ", ".join(sorted({bound.theorem.status for bound in bounds}))
        raise NoBoundError(f"Every bound for this event is {statuses}, which is not accepted.")
    return chosen


def least_curve(bounds: tuple[EventBound[Array], ...]) -> Array:
    """The least of the curves, order by order. Upper, nats, shape (len(ORDERS),)."""
    curve = bounds[0].loss
    for bound in bounds[1:]:
        curve = np.minimum(curve, bound.loss)
    return curve
