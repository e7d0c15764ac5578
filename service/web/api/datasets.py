"""Datasets: what is protected, and what was spent on it."""

from typing import Annotated

from fastapi import Header, Request, Response
from sqlalchemy import Connection, select

from service.guarantees import attribution, fit_suggestions, guarantee
from service.guarantees.attribution import Explanation
from service.guarantees.fit_suggestions import Remedies, Wanted
from service.guarantees.guarantee import Question
from service.identity.access import datasets_within
from service.identity.authentication import Owner, Viewer
from service.identity.ownership import require_own_creation
from service.ledger import dataset_settings, lookups, views
from service.ledger import datasets as datasets_module
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.change_requests.messages import ChangeRequestAnswer
from service.ledger.dataset_settings import SettingsPage, etag
from service.ledger.planned_filter import planned_filter
from service.operations import budget_summaries
from service.operations.ordinary_trainings import CreatedDataset, creation_answer
from service.schemas.requests import DatasetChange, NewDataset
from service.schemas.responses import DatasetAnswer, DatasetGuarantee, DatasetPage
from service.storage.engine import snapshot
from service.storage.tables import datasets
from service.web.four_eyes import WAITS_FOR_APPROVAL, change_settings, waiting_answer
from service.web.parameters import (
    Database,
    DatasetName,
    Explanations,
    Guarantees,
    Pages,
    continuation_token,
    repeated,
)
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1/datasets", tag="datasets")


@router.post("", status_code=201, responses=repeated(CreatedDataset))
def create_dataset(
    new: NewDataset, database: Database, caller: Owner, response: Response
) -> CreatedDataset:
    """Create a dataset; 200 when the same request created it before."""
    planned = planned_filter(new)

    def create(connection: Connection) -> tuple[DatasetAnswer, bool]:
        require_own_creation(connection, caller, new)
        return datasets_module.create_dataset(connection, new, by=caller.name, planned=planned)

    answer, created = run_in_write_transaction(database, create)
    response.status_code = 201 if created else 200
    return creation_answer(answer)


@router.get("")
@expensive
def list_datasets(query: Pages, database: Database, caller: Viewer) -> DatasetPage:
    """Datasets in creation order."""
    with snapshot(database) as connection:
        seen = select(datasets).where(datasets_within(caller.datasets))
        rows, after = lookups.page_of_rows(
            connection, seen, datasets, after=query.after, size=query.page_size
        )
        found = budget_summaries.dataset_answers(connection, rows)
    return DatasetPage(datasets=found, next_page_token=continuation_token(after))


@router.get("/{dataset}")
def get_dataset(
    dataset: DatasetName, database: Database, _caller: Viewer, response: Response
) -> DatasetAnswer:
    """A dataset with what is spent, reserved and remaining; its settings' revision as ETag."""
    with snapshot(database) as connection:
        answer = views.dataset_answer(connection, lookups.find_dataset(connection, dataset))
    response.headers["ETag"] = etag(answer.revision)
    return answer


@router.patch("/{dataset}", response_model=DatasetAnswer, responses=WAITS_FOR_APPROVAL)
def change_dataset(
    dataset: DatasetName,
    change: DatasetChange,
    caller: Owner,
    request: Request,
    response: Response,
    if_match: Annotated[
        str | None, Header(description="The ETag of the dataset that the change was decided on.")
    ] = None,
) -> DatasetAnswer | Response:
    """Change settings for a reason, freeze, or void; If-Match names the settings' revision."""
    answer = change_settings(request, dataset, change, if_match=if_match, caller=caller)
    if isinstance(answer, ChangeRequestAnswer):
        return waiting_answer(answer)
    response.headers["ETag"] = etag(answer.revision)
    return answer


@router.get("/{dataset}/settings")
@expensive
def list_settings(
    dataset: DatasetName, query: Pages, database: Database, _caller: Viewer
) -> SettingsPage:
    """Every revision of a dataset's settings, the oldest first."""
    with snapshot(database) as connection:
        found, after = dataset_settings.settings_history(
            connection, dataset, after=query.after, size=query.page_size
        )
    return SettingsPage(settings=found, next_page_token=continuation_token(after))


@router.get("/{dataset}/guarantee")
@expensive
def get_dataset_guarantee(
    dataset: DatasetName, query: Guarantees, database: Database, _caller: Viewer
) -> DatasetGuarantee:
    """All runs of a dataset composed."""
    with snapshot(database) as connection:
        return guarantee.dataset_guarantee(connection, dataset, Question(**query.model_dump()))


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
        return fit_suggestions.remedies(connection, dataset, wanted)
