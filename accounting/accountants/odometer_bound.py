"""The odometer's answer: what was spent, whoever looked and whenever they stopped."""

import math
from dataclasses import replace

from accounting.accountants.queries import Query
from accounting.bounds.event_bounds import EventBound, NoBoundError, accepted
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import EventCounts, passes_by_sampling
from accounting.events import BallsAndBins, NeighboringRelation, RandomAllocation
from accounting.filters import odometer_epsilon
from accounting.filters.falling_noise import falling_noise_units
from accounting.filters.odometers import renyi_odometer_epsilon
from accounting.guarantees import Bound, ValidFor, weakest

REASON_EPSILON = "An odometer is read at a delta: it has no delta of an epsilon."
REASON_FAILURES = "What may fail takes more of delta than an odometer keeps for it."


def odometer_bound(counts: EventCounts, question: Query) -> Bound:
    """The odometer: valid when each step was chosen, and the reading taken, after earlier answers.

    Raises:
        NoBoundError: it is asked for a delta, or some event has no accepted bound.
    """
    if question.delta is None:
        raise NoBoundError(REASON_EPSILON)
    # Its own status counts as that of any theorem.
    accepted(
        (EventBound(theorem=renyi_odometer_epsilon, assumptions=(), loss=None),),
        accept=question.accept,
    )
    used = [
        bound
        for event, _ in counts.units()
        for bound in accepted(renyi_bounds(event, question.relation), accept=question.accept)
    ]
    value = odometer_epsilon(
        counts, relation=question.relation, delta=question.delta, accept=question.accept
    )
    if not value < math.inf:
        raise NoBoundError(REASON_FAILURES)
    fallen = (falling_noise_units,) if _fell(counts, question.relation) else ()
    found = question.answer(
        value, accountant="odometer", used=used, composed=(*fallen, renyi_odometer_epsilon)
    )
    return replace(
        found,
        bound=renyi_odometer_epsilon.id,
        status=weakest([found.status, renyi_odometer_epsilon.status]),
        valid_for=ValidFor.ADAPTIVE,
    )


def _fell(counts: EventCounts, relation: NeighboringRelation) -> bool:
    """Whether noise may have fallen inside passes whose sampling hides who was where."""
    return relation in falling_noise_units.relations and any(
        isinstance(sampling, BallsAndBins | RandomAllocation)
        and any(one.begun != one.passes for one in each)
        for sampling, each in passes_by_sampling(counts).items()
    )
