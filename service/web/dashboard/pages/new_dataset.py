"""The page that creates a dataset: a form, and what its budget would admit."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection, Engine, select

from accounting.calibration import Parameter
from service.errors import (
    BudgetExhaustedError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    LedgerError,
    NotFoundError,
    TooExpensiveError,
    UnsupportedEventError,
)
from service.identity.access import datasets_within
from service.identity.authentication import Caller
from service.identity.ownership import require_own_creation
from service.ledger import datasets as datasets_module
from service.ledger.append.write_access import rehearse, run_in_write_transaction
from service.ledger.planned_filter import planned_filter
from service.operations.ordinary_trainings import CreatedDataset, admitted_steps, creation_answer
from service.schemas.requests import Budget, NewDataset
from service.schemas.responses import DatasetAnswer
from service.storage.engine import snapshot
from service.storage.tables import datasets
from service.web.dashboard.forms import dataset_form
from service.web.dashboard.forms.dataset_form import AskedDataset
from service.web.dashboard.forms.planner_form import PlannerForm
from service.web.dashboard.forms.shown_form import WHOLE_FORM, ShownForm
from service.web.dashboard.glossary import RELATIONS
from service.web.dashboard.pages.planning import planner_budget
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageOwner, PostedForm
from service.web.parameters import Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
# No name of a dataset begins so: /datasets/new may be the page of one.
NEW_DATASET_PATH: Final = "/new-dataset"
_PLAN_MAX: Final = 2000  # characters
_PARENTS_SHOWN: Final = 500
_REFUSALS: Final = (
    InvalidRequestError, ConflictError, ForbiddenError, NotFoundError, BudgetExhaustedError,
    TooExpensiveError, UnsupportedEventError,
)  # fmt: skip


@router.get(NEW_DATASET_PATH)
@expensive
def new_dataset(
    request: Request, database: Database, viewer: PageOwner, plan: str | None = None
) -> Response:
    """The form; with the planner's settings in `plan` it is filled in."""
    given = {} if plan is None else {"plan": plan[:_PLAN_MAX]}
    form = dataset_form.blank_dataset(given)
    return _page(request, database, viewer, form)


@router.post(NEW_DATASET_PATH)
@expensive
def create_dataset(
    request: Request, database: Database, viewer: PageOwner, sent: PostedForm
) -> Response:
    """Create the dataset, or show what its budget would admit and create nothing."""
    try:
        asked = dataset_form.read_dataset_form(sent)
        new, planned = _with_budget(asked)

        def create(connection: Connection) -> tuple[DatasetAnswer, bool]:
            require_own_creation(connection, viewer, new)
            return datasets_module.create_dataset(connection, new, by=viewer.name, planned=planned)

        if sent.get("do") == "create":
            run_in_write_transaction(database, create)
            return RedirectResponse(f"/datasets/{new.name}", HTTPStatus.SEE_OTHER)
        answer, unknown = rehearse(database, create)
    except _REFUSALS as error:
        return _page(request, database, viewer, _show_refusal(sent, error), status=_status(error))
    if not unknown:
        repeat = ConflictError("The same request created this dataset before.")
        return _page(request, database, viewer, _show_refusal(sent, repeat), status=_status(repeat))
    preview = creation_answer(answer)
    return _page(request, database, viewer, ShownForm(sent), preview=preview, asked=asked)


def _with_budget(asked: AskedDataset) -> tuple[NewDataset, str | None]:
    """The request with its budget, and the record of the filter that suits its training.

    Events are priced here, before a transaction, so that no lock waits for it.
    """
    if not asked.envelope or asked.training is None:
        return asked.new, planned_filter(asked.new)
    found = planner_budget.envelope_of_plan(asked.training)
    epsilon = planner_budget.envelope_limit(found) if asked.epsilon is None else asked.epsilon
    items = found.model_dump(mode="json", exclude_none=True)
    budget = Budget.model_validate(items | {"epsilon": epsilon})
    return asked.new.model_copy(update={"budget": budget}), None


def _show_refusal(sent: Mapping[str, str], error: LedgerError) -> ShownForm:
    match error:
        case NotFoundError():
            return ShownForm(sent, {"parents": "One of them is no dataset of this ledger."})
        case BudgetExhaustedError():
            return ShownForm(sent, {"epsilon": "is less than the planned training costs"})
        case ConflictError():
            return ShownForm(sent, {"name": error.detail})
        case UnsupportedEventError() | ForbiddenError():
            return ShownForm(sent, {WHOLE_FORM: str(error)})
    return ShownForm.refused(sent, error, dataset_form.NEW_DATASET_FIELDS)


def _status(error: LedgerError) -> HTTPStatus:
    match error:
        case ConflictError():
            return HTTPStatus.CONFLICT
        case ForbiddenError():
            return HTTPStatus.FORBIDDEN
    return HTTPStatus.UNPROCESSABLE_ENTITY


def _page(
    request: Request,
    database: Engine,
    viewer: Caller,
    form: ShownForm,
    *,
    preview: CreatedDataset | None = None,
    asked: AskedDataset | None = None,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    with snapshot(database) as connection:
        names = select(datasets.c.name).where(datasets_within(viewer.datasets))
        names = names.order_by(datasets.c.name).limit(_PARENTS_SHOWN)
        known = list(connection.scalars(names))
    training = None if asked is None else asked.training
    admitted = _count_admitted(preview, training)
    return render(
        request,
        "new_dataset.html",
        viewer=viewer,
        status_code=status,
        form=form,
        preview=preview,
        training=None if training is None else dataset_form.training_words(training),
        admitted=admitted,
        searches=_searches(preview, training) if admitted and admitted[0] < admitted[1] else {},
        planned=_describe_training(form),
        known=known,
        relations=[(one.value, f"{title}: {told}") for one, (title, told) in RELATIONS.items()],
    )


def _count_admitted(
    preview: CreatedDataset | None, training: PlannerForm | None
) -> tuple[int, int] | None:
    """(steps that the budget admits, steps of the training); None where it is not counted so."""
    if preview is None or training is None or training.sampling != "poisson":
        return None
    ((event, _),) = training.counts().steps.items()
    found = admitted_steps(preview, [event])
    return None if found is None else (min(found[0], training.steps), training.steps)


def _searches(preview: CreatedDataset | None, training: PlannerForm | None) -> dict[str, str]:
    """The planner's settings that find another training which the limit admits, or its cost."""
    if preview is None or preview.budget is None or training is None:
        return {}
    limit = preview.budget.epsilon
    return {
        "the least ε that admits it": training.query(),
        "the noise for this ε": training.query(find=Parameter.NOISE_MULTIPLIER, epsilon=limit),
        "the steps for this ε": training.query(find=Parameter.STEPS, epsilon=limit),
    }


def _describe_training(form: ShownForm) -> str:
    """The planner's training in words; empty where the form has none."""
    shown = dataset_form.training_of(form.values)
    return "" if shown is None else dataset_form.training_words(shown)
