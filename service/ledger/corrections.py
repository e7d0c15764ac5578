"""Corrections: what recorded steps really were, on an admin's word. The record itself stays."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, bindparam, func, insert, select

from accounting.events import Event
from service.clock import stamp
from service.errors import ConflictError, InvalidRequestError, OutOfSequenceError
from service.ledger.append.append import RECORDED_SPAN
from service.ledger.append.shifted_passes import compute_shifts, compute_shifts_since
from service.ledger.append.state import Branch, DatasetState, RunState, raise_budget_alerts
from service.ledger.append.unit_of_work import BranchPlace, UnitOfWork
from service.ledger.budgets import correction_costs
from service.ledger.budgets.lineage import view_event
from service.ledger.incidents import Incident, Kind
from service.ledger.log.row_records import build_log_records
from service.schemas.event_codec import content_of, event_of, to_event
from service.schemas.ledger_document import CORRECTABLE, is_correctable
from service.schemas.requests import NewCorrection
from service.schemas.responses import Answer, Page
from service.storage.tables import branches, corrections, distinct_events, entries, runs

_FOUND: Final = (
    select(
        corrections,
        runs.c.name.label("run"),
        branches.c.name.label("branch"),
        distinct_events.c.content,
    )
    .join(runs, runs.c.id == corrections.c.run_id)
    .join(branches, branches.c.id == corrections.c.branch_id)
    .join(distinct_events, distinct_events.c.id == corrections.c.event_id)
)
_ONE: Final = _FOUND.where(corrections.c.id == bindparam("correction"))
_OVERLAPPING: Final = _FOUND.where(
    corrections.c.branch_id == bindparam("branch"),
    corrections.c.first_step < bindparam("end"),
    corrections.c.first_step + corrections.c.steps > bindparam("first_step"),
)
_OF_RUN: Final = (
    _FOUND.where(corrections.c.run_id == bindparam("run"), corrections.c.id > bindparam("after"))
    .order_by(corrections.c.id)
    .limit(bindparam("size"))
)


_LATEST: Final = (
    select(entries.c.event_id, distinct_events.c.content)
    .join(distinct_events, distinct_events.c.id == entries.c.event_id)
    .where(entries.c.branch_id == bindparam("branch"), entries.c.first_step < bindparam("end"))
    .order_by(entries.c.first_step.desc())
    .limit(1)
)
_END_OF_OTHERS: Final = select(func.max(entries.c.first_step + entries.c.steps)).where(
    entries.c.branch_id == bindparam("branch"),
    entries.c.event_id != bindparam("event"),
    entries.c.first_step < bindparam("end"),
)
_OF_BRANCH: Final = (
    select(corrections.c.first_step, corrections.c.steps)
    .where(corrections.c.branch_id == bindparam("branch"))
    .order_by(corrections.c.first_step.desc())
)


class RecordedSpan(NamedTuple):
    """Steps of a branch that were recorded as the same event."""

    first_step: int
    steps: int
    content: str  # of the event


class CorrectionAnswer(Answer):
    """What some recorded steps really were."""

    run: str
    branch: str
    first_step: int
    steps: int
    mechanism: dict[str, Any]
    sampling: dict[str, Any]
    reason: str
    corrected_by: str  # the key's name
    sequence: int  # the dataset's head at that time
    recorded_at: str


class CorrectionPage(Page):
    """A run's corrections, the oldest first."""

    corrections: list[CorrectionAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correct:
    """What one request corrects."""

    run_name: str
    new: NewCorrection
    by: str  # the key's name
    admits: bool = False

    @property
    def place(self) -> BranchPlace:
        """The run and the branch it is about."""
        return self.run_name, self.new.branch

    def apply(self, work: UnitOfWork, moment: datetime) -> dict[str, Any]:
        """Correct steps, or find that the same was done: a CorrectionAnswer, and whether new.

        Raises:
            NotFoundError: there is no such run or branch.
            InvalidRequestError: the event does not fit the dataset.
            OutOfSequenceError: some of the steps are not recorded.
            ConflictError: some of them were corrected before, otherwise.
        """
        state, run = work.run(self.run_name)
        branch = work.branch(run, self.new.branch)
        event = to_event(self.new, dataset_size=state.dataset_size, location="body")
        end = self.new.first_step + self.new.steps
        if not branch.from_step <= self.new.first_step < end <= branch.next_step:
            raise OutOfSequenceError(branch.next_step)
        span = {"branch": branch.id, "first_step": self.new.first_step, "end": end}
        if known := work.connection.execute(_OVERLAPPING, span).all():
            return {**self._same(known, event), "created": False}
        work.write()  # what this transaction has recorded is corrected, too
        self._require_counted(work, state, span, event)
        row = self._insert(work, state, run, branch, event, moment)
        _enforce(work, state, run, row)
        work.write()
        return {**_answer(row), "created": True}

    def _require_counted(
        self, work: UnitOfWork, state: DatasetState, span: dict[str, int], event: Event
    ) -> None:
        """Refuse what would move the rows of a pass of correlated noise."""
        rows = work.connection.execute(RECORDED_SPAN, span)
        if not all(
            is_correctable(event_of(row.content, state.dataset_size), event) for row in rows
        ):
            raise InvalidRequestError("body", f"A correction {CORRECTABLE}")

    def _same(self, known: Sequence[Row[Any]], event: Event) -> dict[str, Any]:
        """The answer to a correction that is there already."""
        first, new = known[0], self.new
        there = (first.first_step, first.steps, first.content, first.reason)
        if there != (new.first_step, new.steps, content_of(event), new.reason):
            spans = [(row.first_step, row.first_step + row.steps - 1) for row in known]
            first_step, last = min(spans)
            raise ConflictError(
                f"Steps {first_step:,} to {last:,} were already corrected; a step can be corrected "
                "once."
            )
        return _answer(first)

    def _insert(
        self,
        work: UnitOfWork,
        state: DatasetState,
        run: RunState,
        branch: Branch,
        event: Event,
        moment: datetime,
    ) -> Row[Any]:
        values = {
            "dataset_id": state.id,
            "run_id": run.id,
            "branch_id": branch.id,
            "first_step": self.new.first_step,
            "steps": self.new.steps,
            "event_id": work.event_ids(state, [event])[event],
            "reason": self.new.reason,
            "corrected_by": self.by,
            "sequence": state.head,
            "recorded_at": moment,
        }
        inserted = insert(corrections).values(values).returning(corrections.c.id)
        number = work.connection.execute(inserted).scalar_one()
        corrected = build_log_records(
            work.connection, "correction", dataset_id=state.id, row=number, by=self.by
        )
        state.note(corrected)
        return work.connection.execute(_ONE, {"correction": number}).one()


def _enforce(work: UnitOfWork, state: DatasetState, run: RunState, row: Row[Any]) -> None:
    """Count what the correction changes in every scope; from here on nothing is refused."""
    more = correction_costs.of_one(
        work.connection, row.id, dataset_id=state.id, dataset_size=state.dataset_size
    )
    correction_costs.add_correction_costs(state.accumulator, more)
    if run.scope is not None:
        correction_costs.add_correction_costs(run.scope.accumulator, more)
    for ancestor, rows in state.ancestors:
        view = partial(view_event, relation=state.relation, rows=rows)
        correction_costs.add_correction_costs(
            ancestor.accumulator, correction_costs.view_corrections(more, view)
        )
        ancestor.notes.touched = True
    size = state.dataset_size
    before = compute_shifts(work.connection, run.id, run.shifts, dataset_size=size)
    run.shifts = correction_costs.shifts_of_run(
        work.connection, run.id, dataset_id=state.id, dataset_size=size
    )
    after = compute_shifts(work.connection, run.id, run.shifts, dataset_size=size)
    state.take(run, compute_shifts_since(before, after), {})
    run.units = None  # what it spent is read from the sums, where the correction counts
    if run.on_plan:
        run.leave_plan()  # whatever the correction says, the plan is not what ran
    state.notes.runs[run.id] = run
    state.notes.touched = True
    state.notes.incidents.append(
        Incident(
            dataset_id=state.id,
            run_id=run.id,
            kind=Kind.CORRECTION,
            sequence=state.head,
            detail={
                "dataset": state.name,
                "run": run.name,
                "branch": row.branch,
                "first_step": row.first_step,
                "steps": row.steps,
                "reason": row.reason,
            },
        )
    )
    raise_budget_alerts(state, run)


def _answer(row: Row[Any]) -> dict[str, Any]:
    return {
        "run": row.run,
        "branch": row.branch,
        "first_step": row.first_step,
        "steps": row.steps,
        **json.loads(row.content),
        "reason": row.reason,
        "corrected_by": row.corrected_by,
        "sequence": row.sequence,
        "recorded_at": stamp(row.recorded_at),
    }


def list_corrections(
    connection: Connection, run_id: int, *, after: int, size: int
) -> tuple[list[CorrectionAnswer], int | None]:
    """A run's corrections after a row, and the row to continue from."""
    asked = {"run": run_id, "after": after, "size": size + 1}
    rows = connection.execute(_OF_RUN, asked).all()
    further = rows[size - 1].id if len(rows) > size else None
    return [CorrectionAnswer(**_answer(row)) for row in rows[:size]], further


def recorded_contents(
    connection: Connection, branch_id: int, *, first_step: int, steps: int
) -> list[str]:
    """The different events that some steps of a branch were recorded as."""
    span = {"branch": branch_id, "first_step": first_step, "end": first_step + steps}
    return list(connection.scalars(RECORDED_SPAN, span))


def latest_span(connection: Connection, branch: Row[Any]) -> RecordedSpan | None:
    """The last own steps of a branch that are of one event; None if it has no step."""
    return _span_between(connection, branch, branch.from_step, branch.next_step)


def latest_uncorrected_span(connection: Connection, branch: Row[Any]) -> RecordedSpan | None:
    """The last own steps of a branch that are of one event and not corrected; None without any."""
    low, end = branch.from_step, branch.next_step
    for one in connection.execute(_OF_BRANCH, {"branch": branch.id}):
        if one.first_step + one.steps < end:
            low = one.first_step + one.steps
            break
        end = one.first_step
    return _span_between(connection, branch, low, end)


def _span_between(
    connection: Connection, branch: Row[Any], low: int, end: int
) -> RecordedSpan | None:
    """The last steps of one event that a branch has from `low` on and before `end`."""
    asked = {"branch": branch.id, "end": end}
    last = connection.execute(_LATEST, asked).one_or_none() if low < end else None
    if last is None:
        return None
    others = connection.scalar(_END_OF_OTHERS, asked | {"event": last.event_id})
    first = max(low, others or 0)
    return RecordedSpan(first, end - first, last.content)
