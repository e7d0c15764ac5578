"""Corrections: an owner or an admin says what recorded steps really were."""

from fastapi import Request, Response

from service.identity.authentication import Owner, Viewer
from service.ledger import corrections, lookups
from service.ledger.corrections import Correct, CorrectionAnswer, CorrectionPage
from service.schemas.requests import NewCorrection
from service.storage.engine import snapshot
from service.web.four_eyes import WAITS_FOR_APPROVAL, waiting_answer, waiting_correction
from service.web.parameters import Database, Pages, RunName, continuation_token, repeated
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1/runs/{run}/corrections", tag="runs")


@router.post(
    "",
    status_code=201,
    response_model=CorrectionAnswer,
    responses=repeated(CorrectionAnswer) | WAITS_FOR_APPROVAL,
)
async def record_correction(
    run: RunName, new: NewCorrection, caller: Owner, request: Request, response: Response
) -> CorrectionAnswer | Response:
    """Correct recorded steps; 200 when the same request did so before."""
    waiting = await waiting_correction(request, run, new, caller)
    if waiting is not None:
        return waiting_answer(waiting)
    asked = Correct(run_name=run, new=new, by=caller.name)
    answer = await request.app.state.writer.write(asked)
    response.status_code = 201 if answer.pop("created") else 200
    return CorrectionAnswer(**answer)


@router.get("")
@expensive
def list_corrections(
    run: RunName, query: Pages, database: Database, _caller: Viewer
) -> CorrectionPage:
    """A run's corrections, the oldest first."""
    with snapshot(database) as connection:
        found, after = corrections.list_corrections(
            connection,
            lookups.find_run(connection, run).id,
            after=query.after,
            size=query.page_size,
        )
    return CorrectionPage(corrections=found, next_page_token=continuation_token(after))
