"""Show the overview, and the lists of datasets and of runs, as pages and as CSV."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from sqlalchemy import Connection, Row, Select, func, select

from service.identity.access import datasets_within, runs_within
from service.identity.authentication import Caller
from service.ledger.budgets.budget import delta_of
from service.operations import budget_summaries
from service.operations.certified_epsilons import (
    CERTIFIED_SECONDS,
    UNLIMITED_DELTA,
    CertifiedEpsilons,
)
from service.operations.overview import SERIOUS, Boards
from service.schemas.requests import PERSON_LENGTH_MAX
from service.schemas.run_states import STATES, RunStateName
from service.storage.engine import snapshot
from service.storage.tables import branches, datasets, runs, settings_changes
from service.web.dashboard import listing
from service.web.dashboard.listing import Listed
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageViewer
from service.web.parameters import Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_REFRESH_SECONDS: Final = 20  # that an open page is looked at again
KEYS_TOLD: Final = 20  # keys whose runs are added up
CHOSEN_MAX: Final = 50  # runs that are ticked
# The key that created a dataset, by its first settings.
_CREATOR: Final = (
    select(settings_changes.c.changed_by)
    .where(settings_changes.c.dataset_id == datasets.c.id, settings_changes.c.revision == 1)
    .correlate(datasets)
    .scalar_subquery()
)
_DATASETS: Final = select(datasets, _CREATOR.label("created_by"))
_DATASET_ORDERS: Final = {
    "name": datasets.c.name,
    "by": func.coalesce(_CREATOR, ""),
    "limit": func.coalesce(datasets.c.budget_epsilon, 0.0),
    "entries": datasets.c.head_sequence,
}
_dataset = datasets.alias()
_RUN_ORDERS: Final = {
    "name": runs.c.name,
    "state": runs.c.state,
    "by": func.coalesce(runs.c.by, ""),
    "dataset": select(_dataset.c.name).where(_dataset.c.id == runs.c.dataset_id).scalar_subquery(),
    "steps": func.coalesce(
        select(func.sum(branches.c.next_step - branches.c.from_step))
        .where(branches.c.run_id == runs.c.id)
        .correlate(runs)
        .scalar_subquery(),
        0,
    ),
}
_DATASET_HEADS: Final = (
    "dataset", "created_by", "frozen", "records", "privacy_unit", "neighboring_relation",
    "limit_epsilon", "limit_delta", "charged_share_upper", "reserved_share_upper", "overdrawn",
    "certified_epsilon_lower", "certified_epsilon_upper", "certified_delta", "runs", "entries",
    "created_at",
)  # fmt: skip
_RUN_HEADS: Final = (
    "run", "dataset", "state", "steps", "branches", "certified_epsilon_lower",
    "certified_epsilon_upper", "delta", "key", "labels", "registered_at",
)  # fmt: skip


class _Datasets(Listed):
    path: ClassVar[str] = "/datasets"

    name: str | None = Field(default=None, max_length=63)
    limit: Literal["set", "none"] | None = None
    by: str | None = Field(default=None, max_length=PERSON_LENGTH_MAX)  # the key that created them
    sort: Literal[
        "newest", "oldest", "created", "-created", "name", "-name", "by", "-by", "limit",
        "-limit", "entries", "-entries",
    ] = "newest"  # fmt: skip

    def rows(self, viewer: Caller) -> Select[Any]:
        """The datasets that are asked for."""
        query = _DATASETS.where(datasets_within(viewer.datasets))
        if self.name is not None:
            named = self.name.strip().lower()
            query = query.where(datasets.c.name.contains(named, autoescape=True))
        if self.limit == "set":
            query = query.where(datasets.c.budget_epsilon.is_not(None))
        elif self.limit == "none":
            query = query.where(datasets.c.budget_epsilon.is_(None))
        return query if self.by is None else query.where(_CREATOR.in_([self.by]))


class _Runs(Listed):
    path: ClassVar[str] = "/runs"

    name: str | None = Field(default=None, max_length=63)
    dataset: str | None = Field(default=None, max_length=63)
    state: RunStateName | None = None
    by: str | None = Field(
        default=None, max_length=PERSON_LENGTH_MAX
    )  # the key that registered them
    label: str | None = Field(default=None, max_length=200)  # key=value, or a part of either
    runs: list[str] = Field(default=[], max_length=CHOSEN_MAX)  # that are ticked
    sort: Literal[
        "newest", "oldest", "created", "-created", "name", "-name", "dataset", "-dataset",
        "state", "-state", "by", "-by", "steps", "-steps",
    ] = "newest"  # fmt: skip

    def rows(self, viewer: Caller) -> Select[Any]:
        """The runs that are asked for."""
        query = select(runs).where(runs_within(viewer.datasets))
        if self.name is not None:
            named = self.name.strip().lower()
            query = query.where(runs.c.name.contains(named, autoescape=True))
        if self.state is not None:
            query = query.where(runs.c.state == self.state)
        if self.by is not None:
            query = query.where(runs.c.by == self.by)
        if self.label is not None:
            query = query.where(
                runs.c.labels.contains(_to_stored_label(self.label), autoescape=True)
            )
        if self.dataset is not None:  # one that the key does not reach has no runs that it reaches
            wanted = select(datasets.c.id).where(datasets.c.name == self.dataset)
            query = query.where(runs.c.dataset_id.in_(wanted))
        return query


def _to_stored_label(label: str) -> str:
    """A label as the canonical JSON of a run has it."""
    name, equals, value = label.partition("=")
    if not equals:
        return json.dumps(label.strip(), ensure_ascii=False)[1:-1]
    pair = {name.strip(): value.strip()}
    return json.dumps(pair, ensure_ascii=False, separators=(",", ":"))[1:-1]


@router.get("/datasets")
@expensive
def dataset_list(
    request: Request, database: Database, viewer: PageViewer, asked: Annotated[_Datasets, Query()]
) -> Response:
    """Datasets, how much of each limit is charged, and what is certified."""
    known: CertifiedEpsilons = request.app.state.certified
    with snapshot(database) as connection:
        part = listing.part_of(connection, asked.rows(viewer), datasets, asked, _DATASET_ORDERS)
        rows = part.rows
        budgets = budget_summaries.budgets_of(connection, rows)
        counts = budget_summaries.count_runs(connection, [row.id for row in rows])
        certified = known.of_datasets(connection, rows, seconds=CERTIFIED_SECONDS)
        reached = runs_within(viewer.datasets)
        keys = budget_summaries.totals_by_key(connection, reached, size=KEYS_TOLD)
    listed = [(row, budgets[row.id], certified.get(row.name), counts[row.id]) for row in rows]
    return render(
        request,
        "datasets.html",
        viewer=viewer,
        rows=listed,
        asked=asked,
        part=part,
        keys=keys,
        unlimited_delta=UNLIMITED_DELTA,
    )


@router.get("/datasets.csv")
@expensive
def dataset_file(
    request: Request, viewer: PageViewer, asked: Annotated[_Datasets, Query()]
) -> Response:
    """Every dataset that is asked for, as CSV."""
    known: CertifiedEpsilons = request.app.state.certified

    def lines(connection: Connection, rows: Sequence[Row[Any]]) -> Iterator[Sequence[Any]]:
        budgets = budget_summaries.budgets_of(connection, rows)
        counts = budget_summaries.count_runs(connection, [row.id for row in rows])
        certified = known.of_datasets(connection, rows, seconds=CERTIFIED_SECONDS)
        for row in rows:
            budget, found = budgets[row.id], certified.get(row.name)
            charged: tuple[Any, ...] = (None, None, None)
            if budget is not None:
                charged = (budget.share, budget.share_reserved, budget.overdrawn)
            bracket: tuple[Any, ...] = (None, None, None)
            if found is not None:
                bracket = (found.epsilon_lower, found.epsilon, found.delta)
            yield (
                row.name, row.created_by, row.frozen, row.dataset_size, row.privacy_unit,
                row.neighboring_relation, row.budget_epsilon, row.budget_delta, *charged, *bracket,
                counts[row.id], row.head_sequence, row.created_at,
            )  # fmt: skip

    query = asked.rows(viewer)
    return listing.csv_answer(request, viewer, _DATASET_HEADS, query, datasets, lines)


@router.get("/runs")
@expensive
def run_list(
    request: Request, database: Database, viewer: PageViewer, asked: Annotated[_Runs, Query()]
) -> Response:
    """Runs, and what is certified of each alone."""
    known: CertifiedEpsilons = request.app.state.certified
    with snapshot(database) as connection:
        part = listing.part_of(connection, asked.rows(viewer), runs, asked, _RUN_ORDERS)
        rows = part.rows
        dataset_rows = datasets_of_runs(connection, rows)
        steps = budget_summaries.steps_of(connection, [row.id for row in rows])
        certified = known.of_runs(connection, rows, seconds=CERTIFIED_SECONDS)
    listed = [
        (
            row,
            dataset_rows[row.dataset_id].name,
            *steps.get(row.id, (0, 0)),
            certified.get(row.name),
            delta_of(dataset_rows[row.dataset_id], row),
            json.loads(row.labels),
        )
        for row in rows
    ]
    shown = {row.name for row in rows}
    return render(
        request,
        "runs.html",
        viewer=viewer,
        rows=listed,
        asked=asked,
        part=part,
        elsewhere=[name for name in dict.fromkeys(asked.runs) if name not in shown],
        states=[(state, state.replace("_", " ")) for state in STATES],
    )


@router.get("/runs.csv")
@expensive
def run_file(request: Request, viewer: PageViewer, asked: Annotated[_Runs, Query()]) -> Response:
    """Every run that is asked for, as CSV."""
    known: CertifiedEpsilons = request.app.state.certified

    def lines(connection: Connection, rows: Sequence[Row[Any]]) -> Iterator[Sequence[Any]]:
        dataset_rows = datasets_of_runs(connection, rows)
        steps = budget_summaries.steps_of(connection, [row.id for row in rows])
        certified = known.of_runs(connection, rows, seconds=CERTIFIED_SECONDS)
        for row in rows:
            found = certified.get(row.name)
            bracket = (None, None) if found is None else (found.epsilon_lower, found.epsilon)
            yield (
                row.name, dataset_rows[row.dataset_id].name, row.state, *steps.get(row.id, (0, 0)),
                *bracket, delta_of(dataset_rows[row.dataset_id], row), row.by, row.labels,
                row.created_at,
            )  # fmt: skip

    return listing.csv_answer(request, viewer, _RUN_HEADS, asked.rows(viewer), runs, lines)


def datasets_of_runs(connection: Connection, rows: Sequence[Row[Any]]) -> Mapping[int, Row[Any]]:
    """The datasets of some runs, by id."""
    ids = {row.dataset_id for row in rows}
    found = connection.execute(select(datasets).where(datasets.c.id.in_(sorted(ids))))
    return {row.id: row for row in found}


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
        unlimited_delta=UNLIMITED_DELTA,
        refresh_seconds=_REFRESH_SECONDS,
    )
