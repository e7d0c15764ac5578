"""The picture of a dataset's family: a column for each generation, a line to each parent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from service.kin import Kin

WIDTH: Final = 184  # of a box
HEIGHT: Final = 36
ACROSS: Final = 48  # between columns
DOWN: Final = 12  # between boxes
LETTERS: Final = 22  # of a name that fit in a box
SHOWN_MAX: Final = 8  # boxes of a column


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


def pedigree(family: Sequence[Kin], own: str, *, reached: Callable[[str], bool]) -> Pedigree:
    """The picture of a family, in which datasets that a key does not reach have no name."""
    columns: dict[int, list[Kin]] = {}
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
        width=max(box.x for box in boxes.values()) + WIDTH,
        height=max(box.y for box in boxes.values()) + HEIGHT,
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
        x=column * (WIDTH + ACROSS),
        y=row * (HEIGHT + DOWN),
    )


def _line(parent: Box, child: Box) -> str:
    begin, end = parent.x + WIDTH, child.x
    top, bottom = parent.y + HEIGHT // 2, child.y + HEIGHT // 2
    middle = (begin + end) // 2
    return f"M{begin} {top}C{middle} {top} {middle} {bottom} {end} {bottom}"
