"""Recording: events become entries, once, in order, and are held against every budget."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, exists, func, insert, select, update

from accounting.balances import OpenPass
from accounting.events import Event, NeighboringRelation
from service.admission import (
    Placed,
    change_of,
    require_bounds,
    require_budget,
    unbounded,
)
from service.answers import AppendAnswer, GuaranteeAnswer
from service.balances import Scope, apply_change, run_balance
from service.catalog import (
    accept_of,
    dataset_of,
    find_branch,
    find_run,
    lock_run,
    now,
    scope_of_dataset,
    scope_of_run,
)
from service.documents import content_of, event_of
from service.errors import ConflictError, OutOfSequenceError, RunFinishedError
from service.readings import READING, delta_of, guarantee_of
from service.schemas import EventMessage, to_event
from service.tables import branches, datasets, distinct_events, entries, runs

CLOSED = ("finished", "aborted")
_COUNTS: Final = ("steps", "passes", "starts")  # of an event; all begin at zero

# Statements are built once: building one costs as much as running it.
_EVENT_IDS: Final = select(distinct_events.c.id, distinct_events.c.content).where(
    distinct_events.c.dataset_id == bindparam("dataset"),
    distinct_events.c.content.in_(bindparam("contents", expanding=True)),
)
_CONTENT: Final = select(distinct_events.c.content).where(
    distinct_events.c.id == bindparam("event")
)
# Entries of a branch are contiguous, so the one that holds a step is the last to begin by it.
_HOLDS_FIRST: Final = (
    select(func.max(entries.c.first_step))
    .where(
        entries.c.branch_id == bindparam("branch"), entries.c.first_step <= bindparam("first_step")
    )
    .scalar_subquery()
)
_DIFFERS: Final = select(
    exists().where(
        entries.c.branch_id == bindparam("branch"),
        entries.c.first_step >= _HOLDS_FIRST,
        entries.c.first_step < bindparam("end"),
        entries.c.event_id != bindparam("event"),
    )
)
_MOVE_HEAD: Final = (
    update(datasets)
    .where(datasets.c.id == bindparam("dataset"))
    .values(head_sequence=bindparam("head"))
)
_MOVE_BRANCH: Final = (
    update(branches)
    .where(branches.c.id == bindparam("branch"))
    .values(
        next_step=bindparam("end"),
        pass_event_id=bindparam("open_event"),
        pass_position=bindparam("open_position"),
    )
)
_REOPEN: Final = (
    update(runs).where(runs.c.id == bindparam("run")).values(state="reopened", reopened=True)
)


def prepare(connection: Connection, *, run_name: str, events: Sequence[EventMessage]) -> None:
    """Work out the curves of events before the dataset is locked; the accounting remembers them.

    Raises:
        NotFoundError: there is no such run.
        InvalidRequestError: an event does not fit the dataset.
    """
    dataset = dataset_of(connection, find_run(connection, run_name))
    relation = NeighboringRelation(dataset.neighboring_relation)
    accept = accept_of(dataset)
    for part in _placed(events, dataset.dataset_size):
        unbounded(part.event, relation=relation, accept=accept)


def append(
    connection: Connection,
    *,
    run_name: str,
    branch_name: str,
    mode: str,
    events: Sequence[EventMessage],
) -> AppendAnswer:
    """Record or charge events on a branch: all of them or none.

    A charge is refused when it does not fit; a record never is, and marks the overdraft instead.

    Raises:
        NotFoundError: there is no such run or branch.
        InvalidRequestError: an event does not fit the dataset.
        OutOfSequenceError: steps are missing before an event.
        ConflictError: some of the steps were recorded with other content.
        RunFinishedError, UnsupportedEventError, BudgetExhaustedError: for charges only.
    """
    run, dataset = lock_run(connection, run_name)
    branch = find_branch(connection, run.id, branch_name)

    placed = _placed(events, dataset.dataset_size)
    open_pass = _open_pass(connection, branch, dataset.dataset_size)
    seen = {part.event for part in placed} | ({open_pass.event} if open_pass else set())
    ids = _event_ids(connection, dataset.id, seen)
    fresh = _fresh(connection, branch, placed, ids)
    scopes = _scopes(connection, run, dataset)
    relation, accept = NeighboringRelation(dataset.neighboring_relation), accept_of(dataset)
    if mode == "charge" and fresh:
        if run.state in CLOSED:
            raise RunFinishedError("The run was closed; record what still happened in it.")
        require_bounds(fresh, relation=relation, accept=accept)
        require_budget(scopes, open_pass, fresh)
    change, open_pass = change_of(open_pass, fresh)
    within = all(scope.admits(change) for scope in scopes) and not any(
        unbounded(part.event, relation=relation, accept=accept) for part in fresh
    )
    verdict = "within" if within else "overdraft"
    sequence = dataset.head_sequence
    if fresh:
        ids |= _new_events(connection, dataset.id, [part.event for part in fresh], ids)
        apply_change(connection, change, ids=ids, run_id=run.id)
        sequence = _insert(connection, run, branch, fresh, ids, mode, verdict, after=sequence)
        _move(connection, run, branch, fresh[-1].end, open_pass, ids)
    return AppendAnswer(
        accepted=sum(part.steps for part in fresh),
        duplicates=sum(message.steps for message in events) - sum(part.steps for part in fresh),
        next_step=fresh[-1].end if fresh else branch.next_step,
        sequence=sequence,
        verdict=verdict,
        guarantee=_reading(connection, run, dataset, sequence),
        budget=scopes[0].answer(change) if scopes else None,
    )


def _reading(
    connection: Connection, run: Row[Any], dataset: Row[Any], sequence: int
) -> GuaranteeAnswer | None:
    """The run's guarantee after the append, where a delta is known."""
    delta = delta_of(dataset, run)
    if delta is None:
        return None
    balance = run_balance(connection, run.id, dataset.dataset_size)
    return guarantee_of(balance, dataset, sequence=sequence, delta=delta, accountant=READING)


def _placed(events: Sequence[EventMessage], dataset_size: int) -> list[Placed]:
    """The events as accounting sees them, adjacent equal ones as one."""
    placed: list[Placed] = []
    for index, message in enumerate(events):
        event = to_event(message, dataset_size=dataset_size, location=f"events[{index}]")
        last = placed[-1] if placed else None
        if last is not None and last.event == event and last.end == message.first_step:
            first_step, steps = last.first_step, last.steps + message.steps
            placed[-1] = Placed(first_step=first_step, steps=steps, event=event, index=last.index)
        else:
            placed.append(
                Placed(first_step=message.first_step, steps=message.steps, event=event, index=index)
            )
    return placed


def _event_ids(
    connection: Connection, dataset_id: int, events: Iterable[Event]
) -> dict[Event, int]:
    """The rows of events that the dataset has seen before."""
    contents = {content_of(event): event for event in events}
    found = connection.execute(_EVENT_IDS, {"dataset": dataset_id, "contents": list(contents)})
    return {contents[row.content]: row.id for row in found}


def _new_events(
    connection: Connection, dataset_id: int, events: Iterable[Event], known: Mapping[Event, int]
) -> dict[Event, int]:
    """Rows for events that the dataset has not seen; its lock is held."""
    added = [event for event in dict.fromkeys(events) if event not in known]
    if not added:
        return {}
    rows = [
        {"dataset_id": dataset_id, "content": content_of(event), **dict.fromkeys(_COUNTS, 0)}
        for event in added
    ]
    connection.execute(insert(distinct_events), rows)
    return _event_ids(connection, dataset_id, added)


def _fresh(
    connection: Connection, branch: Row[Any], placed: Sequence[Placed], ids: Mapping[Event, int]
) -> list[Placed]:
    """The steps not recorded yet, in order; what was recorded must have been the same.

    Raises:
        OutOfSequenceError: an event begins beyond the next step, or before the branch does.
        ConflictError: an event repeats steps with other content.
    """
    fresh: list[Placed] = []
    next_step = branch.next_step
    for part in placed:
        if not branch.from_step <= part.first_step <= next_step:
            raise OutOfSequenceError(next_step)
        if part.first_step < branch.next_step and _differs(connection, branch, part, ids):
            raise ConflictError(f"events[{part.index}]: these steps were recorded as another event")
        if part.first_step < next_step and any(
            part.overlaps(other) and part.event != other.event for other in fresh
        ):
            raise ConflictError(f"events[{part.index}]: these steps were sent as another event")
        if part.end > next_step:
            fresh.append(
                Placed(
                    first_step=next_step,
                    steps=part.end - next_step,
                    event=part.event,
                    index=part.index,
                )
            )
            next_step = part.end
    return fresh


def _differs(
    connection: Connection, branch: Row[Any], part: Placed, ids: Mapping[Event, int]
) -> bool:
    """Whether some recorded step of the part was another event."""
    found = {
        "branch": branch.id,
        "first_step": part.first_step,
        "end": part.end,
        "event": ids.get(part.event, -1),
    }
    return bool(connection.scalar(_DIFFERS, found))


def _scopes(connection: Connection, run: Row[Any], dataset: Row[Any]) -> list[Scope]:
    """The budgets an append is held against: the dataset's, then the run's."""
    found = (scope_of_dataset(connection, dataset), scope_of_run(connection, run, dataset))
    return [scope for scope in found if scope is not None]


def _open_pass(connection: Connection, branch: Row[Any], dataset_size: int) -> OpenPass | None:
    if branch.pass_event_id is None:
        return None
    content = connection.execute(_CONTENT, {"event": branch.pass_event_id}).scalar_one()
    return OpenPass(event=event_of(content, dataset_size), position=branch.pass_position)


def _insert(
    connection: Connection,
    run: Row[Any],
    branch: Row[Any],
    fresh: Sequence[Placed],
    ids: Mapping[Event, int],
    mode: str,
    verdict: str,
    *,
    after: int,
) -> int:
    """Insert the entries and move the dataset's head; the new head."""
    moment = now()
    rows = [
        {
            "dataset_id": run.dataset_id,
            "sequence": sequence,
            "run_id": run.id,
            "branch_id": branch.id,
            "first_step": part.first_step,
            "steps": part.steps,
            "event_id": ids[part.event],
            "mode": mode,
            "verdict": verdict,
            "recorded_at": moment,
        }
        for sequence, part in enumerate(fresh, start=after + 1)
    ]
    connection.execute(insert(entries), rows)
    head = after + len(rows)
    connection.execute(_MOVE_HEAD, {"dataset": run.dataset_id, "head": head})
    return head


def _move(
    connection: Connection,
    run: Row[Any],
    branch: Row[Any],
    next_step: int,
    open_pass: OpenPass | None,
    ids: Mapping[Event, int],
) -> None:
    """Move the branch's end; steps after the end of a run reopen it."""
    moved = {
        "branch": branch.id,
        "end": next_step,
        "open_event": ids[open_pass.event] if open_pass else None,
        "open_position": open_pass.position if open_pass else None,
    }
    connection.execute(_MOVE_BRANCH, moved)
    if run.state in CLOSED:
        connection.execute(_REOPEN, {"run": run.id})
