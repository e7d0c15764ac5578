"""Find datasets, runs and branches by name, and lock them."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Table, bindparam, or_, select

from service.errors import NotFoundError
from service.schemas.requests import AtMostRows, RowsPerRecord
from service.storage import bulk
from service.storage.tables import (
    branches,
    datasets,
    lineage,
    runs,
)

# Statements are built once: building one costs as much as running it.
_DATASET_NAMED: Final = select(datasets).where(datasets.c.name == bindparam("named"))
_DATASET_BY_ID: Final = select(datasets).where(datasets.c.id == bindparam("dataset"))
_RUN_NAMED: Final = select(runs).where(runs.c.name == bindparam("named"))
_LOCKED_OF_RUN: Final = (
    select(datasets)
    .where(
        datasets.c.id
        == select(runs.c.dataset_id).where(runs.c.name == bindparam("named")).scalar_subquery()
    )
    .with_for_update()
)
_BRANCH_NAMED: Final = select(branches).where(
    branches.c.run_id == bindparam("run"), branches.c.name == bindparam("named")
)
_CHANGED: Final = (
    datasets.update()
    .where(datasets.c.id == bindparam("dataset"))
    .values(version=bindparam("drawn"))
)
_FAMILY_CHANGED: Final = (
    datasets.update()
    .where(
        or_(
            datasets.c.id == bindparam("dataset"),
            datasets.c.id.in_(
                select(lineage.c.ancestor_id).where(lineage.c.dataset_id == bindparam("dataset"))
            ),
        )
    )
    .values(version=bindparam("drawn"))
)
_BRANCHES: Final = (
    select(branches).where(branches.c.run_id == bindparam("run")).order_by(branches.c.id)
)
_SEVERAL: Final = "at_most_"  # stored before a number of rows
VERSION_BITS: Final = 62  # drawn anew, so that no two states of a dataset share one


def _require_row(row: Row[Any] | None, noun: str) -> Row[Any]:
    if row is None:
        raise NotFoundError(f"There is no such {noun}.")
    return row


def find_dataset(connection: Connection, name: str) -> Row[Any]:
    """A dataset's row.

    Raises:
        NotFoundError: there is none of that name.
    """
    found = connection.execute(_DATASET_NAMED, {"named": name}).one_or_none()
    return _require_row(found, "dataset")


def is_dataset(connection: Connection, name: str) -> bool:
    """Whether there is a dataset of a name."""
    return connection.execute(_DATASET_NAMED, {"named": name}).one_or_none() is not None


def find_run(connection: Connection, name: str) -> Row[Any]:
    """A run's row.

    Raises:
        NotFoundError: there is none of that name.
    """
    return _require_row(connection.execute(_RUN_NAMED, {"named": name}).one_or_none(), "run")


def lock_dataset(connection: Connection, name: str) -> Row[Any]:
    """A dataset's row, which stays locked.

    Raises:
        NotFoundError: there is none of that name.
    """
    found = connection.execute(_DATASET_NAMED.with_for_update(), {"named": name}).one_or_none()
    return _require_row(found, "dataset")


def lock_parents(connection: Connection, names: Sequence[str]) -> None:
    """Lock datasets with all they were made from, in the order of their ids, as every writer does.

    Before anything refers to them, for a reference locks them too.
    """
    if not names:
        return
    named = connection.scalars(select(datasets.c.id).where(datasets.c.name.in_(names))).all()
    above = select(lineage.c.ancestor_id).where(lineage.c.dataset_id.in_(named))
    bulk.select(connection, datasets, "id", ("id",), {*named, *connection.scalars(above)})


def lock_run(connection: Connection, name: str) -> tuple[Row[Any], Row[Any]]:
    """A run's row and its dataset's, which stays locked: one writer a dataset at a time.

    Raises:
        NotFoundError: there is no run of that name.
    """
    dataset = _require_row(connection.execute(_LOCKED_OF_RUN, {"named": name}).one_or_none(), "run")
    # Read after the lock is held, so that no other writer can change it from here on.
    return find_run(connection, name), dataset


def find_branch(connection: Connection, run_id: int, name: str) -> Row[Any]:
    """A branch's row.

    Raises:
        NotFoundError: the run has none of that name.
    """
    found = connection.execute(_BRANCH_NAMED, {"run": run_id, "named": name}).one_or_none()
    return _require_row(found, "branch")


def dataset_of(connection: Connection, run: Row[Any]) -> Row[Any]:
    """The dataset's row of a run."""
    return connection.execute(_DATASET_BY_ID, {"dataset": run.dataset_id}).one()


def mark_changed(connection: Connection, dataset_id: int) -> None:
    """Say that something of a dataset has changed; its row is locked."""
    drawn = secrets.randbits(VERSION_BITS)
    connection.execute(_CHANGED, {"dataset": dataset_id, "drawn": drawn})


def mark_family_changed(connection: Connection, dataset_id: int) -> None:
    """Say it of a dataset and of all that it was made from; `lock_parents` has locked them."""
    drawn = secrets.randbits(VERSION_BITS)
    connection.execute(_FAMILY_CHANGED, {"dataset": dataset_id, "drawn": drawn})


def branches_of(connection: Connection, run: Row[Any]) -> list[Row[Any]]:
    """A run's branches in creation order, main first."""
    return list(connection.execute(_BRANCHES, {"run": run.id}))


def recorded_steps(connection: Connection, run: Row[Any]) -> int:
    """How many steps a run has recorded, over all its branches."""
    return sum(one.next_step - one.from_step for one in branches_of(connection, run))


def page_of_rows(
    connection: Connection, query: Select[Any], table: Table, *, after: int, size: int
) -> tuple[list[Row[Any]], int | None]:
    """Rows in creation order after an id, and the id to continue from."""
    rows = list(
        connection.execute(query.where(table.c.id > after).order_by(table.c.id).limit(size + 1))
    )
    return rows[:size], rows[size - 1].id if len(rows) > size else None


def rows_text(rows: RowsPerRecord | None) -> str | None:
    """What is stored of an attestation."""
    return f"{_SEVERAL}{rows.at_most}" if isinstance(rows, AtMostRows) else rows


def read_rows_per_record(text: str | None) -> Any:
    """The attestation of what is stored."""
    if text is None or not text.removeprefix(_SEVERAL).isdigit():
        return text
    return AtMostRows(at_most=int(text.removeprefix(_SEVERAL)))
