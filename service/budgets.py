"""Budgets: the filter that holds one, what is gone of it, and how that is told."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row

from accounting.filters import Filter, Total, filter_of, revision_share
from accounting.guarantees import Status
from service.schemas import accepted_statuses
from service.tallies import Sums, Tally

# A dataset without a budget adds up what this one's filter does, so that one may be set later.
_UNSET_EPSILON: Final = 3.0
_UNSET_DELTA: Final = 1e-5


def accept_of(row: Row[Any]) -> frozenset[Status]:
    """The statuses a dataset accepts."""
    return accepted_statuses(json.loads(row.accept))


def dataset_filter(row: Row[Any]) -> Filter:
    """A dataset's filter at its present budget; without one only what it adds up means anything."""
    epsilon = _UNSET_EPSILON if row.budget_epsilon is None else row.budget_epsilon
    delta = _UNSET_DELTA if row.budget_delta is None else row.budget_delta
    share = revision_share(row.budget_revision)
    return filter_of(json.loads(row.budget_filter), epsilon=epsilon, delta=delta * share)


def run_filter(row: Row[Any]) -> Filter | None:
    """The filter of a run's own budget, if it has one; it is never revised."""
    if row.budget_epsilon is None:
        return None
    record = json.loads(row.budget_filter)
    return filter_of(record, epsilon=row.budget_epsilon, delta=row.budget_delta)


@dataclass(slots=True, kw_only=True)
class Scope:
    """A budget that a charge must fit in, and the sums it is held against."""

    name: str  # "dataset:NAME" or "run:NAME"
    epsilon: float
    delta: float  # as it was set
    revision: int
    tally: Tally
    told: float = 0.0  # the share of epsilon that somebody was told is gone

    @property
    def share(self) -> float:
        """The share of epsilon that is gone; infinite once recorded facts are beyond the limit."""
        held_by, spent = self.tally.filter, self.tally.sums().spent
        return held_by.spent(spent) / self.epsilon if held_by.admits(spent) else math.inf

    def admits(self, sums: Sums) -> bool:
        """Whether the sums are within the budget, or no more than they were: admitted before."""
        return self.tally.filter.admits(sums.held) or not _more(sums.held, self.tally.sums().held)

    def answer(self, sums: Sums | None = None) -> dict[str, Any]:
        """The budget's state at these sums, a BudgetAnswer."""
        held_by, sums = self.tally.filter, sums or self.tally.sums()
        spent = held_by.spent(sums.spent)
        held = spent if sums.held == sums.spent else held_by.spent(sums.held)
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "order": held_by.binding_order(sums.held),
            "spent": spent if math.isfinite(spent) else None,
            "reserved": held - spent if math.isfinite(held) else None,
            "remaining": held_by.remaining(sums.held) if any(sums.held) else self.epsilon,
            "overdrawn": not held_by.admits(sums.spent),
            "valid_for": "adaptive",
            "revision": self.revision,
            "delta_share": revision_share(self.revision) if self.name[0] == "d" else 1.0,
            "filter": _told(held_by),
        }


def _more(after: Total, before: Total) -> bool:
    return any(a > b for a, b in zip(after, before, strict=True))


def _told(held_by: Filter) -> dict[str, Any]:
    record: Mapping[str, Any] = held_by.record()
    return {
        "kind": held_by.kind,
        "orders": record.get("orders", []),
        "weights": record.get("weights", []),
        "theorem": held_by.theorem,
        "status": held_by.status,
    }


def dataset_scope(row: Any, tally: Tally) -> Scope | None:
    """A dataset's budget, from its row, if it has one."""
    if row.budget_epsilon is None:
        return None
    return _scope(
        name=f"dataset:{row.name}",
        epsilon=row.budget_epsilon,
        delta=row.budget_delta,
        revision=row.budget_revision,
        tally=tally,
    )


def run_scope(row: Any, tally: Tally | None) -> Scope | None:
    """A run's own budget, if it has one."""
    if tally is None:
        return None
    return _scope(
        name=f"run:{row.name}",
        epsilon=row.budget_epsilon,
        delta=row.budget_delta,
        revision=1,
        tally=tally,
    )


def _scope(**given: Any) -> Scope:
    scope = Scope(**given)
    scope.told = scope.share
    return scope
