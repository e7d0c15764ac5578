"""What acts say of rows: each row but an entry's has an act in its dataset's log that equals it.

A statement a kind, whose columns are the content of the act; the first two say where it belongs.
What a row says of a row of another table, it says by name.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Column, Connection, Select, bindparam, select

from service.ledger.incidents import Incident, Kind
from service.ledger.log.leaves import Act, exact
from service.storage.tables import (
    branches,
    change_decisions,
    change_requests,
    corrections,
    datasets,
    distinct_events,
    findings,
    incident_notes,
    incidents,
    lineage,
    releases,
    reservations,
    runs,
    settings_changes,
)

APPENDS: Final = "appends"  # the act of a key that begins to append to a branch
_OVERDRAFT: Final = "overdraft"  # the act of the incident of that kind
_ancestors = datasets.alias()
_origins = branches.alias()
_JSON: Final = frozenset(
    {
        "accept", "assumptions", "budget_filter", "change", "content", "detail", "event", "labels",
        "plan", "request",
    }
)  # fmt: skip
_LATER: Final = frozenset({"requested_by"})  # columns whose acts are as before where they are null
# Each run has a branch main: a row that names another run's branch would look the same by name.
_BRANCH: Final = branches.c.run_id == runs.c.id
_OF_BRANCH: Final = (runs.c.name.label("run"), branches.c.name.label("branch"))

# Rows that never change once they are there.
FACTS: Final[Mapping[str, Select[Any]]] = {
    "dataset": select(
        datasets.c.id.label("of_dataset"),
        datasets.c.id.label("row"),
        datasets.c.name,
        datasets.c.dataset_size,
        datasets.c.neighboring_relation,
        datasets.c.privacy_unit,
        datasets.c.rows_per_parent_record,
        datasets.c.request,
        datasets.c.created_at,
    ),
    "lineage": select(
        lineage.c.dataset_id.label("of_dataset"),
        lineage.c.ancestor_id.label("row"),
        _ancestors.c.name.label("ancestor"),
        lineage.c.parent,
        lineage.c.exactly_one,
        lineage.c.most_rows,
    ).join(_ancestors, _ancestors.c.id == lineage.c.ancestor_id),
    # With the filter as it was then; the latest is the dataset's own.
    "settings": select(
        settings_changes.c.dataset_id.label("of_dataset"),
        settings_changes.c.revision.label("row"),
        settings_changes.c.revision,
        settings_changes.c.budget_epsilon,
        settings_changes.c.budget_delta,
        settings_changes.c.budget_revision,
        settings_changes.c.accept,
        settings_changes.c.frozen,
        settings_changes.c.reason,
        settings_changes.c.changed_by,
        settings_changes.c.sequence,
        settings_changes.c.changed_at,
        settings_changes.c.requested_by,
        datasets.c.budget_filter,
    ).join(datasets, datasets.c.id == settings_changes.c.dataset_id),
    "run": select(
        runs.c.dataset_id.label("of_dataset"),
        runs.c.id.label("row"),
        runs.c.name,
        runs.c.writer,
        runs.c.delta,
        runs.c.release,
        runs.c.assumptions,
        runs.c.plan,
        runs.c.labels,
        runs.c.budget_epsilon,
        runs.c.budget_delta,
        runs.c.budget_filter,
        runs.c.request,
        runs.c.by,
        runs.c.created_at,
    ),
    "branch": select(
        runs.c.dataset_id.label("of_dataset"),
        branches.c.id.label("row"),
        *_OF_BRANCH,
        branches.c.writer,
        _origins.c.name.label("from_branch"),
        branches.c.from_step,
        branches.c.by,
        branches.c.order,
        branches.c.noise,
        branches.c.takes_pass,
        branches.c.created_at,
    )
    .join(runs, runs.c.id == branches.c.run_id)
    .outerjoin(
        _origins,
        (_origins.c.id == branches.c.from_branch_id) & (_origins.c.run_id == branches.c.run_id),
    ),
    "correction": select(
        corrections.c.dataset_id.label("of_dataset"),
        corrections.c.id.label("row"),
        *_OF_BRANCH,
        corrections.c.first_step,
        corrections.c.steps,
        distinct_events.c.content.label("event"),
        corrections.c.reason,
        corrections.c.corrected_by,
        corrections.c.sequence,
        corrections.c.recorded_at,
    )
    .join(runs, runs.c.id == corrections.c.run_id)
    .join(branches, _BRANCH & (branches.c.id == corrections.c.branch_id))
    .join(distinct_events, distinct_events.c.id == corrections.c.event_id),
    "release": select(
        runs.c.dataset_id.label("of_dataset"),
        releases.c.id.label("row"),
        *_OF_BRANCH,
        releases.c.step,
        releases.c.recorded_at,
    )
    .join(runs, runs.c.id == releases.c.run_id)
    .join(branches, _BRANCH & (branches.c.id == releases.c.branch_id)),
    "finding": select(
        runs.c.dataset_id.label("of_dataset"),
        findings.c.id.label("row"),
        *_OF_BRANCH,
        findings.c.kind.label("of_kind"),
        findings.c.claim,
        findings.c.content,
        findings.c.digest,
        findings.c.recorded_at,
    )
    .join(runs, runs.c.id == findings.c.run_id)
    .join(branches, _BRANCH & (branches.c.id == findings.c.branch_id)),
    "reservation": select(
        reservations.c.dataset_id.label("of_dataset"),
        reservations.c.id.label("row"),
        reservations.c.name,
        *_OF_BRANCH,
        distinct_events.c.content.label("event"),
        reservations.c.first_step,
        reservations.c.steps,
        reservations.c.expires_at,
        reservations.c.request,
        reservations.c.by,
        reservations.c.created_at,
    )
    .join(runs, runs.c.id == reservations.c.run_id)
    .join(branches, _BRANCH & (branches.c.id == reservations.c.branch_id))
    .join(distinct_events, distinct_events.c.id == reservations.c.event_id),
    "change_request": select(
        change_requests.c.dataset_id.label("of_dataset"),
        change_requests.c.id.label("row"),
        change_requests.c.name,
        change_requests.c.kind.label("of_kind"),
        change_requests.c.target,
        change_requests.c.change,
        change_requests.c.revision,
        change_requests.c.reason,
        change_requests.c.by,
        change_requests.c.person,
        change_requests.c.requested_at,
        change_requests.c.expires_at,
    ),
    # With the two persons, so that the log alone tells who agreed to what.
    "change_decision": select(
        change_requests.c.dataset_id.label("of_dataset"),
        change_requests.c.id.label("row"),
        change_requests.c.name,
        change_requests.c.kind.label("of_kind"),
        change_decisions.c.decision,
        change_decisions.c.reason,
        change_decisions.c.by,
        change_decisions.c.person,
        change_requests.c.by.label("requested_by"),
        change_requests.c.person.label("requested_by_person"),
        change_decisions.c.decided_at,
    ).join(change_requests, change_requests.c.id == change_decisions.c.request_id),
    # Of a run of any dataset that was made from this one; of no run where the limit was lowered.
    _OVERDRAFT: select(
        incidents.c.dataset_id.label("of_dataset"),
        incidents.c.id.label("row"),
        runs.c.name.label("run"),
        incidents.c.sequence,
        incidents.c.detail,
        incidents.c.occurred_at,
    )
    .outerjoin(runs, runs.c.id == incidents.c.run_id)
    .where(incidents.c.kind == Kind.OVERDRAFT.value),
    # With what the incident says of itself, so that the note is of no other.
    "incident_note": select(
        incident_notes.c.dataset_id.label("of_dataset"),
        incident_notes.c.id.label("row"),
        incident_notes.c.incident_id.label("incident"),
        runs.c.name.label("run"),
        incidents.c.kind.label("of_kind"),
        incidents.c.sequence,
        incidents.c.detail,
        incidents.c.occurred_at,
        incident_notes.c.action,
        incident_notes.c.text,
        incident_notes.c.assignee,
        incident_notes.c.by,
        incident_notes.c.noted_at,
    )
    .join(incidents, incidents.c.id == incident_notes.c.incident_id)
    .outerjoin(runs, runs.c.id == incidents.c.run_id),
}

# What of a row may change: each change is an act, and the latest equals the row.
STATE_CODES: Final[Mapping[str, Select[Any]]] = {
    "run_state": select(
        runs.c.dataset_id.label("of_dataset"),
        runs.c.id.label("row"),
        runs.c.name.label("run"),
        runs.c.state,
        runs.c.reopened,
    ),
    # Whose key a branch's entries are recorded with, from the entry behind the act on.
    APPENDS: select(
        runs.c.dataset_id.label("of_dataset"),
        branches.c.id.label("row"),
        *_OF_BRANCH,
        branches.c.appended_by.label("key"),
    ).join(runs, runs.c.id == branches.c.run_id),
    "reservation_end": select(
        reservations.c.dataset_id.label("of_dataset"),
        reservations.c.id.label("row"),
        reservations.c.name,
        *_OF_BRANCH,
        reservations.c.first_step,
        reservations.c.end_step,
        reservations.c.state,
        reservations.c.reason,
    )
    .join(runs, runs.c.id == reservations.c.run_id)
    .join(branches, _BRANCH & (branches.c.id == reservations.c.branch_id)),
}
_KEYS: Final = {
    "dataset": datasets.c.id,
    "lineage": lineage.c.ancestor_id,
    "settings": settings_changes.c.revision,
    "run": runs.c.id,
    "branch": branches.c.id,
    "correction": corrections.c.id,
    "release": releases.c.id,
    "finding": findings.c.id,
    "reservation": reservations.c.id,
    "change_request": change_requests.c.id,
    "change_decision": change_requests.c.id,
    _OVERDRAFT: incidents.c.id,
    "incident_note": incident_notes.c.id,
    "run_state": runs.c.id,
    APPENDS: branches.c.id,
    "reservation_end": reservations.c.id,
}
_DATASETS: Final = {
    "dataset": datasets.c.id,
    "lineage": lineage.c.dataset_id,
    "settings": settings_changes.c.dataset_id,
    "correction": corrections.c.dataset_id,
    "reservation": reservations.c.dataset_id,
    "reservation_end": reservations.c.dataset_id,
    "change_request": change_requests.c.dataset_id,
    "change_decision": change_requests.c.dataset_id,
    _OVERDRAFT: incidents.c.dataset_id,
    "incident_note": incident_notes.c.dataset_id,
}


def statement(kind: str) -> Select[Any]:
    """All rows of a kind, a dataset after the other, in the order in which they came."""
    query = FACTS[kind] if kind in FACTS else STATE_CODES[kind]
    return query.order_by(_DATASETS.get(kind, runs.c.dataset_id), _KEYS[kind])


@lru_cache
def _of_one(kind: str, column: Column[Any]) -> Select[Any]:
    """Statements are built once: building one costs more than running it."""
    owner = _DATASETS.get(kind, runs.c.dataset_id)
    return statement(kind).where(owner == bindparam("dataset"), column == bindparam("wanted"))


def build_reservation_records(
    connection: Connection, kind: str, *, dataset_id: int, rows: Sequence[int], by: str | None
) -> list[Act]:
    """The acts of some rows of reservations, or of their ends, in the order of the rows."""
    asked = {"dataset": dataset_id, "rows": list(rows)}
    found = connection.execute(_of_reservations(kind), asked)
    return [Act(kind, content_of_row(one._mapping), by) for one in found]


@lru_cache
def _of_reservations(kind: str) -> Select[Any]:
    return statement(kind).where(
        reservations.c.dataset_id == bindparam("dataset"),
        reservations.c.id.in_(bindparam("rows", expanding=True)),
    )


def content_of_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The content of the act of a row that `statement` found.

    Raises:
        ValueError: a column that holds JSON does not.
    """
    return {
        name: _to_record_value(name, value)
        for name, value in row.items()
        if name not in ("of_dataset", "row") and not (name in _LATER and value is None)
    }


def _to_record_value(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return exact(value)
    if name == "writer":  # it gives the right to write to the branch
        return hashlib.sha256(str(value).encode()).hexdigest()
    if name in _JSON and value is not None:
        return json.loads(value)
    return value


def build_log_records(
    connection: Connection,
    kind: str,
    *,
    dataset_id: int,
    row: int | None = None,
    run_id: int | None = None,
    by: str | None = None,
) -> list[Act]:
    """The acts of the rows of a kind in a dataset: of all, of one, or of those of a run."""
    owner = _DATASETS.get(kind, runs.c.dataset_id)
    column, wanted = (_KEYS[kind], row) if run_id is None else (runs.c.id, run_id)
    if wanted is None:
        column, wanted = owner, dataset_id
    found = connection.execute(_of_one(kind, column), {"dataset": dataset_id, "wanted": wanted})
    return [Act(kind, content_of_row(one._mapping), by) for one in found]


def overdraft_act(incident: Incident, *, run: str | None, by: str | None = None) -> Act:
    """The act of an overdraft's incident, whose row is written in the same transaction."""
    content = {
        "run": run,
        "sequence": incident.sequence,
        "detail": incident.said,
        "occurred_at": exact(incident.occurred_at),
    }
    return Act(_OVERDRAFT, content, by)
