"""Change requests in the browser: what waits, what was decided, and the page of one."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from sqlalchemy import ColumnElement, Connection

from service.errors import (
    AnotherPersonError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    PreconditionFailedError,
    TooExpensiveError,
)
from service.identity.access import datasets_within
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.ledger.change_requests import records
from service.ledger.change_requests.messages import ChangeRequestAnswer, NewDecision, RequestState
from service.ledger.change_requests.persons import require_another_person
from service.ledger.corrections import Correct
from service.operations.correction_preview import preview_correction
from service.schemas.field_errors import fault_list
from service.schemas.requests import PERSON_LENGTH_MAX, NewCorrection
from service.storage.engine import snapshot
from service.storage.tables import change_requests, datasets
from service.web.dashboard.forms.shown_form import fault_text, refusal_status
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.request_changes import changed_rows, listed_changes, request_title
from service.web.dashboard.viewer import PageApprover, PageTrainer, PageViewer, PostedForm
from service.web.four_eyes import decide_request
from service.web.parameters import ChangeRequestName, Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_SIZE: Final = 25  # requests of a part of the history
WAITING_SIZE: Final = 100  # of a part of those that wait
_STATES: Final = ("pending", "approved", "rejected", "withdrawn", "expired", "stale")
_REFUSALS: Final = (
    AnotherPersonError, ConflictError, ForbiddenError, InvalidRequestError,
    PreconditionFailedError,
)  # fmt: skip


class _Asked(BaseModel):
    """Which requests; what a form leaves empty is not asked for."""

    model_config = ConfigDict(frozen=True)

    state: RequestState | None = None
    dataset: str | None = Field(default=None, max_length=63)
    by: str | None = Field(default=None, max_length=PERSON_LENGTH_MAX)  # the person who asked
    # The row before which the history goes on, or what waits.
    before: int | None = Field(default=None, ge=0, lt=2**63)
    waiting_before: int | None = Field(default=None, ge=0, lt=2**63)

    @property
    def shows_waiting(self) -> bool:
        """Whether what waits is on the page."""
        return self.state in (None, "pending") and self.before is None

    @property
    def shows_history(self) -> bool:
        """Whether what was decided, has expired or is stale is on the page."""
        return self.state != "pending" and self.waiting_before is None

    @model_validator(mode="before")
    @classmethod
    def _given(cls, fields: Any) -> Any:
        return {name: value for name, value in dict(fields).items() if value != ""}


@router.get("/requests")
@expensive
def request_list(
    request: Request, database: Database, viewer: PageViewer, asked: Annotated[_Asked, Query()]
) -> Response:
    """What waits for a decision first, then what was decided, the latest first."""
    wanted = [datasets_within(viewer.datasets)]
    if asked.dataset is not None:
        wanted.append(datasets.c.name == asked.dataset)
    if asked.by is not None:
        wanted.append(change_requests.c.person == asked.by)
    pending = records.in_state("pending")
    past = [*wanted, ~pending]
    if asked.state not in (None, "pending"):
        past.append(records.in_state(asked.state))
    waiting, waiting_count, history = _NOTHING, 0, _NOTHING
    with snapshot(database) as connection:
        if asked.shows_waiting:
            waiting = _part(
                connection, *wanted, pending, before=asked.waiting_before, size=WAITING_SIZE
            )
            waiting_count = records.count_requests(connection, *wanted, pending)
        if asked.shows_history:
            history = _part(connection, *past, before=asked.before, size=_SIZE)
    return render(
        request,
        "requests.html",
        viewer=viewer,
        asked=asked,
        states=[("", "any"), *((state, state) for state in _STATES)],
        waiting=waiting,
        waiting_count=waiting_count,
        history=history,
    )


# A request, its title, and what it changes: (what, from, to).
_Listed = tuple[ChangeRequestAnswer, str, Sequence[tuple[str, str, str]]]


class _Part(NamedTuple):
    """Some requests, and the row before which to go on, if there are more."""

    rows: Sequence[_Listed]
    further: int | None


_NOTHING: Final = _Part((), None)


def _part(
    connection: Connection, *wanted: ColumnElement[bool], before: int | None, size: int
) -> _Part:
    """The latest requests for which all of that holds, from before a row on."""
    if before is not None:
        wanted = (*wanted, change_requests.c.id < before)
    query = records.select_requests(*wanted).order_by(change_requests.c.id.desc())
    rows = connection.execute(query.limit(size + 1)).all()
    further = rows[size - 1].id if len(rows) > size else None
    return _Part([_build_list_item(connection, row) for row in rows[:size]], further)


def _build_list_item(connection: Connection, row: Any) -> _Listed:
    answer = records.request_answer(row)
    return answer, request_title(answer), listed_changes(connection, answer)


@router.get("/requests/{change_request}")
def request_page(
    change_request: ChangeRequestName, request: Request, database: Database, viewer: PageViewer
) -> Response:
    """A change request: what would change, who asked, why, and what was decided."""
    with snapshot(database) as connection:
        found = _read_page(connection, change_request, viewer)
    return render(request, "request.html", viewer=viewer, **found)


def _read_page(connection: Connection, name: str, viewer: Caller) -> dict[str, Any]:
    answer = records.request_answer(records.find_request(connection, name))
    return {
        "found": answer,
        "title": request_title(answer),
        "rows": changed_rows(connection, answer),
        "own": answer.person == viewer.person,
        "refusal": _refusal_for(answer, viewer, approves=False),
        "approval_refusal": _refusal_for(answer, viewer, approves=True),
        "fault": "",
        "reason": "",
        "effect": None,  # of a correction, once it is asked for
        "effect_fault": "",
    }


def _refusal_for(answer: ChangeRequestAnswer, viewer: Caller, *, approves: bool) -> str:
    """Why the viewer cannot decide; empty if they can."""
    if not viewer.may(Role.APPROVER):
        return "A key of scope approver or admin decides."
    try:
        require_another_person(viewer.actor, asked_by=answer.person, approves=approves)
    except AnotherPersonError as refusal:
        return refusal.detail
    return ""


@router.post("/requests/{change_request}/approve")
@expensive
def approve(
    change_request: ChangeRequestName, request: Request, database: Database, viewer: PageApprover,
    form: PostedForm,
) -> Response:  # fmt: skip
    """Approve it, and make the change."""
    return _decide(request, database, viewer, change_request, "approve", form)


@router.post("/requests/{change_request}/reject")
def reject(
    change_request: ChangeRequestName, request: Request, database: Database, viewer: PageApprover,
    form: PostedForm,
) -> Response:  # fmt: skip
    """Reject it."""
    return _decide(request, database, viewer, change_request, "reject", form)


@router.post("/requests/{change_request}/withdraw")
def withdraw(
    change_request: ChangeRequestName, request: Request, database: Database, viewer: PageTrainer,
    form: PostedForm,
) -> Response:  # fmt: skip
    """Withdraw it."""
    return _decide(request, database, viewer, change_request, "withdraw", form)


@router.post("/requests/{change_request}/preview")
@expensive
def preview_effect(
    change_request: ChangeRequestName, request: Request, database: Database, viewer: PageApprover,
    _form: PostedForm,
) -> Response:  # fmt: skip
    """What a correction that waits would change; nothing is stored."""
    with snapshot(database) as connection:
        found = _read_page(connection, change_request, viewer)
    answer: ChangeRequestAnswer = found["found"]
    if answer.kind != "correction" or answer.target is None or answer.state != "pending":
        raise ConflictError("Only of a correction that waits is there a preview.")
    new = NewCorrection.model_validate(answer.change)
    correct = Correct(run_name=answer.target, new=new, by=viewer.name)
    try:
        found["effect"] = preview_correction(database, correct)
    except (ConflictError, InvalidRequestError, TooExpensiveError) as refusal:
        found["effect_fault"] = fault_text(refusal)
    part = "request_effect.html" if "hx-request" in request.headers else "request.html"
    return render(request, part, viewer=viewer, **found)


@router.get("/requests/{change_request}/{verb}")
def decision_form(change_request: ChangeRequestName, verb: str, _viewer: PageViewer) -> Response:
    """Where the form is, for who loads the answer to one again."""
    return RedirectResponse(f"/requests/{change_request}", HTTPStatus.SEE_OTHER)


def _decide(
    request: Request, database: Any, viewer: Caller, name: str, verb: str, form: Any
) -> Response:
    """Decide; if that is refused, the page again with the reason that was typed."""
    reason = form.get("reason", "").strip()
    try:
        given = _decision_of(reason)
        decide_request(request, name, verb, reason=given.reason, caller=viewer)
    except _REFUSALS as refusal:
        with snapshot(database) as connection:
            found = _read_page(connection, name, viewer)
        found |= {"fault": fault_text(refusal), "reason": reason}
        status = refusal_status(refusal)
        return render(request, "request.html", viewer=viewer, status_code=status, **found)
    return RedirectResponse(f"/requests/{name}", HTTPStatus.SEE_OTHER)


def _decision_of(reason: str) -> NewDecision:
    """The decision that a form sends.

    Raises:
        InvalidRequestError: the reason is not as it must be.
    """
    try:
        return NewDecision.model_validate({"reason": reason})
    except ValidationError as error:
        told = fault_list(list(error.errors()))
        raise InvalidRequestError.of({one["location"]: one["message"] for one in told}) from None
