"""What bounds a pass of correlated noise: one Gaussian release, or Poisson steps of its blocks."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    REASON_BATCHES_MOVE,
    REASON_NO_SCHEMA,
    REPLACE_ONE,
    EventBound,
    NoBoundError,
    sensitivity_of,
)
from accounting.correlated_noise.amplified import cyclic_poisson_step
from accounting.correlated_noise.sensitivity import correlated_gaussian_mu
from accounting.events import (
    CyclicPoisson,
    Event,
    Gaussian,
    MatrixGaussian,
    MinSeparation,
    NeighboringRelation,
    Placement,
    Poisson,
)
from accounting.guarantees import Assumption
from accounting.rounding import rounded_up

REASON_GROUPS = (
    "Under replace_one the groups of cyclic_poisson must not depend on what a record holds: "
    "placement must be by_slot."
)
L = TypeVar("L")


def pass_release(event: Event, relation: NeighboringRelation) -> EventBound[float]:
    """The Gaussian DP of a pass of correlated noise whose sampling is told.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    mechanism, sampling = _require_bound(event, relation)
    mu = sensitivity_of(relation) * correlated_gaussian_mu(
        sensitivity_squared=mechanism.sensitivity_squared,
        noise_multiplier=mechanism.noise_multiplier,
    )
    if isinstance(sampling, CyclicPoisson):  # the blocks of a record have no row in common
        blocks = -(-sampling.steps_per_pass // sampling.cycle_length)
        mu = rounded_up(mu * math.sqrt(blocks), ulps=2)
    return EventBound(
        theorem=correlated_gaussian_mu,
        assumptions=(*correlated_gaussian_mu.assumptions, *_list_assumptions(sampling)),
        loss=mu,
    )


def pass_steps(
    event: Event,
    relation: NeighboringRelation,
    bounds_of: Callable[[Event, NeighboringRelation], tuple[EventBound[L], ...]],
    times: Callable[[L, int], L],
) -> tuple[EventBound[L], ...]:
    """The bounds of a pass whose blocks are sampled, from those of its steps.

    Args:
        event: of a pass that is sampled by CyclicPoisson.
        relation: the neighbouring relation.
        bounds_of: what bounds a step.
        times: a loss, so many times.

    Raises:
        NoBoundError: there is none; the text is the reason.
    """
    mechanism, sampling = _require_bound(event, relation)
    assert isinstance(sampling, CyclicPoisson)  # noqa: S101 (as it is called)
    noise, blocks = cyclic_poisson_step(
        noise_multiplier=mechanism.noise_multiplier,
        column_norm_squared=mechanism.sensitivity_squared,
        steps_per_pass=sampling.steps_per_pass,
        cycle_length=sampling.cycle_length,
    )
    step = Event(
        mechanism=Gaussian(noise_multiplier=noise),
        sampling=Poisson(sampling_probability=sampling.sampling_probability),
    )
    return tuple(
        replace(
            one,
            theorem=cyclic_poisson_step,
            assumptions=(*one.assumptions, *_list_assumptions(sampling)),
            loss=times(one.loss, blocks),
            premises=(one.theorem, *one.premises),
        )
        for one in bounds_of(step, relation)
    )


def _require_bound(
    event: Event, relation: NeighboringRelation
) -> tuple[MatrixGaussian, MinSeparation | CyclicPoisson]:
    mechanism, sampling = event.mechanism, event.sampling
    assert isinstance(mechanism, MatrixGaussian)  # noqa: S101 (as it is called)
    if not isinstance(sampling, MinSeparation | CyclicPoisson):
        raise NoBoundError(REASON_NO_SCHEMA)
    by_record = sampling.placement is Placement.BY_RECORD
    if relation is ADD_OR_REMOVE_ONE and not by_record:
        raise NoBoundError(REASON_BATCHES_MOVE)
    if relation is REPLACE_ONE and by_record and isinstance(sampling, CyclicPoisson):
        raise NoBoundError(REASON_GROUPS)
    return mechanism, sampling


def _list_assumptions(sampling: MinSeparation | CyclicPoisson) -> tuple[Assumption, ...]:
    schema = Assumption.SEPARATED_PARTICIPATION
    if isinstance(sampling, CyclicPoisson):
        schema = Assumption.CYCLIC_POISSON_SAMPLING
    by_record = sampling.placement is Placement.BY_RECORD
    return (schema, Assumption.OTHERS_UNAFFECTED) if by_record else (schema,)
