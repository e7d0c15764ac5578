"""How reservations end, with all their events: by a trainer's attestation, or by an admin."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, bindparam

from service.errors import ConflictError
from service.ledger.append.admission import compute_held_change, holds
from service.ledger.append.unit_of_work import BranchPlace, UnitOfWork
from service.ledger.budgets.correction_costs import with_shifts
from service.ledger.log.row_records import build_reservation_records
from service.ledger.reservations import (
    RELEASED,
    VOIDED,
    find_reservation,
    remaining_steps_of,
    reservation_answer,
)
from service.storage.tables import reservations

_ENDED: Final = (
    reservations.update()
    .where(reservations.c.id == bindparam("row"))
    .values(end_step=bindparam("until"), state=bindparam("ended"), reason=bindparam("why"))
)


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
        rows = find_reservation(work.connection, self.name)
        ends = {row.id: self._end(row) for row in rows}
        if self._is_done(rows, ends):
            return reservation_answer(rows, moment)
        if any(row.state == VOIDED for row in rows):
            raise ConflictError("The reservation was already voided.")
        if self.last_step is not None:
            self._require_possible(rows, ends, self.last_step + 1)
        give_back(
            work,
            rows[0].run,
            rows[0].branch,
            {row.id: min(ends[row.id], row.end_step) for row in rows},
            state=VOIDED if self.last_step is None else RELEASED,
            reason=self.reason,
            by=self.by,
        )
        return reservation_answer(find_reservation(work.connection, self.name), moment)

    def _end(self, row: Row[Any]) -> int:
        """The first step that a row holds no longer."""
        if self.last_step is None:
            return int(max(row.first_step, row.next_step))
        return int(max(row.first_step, min(self.last_step + 1, row.first_step + row.steps)))

    def _is_done(self, rows: list[Row[Any]], ends: Mapping[int, int]) -> bool:
        if self.last_step is not None:
            return all(row.state == RELEASED and row.end_step == ends[row.id] for row in rows)
        # A void of all of a dataset leaves the events that were recorded as they are.
        left = [row for row in rows if row.state != VOIDED]
        return len(left) < len(rows) and not any(map(remaining_steps_of, left))

    @staticmethod
    def _require_possible(rows: list[Row[Any]], ends: Mapping[int, int], end: int) -> None:
        """Refuse to return steps that ran, or to take back what was returned."""
        if any(end < min(row.next_step, row.first_step + row.steps) for row in rows):
            raise ConflictError("Steps beyond last_step were recorded.")
        if any(ends[row.id] > row.end_step and row.state == RELEASED for row in rows):
            raise ConflictError("The reservation was already released to an earlier step.")


def give_back(
    work: UnitOfWork,
    run_name: str,
    branch_name: str,
    ends: Mapping[int, int],
    *,
    state: str,
    reason: str | None = None,
    by: str | None = None,
) -> None:
    """Hold no step of rows from their ends on, by row: from here on nothing is refused."""
    dataset, run = work.run(run_name)
    branch = work.branch(run, branch_name)
    before = holds(branch, branch.next_step, branch.open_pass)
    for reservation in branch.reservations:
        if reservation.id in ends:
            reservation.end_step, reservation.state = ends[reservation.id], state
    after = holds(branch, branch.next_step, branch.open_pass)
    dataset.take(run, with_shifts(compute_held_change(before, after), run.shifts), {})
    if run.scope is not None:
        dataset.notes.runs[run.id] = run
    changed = [
        {"row": row, "until": end, "ended": state, "why": reason} for row, end in ends.items()
    ]
    work.connection.execute(_ENDED, changed)
    dataset.note(
        build_reservation_records(
            work.connection, "reservation_end", dataset_id=dataset.id, rows=list(ends), by=by
        )
    )
    work.write()
