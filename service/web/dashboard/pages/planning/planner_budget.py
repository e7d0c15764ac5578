"""The plan of the planner as a budget: an envelope that holds exactly its steps."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl

from pydantic import ValidationError
from sqlalchemy import Connection, Row

from accounting.rounding import up_to_places
from service.errors import InvalidRequestError, UnsupportedEventError
from service.guarantees import plan
from service.guarantees.plan import Plan
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.ledger.lookups import find_dataset
from service.schemas.field_errors import fault_list
from service.schemas.plan_response import PlanEnvelope
from service.schemas.requests import DatasetChange
from service.schemas.responses import DatasetAnswer
from service.web.dashboard.forms.planner_form import EPSILON, PlannerForm, planner_form
from service.web.dashboard.snippets import dataset_snippet

_PLACES: Final = 4  # that epsilon of a new budget is rounded up to


def budget_answer(form: PlannerForm) -> dict[str, Any]:
    """The code that creates a dataset whose budget is the plan; or why no envelope holds it.

    Raises:
        InvalidRequestError: a field is at fault, or the target cannot be reached.
        TooExpensiveError: it takes too much work.
    """
    form.asked()  # a field at fault is told as such
    try:
        found = envelope_of_plan(form)
    except UnsupportedEventError as refusal:
        return {"budget_snippet": None, "budget_reason": str(refusal)}
    except InvalidRequestError as refusal:
        return {"budget_snippet": None, "budget_reason": refusal.detail}
    budget = found.model_dump(mode="json", exclude_none=True) | {"epsilon": envelope_limit(found)}
    return {"budget_snippet": dataset_snippet(form, budget), "budget_reason": None}


def envelope_limit(envelope: PlanEnvelope) -> float:
    """The epsilon of an envelope, in nats and rounded up, as the limit of a budget."""
    return float(up_to_places(envelope.epsilon, _PLACES))


def envelope_of_plan(form: PlannerForm) -> PlanEnvelope:
    """The budget that holds exactly a plan.

    Raises:
        InvalidRequestError: a field is at fault, or no envelope holds the plan.
        UnsupportedEventError: no accepted theorem bounds its steps.
        TooExpensiveError: it takes too much work.
    """
    asked = form.asked().model_copy(update={"as_envelope": True})
    found = plan.account_plan(asked) if isinstance(asked, Plan) else plan.solve(asked)
    assert found.envelope is not None  # noqa: S101 (it was asked for)
    return found.envelope


def can_become_budget(dataset: DatasetAnswer, viewer: Caller) -> bool:
    """Whether the viewer may make a plan the budget of a dataset, which has no answers yet."""
    return viewer.may(Role.OWNER) and not dataset.sequence and not dataset.reserved


def for_dataset(form: PlannerForm, row: Row[Any]) -> PlannerForm:
    """The form with the size of a dataset, and the same number of steps."""
    if form.unit == "epochs":
        form = replace(form, unit="steps", length=float(form.steps))
    return replace(form, dataset_size=row.dataset_size, find=EPSILON)


def budget_change(
    connection: Connection, sent: Mapping[str, str], viewer: Caller
) -> tuple[str, DatasetChange]:
    """The dataset that a form names, and the change that makes the plan its budget.

    The limit keeps its epsilon and delta; a dataset without a limit gets those of the plan.

    Raises:
        NotFoundError: there is no such dataset that the viewer reaches.
        InvalidRequestError: a field is at fault, or no envelope holds the plan.
        UnsupportedEventError: no accepted theorem bounds its steps.
        TooExpensiveError: it takes too much work.
    """
    form = settings_of(sent)
    if form.correlated is not None:
        fault = "a budget of correlated noise needs a strategy that is kept: use the code to copy"
        raise InvalidRequestError("mechanism", fault)
    viewer.require_dataset(form.dataset)
    row = find_dataset(connection, form.dataset)
    own = for_dataset(form, row)
    own = replace(own, neighboring_relation=row.neighboring_relation)
    if row.budget_epsilon is not None:
        own = replace(own, delta=row.budget_delta)
    found = envelope_of_plan(own)
    items = found.model_dump(mode="json", exclude_none=True)
    limit = {"epsilon": row.budget_epsilon or envelope_limit(found), "delta": found.delta}
    whole = {"reason": sent.get("reason", "").strip(), "budget": items | limit}
    try:
        return form.dataset, DatasetChange.model_validate(whole)
    except ValidationError as error:
        told = fault_list(list(error.errors()))
        raise InvalidRequestError.of({one["location"]: one["message"] for one in told}) from None


def settings_of(sent: Mapping[str, str]) -> PlannerForm:
    """The planner's settings that a form carries."""
    return planner_form(dict(parse_qsl(sent.get("settings", ""))))
