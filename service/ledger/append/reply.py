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
from accounting.events import Event, NeighboringRelation
from accounting.guarantees import Status
from service.ledger.append.rdp_reading import (
    NOT_WORKED_OUT,
    REASON_NONE,
    RdpEvaluator,
    further,
    known_curve,
    meter_of,
    read_guarantee,
)
from service.ledger.append.state import DatasetState, RunState
from service.ledger.budgets import cost_cache
from service.ledger.budgets.accumulator import BudgetAccumulator
from service.ledger.budgets.event_counts import StepsAndPasses


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
    """A run's guarantee at some moment that is still to be worked out, which may take time."""

    run: RunState
    known: RdpEvaluator | None  # of these events, or of some of them
    units: dict[Event, StepsAndPasses]
    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float
    sequence: int

    def read(self) -> dict[str, Any]:
        """A GuaranteeAnswer; what it rests on is kept for the appends that follow."""
        given: dict[str, Any] = {"relation": self.relation, "accept": self.accept}
        known = self.known
        if known is None or len(known.events) != len(self.units):
            known = meter_of(self.units, delta=self.delta, known=known, **given)
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
    given: dict[str, Any] = {"relation": state.relation, "accept": state.accept}
    if known and known.form["delta"] != delta:
        known = None
    if known and known.curves is not None:
        # Events of a run are never taken off, so as many as before are the same.
        if len(known.events) < len(units) and (longer := _lengthened(known, units, **given)):
            run.reading = known = longer
        if len(known.events) == len(units):
            return read_guarantee(known, units, sequence=state.head, **given)
    unread = DeferredGuarantee(
        run=run, known=known, units=dict(units), delta=delta, sequence=state.head, **given
    )
    return unread if cost_cache.is_locked() else unread.read()


def _lengthened(
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


def budget(state: DatasetState, run: RunState) -> dict[str, Any] | None:
    """The budget that holds the dataset, or else the run."""
    scope = state.scope or run.scope
    return scope.answer() if scope else None
