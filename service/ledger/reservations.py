"""Reservations: steps admitted ahead, counted as held until they are recorded.

An open reservation is pending; recorded, once the branch has passed its last step; or forfeited,
once it has expired: then it counts as spent until its steps are recorded, released or voided. Time
never returns anything.

A reservation of several events has a row for each, at the steps after those of the row before. The
first row bears its name, and the others the name, a slash and their number, which is no name that a
request can have. They are admitted together, and end together.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row, bindparam, insert, select

from service.clock import stamp, utc
from service.errors import (
    BudgetExhaustedError,
    ConflictError,
    NotFoundError,
    OutOfSequenceError,
    RunFinishedError,
)
from service.ledger.append.admission import (
    PositionedSpan,
    compute_held_change,
    holds,
    require_bounds,
    require_budget,
    require_unfrozen,
    scopes_of,
)
from service.ledger.append.fresh_noise import require_fresh_noise
from service.ledger.append.state import (
    PART_MARK,
    Branch,
    DatasetState,
    Reservation,
    RunState,
)
from service.ledger.append.unit_of_work import BranchPlace, UnitOfWork
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.correction_costs import with_shifts
from service.ledger.log.leaves import Act
from service.ledger.log.row_records import build_reservation_records
from service.schemas.event_codec import canonical, to_event
from service.schemas.requests import NewReservation
from service.schemas.responses import Answer
from service.schemas.run_states import CLOSED
from service.storage.tables import branches, datasets, distinct_events, reservations, runs

OPEN_RESERVED_MAX: Final = (
    256  # of a branch, beyond its next step; each append looks at all of them
)
OPEN: Final = "open"
RELEASED: Final = "released"
VOIDED: Final = "voided"

FOUND: Final = (
    select(
        reservations,
        runs.c.name.label("run"),
        branches.c.name.label("branch"),
        branches.c.next_step,
        datasets.c.name.label("dataset"),
        datasets.c.dataset_size,
        distinct_events.c.content,
    )
    .join(runs, runs.c.id == reservations.c.run_id)
    .join(branches, branches.c.id == reservations.c.branch_id)
    .join(datasets, datasets.c.id == reservations.c.dataset_id)
    .join(distinct_events, distinct_events.c.id == reservations.c.event_id)
)
_NAMED: Final = FOUND.where(reservations.c.name == bindparam("named"))
_PARTS: Final = FOUND.where(reservations.c.name.in_(bindparam("names", expanding=True))).order_by(
    reservations.c.first_step, reservations.c.id
)


class ReservedEvent(Answer):
    """Equal steps of a reservation, as they were admitted."""

    first_step: int
    steps: int
    mechanism: dict[str, Any]
    sampling: dict[str, Any]


class ReservationAnswer(Answer):
    """A reservation as it stands; counts are steps."""

    name: str | None  # null where a run's plan reserves itself
    run: str
    branch: str
    event: dict[str, Any]  # mechanism and sampling of its first steps
    events: list[ReservedEvent]
    first_step: int
    steps: int  # that were admitted
    recorded: int
    remaining: int  # still held
    state: Literal["pending", "recorded", "forfeited", "released", "voided"]
    expires_at: str | None  # null where it never does
    reason: str | None  # of an admin who voided it
    by: str | None  # the key that reserved
    created_at: str


def reservation_answer(rows: Sequence[Row[Any]], moment: datetime) -> dict[str, Any]:
    """The answer to rows of one reservation, in the order of their steps: all, or some of them."""
    first = rows[0]
    remaining = sum(remaining_steps_of(row) for row in rows)
    expires_at = utc(first.expires_at)
    lapsed = expires_at is not None and expires_at <= moment
    return {
        "name": None if first.name is None else first.name.partition(PART_MARK)[0],
        "run": first.run,
        "branch": first.branch,
        "event": json.loads(first.content),
        "events": [
            {"first_step": row.first_step, "steps": row.steps, **json.loads(row.content)}
            for row in rows
        ],
        "first_step": first.first_step,
        "steps": sum(row.steps for row in rows),
        "recorded": sum(_count_recorded(row) for row in rows),
        "remaining": remaining,
        "state": _state(rows, remaining, lapsed=lapsed),
        "expires_at": None if first.expires_at is None else stamp(first.expires_at),
        "reason": next((row.reason for row in rows if row.reason is not None), None),
        "by": first.by,
        "created_at": stamp(first.created_at),
    }


def remaining_steps_of(row: Row[Any]) -> int:
    """How many steps a row still holds."""
    return int(max(0, row.end_step - max(row.first_step, row.next_step)))


def _count_recorded(row: Row[Any]) -> int:
    return int(max(0, min(row.next_step, row.first_step + row.steps) - row.first_step))


def _state(rows: Sequence[Row[Any]], remaining: int, *, lapsed: bool) -> str:
    """An open reservation is told by its steps and the clock; one end of a part ends all."""
    states = {row.state for row in rows}
    if VOIDED in states:
        return VOIDED
    if remaining and lapsed:
        return "forfeited"
    if RELEASED in states:
        return RELEASED
    return "pending" if remaining else "recorded"


def find_reservation(connection: Connection, name: str) -> list[Row[Any]]:
    """The rows of a reservation with their place, in the order of their steps.

    Raises:
        NotFoundError: there is none of that name.
    """
    row = connection.execute(_NAMED, {"named": name}).one_or_none()
    if row is None:
        raise NotFoundError("There is no such reservation.")
    names = _names(name, len(json.loads(row.request).get("events") or [row]))
    if len(names) == 1:
        return [row]
    return list(connection.execute(_PARTS, {"names": names}))


def _names(name: str, parts: int) -> list[str]:
    """The names of the rows of a reservation of so many events."""
    return [name, *(f"{name}{PART_MARK}{number}" for number in range(1, parts))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What one request asks to be admitted ahead."""

    run_name: str
    new: NewReservation
    by: str | None = None  # the key's name

    @property
    def place(self) -> BranchPlace:
        """The run and the branch it is about."""
        return self.run_name, self.new.branch

    @property
    def admits(self) -> bool:
        """Whether it asks for steps to be admitted."""
        return True

    def apply(self, work: UnitOfWork, moment: datetime) -> dict[str, Any]:
        """Reserve, or find what the same request reserved: a ReservationAnswer, and whether new.

        Raises:
            NotFoundError: there is no such run or branch.
            ConflictError: another request made a reservation of that name.
            OutOfSequenceError: the event names another first step than the next to reserve.
            RunFinishedError, DatasetFrozenError, UnsupportedEventError, BudgetExhaustedError:
                nothing is reserved.
        """
        new = self.new
        request = canonical({"run": self.run_name, **new.asked()})
        known = work.connection.execute(_NAMED, {"named": new.name}).one_or_none()
        if known is not None:
            if known.request != request:
                raise ConflictError("Another request made a reservation with this name.")
            work.write()  # what this transaction has recorded of it counts, too
            return self._answer(work, moment, created=False)
        state, run = work.run(self.run_name)
        branch = work.branch(run, new.branch)
        parts = self._parts(state, branch)
        self._admit(work, state, run, branch, parts)
        rows = insert_reservation(
            work,
            state,
            run,
            branch,
            parts,
            name=new.name,
            request=request,
            expires_at=moment + timedelta(seconds=new.ttl_seconds),
            moment=moment,
            by=self.by,
        )
        state.note(rows)
        work.write()
        return self._answer(work, moment, created=True)

    def _answer(self, work: UnitOfWork, moment: datetime, *, created: bool) -> dict[str, Any]:
        found = find_reservation(work.connection, self.new.name)
        return {**reservation_answer(found, moment), "created": created}

    def _parts(self, state: DatasetState, branch: Branch) -> list[PositionedSpan]:
        """The events at the steps that they get.

        Raises:
            ConflictError: the branch would hold too many.
            OutOfSequenceError: an event names another first step.
        """
        asked = self.new.parts
        held = sum(one.name is not None for one in branch.reservations)
        if held + len(asked) > OPEN_RESERVED_MAX:
            raise ConflictError(
                f"The branch would have more than {OPEN_RESERVED_MAX} reserved events that are "
                "open; record or release some first."
            )
        parts, first = [], branch.reserved_to
        for index, one in enumerate(asked):
            if one.first_step not in (None, first):
                raise OutOfSequenceError(first)
            location = "event" if self.new.event is not None else f"events[{index}]"
            event = to_event(one, dataset_size=state.dataset_size, location=location)
            parts.append(
                PositionedSpan(first_step=first, event=event, steps=one.steps, index=index)
            )
            first += one.steps
        return parts

    def _admit(
        self,
        work: UnitOfWork,
        state: DatasetState,
        run: RunState,
        branch: Branch,
        parts: Sequence[PositionedSpan],
    ) -> None:
        if run.state in CLOSED:
            raise RunFinishedError("The run was closed; it accepts no more steps.")
        if run.on_plan:  # what the plan holds and what a filter does must not be mixed
            raise ConflictError("The run follows its plan, which is reserved as a whole.")
        require_unfrozen(state)
        scopes = scopes_of(state, run)

        def ahead(some: Sequence[PositionedSpan]) -> BudgetDelta:
            return move_ahead(run, branch, some)

        move = ahead(parts)
        state.require_prices(run, move)
        require_bounds(parts, state, scopes)
        require_fresh_noise(parts, ahead)
        try:
            require_budget(scopes, parts, move, ahead)
        except BudgetExhaustedError as refusal:
            needed = self.new.needed_steps
            if needed is None or refusal.admissible_steps < needed:
                work.refused(state, run, refusal)  # else the run goes on with what it holds
            raise


def move_ahead(run: RunState, branch: Branch, parts: Sequence[PositionedSpan]) -> BudgetDelta:
    """What reserving the parts changes."""
    step, open_pass = branch.next_step, branch.open_pass
    more = [part.span() for part in parts]
    move = compute_held_change(holds(branch, step, open_pass), holds(branch, step, open_pass, more))
    return with_shifts(move, run.shifts)


def insert_reservation(
    work: UnitOfWork,
    state: DatasetState,
    run: RunState,
    branch: Branch,
    parts: Sequence[PositionedSpan],
    *,
    name: str,
    request: str,
    expires_at: datetime,
    moment: datetime,
    by: str | None,
) -> list[Act]:
    """Hold steps ahead, all of them at once: from here on nothing is refused. The acts of it."""
    move = move_ahead(run, branch, parts)
    ids = work.event_ids(state, [part.event for part in parts])
    common = {
        "dataset_id": state.id, "run_id": run.id, "branch_id": branch.id, "state": OPEN,
        "expires_at": expires_at, "by": by, "created_at": moment,
    }  # fmt: skip
    names = _names(name, len(parts))
    values = [
        {
            **common,
            "name": named,
            "event_id": ids[part.event],
            "first_step": part.first_step,
            "steps": part.steps,
            "end_step": part.end,
            "request": "{}" if part.index else request,
        }
        for named, part in zip(names, parts, strict=True)
    ]
    inserted = insert(reservations).returning(reservations.c.name, reservations.c.id)
    rows = {row.name: int(row.id) for row in work.connection.execute(inserted, values)}
    for named, part in zip(names, parts, strict=True):
        branch.reservations.append(
            Reservation(
                id=rows[named],
                name=named,
                event=part.event,
                first_step=part.first_step,
                granted_end=part.end,
                end_step=part.end,
                state=OPEN,
                expires_at=expires_at,
            )
        )
    state.take(run, move, {})
    if run.scope is not None:
        state.notes.runs[run.id] = run
    return build_reservation_records(
        work.connection, "reservation", dataset_id=state.id, rows=list(rows.values()), by=by
    )
