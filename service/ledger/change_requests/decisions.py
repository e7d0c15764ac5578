"""Decide about a request; to approve it applies the change in the same transaction."""

import json
from typing import Any, Final

from sqlalchemy import Connection, Row

from service.clock import now, stamp
from service.errors import AnotherPersonError, ConflictError, PreconditionFailedError
from service.ledger import dataset_settings
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.change_requests.messages import ChangeRequestAnswer, DecisionName
from service.ledger.change_requests.persons import Actor, require_another_person
from service.ledger.change_requests.records import (
    find_request,
    insert_decision,
    request_answer,
)
from service.ledger.corrections import Correct
from service.ledger.lookups import lock_parents
from service.ledger.reservation_ends import GiveBack
from service.ledger.reservations import find_reservation
from service.schemas.requests import DatasetChange, NewCorrection

DECISIONS: Final[dict[str, DecisionName]] = {
    "approve": "approved",
    "reject": "rejected",
    "withdraw": "withdrawn",
}


def decide(
    connection: Connection, name: str, verb: str, *, reason: str, by: Actor
) -> ChangeRequestAnswer:
    """Approve a request and apply its change, reject it, or withdraw it.

    The dataset and all that it was made from are locked first, so that of two who decide at once
    the second one sees the decision of the first.

    Args:
        connection: in a transaction.
        name: of the request.
        verb: approve, reject or withdraw.
        reason: why.
        by: who decides; another person than the one who asked, except to withdraw.

    Raises:
        NotFoundError: there is no such request.
        AnotherPersonError: the person may not decide this.
        ConflictError: it was decided otherwise, or has expired.
        PreconditionFailedError: the settings have changed since it was made.
        LedgerError: the change cannot be made any more; then nothing is decided either.
    """
    lock_parents(connection, [find_request(connection, name).dataset])
    request = find_request(connection, name)
    _require_may(request, verb, by)
    if (request.decision, request.decided_by) == (DECISIONS[verb], by.key):
        return request_answer(request)  # the same was sent again
    _require_open(request, verb)
    insert_decision(connection, request, DECISIONS[verb], reason=reason, by=by)
    if verb == "approve":
        apply_change(connection, request, by=by.key)
    return request_answer(find_request(connection, name))


def _require_may(request: Row[Any], verb: str, by: Actor) -> None:
    if verb != "withdraw":
        require_another_person(by, asked_by=request.person, approves=verb == "approve")
    elif request.person != by.person:
        raise AnotherPersonError(
            f"Only {request.person}, who asked for this change, can withdraw it."
        )


def _require_open(request: Row[Any], verb: str) -> None:
    if request.decision is not None:
        raise ConflictError(f"The request was {request.decision} by {request.decided_by_person}.")
    if request.state == "expired":
        raise ConflictError(
            f"The request expired at {stamp(request.expires_at)}; make it again to have it decided."
        )
    if request.state == "stale" and verb == "approve":
        raise PreconditionFailedError(
            f"The settings were at revision {request.revision} when this was asked for, and have "
            "changed since; reject it, and ask again on the present settings."
        )


def apply_change(connection: Connection, request: Row[Any], *, by: str) -> None:
    """Make the change that was asked for.

    Raises:
        LedgerError: it cannot be made.
    """
    change = json.loads(request.change)
    if request.kind == "correction":
        new = NewCorrection.model_validate(change)
        _write(connection, Correct(run_name=request.target, new=new, by=by))
    elif request.target is not None:
        void_one(connection, request.target, reason=request.reason, by=by)
    else:
        dataset_settings.change(
            connection,
            request.dataset,
            DatasetChange.model_validate(change),
            if_match=str(request.revision),
            by=by,
            requested_by=request.by,
        )


def void_one(connection: Connection, name: str, *, reason: str, by: str) -> None:
    """Return what one reservation holds.

    Raises:
        NotFoundError: there is no such reservation.
        ConflictError: it was ended otherwise.
    """
    row, *_ = find_reservation(connection, name)
    _write(connection, GiveBack(name=name, place=(row.run, row.branch), reason=reason, by=by))


def _write(connection: Connection, asked: Correct | GiveBack) -> None:
    """Do in this transaction what the writer does in its own."""
    work = DatasetCache().open(connection, [asked.place])
    asked.apply(work, now())
    work.write()
