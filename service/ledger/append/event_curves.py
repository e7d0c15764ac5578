"""The Renyi curves of events that this process has worked out, for the appends that follow."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from accounting.bounds.event_bounds import (
    NoBoundError,
    failure,
    filter_accepted,
    least_curve,
    sensitivity_of,
)
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import Event, Gaussian, NeighboringRelation
from accounting.guarantees import Status
from accounting.rounding import Array

CURVES_MAX: Final = 8192  # of events, that an append finds without working them out


@dataclass(frozen=True, slots=True)
class EventCurve:
    """The Renyi curve of one unit of an event, and what it rests on."""

    curve: Array  # shape (orders,); upper
    unamplified: float | None  # of a step with all records, RDP over order; of Gaussian noise
    # The theorem, its premises and assumptions, where one accepted bound is the whole curve.
    basis: tuple[Hashable, ...] | None
    # Else which bounds are the least at each order, as bits; shape (orders,).
    used: Array | None = None


_Asked = tuple[Event, NeighboringRelation, frozenset[Status]]
_curves: OrderedDict[_Asked, EventCurve] = OrderedDict()  # of this process, the oldest first
_learning: Final = threading.Lock()


def known_curve(
    event: Event, relation: NeighboringRelation, accept: frozenset[Status]
) -> EventCurve | None:
    """The curve of an event, if this process has worked it out."""
    return _curves.get((event, relation, accept))


def curve_of(
    event: Event, relation: NeighboringRelation, accept: frozenset[Status]
) -> EventCurve | None:
    """The curve of an event; None where there is none, or it may fail."""
    if (known := known_curve(event, relation, accept)) is not None:
        return known
    try:
        bounds = filter_accepted(renyi_bounds(event, relation), accept=accept)
    except NoBoundError:
        return None
    if failure(bounds):
        return None
    mechanism, (bound, *others) = event.mechanism, bounds
    unamplified = None
    if isinstance(mechanism, Gaussian):
        unamplified = 0.5 * (sensitivity_of(relation) / mechanism.noise_multiplier) ** 2
    basis = (bound.theorem.id, *(one.id for one in bound.premises), bound.assumptions)
    curve = least_curve(bounds)
    used = sum(2**n * (one.loss == curve) for n, one in enumerate(bounds)) if others else None
    found = EventCurve(curve, unamplified, None if others else basis, used)
    with _learning:
        _curves[event, relation, accept] = found
        if len(_curves) > CURVES_MAX:
            _curves.popitem(last=False)
    return found
