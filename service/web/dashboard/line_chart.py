"""Lines over one another in one picture. Geometry alone, no colours.

Across, a thousand units are stretched to whatever is there; upwards a unit is a pixel. Words stand
outside of what is stretched.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

_ACROSS: Final = 1000
LINES_HEIGHT: Final = 220
COLOURED: Final = 8  # lines that have a colour of their own
_MARKS: Final = 4  # lines across, about, and words below
_TABLE_ROWS: Final = 10
_ROUND: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """A line, whose points rise from left to right; an infinite value ends it."""

    label: str
    address: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineMark:
    """A word at a place: of a height in pixels, or of a part of the width in percent."""

    place: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """What is drawn."""

    lines: tuple[tuple[int, ChartLine, str], ...]  # (colour from 1, or 0 for none; line; path)
    heights: tuple[LineMark, ...]
    widths: tuple[LineMark, ...]
    limit: float | None  # the height of a line at which the limit is
    cut: bool  # whether a line leaves the picture at its top and is finite there
    # Lines that become infinite: the number of the line's colour, and the place across where it
    # was finite last.
    endless: tuple[tuple[int, float], ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]  # where across, and the value of each


def draw_lines(
    lines: Sequence[ChartLine],
    *,
    stairs: bool,
    top: float | None = None,
    limit: float | None = None,
    word_x: Callable[[float], str],
    word_y: Callable[[float], str],
) -> LineChart | None:
    """Draw lines over one another; nothing where there is nothing to draw.

    Args:
        lines: what is drawn, the first above the others.
        stairs: whether the later of two points is drawn between them, so that no value that only
            rises is drawn less than it is; else a straight line.
        top: where the picture ends; by default above all that is finite.
        limit: the value of a line across.
        word_x: how a place across is written.
        word_y: how a value is written.
    """
    finite = [(x, y) for one in lines for x, y in one.points if math.isfinite(y)]
    if not finite:
        return None
    left, right = min(x for x, _ in finite), max(x for one in lines for x, _ in one.points)
    most = max(y for _, y in finite)
    needed = max(most, limit or 0.0)
    height = 1.06 * (needed if top is None else min(top, needed)) or 1.0
    whole = (right - left) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        down = LINES_HEIGHT * (1 - min(1.0, y / height))
        return round(_ACROSS * (x - left) / whole, 1), round(down, 1)

    paths = [
        (
            place if place <= COLOURED else 0,
            one,
            _path([at(*point) for point in _within(one.points, height)], stairs=stairs),
        )
        for place, one in enumerate(lines, start=1)
    ]
    step = round_step(height / _MARKS)
    xs = [left + whole * number / (_MARKS - 1) for number in range(_MARKS)]
    return LineChart(
        lines=tuple(paths),
        heights=tuple(
            LineMark(place=at(left, number * step)[1], label=word_y(number * step))
            for number in range(1, int(height / step) + 1)
        ),
        widths=tuple(
            LineMark(place=round(100 * place / (_MARKS - 1), 2), label=word_x(x))
            for place, x in enumerate(xs)
        ),
        limit=None if limit is None else at(left, limit)[1],
        cut=any(height < y < math.inf for one in lines for _, y in one.points),
        endless=tuple(
            (colour, at(_last_finite(one.points, left), 0.0)[0])
            for colour, one, _ in paths
            if math.isinf(one.points[-1][1])
        ),
        rows=_rows(lines, left, whole, word_x),
    )


def _within(points: Sequence[tuple[float, float]], top: float) -> list[tuple[float, float]]:
    """A line as far as it is below the top; it leaves the picture where it crosses that."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if y <= top:
            found.append((x, y))
            continue
        if found and math.isfinite(y):
            before, below = found[-1]
            x = before + (x - before) * (top - below) / (y - below)
        elif found:  # infinite from the point before on
            x = found[-1][0]
        found.append((x, top))
        break
    return found


def _last_finite(points: Sequence[tuple[float, float]], default: float) -> float:
    return max((x for x, y in points if math.isfinite(y)), default=default)


def _path(points: Sequence[tuple[float, float]], *, stairs: bool) -> str:
    if not points:
        return ""
    (x, y), *others = points
    drawn = [f"M{x:g} {y:g}"]
    drawn += [f"V{y:g}H{x:g}" if stairs else f"L{x:g} {y:g}" for x, y in others]
    return "".join(drawn)


def round_step(rough: float) -> float:
    """The next round number, for the lines of a picture to be so far apart."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(number * power for number in _ROUND if number * power >= rough)


def _rows(
    lines: Sequence[ChartLine], left: float, whole: float, word_x: Callable[[float], str]
) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
    """The value of each line at a few places: its next point's; none behind the last."""
    places = [left + whole * number / _TABLE_ROWS for number in range(1, _TABLE_ROWS + 1)]
    return tuple((word_x(x), tuple(_next(one, x) for one in lines)) for x in places)


def _next(line: ChartLine, place: float) -> float | None:
    return next((y for x, y in line.points if x >= place), None)
