"""What a figure is before it is drawn: curves, and what each of them is worth."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

HEADER: Final = ("panel", "curve", "kind", "x_name", "x", "y_name", "y")
NOT_A_GUARANTEE: Final = "conjecture, not a guarantee"


class FigureKind(StrEnum):
    """What a curve is worth. Only the first two say anything about a run."""

    BOUND = "bound"  # proved: upper, of a run of this length
    EXACT = "exact"
    DIFFERENCE = "difference"  # between a bound and a limit, as it is or scaled
    LIMIT = "limit"  # what another curve tends to; it bounds no run
    DOCUMENT = "document"  # as the document has it, where that is not so
    CONJECTURE = "conjecture"  # unproved


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCurve:
    """Points, and what they are."""

    label: str
    kind: FigureKind
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves over the same axes."""

    title: str
    x_name: str
    y_name: str
    curves: tuple[DrawnCurve, ...]
    log_x: bool = True
    log_y: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Panels side by side."""

    name: str  # of its files
    title: str
    panels: tuple[Panel, ...]


def level(label: str, kind: FigureKind, value: float, *, among: Sequence[float]) -> DrawnCurve:
    """A curve that is the same from the first to the last place."""
    return DrawnCurve(label=label, kind=kind, points=((among[0], value), (among[-1], value)))


def table(figure: Figure) -> str:
    """A figure's points as CSV; each number is the shortest that reads back as the same double."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for panel in figure.panels:
        for curve in panel.curves:
            for x, y in curve.points:
                place = (panel.title, curve.label, curve.kind)
                writer.writerow((*place, panel.x_name, repr(x), panel.y_name, repr(y)))
    return text.getvalue()
