"""Change requests in the browser: what waits, what was decided, and the page of one."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from sqlalchemy import Connection

from service.errors import (
    AnotherPersonError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    LedgerError,
    PreconditionFailedError,
)
from service.identity.access import datasets_within
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.ledger.change_requests import records
from service.ledger.change_requests.messages import ChangeRequestAnswer, NewDecision, RequestState
from service.ledger.change_requests.persons import require_another_person
from service.schemas.field_errors import fault_list
from service.schemas.requests import PERSON_LENGTH_MAX
from service.storage.engine import snapshot
from service.storage.tables import change_requests, datasets
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.request_changes import changed_rows, request_title
from service.web.dashboard.viewer import PageApprover, PageTrainer, PageViewer, PostedForm
from service.web.four_eyes import decide_request
from service.web.parameters import ChangeRequestName, Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_SIZE: Final = 25  # requests of a part of the history
WAITING_SIZE: Final = 100  # that wait and are listed
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
    before: int | None = Field(default=None, ge=0, lt=2**63)  # the row before which to go on

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
    if asked.before is not None:
        past.append(change_requests.c.id < asked.before)
    latest = change_requests.c.id.desc()
    with snapshot(database) as connection:
        waiting, history = [], []
        if asked.state in (None, "pending") and asked.before is None:
            query = records.select_requests(*wanted, pending).order_by(latest).limit(WAITING_SIZE)
            waiting = list(connection.execute(query))
        if asked.state != "pending":
            query = records.select_requests(*past).order_by(latest).limit(_SIZE + 1)
            history = list(connection.execute(query))
    return render(
        request,
        "requests.html",
        viewer=viewer,
        asked=asked,
        states=[("", "any"), *((state, state) for state in _STATES)],
        waiting=[_listed(row) for row in waiting],
        history=[_listed(row) for row in history[:_SIZE]],
        further=history[_SIZE - 1].id if len(history) > _SIZE else None,
    )


def _listed(row: Any) -> tuple[ChangeRequestAnswer, str]:
    answer = records.request_answer(row)
    return answer, request_title(answer)


@router.get("/requests/{change_request}")
def request_page(
    change_request: ChangeRequestName, request: Request, database: Database, viewer: PageViewer
) -> Response:
    """A change request: what would change, who asked, why, and what was decided."""
    with snapshot(database) as connection:
        found = _found(connection, change_request, viewer)
    return render(request, "request.html", viewer=viewer, **found)


def _found(connection: Connection, name: str, viewer: Caller) -> dict[str, Any]:
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
    return _decided(request, database, viewer, change_request, "approve", form)


@router.post("/requests/{change_request}/reject")
def reject(
    change_request: ChangeRequestName, request: Request, database: Database, viewer: PageApprover,
    form: PostedForm,
) -> Response:  # fmt: skip
    """Reject it."""
    return _decided(request, database, viewer, change_request, "reject", form)


@router.post("/requests/{change_request}/withdraw")
def withdraw(
    change_request: ChangeRequestName, request: Request, database: Database, viewer: PageTrainer,
    form: PostedForm,
) -> Response:  # fmt: skip
    """Withdraw it."""
    return _decided(request, database, viewer, change_request, "withdraw", form)


@router.get("/requests/{change_request}/{verb}")
def decision_form(change_request: ChangeRequestName, verb: str, _viewer: PageViewer) -> Response:
    """Where the form is, for who loads the answer to one again."""
    return RedirectResponse(f"/requests/{change_request}", HTTPStatus.SEE_OTHER)


def _decided(
    request: Request, database: Any, viewer: Caller, name: str, verb: str, form: Any
) -> Response:
    """Decide; if that is refused, the page again with the reason that was typed."""
    reason = form.get("reason", "").strip()
    try:
        given = _decision_of(reason)
        decide_request(request, name, verb, reason=given.reason, caller=viewer)
    except _REFUSALS as refusal:
        with snapshot(database) as connection:
            found = _found(connection, name, viewer)
        found |= {"fault": refusal.detail, "reason": reason}
        return render(request, "request.html", viewer=viewer, status_code=_status(refusal), **found)
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


def _status(refusal: LedgerError) -> HTTPStatus:
    invalid = isinstance(refusal, InvalidRequestError)
    return HTTPStatus.UNPROCESSABLE_ENTITY if invalid else HTTPStatus.CONFLICT
