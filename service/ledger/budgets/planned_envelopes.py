"""The envelope that a plan makes: a budget that its steps fit exactly, in any order."""

import json
import math
from collections import Counter

from accounting.accountants.envelope_bound import epsilon_of
from accounting.event_counts import EventCounts
from accounting.events import Event, NeighboringRelation
from accounting.filters import EnvelopeFilter, EnvelopeItem
from accounting.filters.envelope import ITEMS_MAX
from accounting.guarantees import Status
from service.errors import InvalidRequestError
from service.schemas.event_codec import content_of
from service.schemas.plan_response import PlanEnvelope
from service.schemas.requests import EnvelopeItemMessage

_TOO_MANY = f"an envelope has at most {ITEMS_MAX} items, and the plan has more different steps"
_UNCERTIFIED = "some step of the plan cannot be an item of an envelope under this relation"
_NOT_HELD = (
    "an envelope of these steps does not hold the plan: a pass is left before its end, its noise "
    "falls after its first step, or correlated noise is used again"
)


def plan_envelope(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    delta: float,
    epsilon: float | None,
) -> PlanEnvelope:
    """The envelope of a plan's steps, as the budget of a dataset or of a run.

    Args:
        counts: the plan's events.
        relation: the neighbouring relation.
        accept: statuses that may be used.
        delta: in (0, 1).
        epsilon: nats, of the budget; None for what is certified of the plan.

    Raises:
        InvalidRequestError: there are too many different steps, one may be no item, or the items do
            not hold the plan.
    """
    steps: Counter[Event] = Counter(counts.steps)
    if len(steps) > ITEMS_MAX:
        raise InvalidRequestError("body.as_envelope", _TOO_MANY)
    items = tuple(EnvelopeItem(event=event, steps=count) for event, count in steps.items())
    certified = epsilon_of(items, relation=relation, accept=accept, delta=delta)
    if not math.isfinite(certified):
        raise InvalidRequestError("body.as_envelope", _UNCERTIFIED)
    limit = certified if epsilon is None else max(epsilon, certified)
    held_by = EnvelopeFilter(items=items, epsilon=limit, delta=delta, certified=certified)
    if not held_by.admits(held_by.total(counts, relation=relation, accept=accept)):
        raise InvalidRequestError("body.as_envelope", _NOT_HELD)
    return PlanEnvelope(
        epsilon=limit,
        delta=delta,
        filter="envelope",
        envelope=[
            EnvelopeItemMessage.model_validate(
                {**json.loads(content_of(item.event)), "steps": item.steps}
            )
            for item in items
        ],
    )
