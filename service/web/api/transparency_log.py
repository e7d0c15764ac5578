"""The tamper-evident log: signed checkpoints, proofs, and what follows a contradiction."""

from typing import Annotated, Final

from fastapi import Query, Request
from pydantic import Field

from service.identity.authentication import Admin, Viewer
from service.ledger import views
from service.ledger.views import LogAnswer
from service.schemas.message import Within
from service.storage.engine import snapshot, transaction
from service.transparency import proofs, recovery
from service.transparency.checkpoints import Part, SignedCheckpoint
from service.transparency.head_tree import HeadTree
from service.transparency.log_heads import COUNT_MAX
from service.transparency.proofs import ComparisonAnswer, ConsistencyAnswer, InclusionAnswer
from service.transparency.recovery import Reconciled, Recovered, StandingAnswer
from service.transparency.signing import require_signer
from service.web.parameters import Database, DatasetName, Parameters
from service.web.routers import api_router

router = api_router("/v1", tag="log")
_Count = Annotated[int, Within(0, COUNT_MAX)]
_Sequence = Annotated[int, Within(1, COUNT_MAX)]
Size = Annotated[
    _Count | None,
    Field(description="Size of the log in leaves; by default the present one."),
]
_SEQUENCE: Final = "Sequence number of the entry; give this or `position`."
_POSITION: Final = "Position of the leaf in the log, from 0; give this or `sequence`."
_FIRST: Final = "The smaller size of the log, in leaves."


class InclusionQuery(Parameters):
    """Which leaf, and in the log of which size; the present one by default."""

    sequence: Annotated[_Sequence | None, Field(description=_SEQUENCE)] = None
    position: Annotated[_Count | None, Field(description=_POSITION)] = None
    size: Size = None


class ConsistencyQuery(Parameters):
    """The log of which size begins with that of which other one."""

    first: Annotated[_Count, Field(description=_FIRST)]
    second: Size = None


def _heads(request: Request) -> HeadTree:
    """The tree over the heads of all logs, of this process."""
    found: HeadTree = request.app.state.heads
    return found


@router.get("/checkpoint")
def get_checkpoint(request: Request, database: Database, _caller: Viewer) -> SignedCheckpoint:
    """The signed checkpoint of all logs as they are now."""
    signer = require_signer(request.app.state.signer)
    with snapshot(database) as connection:
        return _heads(request).signed(connection, signer)


@router.get("/datasets/{dataset}/checkpoint")
def get_dataset_checkpoint(
    dataset: DatasetName, request: Request, database: Database, _caller: Viewer
) -> Part:
    """The signed checkpoint with the dataset's head and the path from it to what was signed."""
    signer = require_signer(request.app.state.signer)
    with snapshot(database) as connection:
        return _heads(request).head(connection, dataset).part(signer, dataset)


@router.post("/datasets/{dataset}/checkpoint:compare")
def compare_checkpoint(
    dataset: DatasetName, kept: Part, request: Request, database: Database, caller: Viewer
) -> ComparisonAnswer:
    """Whether the log continues a checkpoint that was kept; if not, the ledger is suspended."""
    proofs.require_of(kept, dataset)
    state = request.app.state
    return proofs.compare_checkpoint(
        database,
        state.signer,
        kept,
        heads=state.heads,
        by=caller.name,
        suspended=state.gate.forget,
    )


@router.get("/datasets/{dataset}/log")
def get_dataset_log(dataset: DatasetName, database: Database, _caller: Viewer) -> LogAnswer:
    """How long the dataset's log is, and its root."""
    with snapshot(database) as connection:
        return views.log_answer(connection, dataset)


@router.get("/datasets/{dataset}/log/inclusion")
def prove_inclusion(
    dataset: DatasetName,
    query: Annotated[InclusionQuery, Query()],
    database: Database,
    _caller: Viewer,
) -> InclusionAnswer:
    """The proof that an entry, or the leaf at a position, is in the log."""
    with snapshot(database) as connection:
        return proofs.inclusion(connection, dataset, **query.model_dump())


@router.get("/datasets/{dataset}/log/consistency")
def prove_consistency(
    dataset: DatasetName,
    query: Annotated[ConsistencyQuery, Query()],
    database: Database,
    _caller: Viewer,
) -> ConsistencyAnswer:
    """The proof that the log only grew from one size to another."""
    with snapshot(database) as connection:
        return proofs.consistency(connection, dataset, **query.model_dump())


@router.get("/log")
def get_ledger_state(database: Database, caller: Viewer) -> StandingAnswer:
    """Whether the ledger takes what is written to it; if not, what it has lost."""
    return recovery.standing_answer(recovery.standing(database), within=caller.datasets)


@router.post("/log:recover")
def recover_ledger(
    given: Recovered, request: Request, database: Database, caller: Admin
) -> StandingAnswer:
    """Open a suspended ledger for what it has lost: facts are recorded, nothing is admitted."""
    with transaction(database) as connection:
        found = recovery.recover(connection, reason=given.reason, by=caller.name)
    request.app.state.gate.forget()
    return recovery.standing_answer(found)


@router.post("/log:reconcile")
def reconcile_ledger(
    given: Reconciled, request: Request, database: Database, caller: Admin
) -> StandingAnswer:
    """Declare a ledger whole that has again what it had lost; a new generation begins."""
    with transaction(database) as connection:
        found = recovery.reconcile(
            connection, given, by=caller.name, signer=request.app.state.signer
        )
    request.app.state.gate.forget()
    return recovery.standing_answer(found)
