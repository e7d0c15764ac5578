"""Balances in the database: reading them, changing them, and holding them against budgets."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select, update

from accounting.balances import Balance
from accounting.events import Event, NeighboringRelation
from accounting.filters import RenyiFilter, best_order
from accounting.guarantees import Status
from service.answers import BudgetAnswer
from service.database import upsert
from service.documents import event_of
from service.schemas import Budget
from service.tables import distinct_events, run_balances

# Statements are built once: building one costs as much as running it.
_DATASET_BALANCE: Final = select(
    distinct_events.c.content,
    distinct_events.c.steps,
    distinct_events.c.passes,
    distinct_events.c.starts,
).where(distinct_events.c.dataset_id == bindparam("dataset"))
_RUN_BALANCE: Final = (
    select(
        distinct_events.c.content,
        run_balances.c.steps,
        run_balances.c.passes,
        run_balances.c.starts,
    )
    .join(distinct_events, distinct_events.c.id == run_balances.c.event_id)
    .where(run_balances.c.run_id == bindparam("run"))
)
_ADD_TO_EVENTS: Final = (
    update(distinct_events)
    .where(distinct_events.c.id == bindparam("event"))
    .values(
        steps=distinct_events.c.steps + bindparam("more_steps"),
        passes=distinct_events.c.passes + bindparam("more_passes"),
        starts=distinct_events.c.starts + bindparam("more_starts"),
    )
)


@lru_cache
def _add_to_run(dialect_name: str) -> Any:
    added = upsert(dialect_name, run_balances).values(
        run_id=bindparam("run"),
        event_id=bindparam("event"),
        steps=bindparam("more_steps"),
        passes=bindparam("more_passes"),
        starts=bindparam("more_starts"),
    )
    return added.on_conflict_do_update(
        index_elements=["run_id", "event_id"],
        set_={
            "steps": run_balances.c.steps + added.excluded.steps,
            "passes": run_balances.c.passes + added.excluded.passes,
            "starts": run_balances.c.starts + added.excluded.starts,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What recording some steps adds to a balance."""

    steps: Mapping[Event, int]
    passes: Mapping[Event, int]  # may be negative: a pass moved to a less noisy event
    starts: Mapping[Event, int]

    def applied_to(self, balance: Balance) -> Balance:
        """The balance after the change."""
        return Balance(
            steps=_sum(balance.steps, self.steps),
            passes=_sum(balance.passes, self.passes),
            starts=_sum(balance.starts, self.starts),
        )


def _sum(first: Mapping[Event, int], second: Mapping[Event, int]) -> dict[Event, int]:
    total = dict(first)
    for event, count in second.items():
        total[event] = total.get(event, 0) + count
    return {event: count for event, count in total.items() if count}


def _balance(rows: Iterable[Any], dataset_size: int) -> Balance:
    events = [(event_of(row.content, dataset_size), row) for row in rows]
    return Balance(
        steps={event: row.steps for event, row in events if row.steps},
        passes={event: row.passes for event, row in events if row.passes},
        starts={event: row.starts for event, row in events if row.starts},
    )


def dataset_balance(connection: Connection, dataset: Row[Any]) -> Balance:
    """What all runs of a dataset have spent together."""
    rows = connection.execute(_DATASET_BALANCE, {"dataset": dataset.id})
    return _balance(rows, dataset.dataset_size)


def run_balance(connection: Connection, run_id: int, dataset_size: int) -> Balance:
    """What one run has spent, over all its branches."""
    rows = connection.execute(_RUN_BALANCE, {"run": run_id})
    return _balance(rows, dataset_size)


def apply_change(
    connection: Connection, change: Change, *, ids: Mapping[Event, int], run_id: int
) -> None:
    """Add a change to the balances of a run and of its dataset, whose row is locked."""
    rows = [
        {
            "run": run_id,
            "event": ids[event],
            "more_steps": change.steps.get(event, 0),
            "more_passes": change.passes.get(event, 0),
            "more_starts": change.starts.get(event, 0),
        }
        for event in {**change.steps, **change.passes}
    ]
    connection.execute(_ADD_TO_EVENTS, rows)
    connection.execute(_add_to_run(connection.dialect.name), rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A budget that a charge must fit in, and the balance it is held against."""

    name: str  # "dataset:NAME" or "run:NAME"
    filter: RenyiFilter
    relation: NeighboringRelation
    accept: frozenset[Status]
    balance: Balance

    def spent(self, change: Change | None = None) -> float:
        """RDP at the filter's order, in nats, after the change. Upper."""
        balance = change.applied_to(self.balance) if change else self.balance
        return self.filter.spent(balance, relation=self.relation, accept=self.accept)

    def admits(self, change: Change) -> bool:
        """Whether the balance stays within the budget after the change."""
        return self.filter.admits(self.spent(change))

    def answer(self, change: Change | None = None) -> BudgetAnswer:
        """The budget's state after the change."""
        spent = self.filter.reading(self.spent(change))
        return BudgetAnswer(
            epsilon=self.filter.epsilon,
            delta=self.filter.delta,
            order=self.filter.order,
            spent=spent if math.isfinite(spent) else None,
            reserved=0.0,
            remaining=max(0.0, self.filter.epsilon - spent),
        )


def filter_columns(budget: Budget | None) -> dict[str, float | None]:
    """The columns of a budget; its filter's order is chosen here, once."""
    if budget is None:
        return {"budget_epsilon": None, "budget_delta": None, "budget_order": None}
    return {
        "budget_epsilon": budget.epsilon,
        "budget_delta": budget.delta,
        "budget_order": best_order(epsilon=budget.epsilon, delta=budget.delta),
    }


def filter_of(row: Row[Any]) -> RenyiFilter | None:
    """The filter of a dataset's or run's row, if it has a budget."""
    if row.budget_epsilon is None:
        return None
    return RenyiFilter(order=row.budget_order, epsilon=row.budget_epsilon, delta=row.budget_delta)
