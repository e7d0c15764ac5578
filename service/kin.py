"""The datasets that a dataset was made from, and those that were made from it."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

from service.tables import datasets, lineage

KIN_MAX: Final = 200  # datasets that are looked at

_ABOVE: Final = (
    select(lineage.c.ancestor_id)
    .where(lineage.c.dataset_id == bindparam("dataset"))
    .order_by(lineage.c.ancestor_id)
    .limit(KIN_MAX)
)
_BELOW: Final = (
    select(lineage.c.dataset_id)
    .where(lineage.c.ancestor_id == bindparam("dataset"))
    .order_by(lineage.c.dataset_id)
    .limit(KIN_MAX)
)
_FROZEN: Final = (
    select(datasets.c.name)
    .join(lineage, lineage.c.ancestor_id == datasets.c.id)
    .where(lineage.c.dataset_id == bindparam("dataset"), datasets.c.frozen)
    .order_by(datasets.c.id)
)
_NAMES: Final = (
    select(datasets.c.id, datasets.c.name)
    .where(datasets.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(datasets.c.id)
)
_PARENTS: Final = select(lineage.c.ancestor_id, lineage.c.dataset_id).where(
    lineage.c.parent,
    lineage.c.dataset_id.in_(bindparam("ids", expanding=True)),
    lineage.c.ancestor_id.in_(bindparam("ids", expanding=True)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """A dataset of a family, and how many generations it is below the oldest."""

    name: str
    generation: int
    parents: tuple[str, ...]


def kin_of(connection: Connection, dataset: Row[Any]) -> list[Kin]:
    """A dataset with its ancestors and its descendants, the oldest first; itself, if it has none.

    Not its siblings: what is spent on them is not spent on it.
    """
    asked = {"dataset": dataset.id}
    above, below = connection.scalars(_ABOVE, asked).all(), connection.scalars(_BELOW, asked).all()
    ids = [*above, dataset.id, *below]
    names = {row.id: row.name for row in connection.execute(_NAMES, {"ids": ids})}
    parents: dict[int, list[int]] = {one: [] for one in names}
    for row in connection.execute(_PARENTS, {"ids": ids}):
        parents[row.dataset_id].append(row.ancestor_id)
    generations: dict[int, int] = {}
    for one in names:  # parents were created before their children
        generations[one] = 1 + max((generations[p] for p in parents[one]), default=-1)
    found = [
        Kin(
            name=name,
            generation=generations[one],
            parents=tuple(names[parent] for parent in sorted(parents[one])),
        )
        for one, name in names.items()
    ]
    return sorted(found, key=lambda kin: kin.generation)


def frozen_above(connection: Connection, dataset_id: int) -> list[str]:
    """The datasets that a dataset was made from and that are frozen: it admits nothing either."""
    return list(connection.scalars(_FROZEN, {"dataset": dataset_id}))
