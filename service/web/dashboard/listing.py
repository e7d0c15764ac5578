"""Parts of long lists: searched, sorted by any of their columns, counted, and as CSV.

All that is asked for stands in the address. A part begins behind a row, named by its id, so that
rows that are added meanwhile move none out of sight.
"""

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import ColumnElement, Connection, Row, Select, Table, func, select, tuple_

from service.identity.authentication import Caller
from service.storage.engine import snapshot
from service.web.strict_requests import seat

PART_SIZE: Final = 25  # rows of a part of a list
CSV_ROWS: Final = 500  # that are read together
_ID_MAX: Final = 2**63 - 1
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet runs
CSV: Final = "text/csv; charset=utf-8"


class Listed(BaseModel):
    """What is asked of a list; what a form leaves empty is not asked for."""

    model_config = ConfigDict(frozen=True)

    path: ClassVar[str]
    falling: ClassVar[str] = "newest"  # the order without any other, the latest first
    rising: ClassVar[str] = "oldest"

    after: str | None = Field(default=None, max_length=63)  # the id of the last row before
    before: str | None = Field(default=None, max_length=63)  # or of the first row after

    @model_validator(mode="before")
    @classmethod
    def _asked(cls, fields: Any) -> Any:
        return {name: value for name, value in dict(fields).items() if value != ""}

    def address(self, *, ending: str = "", **changes: Any) -> str:
        """The address of the list with something changed: its first part, unless that is said."""
        given = self.model_dump(exclude_unset=True, exclude={"after", "before"}) | changes
        pairs = {name: value for name, value in given.items() if value is not None}
        return f"{self.path}{ending}" + (f"?{urlencode(pairs, doseq=True)}" if pairs else "")

    @property
    def searched(self) -> bool:
        """Whether anything but an order is asked for."""
        given = self.model_dump(exclude_unset=True, exclude={"sort"})
        return any(value not in (None, []) for value in given.values())

    def sorted_by(self, column: str) -> str:
        """The address that a column's head leads to: the other direction where it sorts now."""
        return self.address(sort=f"-{column}" if self.direction(column) == "ascending" else column)

    def direction(self, column: str) -> str:
        """How a column sorts now, as `aria-sort` says it; empty if another column does."""
        named, falls = self.order
        return "" if named != column else "descending" if falls else "ascending"

    @property
    def order(self) -> tuple[str, bool]:
        """The column that sorts, and whether it falls."""
        sort = str(getattr(self, "sort", self.falling))
        if sort in (self.falling, self.rising):
            return "created", sort == self.falling
        return sort.removeprefix("-"), sort.startswith("-")


@dataclass(frozen=True, slots=True)
class ListPart:
    """A part of a list."""

    rows: Sequence[Row[Any]]
    total: int  # of all parts
    previous: str | None  # the address of the part before; none if there is none
    next: str | None


def part_of(
    connection: Connection,
    query: Select[Any],
    table: Table,
    asked: Listed,
    columns: Mapping[str, ColumnElement[Any]] | None = None,
) -> ListPart:
    """A part of a list, and the addresses of its neighbours.

    Args:
        connection: for reading.
        query: all rows that are asked for.
        table: of the rows, by whose ids equal ones are told apart.
        asked: the order and the place.
        columns: what sorts beside the order of creation, by its name in the address.
    """
    named, falls = asked.order
    column = (columns or {}).get(named)
    key = [table.c.id] if column is None else [column, table.c.id]
    place = _place(connection, table, key, asked.before or asked.after)
    back = asked.before is not None and place is not None
    total = connection.scalar(
        select(func.count()).select_from(query.with_only_columns(table.c.id).subquery())
    )
    if place is not None:
        left, right = tuple_(*key), tuple_(*place)
        query = query.where(left < right if falls != back else left > right)
    order = [one.desc() if falls != back else one.asc() for one in key]
    rows = list(connection.execute(query.order_by(*order).limit(PART_SIZE + 1)))
    further, rows = len(rows) > PART_SIZE, rows[:PART_SIZE]
    if back:
        rows.reverse()
    before = further if back else place is not None
    return ListPart(
        rows=rows,
        total=total or 0,
        previous=asked.address(before=rows[0].id) if rows and before else None,
        next=asked.address(after=rows[-1].id) if rows and (back or further) else None,
    )


def _place(
    connection: Connection, table: Table, key: Sequence[ColumnElement[Any]], text: str | None
) -> Sequence[Any] | None:
    """The value that a row is sorted by; None if no id of a row is given."""
    if text is None or not (text.isascii() and text.isdigit() and int(text) <= _ID_MAX):
        return None
    return connection.execute(select(*key).where(table.c.id == int(text))).one_or_none()


def csv_line(cells: Sequence[Any]) -> str:
    """A line of CSV; no cell is a formula to a spreadsheet, and nothing is what is not known."""
    told = io.StringIO()
    csv.writer(told).writerow([_cell(one) for one in cells])
    return told.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


CsvRows = Callable[[Connection, Sequence[Row[Any]]], Iterator[Sequence[Any]]]


def csv_answer(
    request: Request,
    viewer: Caller,
    heads: Sequence[str],
    query: Select[Any],
    table: Table,
    rows: CsvRows,
) -> Response:
    """All rows of a list as a file, the newest first; read some at a time, each in its own seat.

    Args:
        request: that asked for it.
        viewer: whose seat is taken.
        heads: the names of the columns.
        query: the rows.
        table: of the rows, by whose ids they are ordered.
        rows: what is written of some of them.
    """
    engine = request.app.state.engine

    def some(after: int | None) -> tuple[str, int | None]:
        asked = query if after is None else query.where(table.c.id < after)
        with snapshot(engine) as connection:
            found = connection.execute(asked.order_by(table.c.id.desc()).limit(CSV_ROWS)).all()
            text = "".join(map(csv_line, rows(connection, found)))
        return text, found[-1].id if len(found) == CSV_ROWS else None

    first, behind = some(None)  # what fails here is answered as a refusal

    async def whole() -> AsyncIterator[str]:
        yield csv_line(heads) + first
        after = behind
        while after is not None:  # what fails here cuts the answer off, which a client notices
            async with seat(request, viewer):
                text, after = await run_in_threadpool(some, after)
            yield text

    name = request.url.path.rpartition("/")[2]
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(whole(), media_type=CSV, headers=disposition)
