"""What an envelope certifies: the epsilon of all its items together, however they are used."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from accounting.accountants.composed_bounds import pld_bound
from accounting.accountants.queries import Query
from accounting.bounds.event_bounds import NoBoundError
from accounting.event_counts import EventCounts, pass_length
from accounting.events import Cyclic, Event, NeighboringRelation, Shuffle
from accounting.filters.envelope import EnvelopeItem
from accounting.guarantees import Bound, Status
from accounting.rounding import rounded_down


def envelope_bound(
    items: Sequence[EnvelopeItem],
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    delta: float,
) -> Bound:
    """The epsilon of the product of all items. Upper, for every trainer that keeps to them.

    Args:
        items: what is allowed, at least one.
        relation: the neighbouring relation.
        accept: statuses of the bounds that may be used.
        delta: in (0, 1).

    Raises:
        NoBoundError: some item is dominated by no accepted pair; the text says why.
    """
    question = Query(relation=relation, accept=accept, delta=delta, epsilon=None, with_lower=False)
    return pld_bound(_counts(items), question)


def unused_delta(
    items: Sequence[EnvelopeItem],
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    epsilon: float,
    delta: float,
    certified: float,
) -> float:
    """The delta of a budget that its items do not need at its epsilon. Lower, >= 0.

    Args:
        items: certified to be within the budget.
        relation: the neighbouring relation.
        accept: statuses of the bounds that may be used.
        epsilon: the budget's, nats.
        delta: the budget's.
        certified: nats at delta, of all items together.
    """
    # Far above what is certified hardly any delta is needed, and a limit there takes more work.
    asked = min(epsilon, 4 * certified + 40)
    question = Query(relation=relation, accept=accept, delta=None, epsilon=asked, with_lower=False)
    needed = pld_bound(_counts(items), question).delta
    return max(0.0, rounded_down(delta - needed))


def _counts(items: Sequence[EnvelopeItem]) -> EventCounts:
    steps: Counter[Event] = Counter()
    passes: Counter[Event] = Counter()
    for item in items:
        event = _certified_item(item.event)
        steps[event] += item.allowed * item.unit
        if pass_length(event) is not None:
            passes[event] += item.allowed
    return EventCounts(steps=dict(steps), passes=dict(passes), begun=dict(passes))


def _certified_item(event: Event) -> Event:
    """The item that is certified: of a shuffled pass one release, its order told at its beginning.

    What a secret order hides is proved for passes that are known before the first answer.
    """
    order = event.sampling
    if not isinstance(order, Shuffle):
        return event
    told = Cyclic(batch_size=order.batch_size, steps_per_pass=order.steps_per_pass)
    return replace(event, sampling=told)


def admissible_of_last(
    items: Sequence[EnvelopeItem],
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    epsilon: float,
    delta: float,
) -> int:
    """How many steps of the last item fit beside the others; 0 where not even one unit does.

    Args:
        items: together they exceed the budget.
        relation: the neighbouring relation.
        accept: statuses of the bounds that may be used.
        epsilon: the budget's, nats.
        delta: the budget's.
    """
    *others, last = items
    low, high = 0, last.allowed
    while high - low > 1:
        middle = (low + high) // 2
        fewer = [*others, replace(last, steps=middle * last.unit)]
        if epsilon_of(fewer, relation=relation, accept=accept, delta=delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low * last.unit


def epsilon_of(
    items: Sequence[EnvelopeItem],
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    delta: float,
) -> float:
    """The certified epsilon, nats. Upper; infinite where no bound is accepted."""
    try:
        return envelope_bound(items, relation=relation, accept=accept, delta=delta).epsilon
    except NoBoundError:
        return math.inf
