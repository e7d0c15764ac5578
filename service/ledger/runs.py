"""Create, finish and release runs: each is created once under a name that is never used again."""

import json
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from accounting.events import NeighboringRelation, Span
from service.clock import now, stamp
from service.errors import (
    BudgetExhaustedError,
    ConflictError,
    InvalidRequestError,
    OutOfSequenceError,
    RunExistsError,
    UnavailableError,
)
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.append.write_access import require_writable, state_of
from service.ledger.branches import insert_branch
from service.ledger.budgets import envelopes
from service.ledger.budgets.budget import PLAN, accept_of
from service.ledger.datasets import (
    OPENINGS,
    _request,
    _same,
    filter_record,
    insert_named,
    note_run,
)
from service.ledger.fixed_plans import PlanCertificate, holds_budget, reserve_plan, return_plan
from service.ledger.hidden_iterates import planned_run
from service.ledger.incidents import latest_refusal
from service.ledger.log.leaves import Act, append_leaves
from service.ledger.log.row_records import build_log_records
from service.ledger.lookups import (
    branches_of,
    find_branch,
    find_dataset,
    find_run,
    lock_dataset,
    lock_run,
    mark_changed,
)
from service.ledger.views import run_answer
from service.schemas.assumptions import read_declared
from service.schemas.event_codec import MAIN, canonical, plan_of, spans_of
from service.schemas.requests import (
    Budget,
    NewRelease,
    NewRun,
)
from service.schemas.responses import EVERY_STEP, ReleaseAnswer, RunAnswer
from service.schemas.run_states import CLOSED
from service.storage.engine import upsert
from service.storage.tables import datasets, releases, runs

_KEPT_NAME: Final = f"must not begin with {OPENINGS}, which is reserved for opening balances"
_ON_A_BRANCH: Final = (
    'on a new branch (in the client start_run(..., resume="allow"), or state= of a checkpoint), or '
    "choose another name."
)
_ONE_OF_TWO: Final = (
    "the plan holds the budget already: leave out the plan, or let another filter stand behind it"
)
SETTINGS_CHANGED: Final = "The dataset's settings changed meanwhile; send the request again."


def create_run(
    connection: Connection,
    new: NewRun,
    *,
    certificate: PlanCertificate | None = None,
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
    cache = DatasetCache()
    # Before anything is written, so that two who register never deadlock.
    cache.lock(connection, {dataset.id} if holds_budget(new) else set())
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
            "budget_filter": _own_filter(new, dataset, accept, certificate),
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
            require_writable(state_of(connection), admits=True)  # one that is there is no new one
            if certificate is None:
                raise UnavailableError(SETTINGS_CHANGED)
            work = cache.open(connection, [(run.name, MAIN)])
            spans = plan_of(run.plan, dataset.dataset_size)
            reserve_plan(work, run.name, spans, now(), by=by)
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
    read_declared(new.assumptions, location="assumptions")
    if plan:  # without one every step will count as shown
        planned_run(
            new.assumptions,
            new.release,
            spans=plan,
            relation=NeighboringRelation(dataset.neighboring_relation),
            dataset_size=dataset.dataset_size,
        )


def _own_filter(
    new: NewRun,
    dataset: Row[Any],
    accept: frozenset[Any],
    certificate: PlanCertificate | None,
) -> str | None:
    """The record of the filter that holds a run's own budget, with what its plan takes of it."""
    if new.budget is None:
        return None
    if new.plan is not None and new.budget.filter == envelopes.KIND:
        raise InvalidRequestError("body.budget.filter", _ONE_OF_TWO)
    record = filter_record(
        new.budget,
        accept,
        scope=f"run:{new.name}",
        relation=NeighboringRelation(dataset.neighboring_relation),
        dataset_size=dataset.dataset_size,
    )
    if certificate is None:
        return record
    return canonical(json.loads(record) | {PLAN: certificate.taken()})


def _require_certified(new: NewRun, accept: frozenset[Any], certificate: PlanCertificate) -> None:
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
    reason: str | None = None,
) -> RunAnswer:
    """Close a run, by a key's name, or say that it was interrupted; what its plan holds returns.

    A run is closed by its latest branch: an older one that ends, perhaps told late, changes
    nothing. Nor does an interruption of a run that is closed.

    Raises:
        NotFoundError: there is no such run or branch.
        ConflictError: it was closed in another state.
    """
    work = None
    if find_run(connection, run_name).on_plan is not None:  # the ancestors are locked first
        work = DatasetCache().open(connection, [(run_name, MAIN)])
    run, dataset = lock_run(connection, run_name)
    if _is_behind(connection, run, state, branch):
        return run_answer(connection, run)
    if run.state in CLOSED and run.state != state:
        raise ConflictError(f"The run was already closed as {run.state}.")
    if work is not None:
        return_plan(work, run_name, by=by)
    connection.execute(runs.update().where(runs.c.id == run.id).values(state=state))
    mark_changed(connection, dataset.id)
    if run.state != state:
        ended = build_log_records(connection, "run_state", dataset_id=dataset.id, row=run.id, by=by)
        if reason is not None:
            said = {"run": run.name, "state": state, "reason": reason}
            ended = [*ended, Act("run_end_reason", said, by)]
        append_leaves(connection, dataset.id, ended)
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


def record_release(
    connection: Connection, run_name: str, new: NewRelease, *, by: str | None = None
) -> tuple[ReleaseAnswer, bool]:
    """Record that an iterate was shown; whether that was new. It is never refused or undone.

    Args:
        connection: in a transaction.
        run_name: the run's.
        new: the request.
        by: the key's name.

    Raises:
        NotFoundError: there is no such run or branch.
        OutOfSequenceError: the branch has not recorded that step.
    """
    run, dataset = lock_run(connection, run_name)
    branch = find_branch(connection, run.id, new.branch)
    if not branch.from_step <= new.step < branch.next_step:
        raise OutOfSequenceError(branch.next_step)
    inserted = upsert(connection.dialect.name, releases).values(
        run_id=run.id, branch_id=branch.id, step=new.step, recorded_at=now()
    )
    added = connection.execute(inserted.on_conflict_do_nothing().returning(releases.c.id)).first()
    if added is not None:
        if run.release != EVERY_STEP:  # what was certified of the run holds no more
            mark_changed(connection, dataset.id)
        shown = build_log_records(connection, "release", dataset_id=dataset.id, row=added.id, by=by)
        append_leaves(connection, dataset.id, shown)
    recorded_at = connection.execute(
        select(releases.c.recorded_at).where(
            releases.c.branch_id == branch.id, releases.c.step == new.step
        )
    ).scalar_one()
    answer = ReleaseAnswer(
        run=run.name, branch=branch.name, step=new.step, recorded_at=stamp(recorded_at)
    )
    return answer, added is not None
