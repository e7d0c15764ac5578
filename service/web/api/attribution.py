"""Explanations: who spent what of a budget, and what would make a refused request fit."""

from fastapi import APIRouter

from service.guarantees import attribution
from service.guarantees import fit_suggestions as found
from service.guarantees.attribution import Explanation
from service.guarantees.fit_suggestions import Remedies, Wanted
from service.identity.authentication import Viewer
from service.storage.engine import snapshot
from service.web.parameters import Database, DatasetName, Explanations
from service.web.strict_requests import StrictRoute, expensive

router = APIRouter(prefix="/v1/datasets", route_class=StrictRoute, tags=["datasets"])


@router.get("/{dataset}/explain")
@expensive
def explain_dataset(
    dataset: DatasetName, query: Explanations, database: Database, _caller: Viewer
) -> Explanation:
    """Who spent what of a dataset, run by run, and which order binds."""
    with snapshot(database) as connection:
        return attribution.explain(connection, dataset, delta=query.delta)


@router.post("/{dataset}/explain")
@expensive
def find_remedies(
    dataset: DatasetName, wanted: Wanted, database: Database, _caller: Viewer
) -> Remedies:
    """Whether steps fit in every budget, and the least change that makes them fit."""
    with snapshot(database) as connection:
        return found.remedies(connection, dataset, wanted)
