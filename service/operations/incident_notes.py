"""Record what is done about an incident: comments, assignments, acknowledgements.

Nothing about an incident is changed: each note is a fact and an act of the dataset's log. Whether
an incident is open, and whose it is, follows from the notes.
"""

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError
from sqlalchemy import Connection, Row, bindparam, or_, select

from service.clock import now, utc
from service.errors import InvalidRequestError, NotFoundError
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.ledger.incidents import INCIDENT_ROWS, incident_id
from service.ledger.log.notes import insert_note
from service.ledger.lookups import lock_dataset
from service.schemas.message import Body
from service.schemas.requests import PersonName, Text, printable
from service.storage.tables import api_keys, incident_notes, incidents

_IDENTIFIER: Final = re.compile(r"incident-([1-9][0-9]{0,17})-[0-9a-f]{1,20}")
Assignee = Annotated[PersonName, AfterValidator(printable)]


class Action(StrEnum):
    """What a note does."""

    COMMENT = "comment"
    ASSIGN = "assign"
    ACKNOWLEDGE = "acknowledge"  # nothing is left to do
    REOPEN = "reopen"


class NewIncidentNote(Body):
    """What is done about an incident."""

    action: Annotated[Action, WithJsonSchema({"type": "string", "enum": list(Action)})]
    text: Text | None = None
    assignee: Assignee | None = None  # of an assignment; without one no key is responsible

    @model_validator(mode="after")
    def _whole(self) -> "NewIncidentNote":
        if self.action is Action.COMMENT and self.text is None:
            raise PydanticCustomError("no_text", "a comment needs a text")
        if self.action is not Action.ASSIGN and self.assignee is not None:
            raise PydanticCustomError("assignee", "only an assignment has an assignee")
        return self


_ONE: Final = INCIDENT_ROWS.where(incidents.c.id == bindparam("number"))
_LATEST: Final = (
    select(incident_notes)
    .where(incident_notes.c.incident_id == bindparam("number"))
    .order_by(incident_notes.c.id.desc())
    .limit(1)
)
_IN_FORCE: Final = select(api_keys.c.id).where(
    api_keys.c.name == bindparam("named"),
    api_keys.c.revoked_at.is_(None),
    or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > bindparam("moment")),
)


def incident_number(identifier: str) -> int:
    """The row that an identifier of an incident names; 0 for none."""
    named = _IDENTIFIER.fullmatch(identifier)
    return int(named[1]) if named else 0


def find_incident(connection: Connection, identifier: str) -> Row[Any]:
    """An incident's row, by what it is called wherever it is told.

    Raises:
        NotFoundError: there is none of that identifier.
    """
    row = connection.execute(_ONE, {"number": incident_number(identifier)}).one_or_none()
    if row is None or incident_id(row.id, row.occurred_at) != identifier:
        raise NotFoundError("There is no such incident.")
    return row


def record_note(
    connection: Connection, identifier: str, new: NewIncidentNote, caller: Caller
) -> bool:
    """Record a note, and whether it is new: the latest note is not repeated.

    Args:
        connection: in a transaction.
        identifier: the incident's.
        new: the request.
        caller: whose key it is.

    Raises:
        ForbiddenError: the key may only comment.
        NotFoundError: there is no such incident.
        InvalidRequestError: the assignee is no key in force.
    """
    if new.action is Action.ASSIGN:  # it names keys, which an admin alone knows
        caller.require(Role.ADMIN)
    elif new.action is not Action.COMMENT:
        caller.require(Role.OWNER, Role.APPROVER)
    incident = find_incident(connection, identifier)
    dataset = lock_dataset(connection, incident.dataset)
    values = {
        "action": new.action.value,
        "text": new.text or "",
        "assignee": new.assignee,
        "by": caller.name,
    }
    latest = connection.execute(_LATEST, {"number": incident.id}).one_or_none()
    if latest is not None and values.items() <= latest._asdict().items():
        return False
    _require_key(connection, new.assignee, caller, now())
    insert_note(
        connection,
        dataset.id,
        incident.id,
        action=new.action.value,
        text=new.text or "",
        assignee=new.assignee,
        by=caller.name,
    )
    return True


def _require_key(
    connection: Connection, assignee: str | None, caller: Caller, moment: datetime
) -> None:
    if assignee is None or assignee == caller.name:
        return
    asked = {"named": assignee, "moment": utc(moment)}
    if connection.scalar(_IN_FORCE, asked) is None:
        raise InvalidRequestError("body.assignee", "must be the name of a key in force")
