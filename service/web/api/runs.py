"""Runs and their branches: registering, reading, finishing."""

from fastapi import Request, Response
from sqlalchemy import Connection, select

from service.guarantees import guarantee, privacy_curve
from service.guarantees.guarantee import Question
from service.guarantees.history import History
from service.guarantees.known_histories import KnownHistories
from service.guarantees.privacy_curve import Curve
from service.identity.access import runs_within
from service.identity.authentication import Trainer, Viewer
from service.ledger import branches, fixed_plans, lookups, views
from service.ledger import runs as runs_module
from service.ledger import runs as shown
from service.ledger.append.write_access import run_in_write_transaction
from service.operations.certified_epsilons import CERTIFIED_SECONDS, CertifiedEpsilons, RunList
from service.schemas.ledger_document import LedgerDocument
from service.schemas.requests import Finish, NewBranch, NewRelease, NewRun
from service.schemas.responses import (
    BranchAnswer,
    FinishedRun,
    ReleaseAnswer,
    RunAnswer,
    RunGuarantee,
)
from service.storage.engine import snapshot
from service.storage.tables import runs
from service.web.four_eyes import require_plan_kept
from service.web.parameters import (
    Curves,
    Database,
    Histories,
    RunGuarantees,
    RunName,
    RunPages,
    continuation_token,
    repeated,
)
from service.web.routers import api_router
from service.web.strict_requests import JSON, expensive

router = api_router("/v1/runs", tag="runs")


@router.post("", status_code=201, responses=repeated(RunAnswer))
def create_run(new: NewRun, database: Database, caller: Trainer, response: Response) -> RunAnswer:
    """Register a run; 200 when the same request registered it before."""
    caller.require_dataset(new.dataset)
    with snapshot(database) as connection:  # this may take time; no lock is held
        certificate = fixed_plans.certify_plan(connection, new)
    answer, created = run_in_write_transaction(
        database,
        lambda connection: runs_module.create_run(
            connection, new, certificate=certificate, by=caller.name
        ),
    )
    response.status_code = 201 if created else 200
    return answer


@router.get("")
@expensive
def list_runs(query: RunPages, database: Database, caller: Viewer, request: Request) -> RunList:
    """Runs in creation order; if asked those of a dataset, in a state, or of a key alone."""
    wanted = select(runs).where(runs_within(caller.datasets))
    if query.state is not None:
        wanted = wanted.where(runs.c.state == query.state)
    if query.by is not None:
        wanted = wanted.where(runs.c.by == query.by)
    with snapshot(database) as connection:
        if query.dataset is not None:
            caller.require_dataset(query.dataset)
            dataset = lookups.find_dataset(connection, query.dataset)
            wanted = wanted.where(runs.c.dataset_id == dataset.id)
        rows, after = lookups.page_of_rows(
            connection, wanted, runs, after=query.after, size=query.page_size
        )
        found = [views.run_answer(connection, row) for row in rows]
        certified = None
        if query.certified:
            known: CertifiedEpsilons = request.app.state.certified
            certified = known.of_runs(connection, rows, seconds=CERTIFIED_SECONDS)
    return RunList(runs=found, certified=certified, next_page_token=continuation_token(after))


@router.get("/{run}")
def get_run(run: RunName, database: Database, _caller: Viewer) -> RunAnswer:
    """A run as it stands."""
    with snapshot(database) as connection:
        return views.run_answer(connection, lookups.find_run(connection, run))


@router.post("/{run}/branches", status_code=201, responses=repeated(BranchAnswer))
def create_branch(
    run: RunName, new: NewBranch, database: Database, caller: Trainer, response: Response
) -> BranchAnswer:
    """Resume, rewind or fork a run; nothing is erased, and a run that had ended is active again."""
    answer, created = run_in_write_transaction(
        database, lambda connection: branches.create_branch(connection, run, new, by=caller.name)
    )
    response.status_code = 201 if created else 200
    return answer


@router.post("/{run}:finish")
def finish_run(
    run: RunName, end: Finish, database: Database, caller: Trainer, request: Request
) -> FinishedRun:
    """Close a run as finished, stopped at its budget or aborted; or say it was interrupted."""

    def finish(connection: Connection) -> None:
        require_plan_kept(request, connection, run, caller)
        runs_module.finish_run(
            connection, run, end.state, branch=end.branch, by=caller.name, reason=end.reason
        )

    run_in_write_transaction(database, finish)
    request.app.state.feed.wake()
    with snapshot(database) as connection:  # its guarantee may take time; no lock is held
        return guarantee.finished_run(connection, run)


@router.post("/{run}/releases", status_code=201, responses=repeated(ReleaseAnswer))
def record_release(
    run: RunName, new: NewRelease, database: Database, caller: Trainer, response: Response
) -> ReleaseAnswer:
    """Record that the iterate after a step was shown; 200 when that was known."""
    answer, created = run_in_write_transaction(
        database, lambda connection: shown.record_release(connection, run, new, by=caller.name)
    )
    response.status_code = 201 if created else 200
    return answer


@router.get("/{run}/guarantee")
@expensive
def get_run_guarantee(
    run: RunName, query: RunGuarantees, database: Database, _caller: Viewer
) -> RunGuarantee:
    """What the run has spent: over all its branches, or on one branch's path to the root."""
    with snapshot(database) as connection:
        return guarantee.run_guarantee(connection, run, Question(**query.model_dump()))


@router.get("/{run}/history")
@expensive
def get_run_history(
    run: RunName, query: Histories, database: Database, _caller: Viewer, request: Request
) -> History:
    """Epsilon by step."""
    known: KnownHistories = request.app.state.histories
    with snapshot(database) as connection:
        return known.history(connection, run, delta=query.delta, points=query.points)


@router.get("/{run}/curve")
@expensive
def get_run_curve(run: RunName, query: Curves, database: Database, _caller: Viewer) -> Curve:
    """Delta by epsilon, and what that says about any membership test."""
    with snapshot(database) as connection:
        return privacy_curve.curve(connection, run, points=query.points)


@router.get("/{run}/ledger", response_model=LedgerDocument)
@expensive
def get_run_ledger(run: RunName, database: Database, _caller: Viewer) -> Response:
    """The ledger document, in canonical JSON."""
    with snapshot(database) as connection:
        document = guarantee.ledger_document(connection, run)
    return Response(document, media_type=JSON)
