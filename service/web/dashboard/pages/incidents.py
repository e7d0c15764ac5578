"""The inbox of incidents: what each means, what to do about it, and what was done."""

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field, ValidationError
from sqlalchemy import Connection, Engine, Row, Select, case, or_, select

from service.clock import now
from service.errors import InvalidRequestError, MalformedBodyError
from service.formatting import words
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.incidents import IncidentAnswer, Kind
from service.operations.incident_inbox import (
    HandledIncident,
    IncidentFilter,
    endless_limits,
    read_handled,
)
from service.operations.incident_notes import (
    Action,
    NewIncidentNote,
    incident_number,
    record_note,
)
from service.schemas.field_errors import fault_list
from service.schemas.requests import PERSON_LENGTH_MAX
from service.storage.engine import snapshot
from service.storage.tables import api_keys, incidents
from service.web.dashboard import glossary, listing
from service.web.dashboard.forms.shown_form import fault_text
from service.web.dashboard.listing import Listed
from service.web.dashboard.pages.incident_details import describe_details
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageTrainerOrApprover, PageViewer, PostedForm
from service.web.parameters import Database, IncidentId
from service.web.strict_requests import expensive, form_fields

AnyIncident = TypeVar("AnyIncident", bound=IncidentAnswer)
router = APIRouter(route_class=PageRoute, include_in_schema=False)
_KINDS: Final = [("", "any"), *((kind.value, words(kind).lower()) for kind in Kind)]
# The most serious first, and of those that are equally serious the newest.
_SORTS: Final = {
    "weight": case(
        {kind: glossary.WEIGHTS.index(one.weight) for kind, one in glossary.ADVICE.items()},
        value=incidents.c.kind,
        else_=glossary.WEIGHTS.index(glossary.UNKNOWN_KIND.weight),
    )
}
ASSIGNEES_MAX: Final = 500  # keys that are offered
_HEADS: Final = (
    "incident", "kind", "dataset", "run", "occurred_at", "state", "assignee", "means", "to_do",
    "details", "notes", "last_note_by", "last_note_at", "last_note",
)  # fmt: skip


class _Inbox(Listed):
    path: ClassVar[str] = "/incidents"

    state: Literal["open", "acknowledged", "any"] = "open"
    kind: Kind | None = None
    dataset: str | None = Field(default=None, max_length=63)
    assignee: str | None = Field(default=None, max_length=PERSON_LENGTH_MAX)
    incident: str | None = Field(default=None, max_length=63)  # the one that is handled
    sort: Literal["newest", "oldest", "weight", "-weight"] = "-weight"

    def rows(self, viewer: Caller) -> Select[Any]:
        """The incidents that are asked for."""
        wanted = IncidentFilter(
            state=None if self.state == "any" else self.state,
            kind=self.kind,
            dataset=self.dataset,
            assignee=self.assignee,
            number=None if self.incident is None else incident_number(self.incident),
        )
        return wanted.of(viewer.datasets)


@router.get("/incidents")
@expensive
def inbox(
    request: Request, database: Database, viewer: PageViewer, asked: Annotated[_Inbox, Query()]
) -> Response:
    """Incidents of all datasets: the open ones, unless others are asked for."""
    return render(request, "incidents.html", viewer=viewer, **_read_page(database, viewer, asked))


def _read_page(database: Engine, viewer: Caller, asked: _Inbox) -> dict[str, Any]:
    """All that the page shows."""
    with snapshot(database) as connection:
        part = listing.part_of(connection, asked.rows(viewer), incidents, asked, _SORTS)
        rows = with_advice(connection, read_handled(connection, part.rows))
        keys = _keys(connection, viewer) if viewer.may(Role.ADMIN) else []
    return {
        "asked": asked,
        "part": part,
        "rows": rows,
        "kinds": _KINDS,
        "keys": keys,
        **incident_rights(viewer),
        "back": asked.address(after=asked.after, before=asked.before).partition("?")[2],
        "refused": ("", "", ""),  # an incident, what was said of it, and what is wrong with that
    }


def with_advice(
    connection: Connection, told: Sequence[AnyIncident]
) -> list[tuple[AnyIncident, glossary.Advice, list[str]]]:
    """Each incident with what to do about it now, and its details in words."""
    endless = endless_limits(connection, told)
    return [(one, glossary.advice_of(one, endless), describe_details(one)) for one in told]


def incident_rights(viewer: Caller) -> dict[str, bool]:
    """What a viewer may do about incidents."""
    return {
        "may_comment": viewer.may(Role.TRAINER, Role.APPROVER),
        "may_decide": viewer.may(Role.OWNER, Role.APPROVER),
        "may_assign": viewer.may(Role.ADMIN),
    }


def _keys(connection: Connection, viewer: Caller) -> list[str]:
    """The keys that an incident may be assigned to: those in force, and one's own."""
    in_force = or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now())
    query = select(api_keys.c.name).where(api_keys.c.revoked_at.is_(None), in_force)
    found = connection.scalars(query.order_by(api_keys.c.name).limit(ASSIGNEES_MAX))
    return sorted({viewer.name, *found})


@router.get("/incidents/{incident}/notes")
def note_form(incident: IncidentId, _viewer: PageViewer) -> Response:
    """Where the form is, for a browser that loads the answer to one again."""
    return RedirectResponse(f"/incidents?state=any#{incident}", HTTPStatus.SEE_OTHER)


@router.post("/incidents/{incident}/notes")
@expensive
def add_note(
    incident: IncidentId,
    request: Request,
    database: Database,
    viewer: PageTrainerOrApprover,
    form: PostedForm,
) -> Response:
    """Record what is done about an incident; what is wrong with it is said beside the field."""
    asked = _read_inbox(form)
    try:
        new = _note_of(form)
        run_in_write_transaction(
            database, lambda connection: record_note(connection, incident, new, viewer)
        )
    except InvalidRequestError as error:
        found = _read_page(database, viewer, asked)
        wrong = fault_text(error).replace("assignee: must", "the assignee must")
        found["refused"] = (incident, form.get("text", ""), wrong)
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return render(request, "incidents.html", viewer=viewer, status_code=status, **found)
    where = asked.address(after=asked.after, before=asked.before)
    return RedirectResponse(f"{where}#{incident}", HTTPStatus.SEE_OTHER)


def _read_inbox(form: Mapping[str, str]) -> _Inbox:
    """The list that the form stood in; the plain one where the form does not say."""
    try:
        return _Inbox.model_validate(form_fields(form.get("back", "")))
    except (MalformedBodyError, ValidationError):
        return _Inbox()


def _note_of(form: Mapping[str, str]) -> NewIncidentNote:
    """What a form asks for.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    action = form.get("action", "")
    given = {"action": action, "text": form.get("text", "").strip()}
    if action == Action.ASSIGN:
        given["assignee"] = form.get("assignee", "")
    try:
        return NewIncidentNote.model_validate_strings({k: v for k, v in given.items() if v})
    except ValidationError as error:
        told = fault_list(list(error.errors()))
        faults = {f"body.{one['location']}": one["message"] for one in told}
        raise InvalidRequestError.of(faults) from None


@router.get("/incidents.csv")
@expensive
def incident_file(
    request: Request, viewer: PageViewer, asked: Annotated[_Inbox, Query()]
) -> Response:
    """Every incident that is asked for, as CSV."""

    def lines(connection: Connection, rows: Sequence[Row[Any]]) -> Iterator[Sequence[Any]]:
        for one, advice, details in with_advice(connection, read_handled(connection, rows)):
            yield _line(one, advice, details)

    return listing.csv_answer(request, viewer, _HEADS, asked.rows(viewer), incidents, lines)


def _line(one: HandledIncident, advice: glossary.Advice, details: Sequence[str]) -> Sequence[Any]:
    last = one.notes[-1] if one.notes else None
    noted = (None, None, None) if last is None else (last.by, last.noted_at, last.text)
    return (
        one.id, one.kind.value, one.dataset, one.run, one.occurred_at, one.state, one.assignee,
        advice.means, advice.do, "; ".join(details), len(one.notes), *noted,
    )  # fmt: skip
