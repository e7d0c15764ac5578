"""The planner: what a training would cost, as one drags; nothing is recorded."""

from typing import Any, cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from service.errors import InvalidRequestError, LedgerError
from service.identity.authentication import Caller
from service.storage.engine import snapshot
from service.web.dashboard.glossary import RELATIONS
from service.web.dashboard.pages import planner_answers
from service.web.dashboard.planner_form import FINDS, SCHEMES, PlannerForm, field_of, planner_form
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.snippets import dataset_snippet
from service.web.dashboard.viewer import PageViewer, engine_of
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)


def _form(request: Request) -> PlannerForm:
    return planner_form(request.query_params)


@router.get("/planner")
@expensive
def planner(request: Request, viewer: PageViewer) -> Response:
    """The planner, with a quick answer."""
    return _page(request, viewer, certify=False)


@router.get("/planner/answer")
@expensive
def answered(request: Request, viewer: PageViewer) -> Response:
    """The planner, with the certified answer, all schemes, and what fits: without scripts."""
    return _page(request, viewer, certify=True)


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


@router.get("/planner/fits.json")
@expensive
def fits(request: Request, viewer: PageViewer) -> Response:
    """Whether the plan fits in a dataset's budget."""
    with snapshot(engine_of(request)) as connection:
        return JSONResponse(planner_answers.fits_answer(connection, _form(request), viewer))


def _page(request: Request, viewer: Caller, *, certify: bool) -> Response:
    form = _form(request)
    faults = dict(form.faults)
    given: dict[str, Any] = {"answer": None, "schemes": None, "fits": None, "refusal": None}
    engine = engine_of(request)
    with snapshot(engine) as connection:
        names = planner_answers.offered(connection, viewer)
    try:
        given["answer"] = planner_answers.quick_answer(form)
        if certify:
            given["answer"] = planner_answers.certified_answer(form)
            given["schemes"] = planner_answers.schemes_answer(form)
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
        texts=form.texts() | {name: request.query_params[name] for name in form.faults},
        names=names,
        finds=FINDS,
        all_schemes=SCHEMES,
        relations=RELATIONS,
        dataset_snippet=dataset_snippet(form),
        settings=planner_answers.planner_settings(form),
        **given,
    )


def _faults(refusal: InvalidRequestError) -> dict[str, str]:
    """What is wrong, by the form's fields."""
    errors = cast(list[dict[str, str]], refusal.extra["errors"])
    return {field_of(one["location"]): one["message"] for one in errors}
