"""Datasets, runs and branches: created once under a name, never reused, never deleted."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import Connection, Row, Table, insert, select

from accounting import accountants
from accounting.balances import balance_of
from accounting.events import NeighboringRelation, Span
from accounting.filters import choose
from service.admission import Placed, require_bounds, require_budget, scopes_of
from service.answers import (
    EVERY_STEP,
    DatasetAnswer,
    RunAnswer,
)
from service.assumptions import declared_of
from service.branching import insert_branch
from service.budgets import accept_of
from service.catalog import (
    changed,
    dataset_answer,
    find_dataset,
    find_run,
    lock_run,
    run_answer,
)
from service.clock import now
from service.database import upsert
from service.documents import MAIN, canonical, plan_of, spans_of
from service.errors import (
    BudgetExhaustedError,
    ConflictError,
    InvalidRequestError,
    RunExistsError,
)
from service.hiding import planned_run
from service.ledger import Append
from service.reservations import give_back, insert_lease, move_ahead
from service.schemas import (
    Budget,
    EventMessage,
    NewDataset,
    NewRun,
    PlannedEvent,
    accepted_statuses,
)
from service.shelf import VERSION_BITS, Shelf
from service.tables import datasets, lineage, runs, settings_changes

OPENING: Final = "opening"  # the writer, and what the name of the run begins with


def _request(message: BaseModel) -> str:
    return canonical(message.model_dump(mode="json", exclude={"writer"}))


def _same(stored: str, message: BaseModel) -> bool:
    """Whether a stored request says the same; an older version stored fewer fields."""
    said = json.loads(stored)
    if "writer" in type(message).model_fields:
        said["writer"] = message.writer  # type: ignore[attr-defined]
    return type(message).model_validate(said) == message


def _insert_named(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row unless one of that name is there; whether it was inserted."""
    statement = upsert(connection.dialect.name, table).values(values).on_conflict_do_nothing()
    return connection.execute(statement.returning(table.c.id)).first() is not None


def filter_record(budget: Budget | None, accept: frozenset[Any]) -> str:
    """The record of the filter that holds a budget; without one, that of a usual budget's.

    Raises:
        InvalidRequestError: the filter is not one that the statuses accept, or has other orders.
    """
    kind = budget.filter if budget else "fixed_order_renyi"
    limit = {"epsilon": budget.epsilon if budget else 3.0, "delta": budget.delta if budget else 1e-5}
    try:
        chosen = choose(kind, orders=budget.orders if budget else None, **limit)
    except ValueError as error:
        raise InvalidRequestError("budget.orders", str(error)) from None
    if chosen.status not in accept and budget is not None:
        raise InvalidRequestError(
            "budget.filter", f"its theorem is {chosen.status}, which accept does not list"
        )
    return canonical(chosen.record())


def create_dataset(
    connection: Connection, new: NewDataset, *, by: str
) -> tuple[DatasetAnswer, bool]:
    """Create a dataset, or find the one that the same request created; whether it is new.

    Raises:
        ConflictError: another request created a dataset of that name.
        NotFoundError: there is no such parent.
        InvalidRequestError: the parents do not fit, or the filter or the opening balance.
    """
    accept = accepted_statuses(new.accept)
    moment = now()
    created = _insert_named(
        connection,
        datasets,
        {
            "name": new.name,
            "dataset_size": new.dataset_size,
            "neighboring_relation": new.neighboring_relation,
            "privacy_unit": new.privacy_unit,
            "budget_epsilon": new.budget.epsilon if new.budget else None,
            "budget_delta": new.budget.delta if new.budget else None,
            "budget_filter": filter_record(new.budget, accept),
            "accept": canonical(sorted(accept)),
            "rows_per_parent_record": new.rows_per_parent_record,
            "request": _request(new),
            "head_sequence": 0,
            "version": secrets.randbits(VERSION_BITS),
            "created_at": moment,
        },
    )
    dataset = find_dataset(connection, new.name)
    if not _same(dataset.request, new):
        raise ConflictError("A dataset of that name was created by another request.")
    if created:
        _insert_lineage(connection, dataset, new)
        note_settings(connection, dataset, reason="creation", by=by)
        if new.opening_balance:
            _open_balance(connection, dataset, new.opening_balance)
    return dataset_answer(connection, find_dataset(connection, new.name)), created


def note_settings(connection: Connection, dataset: Row[Any], *, reason: str, by: str) -> None:
    """Keep a dataset's settings, as its row has them, in its history."""
    kept = ("budget_epsilon", "budget_delta", "budget_revision", "accept", "revision")
    connection.execute(
        insert(settings_changes).values(
            dataset_id=dataset.id,
            reason=reason,
            changed_by=by,
            sequence=dataset.head_sequence,
            changed_at=now(),
            **{name: getattr(dataset, name) for name in kept},
        )
    )


def _insert_lineage(connection: Connection, dataset: Row[Any], new: NewDataset) -> None:
    """Say what a dataset was made from, at any remove.

    Raises:
        NotFoundError: there is no such parent.
        InvalidRequestError: a parent has another relation or unit, nothing is attested, or a
            record further up could have more than one row.
    """
    if not new.parents:
        if new.rows_per_parent_record is not None:
            raise InvalidRequestError("rows_per_parent_record", "is for datasets with parents")
        return
    if new.rows_per_parent_record is None:
        raise InvalidRequestError(
            "rows_per_parent_record",
            "must attest at_most_one or exactly_one row for each record of a parent",
        )
    exactly_one = new.rows_per_parent_record == "exactly_one"
    rows: dict[int, dict[str, Any]] = {}
    for index, name in enumerate(new.parents):
        parent = find_dataset(connection, name)
        location = f"parents[{index}]"
        for column in ("neighboring_relation", "privacy_unit"):
            if getattr(parent, column) != getattr(dataset, column):
                raise InvalidRequestError(location, f"must have the same {column}")
        above = connection.execute(select(lineage).where(lineage.c.dataset_id == parent.id)).all()
        found = [(parent.id, True, exactly_one)]
        found += [(one.ancestor_id, False, exactly_one and one.exactly_one) for one in above]
        for ancestor, direct, exact in found:
            if ancestor in rows:
                raise InvalidRequestError(
                    location, "shares an ancestor with another parent: its records may have two rows"
                )
            rows[ancestor] = {
                "dataset_id": dataset.id,
                "ancestor_id": ancestor,
                "parent": direct,
                "exactly_one": exact,
            }
    connection.execute(insert(lineage), list(rows.values()))


def _open_balance(
    connection: Connection, dataset: Row[Any], events: Sequence[PlannedEvent]
) -> None:
    """Record what was spent before the ledger as a run of its own, which is closed at once.

    Raises:
        InvalidRequestError: the events do not fit the dataset.
        ConflictError: there is a run of that name.
    """
    spans_of(events, dataset_size=dataset.dataset_size, first_step=0, location="opening_balance")
    name = f"{OPENING}.{dataset.name}"[:63]
    values = {
        "name": name,
        "dataset_id": dataset.id,
        "writer": OPENING,
        "release": EVERY_STEP,
        "assumptions": "{}",
        "labels": "{}",
        "request": "{}",
        "state": "active",
        "created_at": now(),
    }
    if not _insert_named(connection, runs, values):
        raise ConflictError(f"There is a run named {name}, which the opening balance needs.")
    run = find_run(connection, name)
    insert_branch(connection, run.id, name=MAIN, writer=OPENING, from_step=0)
    messages, first = [], 0
    for event in events:
        messages.append(
            EventMessage.model_construct(**{**dict(event), "first_step": first})
        )
        first += event.steps
    append = Append(run_name=name, branch_name=MAIN, mode="record", events=messages)
    desk = Shelf().open(connection, [append.place])
    append.apply(desk, now())
    desk.write()
    connection.execute(runs.update().where(runs.c.id == run.id).values(state="finished"))


def certified(connection: Connection, new: NewRun) -> float | None:
    """The certified epsilon of a plan that is to hold its run's own budget; infinite if none is.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidRequestError: the plan does not fit the dataset.
    """
    if new.plan is None or new.budget is None:
        return None
    dataset = find_dataset(connection, new.dataset)
    spans = spans_of(new.plan, dataset_size=dataset.dataset_size, first_step=0, location="plan")
    bound = accountants.best_bound(
        balance_of([spans]),
        relation=NeighboringRelation(dataset.neighboring_relation),
        delta=new.budget.delta,
        accept=accept_of(dataset),
        floor=False,
    )
    return bound.epsilon if bound else float("inf")


def create_run(
    connection: Connection, new: NewRun, *, plan_epsilon: float | None = None
) -> tuple[RunAnswer, bool]:
    """Register a run with its branch main, or find the one the same request registered.

    Args:
        connection: in a transaction.
        new: the request.
        plan_epsilon: what `certified` says of it.

    Raises:
        NotFoundError: there is no such dataset.
        RunExistsError: another writer registered a run of that name.
        ConflictError: the same writer did, with another request.
        InvalidRequestError: the plan does not fit the dataset.
        BudgetExhaustedError: the plan does not fit in a budget; nothing was registered.
    """
    dataset = find_dataset(connection, new.dataset)
    _require_plan(dataset, new)
    budget = new.budget
    accept = accept_of(dataset)
    created = _insert_named(
        connection,
        runs,
        {
            "name": new.name,
            "dataset_id": dataset.id,
            "writer": new.writer,
            "delta": new.delta,
            "release": new.release,
            "assumptions": canonical(new.model_dump(mode="json")["assumptions"]),
            "plan": _plan_json(new),
            "labels": canonical(new.labels),
            "budget_epsilon": budget.epsilon if budget else None,
            "budget_delta": budget.delta if budget else None,
            "budget_filter": filter_record(budget, accept) if budget else None,
            "on_plan": True if budget and new.plan else None,
            "request": _request(new),
            "state": "active",
            "created_at": now(),
        },
    )
    run = find_run(connection, new.name)
    if run.writer != new.writer:
        raise RunExistsError("Another process opened this run; continue it on a branch.")
    if not _same(run.request, new):
        raise ConflictError("This writer registered the run with another request.")
    if created:
        insert_branch(connection, run.id, name=MAIN, writer=new.writer, from_step=0)
        if run.on_plan:
            _reserve_plan(connection, run, dataset, plan_epsilon)
    return run_answer(connection, find_run(connection, new.name)), created


def _plan_json(new: NewRun) -> str | None:
    plan = new.model_dump(mode="json", include={"plan"}, exclude_none=True).get("plan")
    return None if plan is None else canonical(plan)


def _require_plan(dataset: Row[Any], new: NewRun) -> None:
    """Refuse a plan that does not fit its dataset, or does not bear out what the run declares."""
    plan: list[Span] = []
    if new.plan is not None:
        plan = spans_of(new.plan, dataset_size=dataset.dataset_size, first_step=0, location="plan")
    if new.release == EVERY_STEP:
        return
    declared_of(new.assumptions, location="assumptions")
    if plan:  # without one every step will count as shown
        planned_run(
            new.assumptions,
            new.release,
            spans=plan,
            relation=NeighboringRelation(dataset.neighboring_relation),
            dataset_size=dataset.dataset_size,
        )


def _reserve_plan(
    connection: Connection, run: Row[Any], dataset: Row[Any], plan_epsilon: float | None
) -> None:
    """Hold a plan against its run's own budget as a whole, and reserve it in all others.

    Raises:
        BudgetExhaustedError: it does not fit; the transaction is to be undone.
    """
    if plan_epsilon is None or not plan_epsilon <= run.budget_epsilon:
        raise BudgetExhaustedError([_too_much(run, plan_epsilon)], 0)
    desk = Shelf().open(connection, [(run.name, MAIN)])
    book, held = desk.run(run.name)
    branch = desk.branch(held, MAIN)
    scopes = scopes_of(book, held, with_run=False)
    for index, span in enumerate(plan_of(run.plan, dataset.dataset_size)):
        part = Placed(
            first_step=branch.reserved_to, event=span.event, steps=span.steps, index=index
        )
        require_bounds([part], book, scopes)
        require_budget(scopes, [part], lambda n, part=part: move_ahead(branch, part, n))  # type: ignore[misc]
        insert_lease(
            desk, book, held, branch, part, name=None, request="{}", expires_at=None, moment=now()
        )


def _too_much(run: Row[Any], plan_epsilon: float | None) -> dict[str, object]:
    finite = plan_epsilon is not None and plan_epsilon < float("inf")
    return {
        "scope": f"run:{run.name}",
        "limit": run.budget_epsilon,
        "delta": run.budget_delta,
        "spent": 0.0,
        "reserved": 0.0,
        "requested": plan_epsilon if finite else None,
    }


def finish_run(connection: Connection, run_name: str, state: str) -> RunAnswer:
    """Close a run; what its plan still holds in reserve returns.

    Raises:
        NotFoundError: there is no such run.
        ConflictError: it was closed in another state.
    """
    run, dataset = lock_run(connection, run_name)
    if run.state not in ("active", "reopened", state):
        raise ConflictError(f"The run was closed before as {run.state}.")
    if run.on_plan is not None:
        _return_plan(connection, run)
    connection.execute(runs.update().where(runs.c.id == run.id).values(state=state))
    changed(connection, dataset.id)
    return run_answer(connection, find_run(connection, run_name))


def _return_plan(connection: Connection, run: Row[Any]) -> None:
    desk = Shelf().open(connection, [(run.name, MAIN)])
    branch = desk.branch(desk.run(run.name)[1], MAIN)
    for lease in [one for one in branch.leases if one.name is None and one.state == "open"]:
        give_back(desk, run.name, MAIN, lease.id, end=max(lease.first_step, branch.next_step))
