"""Answer an append: a Renyi reading that is cheap, and the same for the same event counts."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

import numpy as np
import orjson

import accounting
from accounting.accountants import best_bound
from accounting.bounds.event_bounds import (
    NoBoundError,
    accepted,
    failure,
    least_curve,
    sensitivity_of,
)
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import Event, Gaussian, NeighboringRelation
from accounting.guarantees import Status
from accounting.renyi.conversion import conversion_costs
from accounting.renyi.orders import ORDERS
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up
from service.ledger.append.state import DatasetState, RunState
from service.ledger.budgets import cost_cache
from service.ledger.budgets.accumulator import BudgetAccumulator
from service.ledger.budgets.event_counts import StepsAndPasses, by_pass, count_events
from service.schemas.responses import EVERY_STEP

_READING = "rdp"  # the cheapest accountant that serves every event
ORDER_MIN: Final = 1 + 1e-6
ORDER_MAX: Final = 1e6
_CONVERSION_SLACK: Final = 1e-9  # far more than the roundings of a conversion at these orders
REASON_NONE = "No accepted bound is finite; GET the guarantee says why."
_NOTHING: Final[dict[str, Any]] = {
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
    # Shape (orders,) each, which the accounting remembers too; none where one is missing, or may
    # fail.
    curves: list[Array] | None
    unamplified: list[float] | None  # of one step of each, RDP over order; if all are Gaussian
    costs: Array  # of the conversion at delta, shape (orders,)
    form: Mapping[str, Any]  # a GuaranteeAnswer of the counts that it was made for


def meter_of(
    units: Mapping[Event, StepsAndPasses],
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    delta: float,
) -> RdpEvaluator:
    """The meter of the events of a run."""
    events = tuple(sorted(units, key=repr))
    return RdpEvaluator(
        events=events,
        curves=_curves(events, relation, accept),
        unamplified=_unamplified(events, relation),
        costs=conversion_costs(ORDERS, delta=delta),
        form=_form(units, relation, accept, delta),
    )


def _curves(
    events: tuple[Event, ...], relation: NeighboringRelation, accept: frozenset[Status]
) -> list[Array] | None:
    curves = []
    for event in events:
        try:
            bounds = accepted(renyi_bounds(event, relation), accept=accept)
        except NoBoundError:
            return None
        if failure(bounds):
            return None
        curves.append(least_curve(bounds))
    return curves


def _unamplified(events: tuple[Event, ...], relation: NeighboringRelation) -> list[float] | None:
    noises = [e.mechanism.noise_multiplier for e in events if isinstance(e.mechanism, Gaussian)]
    if len(noises) < len(events):
        return None
    return [0.5 * (sensitivity_of(relation) / noise) ** 2 for noise in noises]


def _form(
    units: Mapping[Event, StepsAndPasses],
    relation: NeighboringRelation,
    accept: frozenset[Status],
    delta: float,
) -> dict[str, Any]:
    bound = best_bound.best_bound(
        count_events(dict(units)),
        relation=relation,
        delta=delta,
        accept=accept,
        accountant=_READING,
        floor=False,
    )
    return {
        **_NOTHING,
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
    delta = meter.form["delta"]
    if meter.curves is None:  # what may fail, or has no bound, is asked of the accountant each time
        form = _form(units, relation, accept, delta)
        return {**form, "steps": _steps(units), "sequence": sequence}
    slack = 1 + 2 * (len(meter.events) + 1) * UNIT_ROUNDOFF
    epsilon = _epsilon(meter, meter.curves, units, slack)
    unbounded = epsilon == math.inf  # which JSON cannot say, so that null does
    return {
        **meter.form,
        "epsilon": None if unbounded else epsilon,
        "reason": REASON_NONE if unbounded else None,
        "steps": _steps(units),
        "unamplified_epsilon": _unamplified_epsilon(meter, units, delta, slack),
        "sequence": sequence,
    }


def _epsilon(
    meter: RdpEvaluator, curves: list[Array], units: Mapping[Event, StepsAndPasses], slack: float
) -> float:
    counts = [
        units[event].passes if by_pass(event) else units[event].steps for event in meter.events
    ]
    if len(counts) == 1:
        rdp = counts[0] * curves[0] if counts[0] else 0 * meter.costs
    else:
        there = [index for index, count in enumerate(counts) if count]  # none of infinity is none
        taken = np.array([counts[i] for i in there], dtype=np.float64)
        rdp = taken @ np.array([curves[i] for i in there])
    return _at_least_zero(rounded_up(float((rdp * slack + meter.costs).min()), ulps=2))


def _at_least_zero(epsilon: float) -> float:
    """The epsilon, or 0.0 where it is negative; NaN stays, so that no reply says 0.0 for it."""
    return 0.0 if epsilon < 0.0 else epsilon


def _unamplified_epsilon(
    meter: RdpEvaluator, units: Mapping[Event, StepsAndPasses], delta: float, slack: float
) -> float | None:
    """Had every step been taken with all records. Upper, at an order that is nearly the best."""
    if meter.unamplified is None:
        return None
    steps = (units[event].steps for event in meter.events)
    scale = math.fsum(n * each for n, each in zip(steps, meter.unamplified, strict=True)) * slack
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
        **_NOTHING,
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


def _steps(units: Mapping[Event, StepsAndPasses]) -> int:
    return sum(counts.steps for counts in units.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredGuarantee:
    """A run's guarantee at some moment that is still to be worked out, which may take time."""

    run: RunState
    known: RdpEvaluator | None  # of these events, if there is one
    units: dict[Event, StepsAndPasses]
    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float
    sequence: int

    def read(self) -> dict[str, Any]:
        """A GuaranteeAnswer; what it rests on is kept for the appends that follow."""
        given: dict[str, Any] = {"relation": self.relation, "accept": self.accept}
        known = self.known or meter_of(self.units, delta=self.delta, **given)
        self.run.reading = known  # a reader sees whether it is of the present events
        return read_guarantee(known, self.units, sequence=self.sequence, **given)


def read_reply(answer: dict[str, Any]) -> dict[str, Any]:
    """The AppendAnswer to what was committed, with a guarantee that no lock could wait for."""
    return answer | {"guarantee": answer["guarantee"].read()}


def encode(answer: Mapping[str, Any]) -> bytes:
    """Return an AppendAnswer as JSON.

    Raises:
        ValueError: a number in it is NaN or infinite, for which orjson would write null, or a
            value is of a type in which such a number would not be seen.
    """
    _require_finite(answer.values())
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


_PLAIN: Final = (str, int, NoneType)
_NUMBERS: Final = (float, np.floating)
_SEQUENCES: Final = (list, tuple)


def _require_finite(values: Iterable[Any]) -> None:
    # It is looked at when everything is committed: before, it would refuse a fact.
    for value in values:
        if isinstance(value, _PLAIN):
            continue
        if isinstance(value, _NUMBERS):
            if not math.isfinite(value):
                raise ValueError("A number of the reply is not finite.")
        elif isinstance(value, dict):
            _require_finite(value.values())
        elif isinstance(value, _SEQUENCES):
            _require_finite(value)
        else:  # it may hold a number that is not seen here
            raise ValueError(f"A reply has no value of type {type(value).__name__}.")


def is_unread(answer: dict[str, Any]) -> bool:
    """Whether the guarantee is still to be worked out."""
    return isinstance(answer["guarantee"], DeferredGuarantee)


def reading(state: DatasetState, run: RunState) -> dict[str, Any] | DeferredGuarantee | None:
    """The run's guarantee after the append, where a delta is known."""
    delta = state.delta if run.delta is None else run.delta
    if delta is None:
        return None
    if run.units is None:
        accumulator = run.scope.accumulator if run.scope else state.accumulator
        return {**read_filter(accumulator, delta), "steps": run.steps, "sequence": state.head}
    return _metered(state, run, run.units, delta)


def _metered(
    state: DatasetState, run: RunState, units: dict[Event, StepsAndPasses], delta: float
) -> dict[str, Any] | DeferredGuarantee:
    known: RdpEvaluator | None = run.reading
    # Events of a run are never taken off, so as many as before are the same.
    if known and (known.form["delta"] != delta or len(known.events) != len(units)):
        known = None
    given: dict[str, Any] = {"relation": state.relation, "accept": state.accept}
    if known and known.curves is not None:
        return read_guarantee(known, units, sequence=state.head, **given)
    unread = DeferredGuarantee(
        run=run, known=known, units=dict(units), delta=delta, sequence=state.head, **given
    )
    return unread if cost_cache.is_locked() else unread.read()


def budget(state: DatasetState, run: RunState) -> dict[str, Any] | None:
    """The budget that holds the dataset, or else the run."""
    scope = state.scope or run.scope
    return scope.answer() if scope else None
