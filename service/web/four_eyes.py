"""What a second person must agree to, however it is asked for: over HTTP or on a page."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy import Connection

from service.identity.authentication import Caller
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.change_requests import four_eyes
from service.ledger.change_requests.messages import ChangeRequestAnswer
from service.ledger.change_requests.persons import UNNAMED
from service.schemas.requests import NewCorrection

WAITS_FOR_APPROVAL: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "model": ChangeRequestAnswer,
        "description": "Nothing has changed yet: another person must approve this request",
    }
}


def request_path(found: ChangeRequestAnswer) -> str:
    """Where a request is read and decided."""
    return f"/v1/requests/{found.id}"


def waiting_answer(found: ChangeRequestAnswer) -> JSONResponse:
    """202, with the address of the request."""
    headers = {"Location": request_path(found)}
    return JSONResponse(found.model_dump(mode="json"), 202, headers=headers)


async def _waiting(
    request: Request, approval: str, ask: Callable[[Connection], ChangeRequestAnswer | None]
) -> ChangeRequestAnswer | None:
    """The request by which a change waits; None where one person is enough for it."""
    if approval not in request.app.state.approvals:
        return None
    return await run_in_threadpool(run_in_write_transaction, request.app.state.engine, ask)


async def waiting_correction(
    request: Request, run: str, new: NewCorrection, caller: Caller
) -> ChangeRequestAnswer | None:
    """The request by which a correction waits; None for one that may be recorded at once."""
    return await _waiting(
        request,
        "corrections",
        lambda connection: four_eyes.correction_needing_approval(
            connection, run, new, by=caller.actor
        ),
    )


async def waiting_void(
    request: Request, reservation: str, reason: str, caller: Caller
) -> ChangeRequestAnswer | None:
    """The request by which a void waits; None for one that may be made at once."""
    return await _waiting(
        request,
        "voids",
        lambda connection: four_eyes.void_needing_approval(
            connection, reservation, reason=reason, by=caller.actor
        ),
    )


async def waiting_release(
    request: Request, reservation: str, caller: Caller
) -> ChangeRequestAnswer | None:
    """The request by which another person's reservation is to be released; None for one's own."""
    return await _waiting(
        request,
        "voids",
        lambda connection: four_eyes.release_needing_approval(
            connection, reservation, by=caller.actor
        ),
    )


def require_plan_kept(request: Request, connection: Connection, run: str, caller: Caller) -> None:
    """Refuse to close another person's run while its plan holds steps, where voids need two.

    Raises:
        NotFoundError: there is no such run.
        AnotherPersonError: it is so.
    """
    if "voids" in request.app.state.approvals:
        four_eyes.require_own_plan(connection, run, by=caller.actor)


def only_person(request: Request, caller: Caller) -> str | None:
    """The one person whose keys a caller may create and rotate; None for any.

    With the secret of another person's key, one person could ask for a change and approve it. The
    start token makes the first key, which ends it.
    """
    if not request.app.state.approvals or caller.person in UNNAMED:
        return None
    return caller.person
