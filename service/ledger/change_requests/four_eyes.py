"""Which changes need a second person, and how they wait for one."""

from typing import Any, Final

from sqlalchemy import Connection, Row, select

from accounting.events import Event, NoNoise
from accounting.filters.covers import covers
from service.errors import AnotherPersonError, OutOfSequenceError
from service.ledger import dataset_settings
from service.ledger.append.append import RECORDED_SPAN
from service.ledger.budgets.budget import accept_of
from service.ledger.budgets.steps_and_passes import by_pass
from service.ledger.change_requests.decisions import apply_change
from service.ledger.change_requests.messages import (
    ChangeRequestAnswer,
    NewChangeRequest,
    RequestKind,
)
from service.ledger.change_requests.persons import Actor, find_person, require_named
from service.ledger.change_requests.records import insert_request, request_answer
from service.ledger.dataset_settings import require_present
from service.ledger.lookups import (
    dataset_of,
    find_branch,
    find_run,
    lock_dataset,
    lock_parents,
)
from service.ledger.reservations import OPEN, find_reservation, remaining_steps_of
from service.schemas.event_codec import event_of, to_event
from service.schemas.requests import (
    ChangedBudget,
    DatasetChange,
    NewCorrection,
    accepted_statuses,
)
from service.schemas.responses import DatasetAnswer
from service.storage.tables import branches, corrections, reservations

_RELEASED: Final = "A release by a person who does not hold the reservation."

# What an operator may name in DPLEDGER_APPROVALS, and the kind of request that follows.
APPROVALS: Final[dict[str, RequestKind]] = {
    "limits": "limit",
    "envelopes": "envelope",
    "voids": "void",
    "corrections": "correction",
}


def ask_for_budget(
    connection: Connection,
    dataset: str,
    new: NewChangeRequest,
    *,
    if_match: str | None,
    by: Actor,
) -> tuple[ChangeRequestAnswer, bool]:
    """Ask for another limit or envelope; the request, and whether it is new.

    Args:
        connection: in a transaction.
        dataset: its name.
        new: the budget, and why.
        if_match: the revision that it was decided on, if the caller says one.
        by: who asks.

    Raises:
        NotFoundError: there is no such dataset.
        PreconditionFailedError: the revision is not the present one.
        InvalidRequestError: the change could not be made now.
        BudgetExhaustedError: the items of an envelope are more than the budget holds.
    """
    row = _lock_dataset(connection, dataset)
    if if_match is not None:
        require_present(row, if_match)
    change = DatasetChange(reason=new.reason, budget=new.budget)
    return _ask(connection, row, change, by=by)


def change_or_ask(
    connection: Connection,
    name: str,
    change: DatasetChange,
    *,
    if_match: str | None,
    by: Actor,
    approvals: frozenset[str],
) -> DatasetAnswer | ChangeRequestAnswer:
    """Change a dataset's settings, or ask for the change if it needs a second person.

    What stops admission is never kept waiting: of a change that freezes and also needs a second
    person, the freeze is made at once and the rest is asked for.

    Args:
        connection: in a transaction.
        name: the dataset's.
        change: what changes, and why.
        if_match: the revision that it was decided on, as the caller sent it.
        by: who changes it.
        approvals: which changes need a second person, keys of APPROVALS.

    Raises:
        NotFoundError: there is no such dataset.
        PreconditionRequiredError: no revision was sent.
        PreconditionFailedError: it is not the present one.
        InvalidRequestError: nothing would change, or something that never may.
        AnotherPersonError: it needs a second person, and the start token is no person.
    """
    dataset = _lock_dataset(connection, name)
    if not approvals.intersection(list_loosened_limits(dataset, change)):
        return dataset_settings.change(connection, name, change, if_match=if_match, by=by.key)
    require_present(dataset, if_match)
    require_named(by)
    if change.frozen and not dataset.frozen:
        freeze = DatasetChange(reason=change.reason, frozen=True)
        dataset_settings.change(connection, name, freeze, if_match=if_match, by=by.key)
        change = change.model_copy(update={"frozen": None})
        dataset = lock_dataset(connection, name)
    return _ask(connection, dataset, change, by=by)[0]


def list_loosened_limits(dataset: Row[Any], change: DatasetChange) -> list[str]:
    """In which ways a change lets more be spent: keys of APPROVALS; none if in no way.

    A first limit on a dataset without one, a lower epsilon, a shorter list of accepted statuses and
    a freeze let less be spent.
    """
    found = []
    if change.budget is not None and dataset.budget_epsilon is not None:
        found += _loosened_budget(dataset, change.budget)
    added = change.accept and accepted_statuses(change.accept) - accept_of(dataset)
    if added or (dataset.frozen and change.frozen is False):
        found.append("limits")
    if change.void_reservations:
        found.append("voids")
    return found


def _loosened_budget(dataset: Row[Any], budget: ChangedBudget) -> list[str]:
    lower = budget.epsilon <= dataset.budget_epsilon and budget.delta <= dataset.budget_delta
    other = budget.filter is not None or budget.orders is not None
    found = [] if lower and not other else ["limits"]
    return [*found, "envelopes"] if budget.envelope is not None else found


def _ask(
    connection: Connection, dataset: Row[Any], change: DatasetChange, *, by: Actor
) -> tuple[ChangeRequestAnswer, bool]:
    kind: RequestKind = "limit"
    if change.budget is not None and change.budget.envelope is not None:
        kind = "envelope"
    elif change.void_reservations and change.budget is None and change.accept is None:
        kind = "void"
    sent = change.model_dump(mode="json", exclude_none=True, by_alias=True)
    return _store_request(
        connection, dataset, sent, kind=kind, revision=dataset.revision, reason=change.reason, by=by
    )


def _store_request(
    connection: Connection,
    dataset: Row[Any],
    change: dict[str, Any],
    *,
    kind: RequestKind,
    target: str | None = None,
    revision: int | None = None,
    reason: str,
    by: Actor,
) -> tuple[ChangeRequestAnswer, bool]:
    """Store a request after a trial: what could not be applied now is refused now."""
    row, created = insert_request(
        connection,
        dataset,
        change,
        kind=kind,
        target=target,
        revision=revision,
        reason=reason,
        by=by,
    )
    if created:
        with connection.begin_nested() as trial:
            apply_change(connection, row, by=by.key)
            trial.rollback()
    return request_answer(row), created


def void_needing_approval(
    connection: Connection, name: str, *, reason: str, by: Actor
) -> ChangeRequestAnswer | None:
    """Ask for the void of a reservation; None if it holds no step, so that nothing waits.

    Raises:
        NotFoundError: there is no such reservation.
        AnotherPersonError: the start token asks.
    """
    run = find_run(connection, find_reservation(connection, name)[0].run)
    dataset = _lock_dataset(connection, dataset_of(connection, run).name)
    if not any(map(remaining_steps_of, find_reservation(connection, name))):
        return None
    require_named(by)
    return _store_request(
        connection,
        dataset,
        {"reason": reason},
        kind="void",
        target=name,
        reason=reason,
        by=by,
    )[0]


def is_own(connection: Connection, holder: str | None, by: Actor) -> bool:
    """Whether the person who acts holds something, by the name that took it."""
    return holder is not None and find_person(connection, holder) == by.person


def release_needing_approval(
    connection: Connection, name: str, *, by: Actor
) -> ChangeRequestAnswer | None:
    """Ask for the void of a reservation of another person; None for one's own.

    A release says that steps did not run, and frees them: only its holder knows that.

    Raises:
        NotFoundError: there is no such reservation.
        AnotherPersonError: the start token asks.
    """
    row, *_ = find_reservation(connection, name)
    if is_own(connection, row.by, by):
        return None
    return void_needing_approval(connection, name, reason=_RELEASED, by=by)


def require_own_plan(connection: Connection, run_name: str, *, by: Actor) -> None:
    """Refuse to close another person's run while its plan holds steps.

    Raises:
        NotFoundError: there is no such run.
        AnotherPersonError: it is so.
    """
    run = find_run(connection, run_name)
    if is_own(connection, run.by, by):
        return
    held = (
        select(reservations.c.id)
        .join(branches, branches.c.id == reservations.c.branch_id)
        .where(
            reservations.c.run_id == run.id,
            reservations.c.name.is_(None),
            reservations.c.state == OPEN,
            reservations.c.end_step > reservations.c.first_step,
            reservations.c.end_step > branches.c.next_step,
        )
    )
    if connection.execute(held).first() is not None:
        raise AnotherPersonError(
            f"Closing the run returns what its plan holds, and {run.by} holds it. Ask for a void "
            "of the dataset's reservations first; another person approves it."
        )


def correction_needing_approval(
    connection: Connection, run_name: str, new: NewCorrection, *, by: Actor
) -> ChangeRequestAnswer | None:
    """Ask for a correction; None if it needs no second person.

    A correction that says that steps told more than recorded only raises epsilon. It is made at
    once: until it is, what is certified would be too low.

    Raises:
        NotFoundError: there is no such run or branch.
        OutOfSequenceError: some of the steps are not recorded.
        InvalidRequestError: the event does not fit the dataset.
        AnotherPersonError: it needs a second person, and the start token is no person.
    """
    run = find_run(connection, run_name)
    dataset = _lock_dataset(connection, dataset_of(connection, run).name)
    _require_recorded(connection, run, new)
    if _only_raises(connection, dataset, run, new):
        return None
    require_named(by)
    sent = new.model_dump(mode="json", exclude_none=True, by_alias=True)
    return _store_request(
        connection,
        dataset,
        sent,
        kind="correction",
        target=run_name,
        reason=new.reason,
        by=by,
    )[0]


def _require_recorded(connection: Connection, run: Row[Any], new: NewCorrection) -> None:
    """Refuse steps that are not all recorded: what they tell could not be compared.

    Recorded steps never change, so that what is found here still holds when it is written.

    Raises:
        OutOfSequenceError: some are not.
    """
    branch = find_branch(connection, run.id, new.branch)
    if not branch.from_step <= new.first_step <= branch.next_step - new.steps:
        raise OutOfSequenceError(branch.next_step)


def _only_raises(
    connection: Connection, dataset: Row[Any], run: Row[Any], new: NewCorrection
) -> bool:
    """Whether what ran told at least as much as each step that is recorded; or nothing changes."""
    branch = find_branch(connection, run.id, new.branch)
    really = to_event(new, dataset_size=dataset.dataset_size, location="body")
    span = {"branch": branch.id, "first_step": new.first_step, "end": new.first_step + new.steps}
    there = select(corrections.c.id).where(
        corrections.c.branch_id == branch.id,
        corrections.c.first_step < span["end"],
        corrections.c.first_step + corrections.c.steps > new.first_step,
    )
    if connection.execute(there).first() is not None:
        return True  # the same again, or refused: a step is corrected once
    recorded = [
        event_of(row.content, dataset.dataset_size)
        for row in connection.execute(RECORDED_SPAN, span)
    ]
    return bool(recorded) and all(_tells_no_less(really, one) for one in recorded)


def _tells_no_less(really: Event, recorded: Event) -> bool:
    """Whether a step told at least as much as is recorded, and moves the beginning of no pass."""
    if isinstance(really.mechanism, NoNoise):  # no epsilon bounds it
        return True
    moves = recorded.sampling != really.sampling and (by_pass(recorded) or by_pass(really))
    return covers(really, recorded) and not moves


def _lock_dataset(connection: Connection, name: str) -> Row[Any]:
    """A dataset, locked after all that it was made from, as every writer locks them."""
    lock_parents(connection, [name])
    return lock_dataset(connection, name)
