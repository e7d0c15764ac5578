"""Show the overview, and the lists of datasets and of runs."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import Connection, Row, Select, Table, select

from service.guarantees.guarantee import delta_of
from service.identity.access import datasets_within, runs_within
from service.identity.authentication import Caller
from service.operations import budget_summaries
from service.operations.certified_epsilons import CERTIFIED_SECONDS, CertifiedEpsilons
from service.operations.overview import SERIOUS, Boards
from service.schemas.run_states import STATES, RunStateName
from service.storage.engine import snapshot
from service.storage.tables import datasets, runs
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageViewer
from service.web.parameters import Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
SIZE: Final = 25  # of a part of a list
_ID_MAX: Final = 2**63 - 1
_REFRESH_SECONDS: Final = 20  # that an open page is looked at again


class _Listed(BaseModel):
    """Which part of a list, in which order; what a form leaves empty is not asked for."""

    model_config = ConfigDict(frozen=True)

    name: str | None = Field(default=None, max_length=63)
    sort: Literal["newest", "oldest", "name"] = "newest"
    after: str | None = Field(default=None, max_length=63)  # the place of the last row before
    before: str | None = Field(default=None, max_length=63)  # or of the first row after

    @model_validator(mode="before")
    @classmethod
    def _asked(cls, fields: Any) -> Any:
        return {name: value for name, value in dict(fields).items() if value != ""}


class _Datasets(_Listed):
    limit: Literal["set", "none"] | None = None


class _Runs(_Listed):
    dataset: str | None = Field(default=None, max_length=63)
    state: RunStateName | None = None
    by: str | None = Field(default=None, max_length=63)  # the key that registered them


@router.get("/datasets")
@expensive
def dataset_list(
    request: Request, database: Database, viewer: PageViewer, asked: Annotated[_Datasets, Query()]
) -> Response:
    """Datasets, how much of each limit is charged, and what is certified."""
    known: CertifiedEpsilons = request.app.state.certified
    query = select(datasets).where(datasets_within(viewer.datasets))
    if asked.limit is not None:
        unlimited = datasets.c.budget_epsilon.is_(None)
        query = query.where(unlimited if asked.limit == "none" else ~unlimited)
    with snapshot(database) as connection:
        rows, pages = _part(connection, query, datasets, asked, "/datasets")
        ids = [row.id for row in rows]
        budgets = budget_summaries.budgets_of(connection, rows)
        counts = budget_summaries.count_runs(connection, ids)
        certified = known.of_datasets(connection, rows, seconds=CERTIFIED_SECONDS)
    listed = [(row, budgets[row.id], certified.get(row.name), counts[row.id]) for row in rows]
    return render(request, "datasets.html", viewer=viewer, rows=listed, asked=asked, pages=pages)


@router.get("/runs")
@expensive
def run_list(
    request: Request, database: Database, viewer: PageViewer, asked: Annotated[_Runs, Query()]
) -> Response:
    """Runs, and what is certified of each alone."""
    known: CertifiedEpsilons = request.app.state.certified
    with snapshot(database) as connection:
        rows, pages = _part(connection, _runs(viewer, asked), runs, asked, "/runs")
        homes = datasets_of_runs(connection, rows)
        steps = budget_summaries.steps_of(connection, [row.id for row in rows])
        certified = known.of_runs(connection, rows, seconds=CERTIFIED_SECONDS)
    listed = [
        (
            row,
            homes[row.dataset_id].name,
            *steps.get(row.id, (0, 0)),
            certified.get(row.name),
            delta_of(homes[row.dataset_id], row),
        )
        for row in rows
    ]
    return render(
        request,
        "runs.html",
        viewer=viewer,
        rows=listed,
        asked=asked,
        pages=pages,
        states=[(state, state.replace("_", " ")) for state in STATES],
    )


def _runs(viewer: Caller, asked: _Runs) -> Select[Any]:
    query = select(runs).where(runs_within(viewer.datasets))
    if asked.state is not None:
        query = query.where(runs.c.state == asked.state)
    if asked.by is not None:
        query = query.where(runs.c.by == asked.by)
    if asked.dataset is not None:  # one that the key does not reach has no runs that it reaches
        home = select(datasets.c.id).where(datasets.c.name == asked.dataset)
        query = query.where(runs.c.dataset_id.in_(home))
    return query


def datasets_of_runs(connection: Connection, rows: list[Row[Any]]) -> Mapping[int, Row[Any]]:
    """The datasets of some runs, by id."""
    ids = {row.dataset_id for row in rows}
    found = connection.execute(select(datasets).where(datasets.c.id.in_(sorted(ids))))
    return {row.id: row for row in found}


def _part(
    connection: Connection, query: Select[Any], table: Table, asked: _Listed, path: str
) -> tuple[list[Row[Any]], dict[str, str | None]]:
    """Rows, and the addresses of the parts of the list before and after them."""
    if asked.name is not None:
        query = query.where(table.c.name.contains(asked.name.strip().lower(), autoescape=True))
    column = table.c.name if asked.sort == "name" else table.c.id
    falls = asked.sort == "newest"
    place = _place(asked, asked.before if asked.before is not None else asked.after)
    back = asked.before is not None and place is not None
    if place is not None:
        query = query.where(column < place if falls != back else column > place)
    order = column.desc() if falls != back else column.asc()
    rows = list(connection.execute(query.order_by(order).limit(SIZE + 1)))
    further, rows = len(rows) > SIZE, rows[:SIZE]
    if back:
        rows.reverse()
    there_is = {"earlier": further if back else place is not None, "later": back or further}
    ends = {"earlier": ("before", rows[0]), "later": ("after", rows[-1])} if rows else {}
    return rows, {
        way: _address(path, asked, *ends[way], column.name) if ends and there_is[way] else None
        for way in there_is
    }


def _place(asked: _Listed, text: str | None) -> str | int | None:
    """Return the place to continue from; None if no page token can name it."""
    if text is None or asked.sort == "name":
        return text
    return int(text) if text.isascii() and text.isdigit() and int(text) <= _ID_MAX else None


def _address(path: str, asked: _Listed, way: str, row: Row[Any], column: str) -> str:
    """The address of another part of the same list."""
    given = asked.model_dump(exclude_none=True, exclude={"after", "before"})
    return f"{path}?{urlencode(given | {way: getattr(row, column)})}"


@router.get("/")
@expensive
def overview(request: Request, viewer: PageViewer, database: Database) -> Response:
    """Every dataset at a glance."""
    boards: Boards = request.app.state.boards
    with snapshot(database) as connection:
        board = boards.seen(connection, viewer.datasets)
    return render(
        request,
        "overview.html",
        viewer=viewer,
        board=board,
        serious=SERIOUS,
        refresh_seconds=_REFRESH_SECONDS,
    )
