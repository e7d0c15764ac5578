"""The planner: what a training would cost, as one drags; nothing is recorded."""

from http import HTTPStatus
from typing import Any, Final, cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from service.errors import (
    InvalidRequestError,
    LedgerError,
    TooExpensiveError,
    UnsupportedEventError,
)
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.ledger.change_requests.messages import ChangeRequestAnswer
from service.storage.engine import snapshot
from service.web.dashboard.forms.budget_form import FORM_ERRORS, if_match
from service.web.dashboard.forms.planner_form import (
    EPSILON,
    FINDS,
    MECHANISMS,
    PlannerForm,
    field_of,
    planner_form,
)
from service.web.dashboard.forms.planner_noise import TRIALS
from service.web.dashboard.forms.planner_schemes import SCHEMES
from service.web.dashboard.forms.shown_form import fault_text
from service.web.dashboard.glossary import RELATIONS
from service.web.dashboard.pages.planning import planner_answers, planner_budget
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.snippets import dataset_snippet
from service.web.dashboard.viewer import PageOwner, PageViewer, PostedForm, engine_of
from service.web.four_eyes import change_settings
from service.web.parameters import Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_FAULTS: Final = (*FORM_ERRORS, TooExpensiveError, UnsupportedEventError)


def _form(request: Request) -> PlannerForm:
    return planner_form(request.query_params)


@router.get("/planner")
@expensive
def planner(request: Request, viewer: PageViewer) -> Response:
    """The planner, with a quick answer."""
    return _page(request, viewer, _form(request), certify=False)


@router.get("/planner/answer")
@expensive
def show_answer(request: Request, viewer: PageViewer) -> Response:
    """The planner, with the certified answer, all schemes, and what fits: without scripts."""
    return _page(request, viewer, _form(request), certify=True)


@router.get("/planner/quick.json")
def quick(request: Request, _viewer: PageViewer) -> Response:
    """An upper bound at once."""
    return JSONResponse(planner_answers.quick_answer(_form(request)))


@router.get("/planner/answer.json")
@expensive
def answer(request: Request, _viewer: PageViewer) -> Response:
    """The certified bracket."""
    return JSONResponse(planner_answers.certified_answer(_form(request)))


@router.get("/planner/schemes.json")
@expensive
def schemes(request: Request, _viewer: PageViewer) -> Response:
    """Every scheme at the same settings, quickly."""
    form = _form(request)
    form.asked()
    return JSONResponse({"schemes": planner_answers.schemes_answer(form)})


@router.get("/planner/choices.json")
@expensive
def choices(request: Request, _viewer: PageViewer) -> Response:
    """What a shuffled loader could be instead, quickly."""
    form = _form(request)
    form.asked()
    return JSONResponse({"choices": planner_answers.choices_answer(form, certify=False)})


@router.get("/planner/budget.json")
@expensive
def budget(request: Request, _viewer: PageViewer) -> Response:
    """The plan as the budget of a new dataset."""
    return JSONResponse(planner_budget.budget_answer(_form(request)))


@router.get("/planner/budget")
def budget_form(_viewer: PageViewer) -> Response:
    """Where the form is, for who loads the answer to one again."""
    return RedirectResponse("/planner", HTTPStatus.SEE_OTHER)


@router.post("/planner/budget")
@expensive
def set_budget(
    request: Request, database: Database, viewer: PageOwner, sent: PostedForm
) -> Response:
    """Make the plan the budget of a dataset without answers; a fault is told on the page."""
    try:
        with snapshot(database) as connection:
            name, change = planner_budget.budget_change(connection, sent, viewer)
        revision = if_match(sent)
        answer = change_settings(request, name, change, if_match=revision, caller=viewer)
    except _FAULTS as refusal:
        form = planner_budget.settings_of(sent)
        return _page(request, viewer, form, certify=True, budget_fault=refusal)
    if isinstance(answer, ChangeRequestAnswer):
        return RedirectResponse(f"/requests/{answer.id}", HTTPStatus.SEE_OTHER)
    return RedirectResponse(f"/datasets/{name}#envelope", HTTPStatus.SEE_OTHER)


@router.get("/planner/fits.json")
@expensive
def fits(request: Request, viewer: PageViewer) -> Response:
    """Whether the plan fits in a dataset's budget."""
    with snapshot(engine_of(request)) as connection:
        return JSONResponse(planner_answers.fits_answer(connection, _form(request), viewer))


def _page(
    request: Request,
    viewer: Caller,
    form: PlannerForm,
    *,
    certify: bool,
    budget_fault: LedgerError | None = None,
) -> Response:
    faults = dict(form.faults)
    given: dict[str, Any] = dict.fromkeys(
        ("answer", "schemes", "choices", "fits", "refusal", "budget")
    )
    engine = engine_of(request)
    with snapshot(engine) as connection:
        names = planner_answers.list_budgeted_datasets(connection, viewer)
    try:
        given["answer"] = planner_answers.quick_answer(form)
        if certify:
            given["answer"] = planner_answers.certified_answer(form)
            if form.plain:
                given["schemes"] = planner_answers.schemes_answer(form)
            if form.plain and form.find == EPSILON:
                given["choices"] = planner_answers.choices_answer(form, certify=True)
            given["budget"] = planner_budget.budget_answer(form)
            if form.dataset:
                with snapshot(engine) as connection:
                    given["fits"] = planner_answers.fits_answer(connection, form, viewer)
    except InvalidRequestError as refusal:
        faults |= _faults(refusal)
    except LedgerError as refusal:
        given["refusal"] = str(refusal)
    return render(
        request,
        "planner.html",
        viewer=viewer,
        form=form,
        faults=faults,
        status_code=HTTPStatus.OK if budget_fault is None else HTTPStatus.CONFLICT,
        budget_fault=None if budget_fault is None else fault_text(budget_fault),
        may_set_budget=viewer.may(Role.OWNER),
        texts=form.texts() | {name: request.query_params.get(name, "") for name in form.faults},
        names=names,
        finds=FINDS,
        all_schemes=SCHEMES,
        mechanisms=MECHANISMS,
        laws=TRIALS,
        relations=RELATIONS,
        dataset_snippet=dataset_snippet(form),
        settings=planner_answers.planner_settings(form),
        **given,
    )


def _faults(refusal: InvalidRequestError) -> dict[str, str]:
    """What is wrong, by the form's fields."""
    errors = cast(list[dict[str, str]], refusal.extra["errors"])
    return {field_of(one["location"]): one["message"] for one in errors}
