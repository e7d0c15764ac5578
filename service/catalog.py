"""Datasets, runs and branches as they stand."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Table, bindparam, func, select

from service.advisories import advisories_of
from service.answers import BranchAnswer, BudgetAnswer, DatasetAnswer, RunAnswer
from service.book_rows import run_tally, tally_of
from service.budgets import dataset_scope, run_scope
from service.clock import now, stamp
from service.errors import NotFoundError
from service.forfeits import forfeited
from service.shelf import VERSION_BITS
from service.standing import standing_of
from service.tables import branches, datasets, lineage, releases, runs
from service.tallies import Move

# Statements are built once: building one costs as much as running it.
_DATASET_NAMED: Final = select(datasets).where(datasets.c.name == bindparam("named"))
_DATASET_BY_ID: Final = select(datasets).where(datasets.c.id == bindparam("dataset"))
_RUN_NAMED: Final = select(runs).where(runs.c.name == bindparam("named"))
_LOCKED_OF_RUN: Final = (
    select(datasets)
    .where(
        datasets.c.id
        == select(runs.c.dataset_id).where(runs.c.name == bindparam("named")).scalar_subquery()
    )
    .with_for_update()
)
_PARENTS: Final = (
    select(datasets.c.name)
    .join(lineage, lineage.c.ancestor_id == datasets.c.id)
    .where(lineage.c.dataset_id == bindparam("dataset"), lineage.c.parent)
    .order_by(datasets.c.id)
)
_BRANCH_NAMED: Final = select(branches).where(
    branches.c.run_id == bindparam("run"), branches.c.name == bindparam("named")
)

_CHANGED: Final = (
    datasets.update()
    .where(datasets.c.id == bindparam("dataset"))
    .values(version=bindparam("drawn"))
)
_BRANCHES: Final = (
    select(branches).where(branches.c.run_id == bindparam("run")).order_by(branches.c.id)
)
_RELEASES_OF_RUN: Final = (
    select(func.count()).select_from(releases).where(releases.c.run_id == bindparam("run"))
)


def _found(row: Row[Any] | None, noun: str) -> Row[Any]:
    if row is None:
        raise NotFoundError(f"There is no such {noun}.")
    return row


def find_dataset(connection: Connection, name: str) -> Row[Any]:
    """A dataset's row.

    Raises:
        NotFoundError: there is none of that name.
    """
    found = connection.execute(_DATASET_NAMED, {"named": name}).one_or_none()
    return _found(found, "dataset")


def find_run(connection: Connection, name: str) -> Row[Any]:
    """A run's row.

    Raises:
        NotFoundError: there is none of that name.
    """
    return _found(connection.execute(_RUN_NAMED, {"named": name}).one_or_none(), "run")


def lock_dataset(connection: Connection, name: str) -> Row[Any]:
    """A dataset's row, which stays locked.

    Raises:
        NotFoundError: there is none of that name.
    """
    found = connection.execute(_DATASET_NAMED.with_for_update(), {"named": name}).one_or_none()
    return _found(found, "dataset")


def lock_run(connection: Connection, name: str) -> tuple[Row[Any], Row[Any]]:
    """A run's row and its dataset's, which stays locked: one writer a dataset at a time.

    Raises:
        NotFoundError: there is no run of that name.
    """
    dataset = _found(connection.execute(_LOCKED_OF_RUN, {"named": name}).one_or_none(), "run")
    # Read after the lock is held, so that nobody else can change it from here on.
    return find_run(connection, name), dataset


def find_branch(connection: Connection, run_id: int, name: str) -> Row[Any]:
    """A branch's row.

    Raises:
        NotFoundError: the run has none of that name.
    """
    found = connection.execute(_BRANCH_NAMED, {"run": run_id, "named": name}).one_or_none()
    return _found(found, "branch")


def dataset_of(connection: Connection, run: Row[Any]) -> Row[Any]:
    """The dataset's row of a run."""
    return connection.execute(_DATASET_BY_ID, {"dataset": run.dataset_id}).one()


def changed(connection: Connection, dataset_id: int) -> None:
    """Say that something of a dataset has changed; its row is locked."""
    drawn = secrets.randbits(VERSION_BITS)
    connection.execute(_CHANGED, {"dataset": dataset_id, "drawn": drawn})


def dataset_answer(connection: Connection, dataset: Row[Any]) -> DatasetAnswer:
    """A dataset as it stands."""
    count = connection.scalar(
        select(func.count()).select_from(runs).where(runs.c.dataset_id == dataset.id)
    )
    return dataset_answer_of(
        dataset,
        budget=budget_of_dataset(connection, dataset),
        parents=[row.name for row in connection.execute(_PARENTS, {"dataset": dataset.id})],
        runs=count or 0,
    )


def dataset_answer_of(
    dataset: Row[Any], *, budget: BudgetAnswer | None, parents: list[str], runs: int
) -> DatasetAnswer:
    """The same of what was read already."""
    return DatasetAnswer(
        name=dataset.name,
        dataset_size=dataset.dataset_size,
        neighboring_relation=dataset.neighboring_relation,
        privacy_unit=dataset.privacy_unit,
        accept=json.loads(dataset.accept),
        parents=parents,
        rows_per_parent_record=dataset.rows_per_parent_record,
        frozen=dataset.frozen,
        revision=dataset.revision,
        budget=budget,
        spent=budget.spent if budget else None,
        reserved=budget.reserved if budget else None,
        remaining=budget.remaining if budget else None,
        runs=runs,
        sequence=dataset.head_sequence,
        created_at=stamp(dataset.created_at),
    )


def run_answer(connection: Connection, run: Row[Any]) -> RunAnswer:
    """A run as it stands."""
    dataset = dataset_of(connection, run)
    found = branches_of(connection, run)
    scope = run_scope(run, run_tally(connection, dataset, run))
    lost = forfeited(connection, dataset, now(), run_id=run.id) if scope else Move()
    budget = BudgetAnswer(**scope.answer(scope.tally.sums(lost.of_run))) if scope else None
    standing = standing_of(connection, run.id)
    return RunAnswer(
        name=run.name,
        dataset=dataset.name,
        state=run.state,
        delta=run.delta,
        release=run.release,
        assumptions=json.loads(run.assumptions),
        plan=None if run.plan is None else json.loads(run.plan),
        on_plan=run.on_plan,
        budget=budget,
        labels=json.loads(run.labels),
        steps=sum(branch.next_step - branch.from_step for branch in found),
        next_step=found[0].next_step,
        branches=[branch_answer(branch, run.name, found) for branch in found],
        releases=connection.scalar(_RELEASES_OF_RUN, {"run": run.id}) or 0,
        sampling_status=standing.sampling_status,
        outside_guarantee=standing.outside_guarantee,
        advisories=advisories_of(json.loads(run.labels)),
        by=run.by,
        created_at=stamp(run.created_at),
    )


def branches_of(connection: Connection, run: Row[Any]) -> list[Row[Any]]:
    """A run's branches in creation order, main first."""
    return list(connection.execute(_BRANCHES, {"run": run.id}))


def branch_answer(branch: Row[Any], run_name: str, found: Sequence[Row[Any]]) -> BranchAnswer:
    """A branch as it stands; found are all of its run."""
    names = {one.id: one.name for one in found}
    return BranchAnswer(
        run=run_name,
        name=branch.name,
        from_branch=names.get(branch.from_branch_id),
        from_step=branch.from_step,
        order=branch.order,
        takes_pass=branch.takes_pass,
        next_step=branch.next_step,
        by=branch.by,
        appended_by=branch.appended_by,
        created_at=stamp(branch.created_at),
    )


def budget_of_dataset(connection: Connection, dataset: Row[Any]) -> BudgetAnswer | None:
    """A dataset's budget as it stands, forfeited reservations counted as spent."""
    scope = dataset_scope(dataset, tally_of(connection, dataset))
    if scope is None:
        return None
    lost = forfeited(connection, dataset, now())
    return BudgetAnswer(**scope.answer(scope.tally.sums(lost)))


def page(
    connection: Connection, query: Select[Any], table: Table, *, after: int, size: int
) -> tuple[list[Row[Any]], int | None]:
    """Rows in creation order after an id, and the id to continue from."""
    rows = list(
        connection.execute(query.where(table.c.id > after).order_by(table.c.id).limit(size + 1))
    )
    return rows[:size], rows[size - 1].id if len(rows) > size else None
