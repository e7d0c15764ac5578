"""The audit log: the acts of the installation and of all datasets, as a page and as CSV."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from sqlalchemy import Connection, Row, Select, case, func, select

from service.formatting import words
from service.ledger.log.leaves import KINDS
from service.schemas.requests import PERSON_LENGTH_MAX
from service.storage.engine import snapshot
from service.storage.tables import acts, datasets
from service.web.dashboard import listing
from service.web.dashboard.listing import Listed
from service.web.dashboard.pages.act_sentences import act_sentence
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageAdmin
from service.web.parameters import Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ACT_CHARACTERS: Final = 2_000  # characters of what an act says that the page shows
FILED_CHARACTERS: Final = 10_000  # and the file
_LINE_MAX: Final = 300  # characters of an act in a line
_KINDS: Final = [("", "any"), *((kind, words(kind).lower()) for kind in KINDS)]
_HEADS: Final = (
    "acted_at", "act", "key", "dataset", "position", "after_sequence", "characters", "content",
)  # fmt: skip


class _Acts(Listed):
    path: ClassVar[str] = "/log"

    by: str | None = Field(default=None, max_length=PERSON_LENGTH_MAX)
    kind: str | None = Field(default=None, max_length=32)
    dataset: str | None = Field(default=None, max_length=63)
    of: Literal["all", "installation", "datasets"] = "all"
    since: date | None = None  # the first day, in UTC
    until: date | None = None  # the last one
    sort: Literal["newest", "oldest"] = "newest"

    def rows(self, most: int) -> Select[Any]:
        """The acts that are asked for; what one says only where it is short enough."""
        length = func.length(acts.c.content)
        query = select(
            acts.c.id,
            acts.c.position,
            acts.c.after_sequence,
            acts.c.kind,
            acts.c.by,
            acts.c.acted_at,
            datasets.c.name.label("dataset"),
            length.label("characters"),
            case((length <= most, acts.c.content), else_=None).label("content"),
        ).outerjoin(datasets, datasets.c.id == acts.c.dataset_id)
        if self.by is not None:
            query = query.where(acts.c.by == self.by)
        if self.kind is not None:
            query = query.where(acts.c.kind == self.kind)
        if self.dataset is not None:
            wanted = select(datasets.c.id).where(datasets.c.name == self.dataset)
            query = query.where(acts.c.dataset_id.in_(wanted))
        if self.of != "all":
            none = acts.c.dataset_id.is_(None)
            query = query.where(none if self.of == "installation" else ~none)
        if self.since is not None:
            query = query.where(acts.c.acted_at >= _midnight(self.since))
        if self.until is not None and self.until < date.max:
            query = query.where(acts.c.acted_at < _midnight(self.until + timedelta(days=1)))
        return query


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


@router.get("/log")
@expensive
def audit_log(
    request: Request, database: Database, viewer: PageAdmin, asked: Annotated[_Acts, Query()]
) -> Response:
    """Acts, the newest first."""
    with snapshot(database) as connection:
        part = listing.part_of(connection, asked.rows(ACT_CHARACTERS), acts, asked)
    return render(
        request,
        "audit_log.html",
        viewer=viewer,
        asked=asked,
        part=part,
        rows=[(row, *_content(row)) for row in part.rows],
        kinds=_KINDS,
    )


def _content(row: Row[Any]) -> tuple[str, str]:
    """What an act says in a line, and whole; empty where it is too long."""
    if row.content is None:
        return f"{row.characters:,} characters", ""
    said = json.loads(row.content)
    line = act_sentence(row.kind, said) or "Not readable as an act of its kind."
    shown = line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}…"
    return shown, json.dumps(said, indent=1, ensure_ascii=False)


@router.get("/log.csv")
@expensive
def audit_file(request: Request, viewer: PageAdmin, asked: Annotated[_Acts, Query()]) -> Response:
    """Every act that is asked for, as CSV."""

    def lines(_connection: Connection, rows: Sequence[Row[Any]]) -> Iterator[Sequence[Any]]:
        for row in rows:
            yield (
                row.acted_at, row.kind, row.by, row.dataset, row.position, row.after_sequence,
                row.characters, row.content,
            )  # fmt: skip

    return listing.csv_answer(request, viewer, _HEADS, asked.rows(FILED_CHARACTERS), acts, lines)
