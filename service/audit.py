"""The acts of a log, the oldest first: of a dataset, or of the installation."""

import json
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from service.acts import exact
from service.answers import Answer
from service.catalog import find_dataset, page
from service.tables import acts

PAGE_SIZE: Final = 1000


class ActAnswer(Answer):
    """An act as its leaf has it: canonical JSON of these members is what is hashed."""

    position: int  # of the leaf in its log, from 0
    after_sequence: int  # of the dataset's entry that it stands behind
    kind: str
    content: dict[str, Any]
    by: str | None  # the key's name, where somebody decided it
    dataset: str | None  # null in the installation's log
    acted_at: str


class ActPage(Answer):
    """A part of a log's acts."""

    acts: list[ActAnswer]
    next_page_token: str | None


def list_acts(
    connection: Connection,
    dataset: str | None,
    *,
    after: int,
    size: int,
    by: str | None = None,
    kind: str | None = None,
) -> tuple[list[ActAnswer], int | None]:
    """Acts behind a row, and the row to continue after.

    Args:
        connection: for reading.
        dataset: whose log; none for the installation's.
        after: 0, or what an earlier call said.
        size: how many at most.
        by: the key whose acts alone are wanted.
        kind: the kind of act that alone is wanted.

    Raises:
        NotFoundError: there is no such dataset.
    """
    home = None if dataset is None else find_dataset(connection, dataset).id
    # An equality with none is written as IS NULL.
    wanted = select(acts).where(acts.c.dataset_id == home)
    if by is not None:
        wanted = wanted.where(acts.c.by == by)
    if kind is not None:
        wanted = wanted.where(acts.c.kind == kind)
    rows, further = page(connection, wanted, acts, after=after, size=size)
    return [_answer(row, dataset) for row in rows], further


def all_acts(
    connection: Connection, dataset: str | None, *, by: str | None = None
) -> Iterator[ActAnswer]:
    """Every act of a log, or every one of a key.

    Raises:
        NotFoundError: there is no such dataset.
    """
    after: int | None = 0
    while after is not None:
        found, after = list_acts(connection, dataset, after=after, size=PAGE_SIZE, by=by)
        yield from found


def _answer(row: Row[Any], dataset: str | None) -> ActAnswer:
    return ActAnswer(
        position=row.position,
        after_sequence=row.after_sequence,
        kind=row.kind,
        content=json.loads(row.content),
        by=row.by,
        dataset=dataset,
        acted_at=exact(row.acted_at),
    )
