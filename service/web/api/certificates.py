"""Certificates: signed statements of what was spent, which can be checked without trust."""

from typing import Annotated, Any, Final

from fastapi import Query, Request, Response

from service.identity.authentication import Viewer
from service.transparency.certificates.schema import Envelope
from service.web.certificate_issue import HTML, CertificateQuery, answer_certificate
from service.web.parameters import Database, DatasetName, RunName
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1", tag="certificates")
_BOTH: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {HTML: {"schema": {"type": "string"}}}}
}
Certificates = Annotated[CertificateQuery, Query()]


@router.get("/runs/{run}/certificate", response_model=Envelope, responses=_BOTH)
@expensive
def certify_run(
    run: RunName, query: Certificates, request: Request, database: Database, caller: Viewer
) -> Response:
    """What a run has spent, with everything it follows from, signed."""
    return answer_certificate("run", run, query, request, database, caller)


@router.get("/datasets/{dataset}/certificate", response_model=Envelope, responses=_BOTH)
@expensive
def certify_dataset(
    dataset: DatasetName, query: Certificates, request: Request, database: Database, caller: Viewer
) -> Response:
    """What all runs of a dataset have spent, with everything it follows from, signed."""
    return answer_certificate("dataset", dataset, query, request, database, caller)
