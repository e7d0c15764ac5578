"""Reports: a privacy statement as a page that prints well, or as one file to be sent on."""

import base64
import hashlib
import time
from collections.abc import Hashable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import Field
from sqlalchemy import Row

from service.guarantees.statements import statement
from service.guarantees.statements.statement import STATEMENT_DELTAS_MAX, StatementReport
from service.identity.authentication import Caller
from service.ledger.lookups import dataset_of, find_dataset, find_run
from service.schemas.message import Delta
from service.storage.engine import snapshot
from service.web.dashboard.assets import STATIC
from service.web.dashboard.glossary import ASSUMPTIONS, RELATIONS, STATUSES
from service.web.dashboard.rendering import PageRoute, render, templates
from service.web.dashboard.response_cache import answers_of, dataset_version
from service.web.dashboard.viewer import PageViewer
from service.web.parameters import Database, DatasetName, Parameters, RunName
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
STYLE: Final = "report.css"


class ReportQuery(Parameters):
    """At which deltas beside the usual ones, and whether as a file that needs nothing else."""

    delta: list[Delta] = Field(default=[], max_length=STATEMENT_DELTAS_MAX)
    format: Literal["page", "file"] = "page"


Reports = Annotated[ReportQuery, Query()]


@router.get("/runs/{run}/report")
@expensive
def run_report(
    run: RunName, query: Reports, request: Request, database: Database, viewer: PageViewer
) -> Response:
    """The privacy statement of a run."""
    with snapshot(database) as connection:
        row = find_run(connection, run)
        found = answers_of(request).compute(
            ("run report", row.id, row.created_at, *query.delta),
            _version(dataset_of(connection, row)),
            lambda: statement.run_report(connection, run, deltas=query.delta),
        )
    return _answer(request, found, viewer, query)


@router.get("/datasets/{dataset}/report")
@expensive
def dataset_report(
    dataset: DatasetName, query: Reports, request: Request, database: Database, viewer: PageViewer
) -> Response:
    """The privacy statement of a dataset."""
    with snapshot(database) as connection:
        row = find_dataset(connection, dataset)
        found = answers_of(request).compute(
            ("dataset report", row.id, row.created_at, *query.delta),
            _version(row),
            lambda: statement.dataset_report(connection, dataset, deltas=query.delta),
        )
    return _answer(request, found, viewer, query)


def _version(dataset: Row[Any]) -> Hashable:
    """What changes with each fact a statement rests on; the minute, because reservations expire."""
    return (*dataset_version(dataset), int(time.time() // 60))


def _answer(
    request: Request, found: StatementReport, viewer: Caller, query: ReportQuery
) -> Response:
    context: dict[str, Any] = {
        "report": found,
        "meanings": ASSUMPTIONS,
        "relations": RELATIONS,
        "statuses": STATUSES,
        "address": f"{request.url.scheme}://{request.url.netloc}",
    }
    if query.format == "page":
        return render(request, "report.html", viewer=viewer, **context)
    name = f"privacy-{found.kind}-{found.name}.html"
    # The file runs and loads nothing; a saved file has no header that says so.
    return HTMLResponse(
        templates().get_template("report_file.html").render(**context, **_style()),
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@lru_cache(maxsize=1)
def _style() -> dict[str, Any]:
    """The style, to be put into the file, and its hash."""
    text = (STATIC / STYLE).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"style": text, "style_hash": digest}
