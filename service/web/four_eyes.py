"""What a second person must agree to, however it is asked for: over HTTP or on a page."""

import json
from collections.abc import Callable
from typing import Any, Final

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy import Connection, Row

from service.errors import ForbiddenError
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.identity.ownership import find_unreached_ancestor, moves_others
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.change_requests import decisions, four_eyes, records
from service.ledger.change_requests.messages import ChangeRequestAnswer
from service.ledger.change_requests.persons import UNNAMED
from service.ledger.lookups import dataset_of, find_run
from service.ledger.reservations import find_reservation
from service.schemas.requests import DatasetChange, NewCorrection
from service.schemas.responses import DatasetAnswer

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


def change_settings(
    request: Request, dataset: str, change: DatasetChange, *, if_match: str | None, caller: Caller
) -> DatasetAnswer | ChangeRequestAnswer:
    """Change a dataset's settings, or ask for the change where it needs a second person.

    Raises:
        LedgerError: in words of `four_eyes.change_or_ask`.
    """

    def changed(connection: Connection) -> DatasetAnswer | ChangeRequestAnswer:
        approvals: frozenset[str] = frozenset(request.app.state.approvals)
        if change.void_reservations and moves_others(connection, caller, dataset):
            approvals |= {"voids"}
        return four_eyes.change_or_ask(
            connection, dataset, change, if_match=if_match, by=caller.actor, approvals=approvals
        )

    answer = run_in_write_transaction(request.app.state.engine, changed)
    request.app.state.feed.wake()
    return answer


def decide_request(
    request: Request, name: str, verb: str, *, reason: str, caller: Caller
) -> ChangeRequestAnswer:
    """Approve, reject or withdraw a request.

    Raises:
        ForbiddenError: a key of named datasets approves what also counts in others.
        LedgerError: in words of `decisions.decide`.
    """

    def decided(connection: Connection) -> ChangeRequestAnswer:
        if verb == "approve":
            _require_reach(connection, records.find_request(connection, name), caller)
        return decisions.decide(connection, name, verb, reason=reason, by=caller.actor)

    answer = run_in_write_transaction(request.app.state.engine, decided)
    request.app.state.feed.wake()
    return answer


def _require_reach(connection: Connection, asked: Row[Any], caller: Caller) -> None:
    voids = asked.target is not None or json.loads(asked.change).get("void_reservations")
    above = find_unreached_ancestor(connection, caller, asked.dataset) if voids else None
    if above is not None:
        raise ForbiddenError(
            f"The change also counts in {above}, which {asked.dataset} was made from and your key "
            "does not name. An approver of both decides, or an admin."
        )


async def _waiting(
    request: Request,
    approval: str,
    caller: Caller,
    dataset_of: Callable[[Connection], str],
    ask: Callable[[Connection], ChangeRequestAnswer | None],
) -> ChangeRequestAnswer | None:
    """The request by which a change waits; None where one person is enough for it.

    It waits where the settings say so, and where an owner would move another's dataset, which
    `dataset_of` names.
    """
    named = approval in request.app.state.approvals
    if not named and caller.scope is not Role.OWNER:
        return None

    def asked(connection: Connection) -> ChangeRequestAnswer | None:
        if named or moves_others(connection, caller, dataset_of(connection)):
            return ask(connection)
        return None

    return await run_in_threadpool(run_in_write_transaction, request.app.state.engine, asked)


def _home_of_run(connection: Connection, run: str) -> str:
    return str(dataset_of(connection, find_run(connection, run)).name)


def _home_of_reservation(connection: Connection, reservation: str) -> str:
    return _home_of_run(connection, find_reservation(connection, reservation)[0].run)


async def waiting_correction(
    request: Request, run: str, new: NewCorrection, caller: Caller
) -> ChangeRequestAnswer | None:
    """The request by which a correction waits; None for one that may be recorded at once."""
    return await _waiting(
        request,
        "corrections",
        caller,
        lambda connection: _home_of_run(connection, run),
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
        caller,
        lambda connection: _home_of_reservation(connection, reservation),
        lambda connection: four_eyes.void_needing_approval(
            connection, reservation, reason=reason, by=caller.actor
        ),
    )


async def waiting_release(
    request: Request, reservation: str, caller: Caller
) -> ChangeRequestAnswer | None:
    """The request by which another person's reservation is to be released; None for one's own."""
    if "voids" not in request.app.state.approvals:
        return None
    return await run_in_threadpool(
        run_in_write_transaction,
        request.app.state.engine,
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
