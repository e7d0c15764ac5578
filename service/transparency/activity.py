"""The acts of a log, the oldest first: of a dataset, or of the installation."""

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field
from sqlalchemy import Connection, Row, bindparam, func, select

from service.ledger.log.leaves import KINDS, exact
from service.ledger.log.row_records import APPENDS
from service.ledger.lookups import find_dataset, page_of_rows
from service.schemas.responses import Answer
from service.storage.tables import acts, branches, datasets, entries, runs

_PAGE_SIZE: Final = 1000
_KEY_KINDS: Final = ("key_created", "key_rotated", "key_revoked")
# Of what the acts of a page say. A certificate's may be half a megabyte long, and Python turns an
# answer into JSON without letting another thread in: appends would wait.
PAGE_CHARACTERS: Final = 500_000
LAST: Final = 2**63 - 1  # no sequence is larger
_APPENDS: Final = (
    select(acts.c.after_sequence, acts.c.content)
    .where(acts.c.dataset_id == bindparam("dataset"), acts.c.kind == APPENDS)
    .order_by(acts.c.position)
)
_RECORDED: Final = (
    select(
        func.count().label("entries"),
        func.min(entries.c.sequence).label("first_sequence"),
        func.max(entries.c.sequence).label("last_sequence"),
        func.min(entries.c.first_step).label("first_step"),
        func.max(entries.c.first_step + entries.c.steps).label("end_step"),
        func.min(entries.c.recorded_at).label("first_recorded_at"),
        func.max(entries.c.recorded_at).label("last_recorded_at"),
    )
    .join(runs, runs.c.id == entries.c.run_id)
    .join(branches, branches.c.id == entries.c.branch_id)
    .where(
        entries.c.dataset_id == bindparam("dataset"),
        runs.c.name == bindparam("run"),
        branches.c.name == bindparam("branch"),
        entries.c.sequence > bindparam("after"),
        entries.c.sequence <= bindparam("until"),
    )
)


class ActAnswer(Answer):
    """An act as its leaf has it: canonical JSON of all members but `traceparent` is hashed."""

    position: int  # of the leaf in its log, from 0
    after_sequence: int  # of the dataset's entry that it stands behind
    # Another version may have recorded a kind of its own, which is told all the same.
    kind: Annotated[str, Field(json_schema_extra={"enum": list(KINDS)})]
    content: dict[str, Any]
    by: str | None  # the key that did it, if any
    dataset: str | None  # null in the installation's log
    acted_at: str
    traceparent: str | None


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
        size: how many at most; fewer where they are longer than PAGE_CHARACTERS, one at least.
        by: the key whose acts alone are wanted.
        kind: the kind of act that alone is wanted.

    Raises:
        NotFoundError: there is no such dataset.
    """
    dataset_id = None if dataset is None else find_dataset(connection, dataset).id
    # An equality with none is written as IS NULL.
    wanted = select(acts).where(acts.c.dataset_id == dataset_id)
    if by is not None:
        wanted = wanted.where(acts.c.by == by)
    if kind is not None:
        wanted = wanted.where(acts.c.kind == kind)
    lengths = wanted.with_only_columns(acts.c.id, func.length(acts.c.content).label("length"))
    found, _ = page_of_rows(connection, lengths, acts, after=after, size=size)
    size = max(1, sum(total <= PAGE_CHARACTERS for total in accumulate(r.length for r in found)))
    rows, further = page_of_rows(connection, wanted, acts, after=after, size=size)
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
        found, after = list_acts(connection, dataset, after=after, size=_PAGE_SIZE, by=by)
        yield from found


def acts_of_key(connection: Connection, name: str) -> list[ActAnswer]:
    """How a key was created, rotated and revoked, the oldest first; not what it did."""
    query = (
        select(acts)
        .where(acts.c.dataset_id.is_(None), acts.c.kind.in_(_KEY_KINDS))
        # A name has no character that canonical JSON escapes.
        .where(acts.c.content.contains(f'"name":"{name}"', autoescape=True))
        .order_by(acts.c.id)
    )
    return [_answer(row, None) for row in connection.execute(query)]


def logs(connection: Connection) -> list[str | None]:
    """Return the name of each log's dataset; none, the first, stands for the installation's."""
    return [None, *connection.scalars(select(datasets.c.name).order_by(datasets.c.id))]


class Stretch(NamedTuple):
    """Entries of a branch that one key recorded without a break."""

    dataset: str
    run: str
    branch: str
    first_sequence: int
    last_sequence: int
    entries: int
    first_step: int
    last_step: int
    first_recorded_at: str
    last_recorded_at: str


def find_stretches(connection: Connection, key: str, dataset: str | None) -> Iterator[Stretch]:
    """Every stretch of entries that a key recorded, by dataset in the order of their beginnings.

    Entries from before a ledger had a log name no key, and are none of these.

    Args:
        connection: for reading.
        key: its name.
        dataset: whose entries alone are wanted; none for all datasets'.

    Raises:
        NotFoundError: there is no such dataset.
    """
    rows = select(datasets.c.id, datasets.c.name).order_by(datasets.c.id)
    if dataset is not None:
        rows = rows.where(datasets.c.id == find_dataset(connection, dataset).id)
    dataset_row: Any
    for dataset_row in connection.execute(rows).all():
        begun: dict[tuple[str, str], tuple[int, str]] = {}  # after which entry, and by which key
        found: list[Stretch] = []
        for act in connection.execute(_APPENDS, {"dataset": dataset_row.id}).all():
            said = json.loads(act.content)
            place = said["run"], said["branch"]
            found += _stretch(
                connection, dataset_row, place, begun.get(place), act.after_sequence, key
            )
            begun[place] = act.after_sequence, said["key"]
        for place, since in begun.items():
            found += _stretch(connection, dataset_row, place, since, None, key)
        yield from sorted(found, key=lambda one: one.first_sequence)


def _stretch(
    connection: Connection,
    dataset_row: Any,
    place: tuple[str, str],
    since: tuple[int, str] | None,
    until: int | None,
    key: str,
) -> list[Stretch]:
    """The stretch of a branch between two acts, where it is the key's."""
    if since is None or since[1] != key:
        return []
    asked = {"dataset": dataset_row.id, "run": place[0], "branch": place[1], "after": since[0]}
    row = connection.execute(_RECORDED, asked | {"until": LAST if until is None else until}).one()
    if not row.entries:
        return []
    return [
        Stretch(
            dataset_row.name,
            *place,
            row.first_sequence,
            row.last_sequence,
            row.entries,
            row.first_step,
            row.end_step - 1,
            exact(row.first_recorded_at),
            exact(row.last_recorded_at),
        )
    ]


def _answer(row: Row[Any], dataset: str | None) -> ActAnswer:
    return ActAnswer(
        position=row.position,
        after_sequence=row.after_sequence,
        kind=row.kind,
        content=json.loads(row.content),
        by=row.by,
        dataset=dataset,
        acted_at=exact(row.acted_at),
        traceparent=row.traceparent,
    )
