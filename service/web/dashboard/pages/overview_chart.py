"""The chart of the overview: the charged share of the most charged datasets over time."""

import math
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection, Row, select

from service.clock import now
from service.errors import TooExpensiveError
from service.formatting import charged_share, percent_up
from service.guarantees import attribution
from service.guarantees.spending_history import Moment, Spending, known_spending
from service.operations.overview import Boards, DatasetSummary
from service.storage.engine import snapshot
from service.storage.tables import datasets
from service.storage.versioned_cache import VersionedCache
from service.web.dashboard.line_chart import ChartLine, draw_lines
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageViewer
from service.web.parameters import Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
CHARTED_MAX: Final = 20  # datasets whose lines are drawn
CHART_SECONDS: Final = 0.2  # of processor time for lines that are not known yet
CHART_AGE_SECONDS: Final = 60.0  # that a line is shown again if there is no time for a new one
CHART_TOP: Final = 1.5  # of the capacity
_YOUNG_SECONDS: Final = 2 * 86_400.0  # a chart of less time names the minute, not the year
_FIRST_SECONDS: Final = 240.0  # of less time the second, or dates would be the same minute
CHARTS_MAX: Final = 2_000  # lines that are kept; a few kilobytes each
_Line = tuple[tuple[float, float], ...]


class SpendingLines:
    """The lines of datasets, worked out for some at a time and kept. For any thread."""

    def __init__(self) -> None:
        self._known: VersionedCache[_Line] = VersionedCache(CHARTS_MAX, shared=True)

    def of(
        self,
        connection: Connection,
        rows: Sequence[Row[Any]],
        known: VersionedCache[Spending],
    ) -> dict[str, _Line]:
        """The charged share of some datasets over time, by name, as far as the time goes.

        Args:
            connection: for reading.
            rows: of the datasets, each with a limit.
            known: spendings that were worked out for other pages.
        """
        present = {row.name: self._known.get(*_key(row), age_max=CHART_AGE_SECONDS) for row in rows}
        outdated = [row for row in rows if present[row.name] is None]
        earlier = {
            row.name: self._known.last(_key(row)[0], age_max=CHART_AGE_SECONDS) for row in outdated
        }
        outdated.sort(key=lambda row: earlier[row.name] is not None)  # those without a line first
        deadline: float | None = None
        for row in outdated:
            if deadline is not None and time.thread_time() > deadline:
                present[row.name] = earlier[row.name]
                continue
            deadline = time.thread_time() + CHART_SECONDS if deadline is None else deadline
            start = time.monotonic()
            line = present[row.name] = _line(connection, row, known)
            self._known.put(*_key(row), line, seconds=time.monotonic() - start)
        return {name: line for name, line in present.items() if line is not None}


def _key(row: Row[Any]) -> tuple[Hashable, Hashable]:
    """The key of a line in the cache: its dataset, and the version of that."""
    return (row.id, row.created_at, row.revision), row.version


def _line(connection: Connection, row: Row[Any], known: VersionedCache[Spending]) -> _Line:
    """A dataset's line; empty where it takes too much work."""
    try:
        grounds = attribution.grounds_of(connection, row)
        spent = known_spending(known, connection, grounds, delta=row.budget_delta)
    except TooExpensiveError:
        return ()
    return tuple(map(_point, spent.moments))


def _point(moment: Moment) -> tuple[float, float]:
    return moment.at.timestamp(), math.inf if moment.spent is None else moment.spent


@router.get("/overview/chart")
@expensive
def overview_chart(request: Request, viewer: PageViewer, database: Database) -> Response:
    """The chart: a part of the overview."""
    boards: Boards = request.app.state.boards
    drawn: SpendingLines = request.app.state.spending_lines
    with snapshot(database) as connection:
        board = boards.seen(connection, viewer.datasets)
        charged = {
            one.name: one
            for one in board.datasets
            if one.epsilon is not None and (one.entries or one.spent_share)
        }
        query = select(datasets).where(datasets.c.name.in_(list(charged)[:CHARTED_MAX]))
        rows = {row.name: row for row in connection.execute(query)}
        asked = [rows[name] for name in charged if name in rows]
        found = drawn.of(connection, asked, request.app.state.spendings)
    present = now().timestamp()
    lines = [
        ChartLine(
            label=name,
            address=f"/datasets/{name}",
            points=(*points, (max(present, points[-1][0]), _last(charged[name], points))),
        )
        for name, points in found.items()
        if points
    ]
    begins = min((line.points[0][0] for line in lines), default=present)
    word_x = _word_of(present - begins)
    chart = draw_lines(
        lines, stairs=False, top=CHART_TOP, limit=1.0, word_x=word_x, word_y=percent_up
    )
    return render(
        request,
        "overview_chart.html",
        viewer=viewer,
        chart=chart,
        top=CHART_TOP,
        left_out=len(asked) - len(found),
        too_long=[name for name, points in found.items() if not points],
        endless=[(one.label, _find_end(one)) for one in lines if math.isinf(one.points[-1][1])],
        told=charged_share,
    )


def _last(one: DatasetSummary, points: _Line) -> float:
    """The charged share as the table below the chart has it; the line's if it was not read."""
    return points[-1][1] if one.budget is None else one.spent_share


def _find_end(line: ChartLine) -> datetime | None:
    """When a line was finite last."""
    finite = [x for x, y in line.points if math.isfinite(y)]
    return datetime.fromtimestamp(max(finite), UTC) if finite else None


def _word_of(seconds: float) -> Callable[[float], str]:
    """How a moment is written on a chart of so much time."""
    if seconds < _FIRST_SECONDS:
        return _second
    return _minute if seconds < _YOUNG_SECONDS else _day


def _day(timestamp: float) -> str:
    return f"{datetime.fromtimestamp(timestamp, UTC):%d %b %Y}"


def _minute(timestamp: float) -> str:
    return f"{datetime.fromtimestamp(timestamp, UTC):%d %b %H:%M}"


def _second(timestamp: float) -> str:
    return f"{datetime.fromtimestamp(timestamp, UTC):%H:%M:%S}"
