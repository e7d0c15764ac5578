"""Audits of a run: registered, then ended with their counts."""

from typing import Annotated

from fastapi import Path, Request, Response

from service.identity.authentication import Trainer, Viewer
from service.ledger.append.write_access import run_in_write_transaction
from service.schemas.findings import CANARIES_MAX, AuditResult, NewAudit
from service.storage.engine import snapshot
from service.transparency import audits
from service.transparency.audit_answers import AuditAnswer, AuditList
from service.web.parameters import Database, RunName, repeated
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1/runs/{run}/audits", tag="runs")

AuditNumber = Annotated[
    int, Path(ge=1, le=CANARIES_MAX, description="Number of the audit among the run's, from 1.")
]


@router.post(
    "",
    status_code=201,
    responses=repeated(AuditAnswer),
    response_description="The audit as it was registered.",
)
def register_audit(
    run: RunName, new: NewAudit, database: Database, caller: Trainer, response: Response
) -> AuditAnswer:
    """Register an audit before its scores are seen; 200 when the run has it under this name."""
    answer, created = run_in_write_transaction(
        database, lambda connection: audits.register_audit(connection, run, new, by=caller.name)
    )
    response.status_code = 201 if created else 200
    return answer


@router.get("")
@expensive
def list_audits(run: RunName, database: Database, _caller: Viewer) -> AuditList:
    """A run's audits, the oldest first."""
    with snapshot(database) as connection:
        return audits.list_audits(connection, run)


@router.get("/{audit}")
@expensive
def get_audit(run: RunName, audit: AuditNumber, database: Database, _caller: Viewer) -> AuditAnswer:
    """An audit, and what it says."""
    with snapshot(database) as connection:
        return audits.find_audit(connection, run, audit)


@router.post(
    "/{audit}:result",
    status_code=201,
    responses=repeated(AuditAnswer),
    response_description="The audit with its result.",
)
@expensive
def end_audit(
    run: RunName,
    audit: AuditNumber,
    result: AuditResult,
    database: Database,
    caller: Trainer,
    request: Request,
    response: Response,
) -> AuditAnswer:
    """Record the result of an audit, once; 200 when the same result was recorded before."""
    with snapshot(database) as connection:  # a guarantee may take time; no lock is held
        compared = audits.compare(connection, run, audit, result)
    answer, created = run_in_write_transaction(
        database,
        lambda connection: audits.record_result(
            connection, run, audit, result, compared, by=caller.name
        ),
    )
    request.app.state.feed.wake()
    response.status_code = 201 if created else 200
    return answer
