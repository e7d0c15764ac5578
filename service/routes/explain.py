"""Explanations: who spent what of a budget, and what would make a refused request fit."""

from fastapi import APIRouter

from service import explanations
from service import remedies as found
from service.auth import Viewer
from service.database import snapshot
from service.explanations import Explanation
from service.gate import Passage, passage
from service.http import StrictRoute, dear
from service.remedies import Remedies, Wanted
from service.routes.parameters import Database, DatasetName, Explanations

router = APIRouter(prefix="/v1/datasets", route_class=StrictRoute, tags=["datasets"])


@router.get("/{dataset}/explain")
@dear
def explain_dataset(
    dataset: DatasetName, query: Explanations, database: Database, _caller: Viewer
) -> Explanation:
    """Who spent what of a dataset, run by run, and which order binds."""
    with snapshot(database) as connection:
        return explanations.explain(connection, dataset, delta=query.delta)


@router.post("/{dataset}/explain")
@dear
@passage(Passage.PASSES)
def find_remedies(
    dataset: DatasetName, wanted: Wanted, database: Database, _caller: Viewer
) -> Remedies:
    """Whether steps fit in every budget, and the least change that makes them fit."""
    with snapshot(database) as connection:
        return found.remedies(connection, dataset, wanted)
