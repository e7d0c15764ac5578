"""Certificates: what was spent, signed, for who trusts nobody."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from service.api_keys import Scope
from service.auth import Caller, Viewer
from service.certificates.contents import DELTAS_MAX, Digest, Envelope
from service.certificates.issue import Asked, issue
from service.certificates.page import POLICY, page_of
from service.gate import Passage, passage
from service.http import JSON, StrictRoute, dear
from service.limits import Buckets
from service.routes.parameters import Database, DatasetName, Parameters, RunName
from service.wire import Delta

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["certificates"])
HTML: Final = "text/html"
_BOTH: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {HTML: {"schema": {"type": "string"}}}}
}


class CertificateQuery(Parameters):
    """At which deltas, of which model, and as what."""

    delta: list[Delta] = Field(
        default=[],
        max_length=DELTAS_MAX,
        description="At which deltas; by default that of the run or the budget.",
    )
    model_sha256: Digest | None = Field(
        default=None, description="SHA-256 of the model file to certify, hexadecimal."
    )
    format: Literal["json", "html"] | None = Field(
        default=None, description="`json`, or a page to read; by default what Accept prefers."
    )


Certificates = Annotated[CertificateQuery, Query()]


@router.get("/runs/{run}/certificate", response_model=Envelope, responses=_BOTH)
@dear
@passage(Passage.STATES)
def certify_run(
    run: RunName, query: Certificates, request: Request, database: Database, caller: Viewer
) -> Response:
    """What a run has spent, with everything it follows from, signed."""
    return issued("run", run, query, request, database, caller)


@router.get("/datasets/{dataset}/certificate", response_model=Envelope, responses=_BOTH)
@dear
@passage(Passage.STATES)
def certify_dataset(
    dataset: DatasetName, query: Certificates, request: Request, database: Database, caller: Viewer
) -> Response:
    """What all runs of a dataset have spent, with everything it follows from, signed."""
    return issued("dataset", dataset, query, request, database, caller)


def issued(
    kind: str,
    name: str,
    query: CertificateQuery,
    request: Request,
    database: Database,
    caller: Caller,
) -> Response:
    """A certificate, as JSON or as a page.

    Raises:
        TooManyRequestsError: a viewer has had as many as it may in an hour.
    """
    asked = Asked(kind=kind, name=name, deltas=tuple(query.delta), model_sha256=query.model_sha256)
    raw = issue(
        database,
        request.app.state.signer,
        asked,
        by=caller.name,
        allowed=caller.require_dataset,
        telling=lambda: _require_rate(request, caller),
    )
    if query.format == "html" or (query.format is None and _prefers_html(request)):
        return Response(page_of(raw), media_type=HTML, headers={"Content-Security-Policy": POLICY})
    return Response(raw, media_type=JSON)


def _require_rate(request: Request, caller: Caller) -> None:
    """A viewer writes nothing else: what it may have told is bounded."""
    if caller.scope is Scope.VIEWER:
        certificates: Buckets = request.app.state.certificates
        certificates.take(caller.name)


def _prefers_html(request: Request) -> bool:
    """A browser asks for pages first; everybody else gets what is signed."""
    return request.headers.get("accept", "").partition(",")[0].partition(";")[0].strip() == HTML
