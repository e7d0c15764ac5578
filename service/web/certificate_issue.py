"""Issue a certificate for an API call or a page."""

from typing import Final, Literal

from fastapi import Request, Response
from pydantic import Field

from service.identity.authentication import Caller
from service.identity.keys import Role
from service.identity.rate_limit import Buckets
from service.schemas.message import Delta, Sha256
from service.transparency.certificates.html import CERTIFICATE_POLICY, certificate_page
from service.transparency.certificates.issue import CertificateInputs, issue
from service.transparency.certificates.schema import DELTAS_MAX
from service.web.parameters import Database, Parameters
from service.web.strict_requests import JSON

HTML: Final = "text/html"


class CertificateQuery(Parameters):
    """At which deltas, of which model, and as what."""

    delta: list[Delta] = Field(
        default=[],
        max_length=DELTAS_MAX,
        description="At which deltas; by default that of the run or the budget.",
    )
    model_sha256: Sha256 | None = Field(
        default=None, description="SHA-256 of the model file to certify, hexadecimal."
    )
    format: Literal["json", "html"] | None = Field(
        default=None, description="`json`, or a page to read; by default what Accept prefers."
    )


def answer_certificate(
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
    asked = CertificateInputs(
        kind=kind, name=name, deltas=tuple(query.delta), model_sha256=query.model_sha256
    )
    raw = issue(
        database,
        request.app.state.signer,
        asked,
        by=caller.name,
        allowed=caller.require_dataset,
        telling=lambda: _require_rate(request, caller),
    )
    if query.format == "html" or (query.format is None and _prefers_html(request)):
        return Response(
            certificate_page(raw),
            media_type=HTML,
            headers={"Content-Security-Policy": CERTIFICATE_POLICY},
        )
    return Response(raw, media_type=JSON)


def _require_rate(request: Request, caller: Caller) -> None:
    """A viewer or an approver records nothing else of a run: what it may have told is bounded."""
    if not caller.may(Role.TRAINER):
        certificates: Buckets = request.app.state.certificates
        certificates.take(caller.name)


def _prefers_html(request: Request) -> bool:
    """A browser asks for pages first; everybody else gets what is signed."""
    return request.headers.get("accept", "").partition(",")[0].partition(";")[0].strip() == HTML
