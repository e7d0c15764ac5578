"""Datasets, runs and branches: created once under a name, never reused, never deleted."""

import json
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import Connection, Row, Select, Table, bindparam, func, insert, select

from accounting.events import NeighboringRelation
from service.answers import (
    EVERY_STEP,
    BranchAnswer,
    BudgetAnswer,
    DatasetAnswer,
    RunAnswer,
)
from service.assumptions import declared_of
from service.balances import (
    Scope,
    dataset_balance,
    filter_columns,
    filter_of,
    run_balance,
)
from service.database import upsert
from service.documents import canonical, spans_of
from service.errors import (
    BranchExistsError,
    ConflictError,
    NotFoundError,
    OutOfSequenceError,
    RunExistsError,
)
from service.hiding import planned_run
from service.schemas import NewBranch, NewDataset, NewRun, accepted_statuses
from service.tables import branches, datasets, releases, runs

MAIN = "main"

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
_LOCKED_OF_RUNS: Final = (
    select(datasets.c.id)
    .where(
        datasets.c.id.in_(
            select(runs.c.dataset_id).where(runs.c.name.in_(bindparam("named", expanding=True)))
        )
    )
    .order_by(datasets.c.id)
    .with_for_update()
)
_BRANCH_NAMED: Final = select(branches).where(
    branches.c.run_id == bindparam("run"), branches.c.name == bindparam("named")
)

_RELEASES_OF_RUN: Final = (
    select(func.count()).select_from(releases).where(releases.c.run_id == bindparam("run"))
)


def now() -> datetime:
    """The present, for the record only; no number depends on it."""
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """A time as text; SQLite returns it without its zone, which is UTC."""
    return moment.replace(tzinfo=UTC).isoformat(timespec="milliseconds")


def _request(message: BaseModel, *, without: set[str] | None = None) -> str:
    return canonical(message.model_dump(mode="json", exclude=without))


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


def lock_run(connection: Connection, name: str) -> tuple[Row[Any], Row[Any]]:
    """A run's row and its dataset's, which stays locked: one writer a dataset at a time.

    Raises:
        NotFoundError: there is no run of that name.
    """
    dataset = _found(connection.execute(_LOCKED_OF_RUN, {"named": name}).one_or_none(), "run")
    # Read after the lock is held, so that nobody else can change it from here on.
    return find_run(connection, name), dataset


def lock_datasets_of(connection: Connection, run_names: list[str]) -> None:
    """Lock the datasets of some runs, in the order of their ids."""
    connection.execute(_LOCKED_OF_RUNS, {"named": sorted(set(run_names))}).all()


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


def accept_of(dataset: Row[Any]) -> frozenset[Any]:
    """The statuses a dataset accepts."""
    return accepted_statuses(json.loads(dataset.accept))


def scope_of_dataset(connection: Connection, dataset: Row[Any]) -> Scope | None:
    """A dataset's budget with its balance, if it has one."""
    renyi_filter = filter_of(dataset)
    if renyi_filter is None:
        return None
    return Scope(
        name=f"dataset:{dataset.name}",
        filter=renyi_filter,
        relation=NeighboringRelation(dataset.neighboring_relation),
        accept=accept_of(dataset),
        balance=dataset_balance(connection, dataset),
    )


def scope_of_run(connection: Connection, run: Row[Any], dataset: Row[Any]) -> Scope | None:
    """A run's own budget with its balance, if it has one."""
    renyi_filter = filter_of(run)
    if renyi_filter is None:
        return None
    return Scope(
        name=f"run:{run.name}",
        filter=renyi_filter,
        relation=NeighboringRelation(dataset.neighboring_relation),
        accept=accept_of(dataset),
        balance=run_balance(connection, run.id, dataset.dataset_size),
    )


def _insert_named(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row unless one of that name is there; whether it was inserted."""
    statement = upsert(connection.dialect.name, table).values(values).on_conflict_do_nothing()
    return connection.execute(statement.returning(table.c.id)).first() is not None


def create_dataset(connection: Connection, new: NewDataset) -> tuple[DatasetAnswer, bool]:
    """Create a dataset, or find the one that the same request created; whether it is new.

    Raises:
        ConflictError: another request created a dataset of that name.
    """
    request = _request(new)
    created = _insert_named(
        connection,
        datasets,
        {
            "name": new.name,
            "dataset_size": new.dataset_size,
            "neighboring_relation": new.neighboring_relation,
            "privacy_unit": new.privacy_unit,
            "accept": canonical(sorted(accepted_statuses(new.accept))),
            "request": request,
            "head_sequence": 0,
            "created_at": now(),
            **filter_columns(new.budget),
        },
    )
    dataset = find_dataset(connection, new.name)
    if dataset.request != request:
        raise ConflictError("A dataset of that name was created by another request.")
    return dataset_answer(connection, dataset), created


def create_run(connection: Connection, new: NewRun) -> tuple[RunAnswer, bool]:
    """Register a run with its branch main, or find the one the same request registered.

    Raises:
        NotFoundError: there is no such dataset.
        RunExistsError: another writer registered a run of that name.
        ConflictError: the same writer did, with another request.
        InvalidRequestError: the plan does not fit the dataset.
    """
    dataset = find_dataset(connection, new.dataset)
    plan = []
    if new.plan is not None:
        plan = spans_of(new.plan, dataset_size=dataset.dataset_size, first_step=0, location="plan")
    if new.release != EVERY_STEP:
        declared_of(new.assumptions, location="assumptions")
        if plan:  # without one every step will count as shown
            planned_run(
                new.assumptions,
                new.release,
                spans=plan,
                relation=NeighboringRelation(dataset.neighboring_relation),
                dataset_size=dataset.dataset_size,
            )
    plan_json = new.model_dump(mode="json", include={"plan"}, exclude_none=True).get("plan")
    assumptions = new.model_dump(mode="json", include={"assumptions"})["assumptions"]
    request = _request(new, without={"writer"})
    created = _insert_named(
        connection,
        runs,
        {
            "name": new.name,
            "dataset_id": dataset.id,
            "writer": new.writer,
            "delta": new.delta,
            "release": new.release,
            "assumptions": canonical(assumptions),
            "plan": None if plan_json is None else canonical(plan_json),
            "labels": canonical(new.labels),
            "request": request,
            "state": "active",
            "created_at": now(),
            **filter_columns(new.budget),
        },
    )
    run = find_run(connection, new.name)
    if run.writer != new.writer:
        raise RunExistsError("Another process opened this run; continue it on a branch.")
    if run.request != request:
        raise ConflictError("This writer registered the run with another request.")
    if created:
        _insert_branch(connection, run.id, name=MAIN, writer=new.writer, from_step=0)
    return run_answer(connection, run), created


def create_branch(
    connection: Connection, run_name: str, new: NewBranch
) -> tuple[BranchAnswer, bool]:
    """Open a branch that continues a run from one of its steps.

    Raises:
        NotFoundError: there is no such run.
        OutOfSequenceError: no branch has recorded the steps before `from_step`.
        BranchExistsError: another writer opened a branch of that name.
        ConflictError: the same writer did, from another step.
    """
    run, _ = lock_run(connection, run_name)
    reached = connection.scalar(
        select(func.max(branches.c.next_step)).where(branches.c.run_id == run.id)
    )
    named = {"run": run.id, "named": new.name}
    branch = connection.execute(_BRANCH_NAMED, named).one_or_none()
    created = branch is None
    if branch is None:
        if new.from_step > (reached or 0):
            raise OutOfSequenceError(reached or 0)
        _insert_branch(
            connection, run.id, name=new.name, writer=new.writer, from_step=new.from_step
        )
        branch = connection.execute(_BRANCH_NAMED, named).one()
    if branch.writer != new.writer:
        raise BranchExistsError("Another process opened this branch; choose another name.")
    if branch.from_step != new.from_step:
        raise ConflictError("This writer opened the branch from another step.")
    return _branch_answer(branch, run.name), created


def _insert_branch(
    connection: Connection, run_id: int, *, name: str, writer: str, from_step: int
) -> None:
    connection.execute(
        insert(branches).values(
            run_id=run_id,
            name=name,
            writer=writer,
            from_step=from_step,
            next_step=from_step,
            created_at=now(),
        )
    )


def finish_run(connection: Connection, run_name: str, state: str) -> RunAnswer:
    """Close a run.

    Raises:
        NotFoundError: there is no such run.
        ConflictError: it was closed in another state.
    """
    run, _ = lock_run(connection, run_name)
    if run.state not in ("active", "reopened", state):
        raise ConflictError(f"The run was closed before as {run.state}.")
    connection.execute(runs.update().where(runs.c.id == run.id).values(state=state))
    return run_answer(connection, find_run(connection, run_name))


def dataset_answer(connection: Connection, dataset: Row[Any]) -> DatasetAnswer:
    """A dataset as it stands."""
    scope = scope_of_dataset(connection, dataset)
    budget = scope.answer() if scope else None
    count = connection.scalar(
        select(func.count()).select_from(runs).where(runs.c.dataset_id == dataset.id)
    )
    return DatasetAnswer(
        name=dataset.name,
        dataset_size=dataset.dataset_size,
        neighboring_relation=dataset.neighboring_relation,
        privacy_unit=dataset.privacy_unit,
        accept=json.loads(dataset.accept),
        budget=budget,
        spent=budget.spent if budget else None,
        reserved=budget.reserved if budget else None,
        remaining=budget.remaining if budget else None,
        runs=count or 0,
        sequence=dataset.head_sequence,
        created_at=stamp(dataset.created_at),
    )


def run_answer(connection: Connection, run: Row[Any]) -> RunAnswer:
    """A run as it stands."""
    dataset = dataset_of(connection, run)
    query = select(branches).where(branches.c.run_id == run.id).order_by(branches.c.id)
    found = list(connection.execute(query))
    scope = scope_of_run(connection, run, dataset)
    budget: BudgetAnswer | None = scope.answer() if scope else None
    return RunAnswer(
        name=run.name,
        dataset=dataset.name,
        state=run.state,
        delta=run.delta,
        release=run.release,
        assumptions=json.loads(run.assumptions),
        plan=None if run.plan is None else json.loads(run.plan),
        budget=budget,
        labels=json.loads(run.labels),
        steps=sum(branch.next_step - branch.from_step for branch in found),
        next_step=found[0].next_step,
        branches=[_branch_answer(branch, run.name) for branch in found],
        releases=connection.scalar(_RELEASES_OF_RUN, {"run": run.id}) or 0,
        created_at=stamp(run.created_at),
    )


def _branch_answer(branch: Row[Any], run_name: str) -> BranchAnswer:
    return BranchAnswer(
        run=run_name,
        name=branch.name,
        from_step=branch.from_step,
        next_step=branch.next_step,
        created_at=stamp(branch.created_at),
    )


def page(
    connection: Connection, query: Select[Any], table: Table, *, after: int, size: int
) -> tuple[list[Row[Any]], int | None]:
    """Rows in creation order after an id, and the id to continue from."""
    rows = list(
        connection.execute(query.where(table.c.id > after).order_by(table.c.id).limit(size + 1))
    )
    return rows[:size], rows[size - 1].id if len(rows) > size else None
