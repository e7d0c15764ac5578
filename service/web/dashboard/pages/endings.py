"""The pages by which an owner or an admin closes a run, or voids a reservation, for a reason."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection, Engine

from service.clock import now
from service.errors import LedgerError
from service.identity.authentication import Caller
from service.ledger import lookups, reservations, runs, views
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.reservation_ends import GiveBack
from service.schemas.run_states import CLOSED
from service.storage.engine import snapshot
from service.web.dashboard.forms import ending_form
from service.web.dashboard.forms.shown_form import FORM_REFUSALS, ShownForm, refusal_status
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageOwner, PostedForm
from service.web.four_eyes import require_plan_kept, waiting_void
from service.web.parameters import Database, ReservationName, RunName

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/runs/{run}/finish")
def finish_form(run: RunName, request: Request, database: Database, viewer: PageOwner) -> Response:
    """The form that closes a run."""
    return _run_page(run, request, database, viewer, ShownForm({"state": ending_form.USUAL_END}))


@router.post("/runs/{run}/finish")
def finish_run(
    run: RunName, request: Request, database: Database, viewer: PageOwner, sent: PostedForm
) -> Response:
    """Close a run whose trainer does not, for a reason."""
    try:
        end = ending_form.ending_of(sent)

        def finish(connection: Connection) -> None:
            require_plan_kept(request, connection, run, viewer)
            runs.finish_run(connection, run, end.state, by=viewer.name, reason=end.reason)

        run_in_write_transaction(database, finish)
    except FORM_REFUSALS as error:
        form = ShownForm.refused(sent, error, ending_form.ENDING_FIELDS)
        return _run_page(run, request, database, viewer, form, error)
    request.app.state.feed.wake()
    return RedirectResponse(f"/runs/{run}", HTTPStatus.SEE_OTHER)


def _run_page(
    name: str,
    request: Request,
    database: Engine,
    viewer: Caller,
    form: ShownForm,
    error: LedgerError | None = None,
) -> Response:
    with snapshot(database) as connection:
        run = views.run_answer(connection, lookups.find_run(connection, name))
    status = refusal_status(error)
    shown = {"run": run, "form": form, "ends": ending_form.ENDS, "closed": run.state in CLOSED}
    return render(request, "run_finish.html", viewer=viewer, status_code=status, **shown)


@router.get("/reservations/{reservation}/void")
def void_form(
    reservation: ReservationName, request: Request, database: Database, viewer: PageOwner
) -> Response:
    """The form that voids a reservation."""
    return _reservation_page(reservation, request, database, viewer, ShownForm())


@router.post("/reservations/{reservation}/void")
async def void_reservation(
    reservation: ReservationName,
    request: Request,
    database: Database,
    viewer: PageOwner,
    sent: PostedForm,
) -> Response:
    """Return what a reservation holds, for a reason."""
    found = await run_in_threadpool(_reservation, database, reservation)
    try:
        reason = ending_form.void_of(sent).reason
        waiting = await waiting_void(request, reservation, reason, viewer)
        if waiting is not None:
            return RedirectResponse(f"/requests/{waiting.id}", HTTPStatus.SEE_OTHER)
        place = found["run"], found["branch"]
        back = GiveBack(name=reservation, place=place, reason=reason, by=viewer.name)
        await request.app.state.writer.write(back)
    except FORM_REFUSALS as error:
        form = ShownForm.refused(sent, error, ending_form.ENDING_FIELDS)
        return await run_in_threadpool(
            _reservation_page, reservation, request, database, viewer, form, error
        )
    return RedirectResponse(f"/datasets/{found['dataset']}#reservations", HTTPStatus.SEE_OTHER)


def _reservation(database: Engine, name: str) -> dict[str, Any]:
    with snapshot(database) as connection:
        rows = reservations.find_reservation(connection, name)
        found = reservations.reservation_answer(rows, now())
        run = lookups.find_run(connection, found["run"])
        return found | {"dataset": lookups.dataset_of(connection, run).name}


def _reservation_page(
    name: str,
    request: Request,
    database: Engine,
    viewer: Caller,
    form: ShownForm,
    error: LedgerError | None = None,
) -> Response:
    found = _reservation(database, name)
    status = refusal_status(error)
    return render(
        request, "reservation_void.html", viewer=viewer, status_code=status, held=found, form=form
    )
