"""Findings: what a trainer's client read from the code that runs."""

from fastapi import APIRouter, Response

from service import catalog, findings
from service.auth import Trainer, Viewer
from service.database import snapshot
from service.finding_messages import NewFinding
from service.findings import FindingAnswer, FindingPage
from service.http import StrictRoute, dear
from service.routes.parameters import Database, Pages, RunName, repeated, token_of
from service.taking import written

router = APIRouter(prefix="/v1/runs/{run}/findings", route_class=StrictRoute, tags=["runs"])


@router.post(
    "",
    status_code=201,
    responses=repeated(FindingAnswer),
    response_description="The finding as it was recorded.",
)
def record_finding(
    run: RunName, new: NewFinding, database: Database, caller: Trainer, response: Response
) -> FindingAnswer:
    """Record what was read from the code; 200 when the branch has the same finding."""
    answer, created = written(
        database,
        lambda connection: findings.record_finding(connection, run, new, by=caller.name),
    )
    response.status_code = 201 if created else 200
    return answer


@router.get("")
@dear
def list_findings(run: RunName, query: Pages, database: Database, _caller: Viewer) -> FindingPage:
    """A run's findings, the oldest first."""
    with snapshot(database) as connection:
        found, after = findings.list_findings(
            connection,
            catalog.find_run(connection, run).id,
            after=query.after,
            size=query.page_size,
        )
    return FindingPage(findings=found, next_page_token=token_of(after))
