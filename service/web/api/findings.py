"""Findings: what a trainer's client read from the code that runs."""

from fastapi import Response

from service.identity.authentication import Trainer, Viewer
from service.ledger import findings, lookups
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.findings import FindingAnswer, FindingPage
from service.schemas.findings import NewFinding
from service.storage.engine import snapshot
from service.web.parameters import Database, Pages, RunName, continuation_token, repeated
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1/runs/{run}/findings", tag="runs")


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
    answer, created = run_in_write_transaction(
        database,
        lambda connection: findings.record_finding(connection, run, new, by=caller.name),
    )
    response.status_code = 201 if created else 200
    return answer


@router.get("")
@expensive
def list_findings(run: RunName, query: Pages, database: Database, _caller: Viewer) -> FindingPage:
    """A run's findings, the oldest first."""
    with snapshot(database) as connection:
        found, after = findings.list_findings(
            connection,
            lookups.find_run(connection, run).id,
            after=query.after,
            size=query.page_size,
        )
    return FindingPage(findings=found, next_page_token=continuation_token(after))
