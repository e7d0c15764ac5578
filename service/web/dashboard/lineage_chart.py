"""Draw a dataset's family: a column for each generation, a line to each parent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

from service.storage.tables import datasets, lineage

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
_WIDTH: Final = 184  # of a box
_HEIGHT: Final = 36
ACROSS: Final = 48  # between columns
DOWN: Final = 12  # between boxes
LETTERS: Final = 22  # of a name that fit in a box
SHOWN_MAX: Final = 8  # boxes of a column


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageNode:
    """A dataset of a family, and how many generations it is below the oldest."""

    name: str
    generation: int
    parents: tuple[str, ...]


def kin_of(connection: Connection, dataset: Row[Any]) -> list[LineageNode]:
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
        LineageNode(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A dataset."""

    name: str | None  # none where the key does not reach it
    label: str
    own: bool
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pedigree:
    """What is drawn."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    left_out: int  # datasets


def pedigree(
    family: Sequence[LineageNode], own: str, *, reached: Callable[[str], bool]
) -> Pedigree:
    """The picture of a family, in which datasets that a key does not reach have no name."""
    columns: dict[int, list[LineageNode]] = {}
    for kin in family:
        columns.setdefault(kin.generation, []).append(kin)
    boxes: dict[str, Box] = {}
    left_out = 0
    for number, column in enumerate(columns.values()):
        shown = sorted(column, key=lambda kin: kin.name != own)[:SHOWN_MAX]
        left_out += len(column) - len(shown)
        for row, kin in enumerate(shown):
            boxes[kin.name] = _box(kin.name, own, number, row, known=reached(kin.name))
    lines = [
        _line(boxes[parent], boxes[kin.name])
        for kin in family
        for parent in kin.parents
        if parent in boxes and kin.name in boxes
    ]
    return Pedigree(
        width=max(box.x for box in boxes.values()) + _WIDTH,
        height=max(box.y for box in boxes.values()) + _HEIGHT,
        boxes=tuple(boxes.values()),
        lines=tuple(lines),
        left_out=left_out,
    )


def _box(name: str, own: str, column: int, row: int, *, known: bool) -> Box:
    label = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
    return Box(
        name=name if known else None,
        label=label if known else "another dataset",
        own=name == own,
        x=column * (_WIDTH + ACROSS),
        y=row * (_HEIGHT + DOWN),
    )


def _line(parent: Box, child: Box) -> str:
    begin, end = parent.x + _WIDTH, child.x
    top, bottom = parent.y + _HEIGHT // 2, child.y + _HEIGHT // 2
    middle = (begin + end) // 2
    return f"M{begin} {top}C{middle} {top} {middle} {bottom} {end} {bottom}"
