"""Change requests: asked for by one person, approved or rejected by another."""

from typing import Annotated

from fastapi import Header, Request, Response

from service.identity.access import datasets_within
from service.identity.authentication import Approver, Trainer, Viewer
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.change_requests import four_eyes, records
from service.ledger.change_requests.messages import (
    ChangeRequestAnswer,
    ChangeRequestPage,
    NewChangeRequest,
    NewDecision,
)
from service.ledger.lookups import page_of_rows
from service.storage.engine import snapshot
from service.storage.tables import change_requests, datasets
from service.web.four_eyes import decide_request, request_path
from service.web.parameters import (
    ChangeRequestName,
    ChangeRequestPages,
    Database,
    DatasetName,
    continuation_token,
    repeated,
)
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1", tag="requests")


@router.post(
    "/datasets/{dataset}/requests", status_code=201, responses=repeated(ChangeRequestAnswer)
)
def create_change_request(
    dataset: DatasetName,
    new: NewChangeRequest,
    database: Database,
    caller: Trainer,
    response: Response,
    if_match: Annotated[
        str | None, Header(description="The ETag of the dataset that the request was decided on.")
    ] = None,
) -> ChangeRequestAnswer:
    """Ask for another limit or envelope; 200 when the same is pending already."""
    answer, created = run_in_write_transaction(
        database,
        lambda connection: four_eyes.ask_for_budget(
            connection, dataset, new, if_match=if_match, by=caller.actor
        ),
    )
    response.status_code = 201 if created else 200
    response.headers["Location"] = request_path(answer)
    return answer


@router.get("/requests")
@expensive
def list_change_requests(
    query: ChangeRequestPages, database: Database, caller: Viewer
) -> ChangeRequestPage:
    """Change requests, the oldest first; of a dataset, a state or a person alone if asked."""
    wanted = [datasets_within(caller.datasets)]
    if query.dataset is not None:
        caller.require_dataset(query.dataset)
        wanted.append(datasets.c.name == query.dataset)
    if query.state is not None:
        wanted.append(records.in_state(query.state))
    if query.by is not None:
        wanted.append(change_requests.c.person == query.by)
    with snapshot(database) as connection:
        rows, after = page_of_rows(
            connection,
            records.select_requests(*wanted),
            change_requests,
            after=query.after,
            size=query.page_size,
        )
    found = [records.request_answer(row) for row in rows]
    return ChangeRequestPage(requests=found, next_page_token=continuation_token(after))


@router.get("/requests/{change_request}")
def get_change_request(
    change_request: ChangeRequestName, database: Database, _caller: Viewer
) -> ChangeRequestAnswer:
    """A change request as it stands."""
    with snapshot(database) as connection:
        return records.request_answer(records.find_request(connection, change_request))


@router.post("/requests/{change_request}:approve")
def approve_change_request(
    change_request: ChangeRequestName, given: NewDecision, caller: Approver, request: Request
) -> ChangeRequestAnswer:
    """Approve what another person asked for, and make the change."""
    return decide_request(request, change_request, "approve", reason=given.reason, caller=caller)


@router.post("/requests/{change_request}:reject")
def reject_change_request(
    change_request: ChangeRequestName, given: NewDecision, caller: Approver, request: Request
) -> ChangeRequestAnswer:
    """Reject what another person asked for."""
    return decide_request(request, change_request, "reject", reason=given.reason, caller=caller)


@router.post("/requests/{change_request}:withdraw")
def withdraw_change_request(
    change_request: ChangeRequestName, given: NewDecision, caller: Trainer, request: Request
) -> ChangeRequestAnswer:
    """Withdraw what the same person asked for."""
    return decide_request(request, change_request, "withdraw", reason=given.reason, caller=caller)
