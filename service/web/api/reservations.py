"""Reservations: steps admitted ahead, returned by their trainer, or by the owner of the dataset."""

from datetime import datetime
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine

from service.clock import now
from service.identity.authentication import Owner, Trainer, Viewer
from service.ledger import reservations
from service.ledger.open_reservations import ReservationPage, list_reservations
from service.ledger.reservation_ends import GiveBack
from service.ledger.reservations import ReservationAnswer, Reserve
from service.schemas.requests import NewReservation, ReservationRelease, Void
from service.storage.engine import snapshot
from service.web.four_eyes import WAITS_FOR_APPROVAL, waiting_answer, waiting_release, waiting_void
from service.web.parameters import (
    Database,
    DatasetName,
    ReservationName,
    ReservationPages,
    RunName,
    continuation_token,
    repeated,
)
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1", tag="reservations")


@router.post("/runs/{run}/reservations", status_code=201, responses=repeated(ReservationAnswer))
async def create_reservation(
    run: RunName, new: NewReservation, caller: Trainer, request: Request, response: Response
) -> ReservationAnswer:
    """Admit steps ahead; 200 when the same request reserved them before."""
    answer = await request.app.state.writer.write(Reserve(run_name=run, new=new, by=caller.name))
    response.status_code = 201 if answer.pop("created") else 200
    return ReservationAnswer(**answer)


@router.get("/datasets/{dataset}/reservations")
@expensive
def list_dataset_reservations(
    dataset: DatasetName, query: ReservationPages, database: Database, _caller: Viewer
) -> ReservationPage:
    """Reservations of a dataset's runs, the oldest first; by default those that hold steps."""
    with snapshot(database) as connection:
        found, after = list_reservations(
            connection, dataset, state=query.state, after=query.after, size=query.page_size
        )
    return ReservationPage(reservations=found, next_page_token=continuation_token(after))


@router.get("/reservations/{reservation}")
def get_reservation(
    reservation: ReservationName, database: Database, _caller: Viewer
) -> ReservationAnswer:
    """A reservation as it stands."""
    return ReservationAnswer(**_read_reservation(database, reservation, now()))


@router.post(
    "/reservations/{reservation}:release",
    response_model=ReservationAnswer,
    responses=WAITS_FOR_APPROVAL,
)
async def release_reservation(
    reservation: ReservationName,
    given: ReservationRelease,
    database: Database,
    caller: Trainer,
    request: Request,
) -> ReservationAnswer | Response:
    """Attest that no step after `last_step` ran; the rest returns."""
    waiting = await waiting_release(request, reservation, caller)
    if waiting is not None:
        return waiting_answer(waiting)
    found = await run_in_threadpool(_read_reservation, database, reservation, now())
    place = found["run"], found["branch"]
    back = GiveBack(name=reservation, place=place, last_step=given.last_step, by=caller.name)
    return ReservationAnswer(**await request.app.state.writer.write(back))


@router.post(
    "/reservations/{reservation}:void",
    response_model=ReservationAnswer,
    responses=WAITS_FOR_APPROVAL,
)
async def void_reservation(
    reservation: ReservationName, given: Void, database: Database, caller: Owner, request: Request
) -> ReservationAnswer | Response:
    """Return what is held, on the word of an owner or an admin."""
    waiting = await waiting_void(request, reservation, given.reason, caller)
    if waiting is not None:
        return waiting_answer(waiting)
    found = await run_in_threadpool(_read_reservation, database, reservation, now())
    place = found["run"], found["branch"]
    back = GiveBack(name=reservation, place=place, reason=given.reason, by=caller.name)
    return ReservationAnswer(**await request.app.state.writer.write(back))


def _read_reservation(database: Engine, name: str, moment: datetime) -> dict[str, Any]:
    with snapshot(database) as connection:
        return reservations.reservation_answer(
            reservations.find_reservation(connection, name), moment
        )
