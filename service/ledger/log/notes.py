"""The rows of incident notes: each is a fact, and an act of the dataset's log."""

from typing import Final

from sqlalchemy import Connection, insert

from service.clock import now
from service.ledger.log.leaves import append_leaves
from service.ledger.log.row_records import build_log_records
from service.storage.tables import incident_notes

NOTE_KIND: Final = "incident_note"  # of the act


def insert_note(
    connection: Connection,
    dataset_id: int,
    incident_id: int,
    *,
    action: str,
    text: str,
    assignee: str | None,
    by: str,
) -> None:
    """Store a note about an incident.

    Args:
        connection: in a transaction that holds the dataset's lock.
        dataset_id: of the incident.
        incident_id: its row.
        action: comment, assign, acknowledge or reopen.
        text: what is said; empty for nothing.
        assignee: of an assignment, the name of a key; None for no key.
        by: the key's name.
    """
    row = {
        "dataset_id": dataset_id,
        "incident_id": incident_id,
        "action": action,
        "text": text,
        "assignee": assignee,
        "by": by,
        "noted_at": now(),
    }
    inserted = insert(incident_notes).values(row).returning(incident_notes.c.id)
    number = connection.execute(inserted).scalar_one()
    acts = build_log_records(connection, NOTE_KIND, dataset_id=dataset_id, row=number, by=by)
    append_leaves(connection, dataset_id, acts)
