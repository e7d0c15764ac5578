"""Budgets of many datasets, and steps of many runs, read together where nothing is unusual.

What is usual is told from what is stored; whatever else counts, such as corrections, expired
reservations or samplings that count by pass, is read as for one dataset or run alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, func, or_, select

from accounting.events import NeighboringRelation
from service.clock import now, utc
from service.ledger.append.state_rows import VERSION
from service.ledger.budgets.accumulator import read_accumulator
from service.ledger.budgets.budget import accept_of, dataset_filter, dataset_scope
from service.ledger.views import budget_of_dataset, dataset_answer_of
from service.schemas.responses import BudgetAnswer, DatasetAnswer
from service.storage.tables import (
    branches,
    corrections,
    datasets,
    distinct_events,
    lineage,
    reservations,
    runs,
)

_FAMILY: Final = (
    select(lineage.c.ancestor_id, lineage.c.dataset_id)
    .where(lineage.c.ancestor_id.in_(bindparam("ids", expanding=True)))
)  # fmt: skip
_EXPIRED: Final = (
    select(reservations.c.id)
    .join(branches, branches.c.id == reservations.c.branch_id)
    .where(
        reservations.c.dataset_id == datasets.c.id,
        reservations.c.end_step > branches.c.next_step,
        reservations.c.expires_at <= bindparam("moment"),
    )
    .correlate(datasets)
)
_UNUSUAL: Final = select(datasets.c.id).where(
    datasets.c.id.in_(bindparam("ids", expanding=True)),
    or_(
        select(corrections.c.id).where(corrections.c.dataset_id == datasets.c.id).exists(),
        select(distinct_events.c.id)
        .where(distinct_events.c.dataset_id == datasets.c.id, distinct_events.c.by_pass)
        .exists(),
        _EXPIRED.exists(),
    ),
)
_STEPPED: Final = select(datasets.c.id).where(
    datasets.c.id.in_(bindparam("ids", expanding=True)),
    select(distinct_events.c.id).where(distinct_events.c.dataset_id == datasets.c.id).exists(),
)
_RUN_COUNTS: Final = (
    select(runs.c.dataset_id, func.count().label("runs"))
    .where(runs.c.dataset_id.in_(bindparam("ids", expanding=True)))
    .group_by(runs.c.dataset_id)
)
_PARENTS: Final = (
    select(lineage.c.dataset_id, datasets.c.name)
    .join(datasets, datasets.c.id == lineage.c.ancestor_id)
    .where(lineage.c.dataset_id.in_(bindparam("ids", expanding=True)), lineage.c.parent)
    .order_by(datasets.c.id)
)
_STEPS: Final = (
    select(
        branches.c.run_id,
        func.sum(branches.c.next_step - branches.c.from_step).label("steps"),
        func.count().label("branches"),
    )
    .where(branches.c.run_id.in_(bindparam("ids", expanding=True)))
    .group_by(branches.c.run_id)
)


def budgets_of(connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, BudgetAnswer | None]:
    """How the budgets of some datasets stand, by their ids; none where there is no limit."""
    return dict(each_budget(connection, rows))


def each_budget(
    connection: Connection, rows: Sequence[Row[Any]]
) -> Iterator[tuple[int, BudgetAnswer | None]]:
    """The same, one after another, for a reader that may stop before the last."""
    ids = [row.id for row in rows]
    family = [
        (row.ancestor_id, row.dataset_id) for row in connection.execute(_FAMILY, {"ids": ids})
    ]
    asked = {"ids": sorted({*ids, *(below for _, below in family)}), "moment": now()}
    unusual = _with_ancestors(connection.scalars(_UNUSUAL, asked), family)
    stepped = _with_ancestors(connection.scalars(_STEPPED, asked), family)
    for row in rows:
        usual, untouched = row.id not in unusual, row.id not in stepped
        yield row.id, _budget(connection, row, usual=usual, untouched=untouched)


def _budget(
    connection: Connection, row: Row[Any], *, usual: bool, untouched: bool
) -> BudgetAnswer | None:
    if row.budget_epsilon is None:
        return None
    # Sums are stored with the first steps; without any, none are what they would be.
    stored = untouched if row.totals is None else row.totals_version == VERSION
    if not usual or not stored:
        return budget_of_dataset(connection, row)
    relation = NeighboringRelation(row.neighboring_relation)
    accumulator = read_accumulator(row.totals, dataset_filter(row), relation, accept_of(row))
    scope = dataset_scope(row, accumulator)
    return None if scope is None else BudgetAnswer(**scope.answer(items=True))


def _with_ancestors(ids: Iterable[int], family: Sequence[tuple[int, int]]) -> set[int]:
    """Some datasets and those above them, by (ancestor, descendant)."""
    found = set(ids)
    return found | {above for above, below in family if below in found}


def count_runs(connection: Connection, ids: Sequence[int]) -> dict[int, int]:
    """How many runs some datasets have, by their ids."""
    found = {row.dataset_id: row.runs for row in connection.execute(_RUN_COUNTS, {"ids": ids})}
    return {one: found.get(one, 0) for one in ids}


def dataset_answers(connection: Connection, rows: Sequence[Row[Any]]) -> list[DatasetAnswer]:
    """Some datasets as they stand, as `catalog.dataset_answer` has each, read together."""
    ids = [row.id for row in rows]
    parents: dict[int, list[str]] = {}
    for row in connection.execute(_PARENTS, {"ids": ids}):
        parents.setdefault(row.dataset_id, []).append(row.name)
    budgets, counts = budgets_of(connection, rows), count_runs(connection, ids)
    return [
        dataset_answer_of(
            row, budget=budgets[row.id], parents=parents.get(row.id, []), runs=counts[row.id]
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class KeyTotals:
    """What the runs that a key registered come to."""

    by: str | None  # none: registered without a key
    runs: int
    active: int
    datasets: int
    steps: int
    latest_at: datetime  # when it registered the last of them


def totals_by_key(
    connection: Connection, within: ColumnElement[bool], *, size: int
) -> list[KeyTotals]:
    """The keys that registered most runs, the most first.

    Args:
        connection: for reading.
        within: which runs count.
        size: how many keys at most.
    """
    lengths = (
        select(
            branches.c.run_id, func.sum(branches.c.next_step - branches.c.from_step).label("steps")
        )
        .group_by(branches.c.run_id)
        .subquery()
    )
    number = func.count()
    query = (
        select(
            runs.c.by,
            number.label("runs"),
            func.sum(case((runs.c.state == "active", 1), else_=0)).label("active"),
            func.count(runs.c.dataset_id.distinct()).label("datasets"),
            func.sum(lengths.c.steps).label("steps"),
            func.max(runs.c.created_at).label("latest_at"),
        )
        .outerjoin(lengths, lengths.c.run_id == runs.c.id)
        .where(within)
        .group_by(runs.c.by)
        .order_by(number.desc(), runs.c.by)
        .limit(size)
    )
    return [
        KeyTotals(
            by=row.by,
            runs=row.runs,
            active=int(row.active),
            datasets=row.datasets,
            steps=int(row.steps or 0),
            latest_at=utc(row.latest_at),
        )
        for row in connection.execute(query)
    ]


def steps_of(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """(Steps, branches) of some runs, by their ids."""
    rows = connection.execute(_STEPS, {"ids": ids})
    return {row.run_id: (int(row.steps), row.branches) for row in rows}
