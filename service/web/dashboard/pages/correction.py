"""The page that corrects recorded steps: a form, and what would change before it is stored."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection, Engine, Row

from service.errors import (
    ConflictError,
    InvalidRequestError,
    LedgerError,
    NotFoundError,
    OutOfSequenceError,
    TooExpensiveError,
)
from service.guarantees.noise_schedule import event_words
from service.identity.authentication import Caller
from service.ledger import lookups, views
from service.ledger.corrections import (
    Correct,
    CorrectionAnswer,
    RecordedSpan,
    latest_uncorrected_span,
    list_corrections,
)
from service.ledger.findings import contradicting_sampling
from service.operations.correction_preview import CorrectionPreview, preview_correction
from service.schemas.event_codec import canonical, event_of
from service.storage.engine import snapshot
from service.web.dashboard.forms import ending_form
from service.web.dashboard.forms.shown_form import WHOLE_FORM, ShownForm, refusal_status
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageOwner, PostedForm
from service.web.four_eyes import waiting_correction
from service.web.parameters import Database, RunName
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
CORRECTIONS_SHOWN: Final = 50
_REFUSALS: Final = (
    InvalidRequestError, ConflictError, OutOfSequenceError, TooExpensiveError, NotFoundError
)  # fmt: skip


@router.get("/runs/{run}/correct")
@expensive
def correction_page(
    run: RunName, request: Request, database: Database, viewer: PageOwner
) -> Response:
    """The form, on the last steps that are not corrected; and the corrections that there are."""
    return _page(run, request, database, viewer, None)


@router.post("/runs/{run}/correct")
@expensive
async def correct_steps(
    run: RunName, request: Request, database: Database, viewer: PageOwner, sent: PostedForm
) -> Response:
    """Record a correction, or say what it would change and record nothing."""
    preview = None
    try:
        records = sent.get("do") == "record"
        new = ending_form.correction_of(sent if records else _with_reason(sent))
        correct = Correct(run_name=run, new=new, by=viewer.name)
        if records:
            waiting = await waiting_correction(request, run, new, viewer)
            if waiting is not None:
                return RedirectResponse(f"/requests/{waiting.id}", HTTPStatus.SEE_OTHER)
            await request.app.state.writer.write(correct)
            return RedirectResponse(f"/runs/{run}/correct#corrections", HTTPStatus.SEE_OTHER)
        preview = await run_in_threadpool(preview_correction, database, correct)
    except _REFUSALS as error:
        form = _show_refusal(sent, error)
        return await run_in_threadpool(_page, run, request, database, viewer, form, error=error)
    return await run_in_threadpool(
        _page, run, request, database, viewer, ShownForm(sent), preview=preview
    )


def _with_reason(sent: Mapping[str, str]) -> dict[str, str]:
    """What a form sends, with some reason: a preview stores none, so it asks for none."""
    return dict(sent) | {"reason": sent.get("reason", "").strip() or "a preview"}


def _show_refusal(sent: Mapping[str, str], error: LedgerError) -> ShownForm:
    match error:
        case OutOfSequenceError():
            return ShownForm(sent, {"steps": "reaches beyond the recorded steps of the branch"})
        case NotFoundError():
            return ShownForm(sent, {"branch": error.detail})
        case ConflictError() | TooExpensiveError():
            return ShownForm(sent, {WHOLE_FORM: error.detail})
    return ShownForm.refused(sent, error, ending_form.CORRECTION_FIELDS)


def _really(one: CorrectionAnswer, dataset_size: int) -> str:
    """What a correction says that steps were, with every number."""
    parts = {"mechanism": one.mechanism, "sampling": one.sampling}
    return event_words(event_of(canonical(parts), dataset_size))


def _to_correct(connection: Connection, run: Row[Any]) -> tuple[Row[Any], RecordedSpan | None]:
    """The latest branch, unless all its steps are corrected; and its last steps that are not."""
    branches = lookups.branches_of(connection, run)[::-1]
    for branch in branches:
        span = latest_uncorrected_span(connection, branch)
        if span is not None or branch.next_step == branch.from_step:
            return branch, span
    return branches[0], None


def _page(
    name: str,
    request: Request,
    database: Engine,
    viewer: Caller,
    form: ShownForm | None,
    *,
    preview: CorrectionPreview | None = None,
    error: LedgerError | None = None,
) -> Response:
    with snapshot(database) as connection:
        row = lookups.find_run(connection, name)
        run = views.run_answer(connection, row)
        done, _ = list_corrections(connection, row.id, after=0, size=CORRECTIONS_SHOWN)
        branch, span = _to_correct(connection, row)
        detected = contradicting_sampling(connection, row.id)
        size = lookups.dataset_of(connection, row).dataset_size
    recorded = "" if span is None else event_words(event_of(span.content, size))
    blank = ending_form.blank_correction(branch.name, span, detected)
    return render(
        request,
        "correction.html",
        viewer=viewer,
        status_code=refusal_status(error),
        run=run,
        form=form or ShownForm(blank),
        recorded=recorded,
        corrected=span is None and branch.next_step > branch.from_step,
        detected=detected is not None,
        preview=preview,
        done=[(one, _really(one, size)) for one in done],
        samplings=ending_form.SAMPLINGS,
        branches=[(one.name, one.name) for one in run.branches],
    )
