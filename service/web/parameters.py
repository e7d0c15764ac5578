"""What endpoints take beside a body: names in paths, queries, the database."""

import base64
import binascii
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine

from service.errors import InvalidRequestError
from service.ledger.change_requests.messages import RequestState
from service.ledger.incidents import Kind
from service.ledger.open_reservations import ReservationState as ReservationState
from service.operations.incident_inbox import IncidentState
from service.schemas.message import Delta, Within
from service.schemas.requests import NAME_PATTERN, Mode, PersonName, WriterName
from service.schemas.run_states import RunStateName

DatasetName = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the dataset.")]
RunName = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the run.")]
ReservationName = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the reservation.")]
ChangeRequestName = Annotated[
    str, Path(pattern=NAME_PATTERN, description="Identifier of the change request.")
]
IncidentId = Annotated[str, Path(pattern=NAME_PATTERN, description="Identifier of the incident.")]
KeyName = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the key.")]
BoundName = Annotated[str, Path(pattern=NAME_PATTERN, description="Identifier of the theorem.")]
ProblemName = Annotated[
    str, Path(pattern=NAME_PATTERN, description="The last part of a problem's `type`.")
]


async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


Database = Annotated[Engine, Depends(_engine)]


class Parameters(BaseModel):
    """Base of every query: unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class GuaranteeQuery(Parameters):
    """What is asked of a guarantee."""

    delta: Delta | None = Field(
        default=None, description="At which delta; by default that of the budget."
    )
    epsilon: Annotated[float, Within(0, 1e6)] | None = Field(
        default=None, description="At which epsilon, in nats, to find delta instead."
    )
    accountant: Literal["best", "pld", "rdp", "gdp", "odometer"] = Field(
        default="best",
        description="Which accounting method; `best` takes the smallest bound.",
    )
    as_of: Annotated[int, Within(0, 2**63, ends="[)")] | None = Field(
        default=None,
        description="Count only the entries up to this sequence number of the dataset.",
    )


class RunGuaranteeQuery(GuaranteeQuery):
    """What is asked of a run's guarantee."""

    branch: str | None = Field(
        default=None,
        pattern=NAME_PATTERN,
        description="Count only this branch's path to the root; by default all branches.",
    )


class ExplanationQuery(Parameters):
    """At which delta to explain."""

    delta: Delta | None = Field(
        default=None, description="At which delta; by default that of the budget."
    )


class HistoryQuery(Parameters):
    """How finely, and at which delta, to tell the history."""

    delta: Delta | None = Field(
        default=None, description="At which delta; by default that of the run."
    )
    points: Annotated[int, Within(1, 1000)] = Field(
        default=100, description="The largest number of points."
    )


class CurveQuery(Parameters):
    """How finely to tell a curve."""

    points: Annotated[int, Within(2, 200)] = Field(
        default=50, description="Number of points of a curve."
    )


class PageQuery(Parameters):
    """Which part of a list."""

    page_size: Annotated[int, Within(1, 1000)] = Field(
        default=100, description="The largest number of items on the page."
    )
    page_token: str | None = Field(
        default=None,
        max_length=64,
        description="The `next_page_token` of the page before; by default the first page.",
    )

    @property
    def after(self) -> int:
        """The row to continue after.

        Raises:
            InvalidRequestError: the token is not one that was given out.
        """
        if self.page_token is None:
            return 0
        try:
            after = int(base64.urlsafe_b64decode(self.page_token.encode()).decode("ascii"))
        except (binascii.Error, ValueError):
            after = -1
        if continuation_token(after) != self.page_token or not 0 <= after < 2**63:
            raise InvalidRequestError("query.page_token", "must be a next_page_token")
        return after


Label = Annotated[str, Field(min_length=1, max_length=63)]


class RunPageQuery(PageQuery):
    """Which runs, and which part of their list."""

    dataset: str | None = Field(
        default=None, pattern=NAME_PATTERN, description="Only runs of this dataset."
    )
    state: RunStateName | None = Field(default=None, description="Only runs in this state.")
    by: PersonName | None = Field(default=None, description="Only runs that this key registered.")
    certified: bool = Field(
        default=False, description="Also the certified epsilon of each run, as far as time allows."
    )


class ActPageQuery(PageQuery):
    """Which acts, and which part of their list."""

    by: PersonName | None = Field(default=None, description="Only acts of this key.")
    kind: Label | None = Field(default=None, description="Only acts of this kind.")


class ChangeRequestPageQuery(PageQuery):
    """Which change requests, and which part of their list."""

    dataset: str | None = Field(
        default=None, pattern=NAME_PATTERN, description="Only requests about this dataset."
    )
    state: RequestState | None = Field(default=None, description="Only requests in this state.")
    by: PersonName | None = Field(default=None, description="Only requests of this person.")


class ReservationPageQuery(PageQuery):
    """Which reservations, and which part of their list."""

    state: ReservationState = Field(
        default="open", description="Only reservations in this state; `open` still hold steps."
    )


class IncidentPageQuery(PageQuery):
    """Which incidents, and which part of their list."""

    state: IncidentState | None = Field(default=None, description="Only incidents in this state.")
    kind: Kind | None = Field(default=None, description="Only incidents of this kind.")
    dataset: str | None = Field(
        default=None, pattern=NAME_PATTERN, description="Only incidents of this dataset."
    )
    assignee: PersonName | None = Field(
        default=None, description="Only incidents that are assigned to this key."
    )


class AppendQuery(Parameters):
    """Where an NDJSON body goes; a JSON body says so itself."""

    branch: str | None = Field(
        default=None,
        pattern=NAME_PATTERN,
        description="Branch of an NDJSON body; `main` if absent. A JSON body names it itself.",
    )
    writer: WriterName | None = Field(
        default=None,
        description="Writer of an NDJSON body. A JSON body names it itself.",
    )
    mode: Mode | None = Field(
        default=None,
        description="Mode of an NDJSON body; `record` if absent. A JSON body names it itself.",
    )


def continuation_token(after: int | None) -> str | None:
    """The opaque token that continues a list after a row."""
    return None if after is None else base64.urlsafe_b64encode(str(after).encode()).decode()


def repeated(model: Any) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI document says of the same request sent again."""
    return {200: {"model": model, "description": "The same request did this before"}}


Guarantees = Annotated[GuaranteeQuery, Query()]
RunGuarantees = Annotated[RunGuaranteeQuery, Query()]
Explanations = Annotated[ExplanationQuery, Query()]
Histories = Annotated[HistoryQuery, Query()]
Curves = Annotated[CurveQuery, Query()]
Pages = Annotated[PageQuery, Query()]
RunPages = Annotated[RunPageQuery, Query()]
ReservationPages = Annotated[ReservationPageQuery, Query()]
IncidentPages = Annotated[IncidentPageQuery, Query()]
ActPages = Annotated[ActPageQuery, Query()]
ChangeRequestPages = Annotated[ChangeRequestPageQuery, Query()]
