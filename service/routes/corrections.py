"""Corrections: an admin says what recorded steps really were."""

from fastapi import APIRouter, Request, Response

from service import catalog, corrections
from service.auth import Admin, Viewer
from service.corrections import Correct, CorrectionAnswer, CorrectionPage
from service.database import snapshot
from service.http import StrictRoute, dear
from service.routes.parameters import Database, Pages, RunName, repeated, token_of
from service.schemas import NewCorrection

router = APIRouter(prefix="/v1/runs/{run}/corrections", route_class=StrictRoute, tags=["runs"])


@router.post("", status_code=201, responses=repeated(CorrectionAnswer))
async def record_correction(
    run: RunName, new: NewCorrection, caller: Admin, request: Request, response: Response
) -> CorrectionAnswer:
    """Correct recorded steps; 200 when the same request did so before."""
    asked = Correct(run_name=run, new=new, by=caller.name)
    answer = await request.app.state.writer.write(asked)
    response.status_code = 201 if answer.pop("created") else 200
    return CorrectionAnswer(**answer)


@router.get("")
@dear
def list_corrections(
    run: RunName, query: Pages, database: Database, _caller: Viewer
) -> CorrectionPage:
    """A run's corrections, the oldest first."""
    with snapshot(database) as connection:
        found, after = corrections.list_corrections(
            connection,
            catalog.find_run(connection, run).id,
            after=query.after,
            size=query.page_size,
        )
    return CorrectionPage(corrections=found, next_page_token=token_of(after))
