"""Reservations: steps admitted ahead, one row each, counted as held until they are recorded.

An open reservation is pending; recorded, once the branch has passed its last step; or forfeited,
once it has expired: then it counts as spent until its steps are recorded, released or voided. Time
never returns anything.
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
    held_since,
    holds,
    require_bounds,
    require_budget,
    require_unfrozen,
    scopes_of,
)
from service.ledger.append.state import Branch, DatasetState, Reservation, RunState
from service.ledger.append.unit_of_work import BranchPlace, UnitOfWork
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.log.row_records import build_log_records
from service.schemas.event_codec import canonical
from service.schemas.requests import NewReservation, to_event
from service.schemas.responses import Answer
from service.schemas.run_states import CLOSED
from service.storage.tables import branches, datasets, distinct_events, reservations, runs

LEASES_MAX: Final = 256  # of a branch, beyond its next step; each append looks at all of them
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


class ReservationAnswer(Answer):
    """A reservation as it stands; counts are steps."""

    name: str | None  # null where a run's plan reserves itself
    run: str
    branch: str
    event: dict[str, Any]  # mechanism and sampling
    first_step: int
    steps: int  # that were admitted
    recorded: int
    remaining: int  # still held
    state: Literal["pending", "recorded", "forfeited", "released", "voided"]
    expires_at: str | None  # null where it never does
    reason: str | None  # of an admin who voided it
    by: str | None  # the key that reserved
    created_at: str


def reservation_answer(row: Row[Any], moment: datetime) -> dict[str, Any]:
    """The answer to a row of _NAMED."""
    remaining = max(0, row.end_step - max(row.first_step, row.next_step))
    recorded = max(0, min(row.next_step, row.first_step + row.steps) - row.first_step)
    state = row.state
    if state == OPEN:
        state = "pending" if remaining else "recorded"
    expires_at = utc(row.expires_at)
    if remaining and row.state != VOIDED and expires_at is not None and expires_at <= moment:
        state = "forfeited"
    return {
        "name": row.name,
        "run": row.run,
        "branch": row.branch,
        "event": json.loads(row.content),
        "first_step": row.first_step,
        "steps": row.steps,
        "recorded": recorded,
        "remaining": remaining,
        "state": state,
        "expires_at": None if row.expires_at is None else stamp(row.expires_at),
        "reason": row.reason,
        "by": row.by,
        "created_at": stamp(row.created_at),
    }


def find_reservation(connection: Connection, name: str) -> Row[Any]:
    """A reservation's row with its place.

    Raises:
        NotFoundError: there is none of that name.
    """
    row = connection.execute(_NAMED, {"named": name}).one_or_none()
    if row is None:
        raise NotFoundError("There is no such reservation.")
    return row


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
        request = canonical({"run": self.run_name, **new.model_dump(mode="json")})
        known = work.connection.execute(_NAMED, {"named": new.name}).one_or_none()
        if known is not None:
            if known.request != request:
                raise ConflictError("Another request made a reservation with this name.")
            work.write()  # what this transaction has recorded of it counts, too
            return {
                **reservation_answer(find_reservation(work.connection, new.name), moment),
                "created": False,
            }
        state, run = work.run(self.run_name)
        branch = work.branch(run, new.branch)
        part = self._part(state, branch)
        self._admit(work, state, run, branch, part)
        insert_lease(
            work,
            state,
            run,
            branch,
            part,
            name=new.name,
            request=request,
            expires_at=moment + timedelta(seconds=new.ttl_seconds),
            moment=moment,
            by=self.by,
        )
        return {
            **reservation_answer(find_reservation(work.connection, new.name), moment),
            "created": True,
        }

    def _part(self, state: DatasetState, branch: Branch) -> PositionedSpan:
        if sum(lease.name is not None for lease in branch.leases) >= LEASES_MAX:
            raise ConflictError(
                f"The branch has {LEASES_MAX} open reservations; record or release some first."
            )
        asked = self.new.event
        event = to_event(asked, dataset_size=state.dataset_size, location="event")
        first = branch.reserved_to
        if asked.first_step not in (None, first):
            raise OutOfSequenceError(first)
        return PositionedSpan(first_step=first, event=event, steps=asked.steps, index=0)

    def _admit(
        self,
        work: UnitOfWork,
        state: DatasetState,
        run: RunState,
        branch: Branch,
        part: PositionedSpan,
    ) -> None:
        if run.state in CLOSED:
            raise RunFinishedError("The run was closed; it accepts no more steps.")
        if run.on_plan:  # what the plan holds and what a filter does must not be mixed
            raise ConflictError("The run follows its plan, which is reserved as a whole.")
        require_unfrozen(state)
        scopes = scopes_of(state, run)
        move = move_ahead(branch, [part])
        state.require_prices(run, move)
        require_bounds([part], state, scopes)
        try:
            require_budget(scopes, [part], move, lambda parts: move_ahead(branch, parts))
        except BudgetExhaustedError as refusal:
            work.refused(state, run, refusal)
            raise


def move_ahead(branch: Branch, parts: Sequence[PositionedSpan]) -> BudgetDelta:
    """What reserving the parts changes."""
    step, open_pass = branch.next_step, branch.open_pass
    more = [part.span() for part in parts]
    return held_since(holds(branch, step, open_pass), holds(branch, step, open_pass, more))


def insert_lease(
    work: UnitOfWork,
    state: DatasetState,
    run: RunState,
    branch: Branch,
    part: PositionedSpan,
    *,
    name: str | None,
    request: str,
    expires_at: datetime | None,
    moment: datetime,
    by: str | None,
) -> None:
    """Hold steps ahead: from here on nothing is refused."""
    move = move_ahead(branch, [part])
    ids = work.event_ids(state, [part.event])
    values = {
        "name": name,
        "dataset_id": state.id,
        "run_id": run.id,
        "branch_id": branch.id,
        "event_id": ids[part.event],
        "first_step": part.first_step,
        "steps": part.steps,
        "end_step": part.end,
        "state": OPEN,
        "expires_at": expires_at,
        "request": request,
        "by": by,
        "created_at": moment,
    }
    inserted = insert(reservations).values(values).returning(reservations.c.id)
    number = work.connection.execute(inserted).scalar_one()
    state.note(
        build_log_records(work.connection, "reservation", dataset_id=state.id, row=number, by=by)
    )
    branch.leases.append(
        Reservation(
            id=number,
            name=name,
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
    work.write()


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """What one request returns of a reservation: what a trainer attests, or an admin decides."""

    name: str
    place: BranchPlace
    last_step: int | None = None  # no later step ran; none for a void
    reason: str | None = None  # of a void
    by: str | None = None  # the key's name
    admits: bool = False

    def apply(self, work: UnitOfWork, moment: datetime) -> dict[str, Any]:
        """Return the rest; a ReservationAnswer. The same request again changes nothing.

        Raises:
            NotFoundError: there is no such reservation.
            ConflictError: steps beyond `last_step` were recorded, or it was ended otherwise.
        """
        work.write()
        row = find_reservation(work.connection, self.name)
        if self.last_step is None:
            state, end = VOIDED, max(row.first_step, row.next_step)
        else:
            state, end = RELEASED, self.last_step + 1
        if row.state == state and (state == VOIDED or row.end_step == self._end(row, end)):
            return reservation_answer(row, moment)
        if row.state == VOIDED:
            raise ConflictError("The reservation was already voided.")
        if state == RELEASED:
            if end < min(row.next_step, row.first_step + row.steps):
                raise ConflictError("Steps beyond last_step were recorded.")
            if end > row.end_step and row.state == RELEASED:
                raise ConflictError("The reservation was already released to an earlier step.")
            end = self._end(row, end)
        give_back(
            work, row.run, row.branch, row.id, end=min(end, row.end_step), state=state,
            reason=self.reason, by=self.by,
        )  # fmt: skip
        return reservation_answer(find_reservation(work.connection, self.name), moment)

    @staticmethod
    def _end(row: Row[Any], end: int) -> int:
        return int(max(row.first_step, min(end, row.first_step + row.steps)))


def give_back(
    work: UnitOfWork,
    run_name: str,
    branch_name: str,
    reservation: int,
    *,
    end: int,
    state: str = RELEASED,
    reason: str | None = None,
    by: str | None = None,
) -> None:
    """Hold no step of a reservation from `end` on: from here on nothing is refused."""
    dataset, run = work.run(run_name)
    branch = work.branch(run, branch_name)
    before = holds(branch, branch.next_step, branch.open_pass)
    for lease in branch.leases:
        if lease.id == reservation:
            lease.end_step, lease.state = end, state
    after = holds(branch, branch.next_step, branch.open_pass)
    dataset.take(run, held_since(before, after), {})
    if run.scope is not None:
        dataset.notes.runs[run.id] = run
    work.connection.execute(
        reservations.update()
        .where(reservations.c.id == reservation)
        .values(end_step=end, state=state, reason=reason)
    )
    ended = build_log_records(
        work.connection, "reservation_end", dataset_id=dataset.id, row=reservation, by=by
    )
    dataset.note(ended)
    work.write()
