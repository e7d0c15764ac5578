"""Budgets: the filter that holds one, what is gone of it, and how that is told."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Row

from accounting.filters import EnvelopeFilter, Filter, Total, filter_of, revision_share
from accounting.guarantees import Status
from accounting.rounding import rounded_down, rounded_up
from service.ledger.budgets import envelopes
from service.ledger.budgets.accumulator import AccumulatedEpsilon, BudgetAccumulator, Totals
from service.schemas.requests import accepted_statuses

# A dataset without a budget adds up what this one's filter does, so that one may be set later.
UNSET: Final = (3.0, 1e-5)  # epsilon and delta

PLAN: Final = "plan"  # the key of what a plan takes, in the record of its run's filter
LEAST_DELTA: Final = 1e-300


def accept_of(row: Row[Any]) -> frozenset[Status]:
    """The statuses a dataset accepts."""
    return accepted_statuses(json.loads(row.accept))


def delta_of(dataset: Row[Any], run: Row[Any] | None = None) -> float | None:
    """The delta to answer at: the run's, else the dataset's budget's."""
    if run is not None and run.delta is not None:
        return float(run.delta)
    return None if dataset.budget_delta is None else float(dataset.budget_delta)


def dataset_filter(row: Row[Any]) -> Filter:
    """A dataset's filter at its present budget; without one only what it adds up means anything."""
    epsilon, delta = row.budget_epsilon, row.budget_delta
    if epsilon is None:
        epsilon, delta = UNSET
    share = revision_share(row.budget_revision)
    return _read_filter(row.budget_filter, epsilon, delta * share, row.dataset_size)


def _read_filter(text: str, epsilon: float, delta: float, dataset_size: int) -> Filter:
    record = json.loads(text)
    if record["kind"] == envelopes.KIND:
        return envelopes.read_envelope(
            text, epsilon=epsilon, delta=delta, dataset_size=dataset_size
        )
    return filter_of(record, epsilon=epsilon, delta=delta)


def run_filter(row: Row[Any], dataset_size: int) -> Filter | None:
    """The filter of a run's own budget, if it has one; it is never revised."""
    if row.budget_epsilon is None:
        return None
    record = json.loads(row.budget_filter)
    share = remaining_delta(row.budget_delta, record.get(PLAN))
    if share <= 0:  # the plan takes all of it: where it is left, nothing more is admitted
        return filter_of(record, epsilon=0.0, delta=LEAST_DELTA)
    return _read_filter(row.budget_filter, row.budget_epsilon, share, dataset_size)


def remaining_delta(delta: float, plan: Mapping[str, float] | None) -> float:
    """What a run's plan leaves of its budget's delta to the filter behind it. Lower."""
    return delta if plan is None else rounded_down(delta - plan["delta"])


@dataclass(slots=True, kw_only=True)
class EnforcedBudget:
    """A budget that a charge must fit in, and the sums it is held against."""

    name: str  # "dataset:NAME" or "run:NAME"
    epsilon: float
    delta: float  # as it was set
    revision: int
    accumulator: BudgetAccumulator
    delta_share: float  # of delta, that this revision of the limit may use
    planned: float | None = None  # nats, of a run's whole plan, while that holds the budget
    constant: dict[str, Any] = field(init=False)  # of its answers
    alerted_share: float = field(init=False)  # the share of capacity for which alerts were raised

    def __post_init__(self) -> None:
        """Begin with what is gone by now."""
        self.constant = self._constant_part()
        self.alerted_share = self.share

    def _constant_part(self) -> dict[str, Any]:
        kept = self.planned is not None
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "valid_for": "fixed_schedule" if kept else "adaptive",
            "revision": self.revision,
            "delta_share": 1.0 if kept else self.delta_share,
            # Of a plan: the filter that holds the budget once the plan is left.
            "filter": _filter_answer(self.accumulator.filter, self.revision),
            "remaining_steps": None,
            "items": None,
        }

    def leave_plan(self) -> None:
        """Let the filter hold what the plan held."""
        self.planned = None
        self.constant = self._constant_part()

    @property
    def share(self) -> float:
        """The share of capacity that is charged. Upper; above 1 once facts exceed the limit."""
        if self.planned is not None:
            return self._planned_share(self.planned)
        return self.accumulator.reading(self.accumulator.sums().spent).share

    def admits(self, sums: Totals) -> bool:
        """Whether the sums are within the budget, or no more than they were: admitted before.

        What a plan has admitted, the filter behind it has not.
        """
        if self.holds(sums):
            return True
        return self.planned is None and not _more(sums.held, self.accumulator.sums().held)

    def holds(self, sums: Totals) -> bool:
        """Whether the sums are within the budget."""
        return self.accumulator.reading(sums.held).admitted

    def answer(self, sums: Totals | None = None, *, items: bool = False) -> dict[str, Any]:
        """The budget's state at these sums, a BudgetAnswer; of an envelope with its items."""
        if self.planned is not None:  # the whole plan is spent from the beginning
            return {**self.constant, **self._planned(self.planned)}
        held_by, sums = self.accumulator.filter, sums or self.accumulator.sums()
        spent, held = self.accumulator.reading(sums.spent), self.accumulator.reading(sums.held)
        return {
            **self.constant,
            "order": held_by.binding_order(sums.held),
            "spent": spent.epsilon if math.isfinite(spent.epsilon) else None,
            "reserved": held.epsilon - spent.epsilon if math.isfinite(held.epsilon) else None,
            "remaining": self._remaining(sums.held, held),
            "overdrawn": any(sums.spent) and not spent.admitted,
            **_shares(spent.share, held.share),
            **self._envelope(sums, items=items),
        }

    def shares_asked(self, after: Totals) -> dict[str, float | None]:
        """The shares of capacity before steps that were refused, and what they would add. Upper.

        Args:
            after: the sums with those steps.
        """
        now = self.answer()
        shares = {name: now[name] for name in ("share", "share_reserved")}
        if self.planned is not None:  # what is beside a plan is held against another filter
            return shares
        held = self.accumulator.reading(self.accumulator.sums().held).share
        added = self.accumulator.reading(after.held).share - held
        finite = math.isfinite(added)  # what adds infinities is not a number
        return shares | {"share_requested": rounded_up(added) if finite else None}

    def _envelope(self, sums: Totals, *, items: bool) -> dict[str, Any]:
        """What an envelope has left."""
        held_by = self.accumulator.filter
        if not isinstance(held_by, EnvelopeFilter):
            return {}
        left = {"remaining_steps": envelopes.remaining_steps(held_by, sums.held)}
        if not items:
            return left
        return left | {"items": envelopes.item_answers(held_by, spent=sums.spent, held=sums.held)}

    def _planned(self, epsilon: float) -> dict[str, Any]:
        """What varies, while a plan holds the budget."""
        return {
            "order": None,
            "spent": epsilon,
            "reserved": 0.0,
            "remaining": max(0.0, rounded_down(self.epsilon - epsilon)),
            "overdrawn": False,
            **_shares(share := self._planned_share(epsilon), share),
        }

    def _planned_share(self, epsilon: float) -> float:
        """The share of the limit that a plan takes, whether it has run or not. Upper."""
        return rounded_up(epsilon / self.epsilon) if epsilon else 0.0

    def _remaining(self, total: Total, held: AccumulatedEpsilon) -> float:
        """What is left of epsilon, in nats. Lower."""
        if not any(total):
            return self.epsilon if held.admitted else 0.0
        return max(0.0, rounded_down(self.epsilon - held.epsilon)) if held.admitted else 0.0


def _shares(spent: float, held: float) -> dict[str, float | None]:
    """The share of capacity that is charged, and the share that reservations add. Upper."""
    if not math.isfinite(held):
        return {"share": spent if math.isfinite(spent) else None, "share_reserved": None}
    return {"share": spent, "share_reserved": rounded_up(held - spent) if held > spent else 0.0}


def _more(after: Total, before: Total) -> bool:
    return any(a > b for a, b in zip(after, before, strict=True))


def _filter_answer(held_by: Filter, revision: int) -> dict[str, Any]:
    record: Mapping[str, Any] = held_by.record()
    # A limit that was set after answers were seen rests on our own proof.
    return {
        "kind": held_by.kind,
        "orders": record.get("orders", []),
        "weights": record.get("weights", []),
        "theorem": held_by.theorem if revision == 0 else revision_share.id,
        "status": held_by.status if revision == 0 else revision_share.status,
    }


def dataset_scope(row: Any, accumulator: BudgetAccumulator) -> EnforcedBudget | None:
    """A dataset's budget, from its row, if it has one."""
    if row.budget_epsilon is None:
        return None
    return EnforcedBudget(
        name=f"dataset:{row.name}",
        epsilon=row.budget_epsilon,
        delta=row.budget_delta,
        revision=row.budget_revision,
        delta_share=revision_share(row.budget_revision),
        accumulator=accumulator,
    )


def run_scope(row: Any, accumulator: BudgetAccumulator | None) -> EnforcedBudget | None:
    """A run's own budget, if it has one."""
    if accumulator is None:
        return None
    plan = json.loads(row.budget_filter).get(PLAN)
    return EnforcedBudget(
        name=f"run:{row.name}",
        epsilon=row.budget_epsilon,
        delta=row.budget_delta,
        revision=0,
        delta_share=max(0.0, remaining_delta(row.budget_delta, plan) / row.budget_delta),
        planned=plan["epsilon"] if row.on_plan else None,
        accumulator=accumulator,
    )
