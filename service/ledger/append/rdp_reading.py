"""The reading of a run that answers an append: cheap, and the same for the same event counts.

It is a Renyi reading of its events, or else what its filter has added up.
"""

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import accounting
from accounting.accountants import best_bound
from accounting.event_counts import read_together
from accounting.events import Cyclic, Event, NeighboringRelation, Sampling, Shuffle
from accounting.guarantees import Status
from accounting.renyi.conversion import conversion_costs
from accounting.renyi.orders import ORDERS
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up
from service.ledger.append.event_curves import EventCurve, curve_of, known_curve
from service.ledger.append.state import DatasetState, RunState
from service.ledger.budgets.accumulator import BudgetAccumulator
from service.ledger.budgets.steps_and_passes import StepsAndPasses, by_pass, count_events
from service.schemas.responses import EVERY_STEP

_READING = "rdp"  # the cheapest accountant that serves every event
ORDER_MIN: Final = 1 + 1e-6
ORDER_MAX: Final = 1e6
_CONVERSION_SLACK: Final = 1e-9  # far more than the roundings of a conversion at these orders
REASON_NONE = "No accepted bound is finite; GET the guarantee says why."
NOT_WORKED_OUT: Final[dict[str, Any]] = {
    "epsilon_lower": None,
    "assumptions": [],
    "unamplified_epsilon": None,
    "poisson_would_say": None,
    "release": EVERY_STEP,
    "release_reason": None,
    "alternatives": [],
    "smaller_bound": None,
}  # what an append does not work out


@dataclass(frozen=True, slots=True, kw_only=True)
class RdpEvaluator:
    """The curves of a set of events, and what a reading of them rests on."""

    events: tuple[Event, ...]  # in an order that depends on their values alone
    keys: tuple[str, ...]  # by which they are ordered
    # Shape (events, orders); None if an event has no curve, or one that may fail, or if an order
    # of one event may be used again by another: curves do not add up then.
    curves: Array | None
    loaders: frozenset[Sampling]  # of the events, as far as one may use another's orders
    unamplified: Array | None  # of one step of each, RDP over order; if all are Gaussian
    bases: frozenset[tuple[Hashable, ...] | None]
    costs: Array  # of the conversion at delta, shape (orders,)
    form: Mapping[str, Any]  # a GuaranteeAnswer of the counts that it was made for
    several: Mapping[Event, Array]  # of events with several bounds, which are used at each order
    forms: dict[tuple[int, ...], Mapping[str, Any]]  # by the bounds that are used

    def extended(self, more: Mapping[Event, EventCurve]) -> "RdpEvaluator | None":
        """The same with further events; None where they rest on something else."""
        if self.curves is None or not self.bases.issuperset(one.basis for one in more.values()):
            return None
        if not _add_up(loaders := self.loaders | _loaders(more)):
            return None
        events, keys = list(self.events), list(self.keys)
        curves, unamplified = self.curves, self.unamplified
        for event, one in more.items():
            if one.basis is None or (one.unamplified is None) != (unamplified is None):
                return None
            place = bisect_left(keys, key := repr(event))
            events.insert(place, event)
            keys.insert(place, key)
            curves = np.insert(curves, place, one.curve, axis=0)
            if unamplified is not None and one.unamplified is not None:
                unamplified = np.insert(unamplified, place, one.unamplified)
        return replace(
            self,
            events=tuple(events),
            keys=tuple(keys),
            curves=curves,
            loaders=loaders,
            unamplified=unamplified,
        )


def _loaders(events: Iterable[Event]) -> frozenset[Sampling]:
    """The samplings that may use one another's orders."""
    return frozenset(one.sampling for one in events if isinstance(one.sampling, Cyclic | Shuffle))


def _add_up(loaders: frozenset[Sampling]) -> bool:
    """Whether no two are read together, so that the curves of their passes add up."""
    return len({read_together(one) for one in loaders}) == len(loaders)


def meter_of(
    units: Mapping[Event, StepsAndPasses],
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    delta: float,
    known: RdpEvaluator | None = None,
) -> RdpEvaluator:
    """The meter of the events of a run; from one of fewer of them, if one is known."""
    if known is not None:
        more = {one: curve_of(one, relation, accept) for one in further(known, units)}
        told = {event: one for event, one in more.items() if one is not None}
        if len(told) == len(more) and (found := known.extended(told)) is not None:
            return found
    return _from_nothing(units, relation, accept, delta)


def further(known: RdpEvaluator, units: Mapping[Event, StepsAndPasses]) -> Sequence[Event]:
    """The events that a meter does not know."""
    there = frozenset(known.events)
    return [event for event in units if event not in there]


def _from_nothing(
    units: Mapping[Event, StepsAndPasses],
    relation: NeighboringRelation,
    accept: frozenset[Status],
    delta: float,
) -> RdpEvaluator:
    by_key = sorted((repr(event), event) for event in units)
    events = tuple(event for _, event in by_key)
    curves = [one for one in (curve_of(event, relation, accept) for event in events) if one]
    bases, loaders = frozenset(one.basis for one in curves), _loaders(events)
    complete = len(curves) == len(events) and _add_up(loaders)
    counted = units
    if complete and None not in bases:
        # What single bounds rest on does not depend on how often each counts: one of each is asked.
        each = {
            one.basis: event
            for one, event in zip(curves, events, strict=True)
            if _count(event, units[event])
        }
        counted = {event: units[event] for event in each.values()}
    noises = [one.unamplified for one in curves if one.unamplified is not None]
    found = RdpEvaluator(
        events=events,
        keys=tuple(key for key, _ in by_key),
        curves=np.array([one.curve for one in curves]) if complete else None,
        loaders=loaders,
        unamplified=np.array(noises) if len(noises) == len(events) else None,
        bases=bases,
        costs=conversion_costs(ORDERS, delta=delta),
        form=form_of(counted, relation, accept, delta),
        several={
            event: one.used
            for event, one in zip(events, curves, strict=False)
            if complete and one.used is not None
        },
        forms={},
    )
    if found.curves is not None and found.several:
        found.forms[_used(found, units, int(_at_orders(found, found.curves, units).argmin()))] = (
            found.form
        )
    return found


def form_of(
    units: Mapping[Event, StepsAndPasses],
    relation: NeighboringRelation,
    accept: frozenset[Status],
    delta: float,
) -> dict[str, Any]:
    """A GuaranteeAnswer, but for its steps and sequence, as the accountant answers. Upper."""
    bound = best_bound.best_bound(
        count_events(dict(units)),
        relation=relation,
        delta=delta,
        accept=accept,
        accountant=_READING,
        with_lower=False,
    )
    return {
        **NOT_WORKED_OUT,
        "epsilon": bound.epsilon if bound else None,
        "delta": delta,
        "neighboring_relation": relation,
        "accountant": bound.accountant if bound else None,
        "bound": bound.bound if bound else None,
        "theorems": list(bound.theorems) if bound else [],
        "status": bound.status if bound else None,
        "assumptions": list(bound.assumptions) if bound else [],
        "valid_for": bound.valid_for if bound else "fixed_schedule",
        "core_version": accounting.__version__,
        "reason": None if bound else REASON_NONE,
    }


def read_guarantee(
    meter: RdpEvaluator,
    units: Mapping[Event, StepsAndPasses],
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    sequence: int,
) -> dict[str, Any]:
    """A GuaranteeAnswer. Upper."""
    known = read_known(meter, units, sequence=sequence)
    if known is not None:
        return known
    form = form_of(units, relation, accept, meter.form["delta"])
    if meter.curves is None:  # what may fail, or has no bound, is asked of the accountant each time
        steps = sum(one.steps for one in units.values())
        return {**form, "steps": steps, "sequence": sequence}
    each_order = _at_orders(meter, meter.curves, units)
    # The best order moved to where another bound is the least.
    meter.forms[_used(meter, units, int(each_order.argmin()))] = form
    return _answer(meter, units, each_order, form, sequence)


def read_known(
    meter: RdpEvaluator, units: Mapping[Event, StepsAndPasses], *, sequence: int
) -> dict[str, Any] | None:
    """A GuaranteeAnswer; None if the accountant has to be asked, which may take time. Upper."""
    if meter.curves is None:
        return None
    each_order = _at_orders(meter, meter.curves, units)
    form: Mapping[str, Any] | None = meter.form
    if meter.several and each_order.min() < math.inf:
        form = meter.forms.get(_used(meter, units, int(each_order.argmin())))
    return None if form is None else _answer(meter, units, each_order, form, sequence)


def _answer(
    meter: RdpEvaluator,
    units: Mapping[Event, StepsAndPasses],
    each_order: Array,
    form: Mapping[str, Any],
    sequence: int,
) -> dict[str, Any]:
    epsilon = _at_least_zero(rounded_up(float(each_order.min()), ulps=2))
    steps = [units[event].steps for event in meter.events]
    unbounded = epsilon == math.inf  # which JSON cannot say, so that null does
    return {
        **form,
        "steps": sum(steps),
        "sequence": sequence,
        "epsilon": None if unbounded else epsilon,
        "reason": REASON_NONE if unbounded else None,
        "unamplified_epsilon": _unamplified_epsilon(meter, steps),
    }


def _count(event: Event, counts: StepsAndPasses) -> int:
    return counts.passes if by_pass(event) else counts.steps


def _slack(meter: RdpEvaluator) -> float:
    """What the roundings of a sum over the events may take off, as a factor."""
    return 1 + 2 * (len(meter.events) + 1) * UNIT_ROUNDOFF


def _at_orders(meter: RdpEvaluator, curves: Array, units: Mapping[Event, StepsAndPasses]) -> Array:
    """Epsilon at each order, up to its last roundings; shape (orders,)."""
    counts = [_count(event, units[event]) for event in meter.events]
    if len(counts) == 1:
        rdp = counts[0] * curves[0] if counts[0] else 0 * meter.costs
    elif all(counts):
        rdp = np.array(counts, dtype=np.float64) @ curves
    else:
        there = np.flatnonzero(counts)  # none of infinity is none
        rdp = np.array(counts, dtype=np.float64)[there] @ curves[there]
    found: Array = rdp * _slack(meter) + meter.costs
    return found


def _used(
    meter: RdpEvaluator, units: Mapping[Event, StepsAndPasses], order: int
) -> tuple[int, ...]:
    """The bounds that a reading uses of each event that has several; 0 of one not counted."""
    return tuple(
        int(bits[order]) if _count(event, units[event]) else 0
        for event, bits in meter.several.items()
    )


def _at_least_zero(epsilon: float) -> float:
    """The epsilon, or 0.0 where it is negative; NaN stays, so that no reply says 0.0 for it."""
    return 0.0 if epsilon < 0.0 else epsilon


def _unamplified_epsilon(meter: RdpEvaluator, steps: Sequence[int]) -> float | None:
    """Had every step been taken with all records. Upper, at an order that is nearly the best."""
    if meter.unamplified is None:
        return None
    scale = float(np.array(steps, dtype=np.float64) @ meter.unamplified) * _slack(meter)
    delta = meter.form["delta"]
    order = 1 + math.sqrt(math.log(1 / delta) / scale) if scale else ORDER_MAX
    order = min(max(order, ORDER_MIN), ORDER_MAX)
    cost = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    epsilon = (scale * order + cost) * (1 + _CONVERSION_SLACK) + _CONVERSION_SLACK
    return _at_least_zero(epsilon)


def read_filter(accumulator: BudgetAccumulator, delta: float) -> dict[str, Any]:
    """A GuaranteeAnswer, but for its steps and sequence, from what a filter has added up. Upper."""
    held_by = accumulator.filter
    with suppress(ValueError):  # some filters are read at their own delta alone
        held_by = held_by.at(epsilon=held_by.epsilon, delta=delta)
    epsilon = held_by.spent(accumulator.sums().spent)
    return {
        **NOT_WORKED_OUT,
        "epsilon": None if epsilon == math.inf else epsilon,
        "delta": held_by.delta,
        "neighboring_relation": accumulator.relation,
        "accountant": "filter",
        "bound": held_by.theorem,
        "theorems": [held_by.theorem],
        "status": held_by.status,
        "valid_for": "adaptive",
        "core_version": accounting.__version__,
        "reason": REASON_NONE if epsilon == math.inf else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredGuarantee:
    """A run's guarantee at some moment, still to be worked out: no transaction waits for it."""

    run: RunState
    known: RdpEvaluator | None  # of these events, or of some of them
    units: dict[Event, StepsAndPasses]
    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float
    sequence: int

    def read_known(self) -> dict[str, Any] | None:
        """A GuaranteeAnswer, or None if it takes longer than to send it."""
        if self.known is None or len(self.known.events) != len(self.units):
            return None
        return read_known(self.known, self.units, sequence=self.sequence)

    def read(self) -> dict[str, Any]:
        """A GuaranteeAnswer; what it rests on is kept for the appends that follow."""
        given: dict[str, Any] = {"relation": self.relation, "accept": self.accept}
        known = self.known
        if known is None or len(known.events) != len(self.units):
            known = meter_of(self.units, delta=self.delta, known=known, **given)
            self.run.reading = known  # a reader sees whether it is of the present events
        return read_guarantee(known, self.units, sequence=self.sequence, **given)


def read_reply(answer: dict[str, Any]) -> dict[str, Any]:
    """The AppendAnswer to an append, with its guarantee worked out."""
    guarantee = answer["guarantee"]
    if isinstance(guarantee, DeferredGuarantee):
        return answer | {"guarantee": guarantee.read()}
    return answer


def reading(state: DatasetState, run: RunState) -> dict[str, Any] | DeferredGuarantee | None:
    """The run's guarantee after the append, where a delta is known."""
    delta = state.delta if run.delta is None else run.delta
    if delta is None:
        return None
    if run.units is None:
        accumulator = run.scope.accumulator if run.scope else state.accumulator
        return {**read_filter(accumulator, delta), "steps": run.steps, "sequence": state.head}
    return _defer_guarantee(state, run, run.units, delta)


def _defer_guarantee(
    state: DatasetState, run: RunState, units: dict[Event, StepsAndPasses], delta: float
) -> DeferredGuarantee:
    known: RdpEvaluator | None = run.reading
    given: dict[str, Any] = {"relation": state.relation, "accept": state.accept}
    if known and known.form["delta"] != delta:
        known = None
    # Events of a run are never taken off, so as many as before are the same.
    further_ones = known and known.curves is not None and len(known.events) < len(units)
    if known and further_ones and (longer := _extend_evaluator(known, units, **given)):
        run.reading = known = longer
    return DeferredGuarantee(
        run=run, known=known, units=dict(units), delta=delta, sequence=state.head, **given
    )


def _extend_evaluator(
    known: RdpEvaluator,
    units: Mapping[Event, StepsAndPasses],
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
) -> RdpEvaluator | None:
    """The meter with the events that are new in the run; None where a curve is not known yet."""
    new = {event: known_curve(event, relation, accept) for event in further(known, units)}
    found = {event: curve for event, curve in new.items() if curve is not None}
    return known.extended(found) if len(found) == len(new) else None
