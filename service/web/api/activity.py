"""Acts: what administrators and others did, as the logs have it."""

from sqlalchemy import Connection

from service.identity.authentication import Admin, Viewer
from service.storage.engine import snapshot
from service.transparency import activity
from service.transparency.activity import ActAnswer, ActPage
from service.web.parameters import ActPageQuery, ActPages, Database, DatasetName, continuation_token
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1", tag="acts")


@router.get("/acts")
@expensive
def list_acts(query: ActPages, database: Database, _caller: Admin) -> ActPage:
    """Acts that belong to no dataset, those of keys among them, the oldest first."""
    with snapshot(database) as connection:
        found, after = _list_acts(connection, None, query)
    return ActPage(acts=found, next_page_token=continuation_token(after))


@router.get("/datasets/{dataset}/acts")
@expensive
def list_dataset_acts(
    dataset: DatasetName, query: ActPages, database: Database, _caller: Viewer
) -> ActPage:
    """Acts of a dataset and of its runs, the oldest first; of a key or a kind alone if asked."""
    with snapshot(database) as connection:
        found, after = _list_acts(connection, dataset, query)
    return ActPage(acts=found, next_page_token=continuation_token(after))


def _list_acts(
    connection: Connection, dataset: str | None, query: ActPageQuery
) -> tuple[list[ActAnswer], int | None]:
    return activity.list_acts(
        connection, dataset, after=query.after, size=query.page_size, by=query.by, kind=query.kind
    )
