"""Recording: events become entries, once, in order, and are held against every budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, select

from accounting.events import Event
from service import trace_context
from service.errors import (
    BranchExistsError,
    BudgetExhaustedError,
    ConflictError,
    NotFoundError,
    OutOfSequenceError,
    RunFinishedError,
)
from service.ledger.append.admission import (
    AppendEffect,
    BudgetCheck,
    PositionedSpan,
    compute_append_effect,
    is_finite_everywhere,
    require_unfrozen,
    scopes_of,
)
from service.ledger.append.branch_end import BranchEnd
from service.ledger.append.rdp_reading import reading
from service.ledger.append.state import (
    Branch,
    DatasetState,
    PendingEntry,
    RunState,
    raise_budget_alerts,
)
from service.ledger.append.unit_of_work import BranchPlace, UnitOfWork
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.steps_and_passes import StepsAndPasses, reuses_noise
from service.ledger.incidents import DetailValue, Incident, Kind
from service.ledger.log.leaves import Act
from service.ledger.log.row_records import APPENDS
from service.ledger.lookups import dataset_of, find_run
from service.schemas.event_codec import event_of, to_event
from service.schemas.requests import EventMessage
from service.schemas.run_states import CLOSED
from service.storage.tables import distinct_events, entries

_WITHIN: Final = "within"
_RESERVED: Final = "reserved"  # beyond a limit that the steps were within when they were admitted
_OVERDRAFT: Final = "overdraft"
MANY: Final = 256  # events of one request whose prices are looked up first

# Entries of a branch are contiguous, so the one that holds a step is the last to begin by it.
_HOLDS_FIRST: Final = (
    select(func.max(entries.c.first_step))
    .where(
        entries.c.branch_id == bindparam("branch"), entries.c.first_step <= bindparam("first_step")
    )
    .scalar_subquery()
)
RECORDED_SPAN: Final = (
    select(distinct_events.c.content)
    .distinct()
    .join(entries, distinct_events.c.id == entries.c.event_id)
    .where(
        entries.c.branch_id == bindparam("branch"),
        entries.c.first_step >= _HOLDS_FIRST,
        entries.c.first_step < bindparam("end"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What one request asks to be recorded or charged."""

    run_name: str
    branch_name: str
    mode: str
    events: Sequence[EventMessage]
    by: str | None = None  # the key's name
    writer: str | None = None  # the process that says it opened the branch; none if it says nothing
    placed: Sequence[PositionedSpan] | None = None  # as accounting sees them, once prepared

    @property
    def place(self) -> BranchPlace:
        """The run and the branch it is about."""
        return self.run_name, self.branch_name

    @property
    def admits(self) -> bool:
        """Whether it asks for steps to be admitted, rather than tells what happened."""
        return self.mode == "charge"

    def apply(self, work: UnitOfWork, moment: datetime) -> dict[str, Any]:
        """Append."""
        return append(work, self, moment=moment)


def prepare(connection: Connection, asked: Append) -> Append:
    """Read many events before the dataset is locked.

    Raises:
        InvalidRequestError: an event does not fit the dataset.
    """
    try:
        dataset = dataset_of(connection, find_run(connection, asked.run_name))
    except NotFoundError:  # the writer says so, unless it says that the ledger is suspended
        return asked
    return replace(asked, placed=_position_spans(asked.events, dataset.dataset_size))


def append(work: UnitOfWork, asked: Append, *, moment: datetime) -> dict[str, Any]:
    """Record or charge events on a branch: all of them or none; an AppendAnswer.

    A charge is refused when it does not fit; a record never is, and marks the overdraft instead.
    A refusal changes nothing.

    Raises:
        NotFoundError: there is no such run or branch.
        InvalidRequestError: an event does not fit the dataset.
        OutOfSequenceError: steps are missing before an event.
        BranchExistsError: the writer that was sent is not the one that opened the branch.
        ConflictError: some of the steps were recorded with other content.
        RunFinishedError, DatasetFrozenError, UnsupportedEventError, BudgetExhaustedError: for
            charges only.
    """
    state, run = work.run(asked.run_name)
    branch = work.branch(run, asked.branch_name)
    if asked.writer is not None and asked.writer != branch.writer:
        raise BranchExistsError(
            "Another process opened this branch: the request has another writer. "
            "Open a branch of your own."
        )
    placed = (
        _position_spans(asked.events, state.dataset_size) if asked.placed is None else asked.placed
    )
    if len(placed) > MANY:  # what is not known is asked for before they are counted in vain
        each = dict.fromkeys((part.event for part in placed), StepsAndPasses(steps=1))
        state.require_prices(run, BudgetDelta(recorded=each))
    fresh = _fresh(work, state, branch, placed)
    if fresh:
        verdict = _take(work, state, run, branch, fresh, asked, moment)
    else:
        beyond = any(held.scope.answer()["overdrawn"] for held in scopes_of(state, run))
        verdict = _OVERDRAFT if beyond else _WITHIN
    accepted = sum(part.steps for part in fresh)
    return {
        "accepted": accepted,
        "duplicates": sum(message.steps for message in asked.events) - accepted,
        "next_step": branch.next_step,
        "sequence": state.head,
        "verdict": verdict,
        "guarantee": reading(state, run),
        "budget": scope.answer() if (scope := state.scope or run.scope) else None,
    }


def _take(
    work: UnitOfWork,
    state: DatasetState,
    run: RunState,
    branch: Branch,
    fresh: Sequence[PositionedSpan],
    asked: Append,
    moment: datetime,
) -> str:
    """Hold fresh steps against the budgets and count them; the verdict."""
    end = BranchEnd(state, run, branch)
    scopes = end.scopes(fresh)
    if asked.mode == "charge":
        if run.state in CLOSED:
            raise RunFinishedError("The run was closed; record steps that ran after its end.")
        require_unfrozen(state)
    gone = compute_append_effect(branch, fresh, run.shifts)
    state.require_prices(run, gone.move)
    if asked.mode == "charge":
        end.require_accounted(fresh)
        try:
            end.require_room(fresh, gone.move)
        except BudgetExhaustedError as refusal:
            work.refused(state, run, refusal)
            raise
    verdict = _verdict(state, scopes, fresh, gone)
    if run.on_plan and not end.keeps_plan(fresh):
        run.leave_plan()
        state.notes.runs[run.id] = run
    _count(state, run, branch, fresh, gone, asked, verdict, moment)
    return verdict


def _verdict(
    state: DatasetState,
    scopes: Sequence[BudgetCheck],
    fresh: Sequence[PositionedSpan],
    gone: AppendEffect,
) -> str:
    """Whether steps are within every budget, or beyond one, and admitted there before.

    `reserved`: some budget's sums, with all that is still reserved, are beyond its limit after the
    steps, and none has grown, for the steps use up what was reserved for them.
    """
    after = [(held.scope, held.sums(gone.move)) for held in scopes]
    admitted = all(scope.admits(sums) for scope, sums in after)
    if not (admitted and all(is_finite_everywhere(part.event, state, scopes) for part in fresh)):
        return _OVERDRAFT
    covered = bool(gone.move.reserved) and not all(scope.holds(sums) for scope, sums in after)
    return _RESERVED if covered else _WITHIN


def _count(
    state: DatasetState,
    run: RunState,
    branch: Branch,
    fresh: Sequence[PositionedSpan],
    gone: AppendEffect,
    asked: Append,
    verdict: str,
    moment: datetime,
) -> None:
    """Count fresh steps everywhere; from here on nothing is refused."""
    notes, trace = state.notes, trace_context.traceparent.get()
    _note_key(state, run, branch, asked.by)
    for part in fresh:
        state.head += 1
        notes.entries.append(
            PendingEntry(
                sequence=state.head,
                run=run,
                branch=branch,
                first_step=part.first_step,
                steps=part.steps,
                event=part.event,
                mode=asked.mode,
                verdict=verdict,
                recorded_at=moment,
                traceparent=trace,
            )
        )
    state.take(run, gone.move, gone.starts)
    _mark_withdrawn(state, run, branch, fresh)
    if reuses_noise(gone.move.recorded):
        notes.incidents.append(_incident(state, run, Kind.NOISE_REUSED, branch=branch.name))
    branch.move_to(fresh[-1].end, gone.open_pass)
    branch.tail = _tail(branch.tail, fresh[-1])
    notes.branches[branch.id] = branch
    if run.scope is not None:
        notes.runs[run.id] = run
    if run.state in CLOSED:
        run.state, run.reopened = "reopened", True
        reopened = {"run": run.name, "state": run.state, "reopened": True}
        state.note([Act("run_state", reopened, asked.by)])
        notes.runs[run.id] = run
        notes.incidents.append(_incident(state, run, Kind.REOPENED, branch=branch.name))
    raise_budget_alerts(state, run)


def _note_key(state: DatasetState, run: RunState, branch: Branch, by: str | None) -> None:
    """Say in the log, before the entries, whose key appends where that was another's before."""
    if branch.appended_by != by:
        branch.appended_by = by
        state.note([Act(APPENDS, {"run": run.name, "branch": branch.name, "key": by}, by)])


def _tail(tail: tuple[int, int, Event] | None, last: PositionedSpan) -> tuple[int, int, Event]:
    """The span of equal steps that a branch ends with, as far as it is known."""
    if tail is not None and tail[1] == last.first_step and tail[2] == last.event:
        return tail[0], last.end, last.event
    return last.first_step, last.end, last.event


def _mark_withdrawn(
    state: DatasetState, run: RunState, branch: Branch, fresh: Sequence[PositionedSpan]
) -> None:
    """Note recorded steps that were attested not to run."""
    first, end = fresh[0].first_step, fresh[-1].end
    found: dict[str, int] = {}
    for reservation in branch.reservations:
        withdrawn = max(first, reservation.end_step)
        name = reservation.whole_name  # the end of a run returns what its plan holds
        if name is not None and withdrawn < min(end, reservation.granted_end):
            found[name] = min(found.get(name, withdrawn), withdrawn)
    for name, step in found.items():
        detail: dict[str, DetailValue] = {"reservation": name, "first_step": step}
        kind = Kind.RECORDED_AFTER_RELEASE
        state.notes.incidents.append(_incident(state, run, kind, branch=branch.name, **detail))


def _incident(state: DatasetState, run: RunState, kind: Kind, **detail: DetailValue) -> Incident:
    return Incident(
        dataset_id=state.id,
        run_id=run.id,
        kind=kind,
        sequence=state.head,
        detail={"dataset": state.name, "run": run.name, **detail},
    )


def _position_spans(events: Sequence[EventMessage], dataset_size: int) -> list[PositionedSpan]:
    """The events as accounting sees them, adjacent equal ones as one."""
    placed: list[PositionedSpan] = []
    before: EventMessage | None = None
    for index, message in enumerate(events):
        last = placed[-1] if placed else None
        if before is None or last is None or not _alike(before, message):
            event = to_event(message, dataset_size=dataset_size, location=f"events[{index}]")
        if last is not None and last.event == event and last.end == message.first_step:
            last.steps += message.steps
        else:
            placed.append(
                PositionedSpan(
                    first_step=message.first_step, steps=message.steps, event=event, index=index
                )
            )
        before = message
    return placed


def _alike(first: EventMessage, second: EventMessage) -> bool:
    """Whether two messages are known to be of equal steps: they share what they say of them."""
    return first.mechanism is second.mechanism and first.sampling is second.sampling


def _fresh(
    work: UnitOfWork, state: DatasetState, branch: Branch, placed: Sequence[PositionedSpan]
) -> list[PositionedSpan]:
    """The steps not recorded yet, in order; what was recorded must have been the same.

    Raises:
        OutOfSequenceError: an event begins beyond the next step, or before the branch does.
        ConflictError: an event repeats steps with other content.
    """
    fresh: list[PositionedSpan] = []
    seen: dict[Event, tuple[int, int]] = {}
    next_step = branch.next_step
    for part in placed:
        if not branch.from_step <= part.first_step <= next_step:
            raise OutOfSequenceError(next_step)
        if part.first_step < branch.next_step and _differs(work, state, branch, part, seen):
            raise ConflictError(f"events[{part.index}]: these steps were recorded as another event")
        for other in reversed(fresh):  # which follow one another
            if other.end <= part.first_step:
                break
            if part.overlaps(other) and part.event != other.event:
                raise ConflictError(f"events[{part.index}]: these steps were sent as another event")
        if part.end > next_step:
            fresh.append(part.since(next_step))
            next_step = part.end
    return fresh


def _differs(
    work: UnitOfWork,
    state: DatasetState,
    branch: Branch,
    part: PositionedSpan,
    seen: dict[Event, tuple[int, int]],
) -> bool:
    """Whether some recorded step of the part was another event; `seen` are those that were not."""
    first, end = part.first_step, min(part.end, branch.next_step)
    if branch.tail is not None and branch.tail[0] <= first and end <= branch.tail[1]:
        return part.event != branch.tail[2]
    known = seen.get(part.event, (0, 0))
    if known[0] <= first and end <= known[1]:
        return False
    work.write()  # what this transaction has recorded is compared, too
    found = {"branch": branch.id, "first_step": first, "end": end}
    differs = any(
        event_of(row.content, state.dataset_size) != part.event
        for row in work.connection.execute(RECORDED_SPAN, found)
    )
    if not differs:
        seen[part.event] = (first, end)
    return differs
