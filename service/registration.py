"""Datasets, runs and branches: created once under a name, never reused, never deleted."""

import json
import secrets
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import Connection, Row, insert, select

from accounting.events import NeighboringRelation, Span
from accounting.filters import choose
from service.acts import append
from service.answers import (
    EVERY_STEP,
    DatasetAnswer,
    RunAnswer,
)
from service.assumptions import declared_of
from service.branching import insert_branch
from service.budgets import PLAN, UNSET, accept_of
from service.catalog import (
    branches_of,
    changed,
    dataset_answer,
    find_branch,
    find_dataset,
    find_run,
    lock_dataset,
    lock_run,
    run_answer,
)
from service.clock import now
from service.documents import MAIN, canonical, plan_of, spans_of
from service.errors import (
    BudgetExhaustedError,
    ConflictError,
    InvalidRequestError,
    RunExistsError,
    UnavailableError,
)
from service.facts import acts_of
from service.hiding import planned_run
from service.incidents import latest_refusal
from service.origins import (
    OPENINGS,
    insert_lineage,
    insert_named,
    lock_parents,
    note_run,
    open_balance,
)
from service.plan_leases import reserve_plan, return_plan
from service.planned import Certificate, holds_budget
from service.run_states import CLOSED
from service.schemas import (
    Budget,
    NewDataset,
    NewRun,
    accepted_statuses,
    composed,
)
from service.shelf import VERSION_BITS, Shelf
from service.tables import datasets, runs, settings_changes
from service.taking import require_taking, state_of

_KEPT_NAME: Final = (
    f"must not begin with {OPENINGS}, which is kept for the runs of opening balances"
)
_ON_A_BRANCH: Final = (
    'on a new branch (in the client start_run(..., resume="allow"), or state= of a checkpoint), or '
    "choose another name."
)
SETTINGS_CHANGED: Final = "The dataset's settings changed meanwhile; send the request again."


def _request(message: BaseModel) -> str:
    return canonical(message.model_dump(mode="json", exclude={"writer"}))


def _same(stored: str, message: BaseModel) -> bool:
    """Whether a stored request says the same, with texts that look the same.

    An older version stored fewer fields.
    """
    said = json.loads(stored)
    if "writer" in type(message).model_fields:
        said["writer"] = message.writer  # type: ignore[attr-defined]
    known = type(message).model_validate(said)
    return known == message or composed(known.model_dump()) == composed(message.model_dump())


def filter_record(budget: Budget | None, accept: frozenset[Any]) -> str:
    """The record of the filter that holds a budget; without one, that of a usual budget's.

    Raises:
        InvalidRequestError: the filter is not one that the statuses accept, or has other orders.
    """
    kind = budget.filter if budget else "fixed_order_renyi"
    epsilon, delta = (budget.epsilon, budget.delta) if budget else UNSET
    orders = budget.orders if budget else None
    try:
        chosen = choose(kind, orders=orders, epsilon=epsilon, delta=delta)
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
    lock_parents(connection, new.parents)
    created = insert_named(
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
        insert_lineage(connection, dataset, new)
        note_settings(connection, dataset, reason="creation", by=by)
        for kind in ("dataset", "lineage", "settings"):
            append(connection, dataset.id, acts_of(connection, kind, dataset_id=dataset.id, by=by))
        if new.opening_balance:
            open_balance(connection, dataset, new.opening_balance, by=by)
    return dataset_answer(connection, find_dataset(connection, new.name)), created


def note_settings(connection: Connection, dataset: Row[Any], *, reason: str, by: str) -> None:
    """Keep a dataset's settings, as its row has them, in its history."""
    kept = ("budget_epsilon", "budget_delta", "budget_revision", "accept", "frozen", "revision")
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


def create_run(
    connection: Connection,
    new: NewRun,
    *,
    certificate: Certificate | None = None,
    by: str | None = None,
) -> tuple[RunAnswer, bool]:
    """Register a run with its branch main, or find the one the same request registered.

    Args:
        connection: in a transaction.
        new: the request.
        certificate: what `planned.certified` says of it.
        by: the key's name.

    Raises:
        NotFoundError: there is no such dataset.
        RunExistsError: another writer registered a run of that name.
        ConflictError: the same writer did, with another request.
        InvalidRequestError: the name is kept for an opening balance, or the plan does not fit the
            dataset.
        BudgetExhaustedError: the plan does not fit in a budget; nothing was registered.
        UnavailableError: the dataset's settings changed since the plan was certified.
        LedgerSuspendedError: the plan is to be admitted, and the ledger is not whole.
    """
    dataset = find_dataset(connection, new.dataset)
    shelf = Shelf()
    # Before anything is written, so that two who register never deadlock.
    shelf.lock(connection, {dataset.id} if holds_budget(new) else set())
    dataset = lock_dataset(connection, new.dataset)
    _require_plan(dataset, new)
    budget = new.budget
    accept = accept_of(dataset)
    if certificate is not None:
        _require_certified(new, accept, certificate)
    created = insert_named(
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
            "budget_filter": _own_filter(budget, accept, certificate),
            "on_plan": True if holds_budget(new) else None,
            "request": _request(new),
            "by": by,
            "state": "active",
            "created_at": now(),
        },
    )
    run = find_run(connection, new.name)
    if run.writer != new.writer:
        raise _exists(connection, run)
    if not _same(run.request, new):
        raise ConflictError("This writer registered the run with another request.")
    if created:
        if new.name.startswith(OPENINGS):
            raise InvalidRequestError("body.name", _KEPT_NAME)
        insert_branch(connection, run.id, name=MAIN, writer=new.writer, from_step=0, by=by)
        note_run(connection, run)
        if run.on_plan:
            require_taking(state_of(connection), admits=True)  # one that is there is no new one
            if certificate is None:
                raise UnavailableError(SETTINGS_CHANGED)
            desk = shelf.open(connection, [(run.name, MAIN)])
            spans = plan_of(run.plan, dataset.dataset_size)
            reserve_plan(desk, run.name, spans, now(), by=by)
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


def _own_filter(
    budget: Budget | None, accept: frozenset[Any], certificate: Certificate | None
) -> str | None:
    """The record of the filter that holds a run's own budget, with what its plan takes of it."""
    if budget is None:
        return None
    record = filter_record(budget, accept)
    if certificate is None:
        return record
    return canonical(json.loads(record) | {PLAN: certificate.taken()})


def _require_certified(new: NewRun, accept: frozenset[Any], certificate: Certificate) -> None:
    """Refuse a plan that does not fit in its run's own budget.

    Raises:
        BudgetExhaustedError: it does not.
        UnavailableError: what was certified rests on other settings than the dataset's now.
    """
    if certificate.accept != accept:
        raise UnavailableError(SETTINGS_CHANGED)
    if new.budget is not None and not certificate.epsilon <= new.budget.epsilon:
        failing = _too_much(new.name, new.budget, certificate.epsilon)
        raise BudgetExhaustedError([failing], certificate.admissible_steps)


def _too_much(name: str, budget: Budget, requested: float) -> dict[str, object]:
    return {
        "scope": f"run:{name}",
        "limit": budget.epsilon,
        "delta": budget.delta,
        "spent": 0.0,
        "reserved": 0.0,
        "requested": requested if requested < float("inf") else None,
    }


def _exists(connection: Connection, run: Row[Any]) -> RunExistsError:
    """What another writer's run has come to, and how to go on with it."""
    steps = sum(one.next_step - one.from_step for one in branches_of(connection, run))
    taken = f"{steps:,} step{'' if steps == 1 else 's'}"
    state = run.state.replace("_", " ")
    return RunExistsError(
        f"Run {run.name} exists: {state}, {taken}. {_how_to_go_on(connection, run)}",
        run_state=run.state,
        run_steps=steps,
    )


def _how_to_go_on(connection: Connection, run: Row[Any]) -> str:
    if run.state != "stopped_at_budget":
        return f"Go on with it {_ON_A_BRANCH}"
    refused = latest_refusal(connection, run)
    if refused is None:
        return f"First raise the limit that stopped it. Then go on with it {_ON_A_BRANCH}"
    scope, limit = refused["scope"], refused["limit"]
    if scope == f"run:{run.name}":
        return f"Its own limit, epsilon {limit:.10g}, never changes: choose another name."
    named = datasets.c.name == scope.removeprefix("dataset:")
    present = connection.scalar(select(datasets.c.budget_epsilon).where(named))
    if present is None or present > limit:
        return f"Go on with it {_ON_A_BRANCH}"
    return (
        f"First raise the limit that stopped it, epsilon {limit:.10g} of {scope}: until then its "
        f"next step is refused again. Then go on with it {_ON_A_BRANCH}"
    )


def finish_run(
    connection: Connection,
    run_name: str,
    state: str,
    *,
    branch: str | None = None,
    by: str | None = None,
) -> RunAnswer:
    """Close a run, by a key's name, or say that it was interrupted; what its plan holds returns.

    A run is closed by its latest branch: an older one that ends, perhaps told late, changes
    nothing. Nor does an interruption of a run that is closed.

    Raises:
        NotFoundError: there is no such run or branch.
        ConflictError: it was closed in another state.
    """
    desk = None
    if find_run(connection, run_name).on_plan is not None:  # the ancestors are locked first
        desk = Shelf().open(connection, [(run_name, MAIN)])
    run, dataset = lock_run(connection, run_name)
    if _is_behind(connection, run, state, branch):
        return run_answer(connection, run)
    if run.state in CLOSED and run.state != state:
        raise ConflictError(f"The run was closed before as {run.state}.")
    if desk is not None:
        return_plan(desk, run_name, by=by)
    connection.execute(runs.update().where(runs.c.id == run.id).values(state=state))
    changed(connection, dataset.id)
    if run.state != state:
        ended = acts_of(connection, "run_state", dataset_id=dataset.id, row=run.id, by=by)
        append(connection, dataset.id, ended)
    return run_answer(connection, find_run(connection, run_name))


def _is_behind(connection: Connection, run: Row[Any], state: str, branch: str | None) -> bool:
    """Whether an end says less than what is known: the run went on, or ended otherwise.

    Raises:
        NotFoundError: there is no such branch.
    """
    if branch is not None:
        ended = find_branch(connection, run.id, branch)
        if ended.id != branches_of(connection, run)[-1].id:
            return True
    return state == "interrupted" and run.state in (*CLOSED, "reopened")
