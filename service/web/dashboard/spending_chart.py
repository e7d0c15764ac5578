"""The picture of a dataset's spending: layers by run under the limit. Geometry alone, no colours.

Upwards is the share of the budget's capacity, so that the limit is at 1; without a budget, epsilon.

Across, a thousand units are stretched to whatever is there; upwards a unit is a pixel. Words stand
outside of what is stretched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from service.clock import utc
from service.formatting import NARROW, TIMES_FROM
from service.guarantees.spending_history import Moment, Spending
from service.ledger.dataset_settings import SettingsAnswer
from service.web.dashboard.line_chart import round_step

_WIDTH: Final = 1000
HEIGHT: Final = 220
TICKS: Final = 4  # upwards, about
DATES: Final = 4
TABLE_ROWS: Final = 12  # rows of the table beside it
_FAR: Final = 20  # times what is spent: a limit that is further away is not drawn
_HEADROOM: Final = 1.06
_LIMIT: Final = 1.0  # the whole capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A line across, or a time below."""

    place: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A change of the limit."""

    x: float
    number: int
    change: SettingsAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is drawn."""

    layers: tuple[tuple[int, str], ...]  # (index of the part, path)
    outline: str
    limit: str
    limit_is_far: bool
    marks: tuple[Mark, ...]
    endless: float | None  # from where on nothing finite is proved
    ticks: tuple[Tick, ...]
    dates: tuple[Tick, ...]
    rows: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where times and shares, or epsilons, lie."""

    begins: datetime
    ends: datetime
    top: float

    def x(self, at: datetime) -> float:
        whole = (self.ends - self.begins) / timedelta(seconds=1)
        part = (at - self.begins) / timedelta(seconds=1)
        return round(_WIDTH * min(1.0, max(0.0, part / whole)), 1) if whole > 0 else 0.0

    def y(self, spent: float) -> float:
        return round(HEIGHT * (1 - min(1.0, spent / self.top)), 1)


def draw_spending(spent: Spending, changes: Sequence[SettingsAnswer], present: datetime) -> Picture:
    """The picture of a spending up to the present, with the settings of the dataset over time."""
    moments = [one for one in spent.moments if one.spent is not None]
    most = max((one.spent or 0.0 for one in moments), default=0.0)
    far = spent.in_shares and 0 < _FAR * most < _LIMIT
    drawn = spent.in_shares and not far
    top = _HEADROOM * max(most, _LIMIT if drawn else 0.0)
    frame = _Frame(spent.moments[0].at, max(present, spent.moments[-1].at), top or 1.0)
    endless = next((one.at for one in spent.moments if one.spent is None), None)
    last = moments[-1:] if endless is None else []
    shown = [*moments, *(Moment(at=frame.ends, spent=o.spent, parts=o.parts) for o in last)]
    return Picture(
        layers=_layers(shown, frame) if moments else (),
        outline=_line([(frame.x(one.at), frame.y(one.spent or 0.0)) for one in shown]),
        limit=_limit(changes, frame) if drawn else "",
        limit_is_far=far,
        marks=_marks(changes, frame),
        endless=None if endless is None else frame.x(endless),
        ticks=_ticks(frame, in_percent=spent.in_shares),
        dates=_dates(frame),
        rows=_pick_moments(spent.moments),
    )


def _layers(moments: Sequence[Moment], frame: _Frame) -> tuple[tuple[int, str], ...]:
    """Each part on top of those before it, the largest at the bottom."""
    below = [0.0] * len(moments)
    found = []
    for index in range(len(moments[0].parts)):
        above = [base + one.parts[index] for base, one in zip(below, moments, strict=True)]
        if any(one.parts[index] for one in moments):
            xs = [frame.x(one.at) for one in moments]
            upper = list(zip(xs, map(frame.y, above), strict=True))
            lower = list(zip(xs, map(frame.y, below), strict=True))
            found.append((index, _line([*upper, *reversed(lower)]) + "Z"))
        below = above
    return tuple(found)


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""


def _limit(changes: Sequence[SettingsAnswer], frame: _Frame) -> str:
    """The present limit, from when the dataset first had one."""
    first = next((one for one in changes if one.epsilon is not None), None)
    if first is None:
        return ""
    return f"M{frame.x(_time(first.changed_at)):g} {frame.y(_LIMIT):g}H{_WIDTH}"


def _marks(changes: Sequence[SettingsAnswer], frame: _Frame) -> tuple[Mark, ...]:
    moved = [after for before, after in pairwise(changes) if after.epsilon != before.epsilon]
    return tuple(
        Mark(x=frame.x(_time(one.changed_at)), number=number, change=one)
        for number, one in enumerate(moved, start=1)
    )


def _ticks(frame: _Frame, *, in_percent: bool) -> tuple[Tick, ...]:
    """Lines at round numbers."""
    unit, sign = (100, f"{NARROW}%") if in_percent else (1, "")
    if in_percent and frame.top > TIMES_FROM:
        unit, sign = 1, " times"
    step = round_step(unit * frame.top / TICKS)
    count = int(unit * frame.top / step)
    return tuple(
        Tick(place=frame.y(number * step / unit), label=f"{number * step:.6g}{sign}")
        for number in range(1, count + 1)
    )


def _dates(frame: _Frame) -> tuple[Tick, ...]:
    whole = frame.ends - frame.begins
    form = "%H:%M" if whole < timedelta(days=2) else "%d %b"
    if whole < timedelta(minutes=DATES):  # or dates would be the same minute
        form = "%H:%M:%S"
    if whole > timedelta(days=300):
        form = "%b %Y"
    return tuple(
        Tick(
            place=round(100 * number / (DATES - 1), 2),
            label=(frame.begins + whole * number / (DATES - 1)).strftime(form),
        )
        for number in range(DATES)
    )


def _pick_moments(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """A few of the moments, evenly, and the last."""
    stride = max(1, -(-len(moments) // TABLE_ROWS))
    return tuple(reversed(moments[::-1][::stride]))


def _time(stamp: str) -> datetime:
    return utc(datetime.fromisoformat(stamp))
