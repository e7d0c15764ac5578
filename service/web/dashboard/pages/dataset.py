"""The page of a dataset: what is spent, by whom and since when, and what would still fit."""

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection, Engine, Row

from accounting.events import Event, Gaussian, Poisson, Span
from service.clock import now
from service.errors import LedgerError, TooExpensiveError
from service.guarantees import attribution, fit_suggestions
from service.guarantees.guarantee import Question, dataset_guarantee
from service.guarantees.spending_history import Spending, known_spending
from service.guarantees.statements.one_person import promise_of_dataset
from service.guarantees.statements.statement_text import attack_sentence, person_notes, person_rows
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.ledger import dataset_settings, incidents, lookups, open_reservations, views
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.budgets.budget import dataset_scope
from service.ledger.change_requests import four_eyes
from service.ledger.change_requests.messages import ChangeRequestAnswer, NewChangeRequest
from service.ledger.dataset_settings import SettingsAnswer
from service.operations.forecast import outlook_of
from service.operations.incident_inbox import read_handled
from service.schemas.message import Delta
from service.schemas.requests import STEPS_MAX, AtMostRows, DatasetChange
from service.schemas.responses import DatasetAnswer
from service.storage.engine import snapshot
from service.storage.versioned_cache import VersionedCache
from service.web.certificate_issue import CertificateQuery, answer_certificate
from service.web.dashboard import glossary, lineage_chart, spending_chart
from service.web.dashboard.forms import budget_form
from service.web.dashboard.forms.budget_form import AcceptForm, AdmissionForm, LimitForm
from service.web.dashboard.forms.shown_form import refusal_status
from service.web.dashboard.pages.incidents import incident_rights, with_advice
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.response_cache import answers_of, dataset_version
from service.web.dashboard.viewer import PageOwner, PageTrainer, PageViewer, PostedForm
from service.web.four_eyes import change_settings
from service.web.parameters import Database, DatasetName
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_DELTA: Final = 1e-5  # for a dataset without a limit, unless the address gives another
SPENDERS: Final = 12
INCIDENTS: Final = 8
RESERVATIONS: Final = 20
SETTINGS: Final = 1000  # revisions that are read
BATCH: Final = 256  # of a usual training
_NOISES: Final = (("little", 0.8), ("usual", 1.1), ("much", 2.0))
_Delta = Annotated[Delta, Query()]


@router.get("/datasets/{dataset}")
@expensive
def dataset_page(
    dataset: DatasetName,
    request: Request,
    database: Database,
    viewer: PageViewer,
    delta: _Delta = _DELTA,
    proved: Annotated[bool, Query()] = False,
) -> Response:
    """A dataset; where none has the name `new`, the form that creates one."""
    with snapshot(database) as connection:
        if dataset == "new" and not lookups.is_dataset(connection, dataset):
            return RedirectResponse("/new-dataset", HTTPStatus.SEE_OTHER)
        found = _read_page(connection, request, dataset, viewer, delta)
        if proved:
            found |= _read_proved(connection, request, dataset, delta)
    return render(request, "dataset.html", viewer=viewer, **found)


@router.get("/datasets/{dataset}/proved")
@expensive
def proved_part(
    dataset: DatasetName,
    request: Request,
    database: Database,
    viewer: PageViewer,
    delta: _Delta = _DELTA,
) -> Response:
    """What is proved of everything together, from above and from below: a part of the page."""
    with snapshot(database) as connection:
        found = _read_proved(connection, request, dataset, delta)
    return render(request, "dataset_proved.html", viewer=viewer, **found)


@router.get("/datasets/{dataset}/certificate")
@expensive
def certificate(
    dataset: DatasetName,
    query: Annotated[CertificateQuery, Query()],
    request: Request,
    database: Database,
    viewer: PageViewer,
) -> Response:
    """What all runs have spent, signed.

    Raises:
        LedgerSuspendedError: an incomplete ledger is not signed.
    """
    standing = request.state.standing
    if standing.state != "open":
        raise standing.refusal()
    return answer_certificate("dataset", dataset, query, request, database, viewer)


@router.get("/datasets/{dataset}/limit")
@router.get("/datasets/{dataset}/ask")
@router.get("/datasets/{dataset}/admission")
@router.get("/datasets/{dataset}/accept")
def to_forms(dataset: DatasetName, _viewer: PageViewer) -> Response:
    """Go where the forms are: the answer to one was loaded again."""
    return RedirectResponse(f"/datasets/{dataset}#limits", HTTPStatus.SEE_OTHER)


@router.post("/datasets/{dataset}/limit")
@expensive
def change_limit(
    dataset: DatasetName, request: Request, database: Database, viewer: PageOwner, form: PostedForm
) -> Response:
    """Set another limit; what is wrong with it is said beside the field."""
    try:
        where = _change(dataset, request, viewer, form, budget_form.change_of(form))
    except budget_form.FORM_ERRORS as error:
        found = _read_again(dataset, request, database, viewer)
        found["form"] = LimitForm.refused(form, found["dataset"], error)
        return _show_refusal(request, viewer, found, error)
    return RedirectResponse(where, HTTPStatus.SEE_OTHER)


@router.post("/datasets/{dataset}/ask")
@expensive
def ask(
    dataset: DatasetName,
    request: Request,
    database: Database,
    viewer: PageTrainer,
    form: PostedForm,
) -> Response:
    """Ask for another limit, which another person decides."""
    try:
        change = budget_form.change_of(form)
        assert change.budget is not None  # noqa: S101 (the form has one)
        new = NewChangeRequest(reason=change.reason, budget=change.budget)
        revision = budget_form.if_match(form)
        answer, _ = run_in_write_transaction(
            database,
            lambda connection: four_eyes.ask_for_budget(
                connection, dataset, new, if_match=revision, by=viewer.actor
            ),
        )
    except budget_form.FORM_ERRORS as error:
        found = _read_again(dataset, request, database, viewer)
        found["ask"] = LimitForm.refused(form, found["dataset"], error)
        return _show_refusal(request, viewer, found, error)
    return RedirectResponse(f"/requests/{answer.id}", HTTPStatus.SEE_OTHER)


@router.post("/datasets/{dataset}/admission")
@expensive
def change_admission(
    dataset: DatasetName, request: Request, database: Database, viewer: PageOwner, form: PostedForm
) -> Response:
    """Freeze a dataset or end that, and void its open reservations."""
    try:
        where = _change(dataset, request, viewer, form, budget_form.admission_of(form))
    except budget_form.FORM_ERRORS as error:
        found = _read_again(dataset, request, database, viewer)
        found["admission"] = AdmissionForm.refused(form, error)
        return _show_refusal(request, viewer, found, error)
    return RedirectResponse(where, HTTPStatus.SEE_OTHER)


@router.post("/datasets/{dataset}/accept")
@expensive
def change_accept(
    dataset: DatasetName, request: Request, database: Database, viewer: PageOwner, form: PostedForm
) -> Response:
    """Say which statuses of theorems count on a dataset."""
    try:
        where = _change(dataset, request, viewer, form, budget_form.accept_change_of(form))
    except budget_form.FORM_ERRORS as error:
        found = _read_again(dataset, request, database, viewer)
        found["accept"] = AcceptForm.refused(form, error)
        return _show_refusal(request, viewer, found, error)
    return RedirectResponse(where, HTTPStatus.SEE_OTHER)


def _change(
    name: str, request: Request, viewer: Caller, sent: Mapping[str, str], change: DatasetChange
) -> str:
    """Change the settings that the sender had looked at; where that is told.

    A change that needs a second person becomes a request, whose page it is.
    """
    revision = budget_form.if_match(sent)
    answer = change_settings(request, name, change, if_match=revision, caller=viewer)
    if isinstance(answer, ChangeRequestAnswer):
        return f"/requests/{answer.id}"
    return f"/datasets/{name}#limits"


def _read_again(name: str, request: Request, database: Engine, viewer: Caller) -> dict[str, Any]:
    with snapshot(database) as connection:
        return _read_page(connection, request, name, viewer, _DELTA)


def _show_refusal(
    request: Request, viewer: Caller, found: Mapping[str, Any], error: LedgerError
) -> Response:
    """The page again, with what is wrong in one of its forms."""
    status = refusal_status(error)
    return render(request, "dataset.html", viewer=viewer, status_code=status, **found)


def _read_proved(
    connection: Connection, request: Request, name: str, delta: float
) -> dict[str, Any]:
    """What is certified of everything that ran, and what that promises one person."""
    row = lookups.find_dataset(connection, name)
    asked = row.budget_delta or delta
    version = (*dataset_version(row), int(time.time() // 60))  # the minute: reservations expire

    def work() -> dict[str, Any]:
        guarantee = dataset_guarantee(connection, name, Question(delta=asked))
        person = None  # before a step there is nothing that an attacker could find
        if guarantee.without_reservations.epsilon != 0:
            person = promise_of_dataset(connection, row, guarantee, reserved=False)
        return {
            "guarantee": guarantee,
            "person": [] if person is None else person_rows(person),
            "person_notes": [] if person is None else person_notes(person),
            "attack": "" if person is None else attack_sentence(person.cases[0].found),
            "unit": row.privacy_unit,
        }

    found: dict[str, Any] = answers_of(request).compute(
        ("dataset proved", row.id, row.created_at, asked), version, work
    )
    return found | {"contradicted": incidents.contradicted_runs(connection, row.id)}


def _is_reached_by(viewer: Caller) -> Any:
    return lambda name: viewer.datasets is None or name in viewer.datasets


def _read_page(
    connection: Connection, request: Request, name: str, viewer: Caller, delta: float
) -> dict[str, Any]:
    """All that the page shows."""
    spendings: VersionedCache[Spending] = request.app.state.spendings
    row = lookups.find_dataset(connection, name)
    answer = views.dataset_answer(connection, row)
    changes, _ = dataset_settings.settings_history(connection, name, after=0, size=SETTINGS)
    happened, total = incidents.latest_incidents(connection, row.id, size=INCIDENTS)
    held, held_total = open_reservations.first_open(connection, row.id, size=RESERVATIONS)
    at, planned = row.budget_delta or delta, _read_planned_training(row)
    return {
        "dataset": answer,
        "guarantee": None,
        "delta": at,
        "changes": changes[::-1],
        "incidents": with_advice(connection, read_handled(connection, happened)),
        "incidents_total": total,
        **incident_rights(viewer),
        "reservations": held,
        "reservations_total": held_total,
        "frozen_above": lineage_chart.frozen_above(connection, row.id),
        "family": _family(connection, row, viewer),
        "rows_of_parents": _rows_of_parents(answer),
        "fits": _fits(connection, row, planned),
        "batch": planned[1] if planned else min(BATCH, row.dataset_size),
        "planned": planned,
        "form": LimitForm.of(answer) if viewer.may(Role.OWNER) else None,
        "ask": LimitForm.of(answer) if viewer.scope is Role.TRAINER else None,
        "admission": AdmissionForm.of(answer) if viewer.may(Role.OWNER) else None,
        "accept": AcceptForm.of(answer) if viewer.may(Role.OWNER) else None,
        "statuses": [(one, glossary.STATUSES[one]) for one in budget_form.ACCEPTED],
        "reached": _is_reached_by(viewer),
        **_read_spending(connection, row, answer, changes, at, spendings),
    }


def _read_spending(
    connection: Connection,
    row: Row[Any],
    answer: DatasetAnswer,
    changes: list[SettingsAnswer],
    delta: float,
    known: VersionedCache[Spending],
) -> Mapping[str, Any]:
    """Who spent what, and when; nothing of it where that would take too long to tell."""
    try:
        grounds = attribution.grounds_of(connection, row)
        spent = known_spending(known, connection, grounds, delta=delta)
        explanation = attribution.explain_spending(connection, grounds, delta=delta, most=SPENDERS)
    except TooExpensiveError as error:
        none = {"explanation": None, "spent": None, "picture": None, "outlook": None}
        return none | {"too_expensive": error.detail}
    present = now()
    scope = None if answer.budget is None else dataset_scope(row, grounds.accumulator)
    return {
        "explanation": explanation,
        "spent": spent,
        "picture": spending_chart.draw_spending(spent, changes, present),
        "outlook": outlook_of(connection, row, scope, grounds.lost, present),
        "too_expensive": "",
    }


def _rows_of_parents(dataset: DatasetAnswer) -> str:
    """How many rows of the dataset a record of a parent has; empty without parents."""
    match dataset.rows_per_parent_record:
        case None:
            return ""
        case AtMostRows(at_most=rows):
            here = f"the figures of this page are about one {dataset.privacy_unit}"
            return f"at most {rows:,} rows: {here}, those of a parent about all rows of a record"
        case told:
            return f"{told.replace('_', ' ')} row"


def _family(connection: Connection, row: Row[Any], viewer: Caller) -> lineage_chart.Pedigree | None:
    found = lineage_chart.kin_of(connection, row)
    if len(found) == 1:
        return None
    return lineage_chart.pedigree(found, row.name, reached=_is_reached_by(viewer))


def _read_planned_training(row: Row[Any]) -> tuple[float, float] | None:
    """The noise multiplier and the batch of the training that the dataset was made for.

    None without one, or if it is not Poisson-sampled Gaussian noise.
    """
    asked = json.loads(row.request)
    steps = (asked.get("for") or {}).get("events") or (asked.get("budget") or {}).get("envelope")
    if not steps:
        return None
    mechanism, sampling = steps[0]["mechanism"], steps[0]["sampling"]
    if (mechanism["kind"], sampling["kind"]) != ("gaussian", "poisson"):
        return None
    size, rate = row.dataset_size, sampling.get("sampling_probability")
    batch = sampling.get("expected_batch_size") if rate is None else rate * size
    near = round(batch)
    same = near == batch if rate is None else near / size == rate
    return mechanism["noise_multiplier"], near if same else batch


def _fits(
    connection: Connection, row: Row[Any], planned: tuple[float, float] | None
) -> list[dict[str, Any]] | None:
    """How long some trainings could still run, each alone; None without a limit."""
    batch = min(BATCH, row.dataset_size) if planned is None else planned[1]
    noises = [("planned", planned[0])] if planned else []
    noises += [one for one in _NOISES if one[1] not in dict(noises).values()]
    rate = batch / row.dataset_size
    sampling = Poisson(sampling_probability=rate) if rate < 1 else None
    if sampling is None:
        return []
    trainings = [
        Span(
            event=Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling),
            steps=STEPS_MAX,
        )
        for _, noise in noises
    ]
    try:
        steps = fit_suggestions.admissible(connection, row, trainings)
    except TooExpensiveError:
        return []
    if steps is None:
        return None
    return [
        {"how": how, "noise": noise, "steps": count, "passes": count * rate, "rate": rate}
        for (how, noise), count in zip(noises, steps, strict=True)
    ]
