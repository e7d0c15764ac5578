"""The incidents of all datasets with what was done about each: the open ones, or all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, func, not_, select

from service.clock import stamp
from service.identity.access import datasets_within
from service.ledger.change_requests.incident import EXPIRED_REQUEST
from service.ledger.incidents import INCIDENT_ROWS, IncidentAnswer, Kind, incident_answer
from service.ledger.lookups import find_dataset
from service.ledger.views import budget_of_dataset
from service.operations.incident_notes import Action
from service.schemas.responses import Answer
from service.storage.tables import change_requests, datasets, incident_notes, incidents

_OF: Final = "dataset"  # before the name, in the scope of a limit
IncidentState = Literal["open", "acknowledged"]
_STATES: Final[dict[str, IncidentState]] = {
    Action.ACKNOWLEDGE: "acknowledged",
    Action.REOPEN: "open",
}
_done = incident_notes.alias()
_reopened = incident_notes.alias()
_assigned = incident_notes.alias()
_ASSIGNEE: Final = (
    select(_assigned.c.assignee)
    .where(
        _assigned.c.incident_id == incidents.c.id,
        _assigned.c.action == Action.ASSIGN.value,
    )
    .order_by(_assigned.c.id.desc())
    .limit(1)
    .correlate(incidents)
    .scalar_subquery()
)
# An acknowledgement stands, if no later note reopens.
_ACKNOWLEDGED: Final = (
    select(_done.c.id)
    .where(
        _done.c.incident_id == incidents.c.id,
        _done.c.action == Action.ACKNOWLEDGE.value,
        not_(
            select(_reopened.c.id)
            .where(
                _reopened.c.incident_id == _done.c.incident_id,
                _reopened.c.action == Action.REOPEN.value,
                _reopened.c.id > _done.c.id,
            )
            .correlate(_done)
            .exists()
        ),
    )
    .correlate(incidents)
    .exists()
)
# The same of the expiry of the incident's change request, which no note tells.
_EXPIRED: Final = EXPIRED_REQUEST.where(
    not_(
        select(_reopened.c.id)
        .where(
            _reopened.c.incident_id == incidents.c.id,
            _reopened.c.action == Action.REOPEN.value,
            _reopened.c.noted_at > change_requests.c.expires_at,
        )
        .correlate(incidents, change_requests)
        .exists()
    )
).exists()
IS_OPEN: Final[ColumnElement[bool]] = and_(not_(_ACKNOWLEDGED), not_(_EXPIRED))
_EXPIRED_OF: Final = select(incidents.c.id).where(
    incidents.c.id.in_(bindparam("ids", expanding=True)), _EXPIRED
)
_NOTES: Final = (
    select(incident_notes)
    .where(incident_notes.c.incident_id.in_(bindparam("ids", expanding=True)))
    .order_by(incident_notes.c.id)
)


class IncidentNote(Answer):
    """A thing that was done about an incident."""

    action: Annotated[Action, WithJsonSchema({"type": "string", "enum": list(Action)})]
    text: str  # empty where nothing was said
    assignee: str | None  # of an assignment; none for no key
    by: str
    noted_at: str


class HandledIncident(IncidentAnswer):
    """An incident with what was done about it."""

    state: IncidentState
    assignee: str | None  # the key that the latest assignment names
    notes: list[IncidentNote]  # the oldest first

    @property
    def expired(self) -> bool:
        """Whether no key acknowledged it: the change request that it tells of has expired."""
        told = [one.action for one in self.notes if one.action in _STATES]
        return self.state == "acknowledged" and told[-1:] != [Action.ACKNOWLEDGE]


class IncidentInbox(Answer):
    """A page of the incidents of all datasets, the newest first."""

    incidents: Annotated[list[HandledIncident], Field(description="The incidents, newest first.")]
    next_page_token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    """Which incidents are asked for; what is none asks for all."""

    state: IncidentState | None = None
    kind: Kind | None = None
    dataset: str | None = None
    assignee: str | None = None
    number: int | None = None  # of its row

    def of(self, limit: frozenset[str] | None) -> Select[Any]:
        """The rows among those that a key reaches."""
        query = INCIDENT_ROWS.where(datasets_within(limit))
        if self.state is not None:
            query = query.where(IS_OPEN if self.state == "open" else not_(IS_OPEN))
        if self.kind is not None:
            query = query.where(incidents.c.kind == self.kind.value)
        if self.dataset is not None:
            query = query.where(datasets.c.name == self.dataset)
        if self.assignee is not None:
            query = query.where(_ASSIGNEE.in_([self.assignee]))
        if self.number is not None:
            query = query.where(incidents.c.id == self.number)
        return query


def list_inbox(
    connection: Connection,
    limit: frozenset[str] | None,
    wanted: IncidentFilter,
    *,
    after: int,
    size: int,
) -> tuple[list[HandledIncident], int | None]:
    """Incidents before a row, the newest first, and the row to continue from.

    Args:
        connection: for reading.
        limit: the datasets that the key reaches; none for all.
        wanted: which of their incidents.
        after: 0, or what an earlier call answered.
        size: how many at most.
    """
    query = wanted.of(limit).order_by(incidents.c.id.desc()).limit(size + 1)
    if after:
        query = query.where(incidents.c.id < after)
    rows = connection.execute(query).all()
    further = rows[size - 1].id if len(rows) > size else None
    return read_handled(connection, rows[:size]), further


def read_handled(connection: Connection, rows: Sequence[Row[Any]]) -> list[HandledIncident]:
    """Some rows of INCIDENT_ROWS, each with what was done about it."""
    told: dict[int, list[Row[Any]]] = {row.id: [] for row in rows}
    expired: set[int] = set()
    if rows:
        for note in connection.execute(_NOTES, {"ids": list(told)}):
            told[note.incident_id].append(note)
        expired.update(connection.scalars(_EXPIRED_OF, {"ids": list(told)}))
    return [_with_notes(row, told[row.id], expired=row.id in expired) for row in rows]


def _with_notes(row: Row[Any], notes: Sequence[Row[Any]], *, expired: bool) -> HandledIncident:
    state: IncidentState = "open"
    assignee: str | None = None
    for note in notes:
        if note.action == Action.ASSIGN:
            assignee = note.assignee
        elif note.action in _STATES:
            state = _STATES[note.action]
    if expired:
        state = "acknowledged"
    return HandledIncident(
        **dict(incident_answer(row)), state=state, assignee=assignee, notes=[*map(_note, notes)]
    )


def _note(row: Row[Any]) -> IncidentNote:
    return IncidentNote(
        action=row.action,
        text=row.text,
        assignee=row.assignee,
        by=row.by,
        noted_at=stamp(row.noted_at),
    )


def endless_limits(connection: Connection, told: Iterable[IncidentAnswer]) -> frozenset[str]:
    """The datasets among those of overdrafts whose charge has no finite bound now."""
    scopes = {str(one.detail.get("scope")) for one in told if one.kind == Kind.OVERDRAFT}
    of_datasets = {name for kind, _, name in (one.partition(":") for one in scopes) if kind == _OF}
    budgets = {
        name: budget_of_dataset(connection, find_dataset(connection, name)) for name in of_datasets
    }
    return frozenset(name for name, found in budgets.items() if found and found.spent is None)


def count_open(connection: Connection, limit: frozenset[str] | None) -> Mapping[str, int]:
    """How many incidents are open, by kind."""
    query = (
        select(incidents.c.kind, func.count().label("number"))
        .join(datasets, datasets.c.id == incidents.c.dataset_id)
        .where(datasets_within(limit), IS_OPEN)
        .group_by(incidents.c.kind)
    )
    return {row.kind: row.number for row in connection.execute(query)}
