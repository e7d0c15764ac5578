"""Acts: what administrators and others did, as the logs have it."""

from fastapi import APIRouter

from service import audit
from service.audit import ActPage
from service.auth import Admin, Viewer
from service.database import snapshot
from service.http import StrictRoute
from service.routes.parameters import Database, DatasetName, Pages, token_of

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["acts"])


@router.get("/acts")
def list_acts(query: Pages, database: Database, _caller: Admin) -> ActPage:
    """Acts that belong to no dataset, those of keys among them, the oldest first."""
    with snapshot(database) as connection:
        found, after = audit.list_acts(connection, None, after=query.after, size=query.page_size)
    return ActPage(acts=found, next_page_token=token_of(after))


@router.get("/datasets/{dataset}/acts")
def list_dataset_acts(
    dataset: DatasetName, query: Pages, database: Database, _caller: Viewer
) -> ActPage:
    """Acts of a dataset and of its runs, the oldest first."""
    with snapshot(database) as connection:
        found, after = audit.list_acts(connection, dataset, after=query.after, size=query.page_size)
    return ActPage(acts=found, next_page_token=token_of(after))
