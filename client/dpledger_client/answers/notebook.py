"""HTML for notebooks: a picture of epsilon by step, and tables. Every text is escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from dpledger_client.rounding import down, up

_WIDTH: Final = 520
_HEIGHT: Final = 200
_LEFT: Final = 52
_RIGHT: Final = 12
_TOP: Final = 14
_BOTTOM: Final = 28
_BAND: Final = "#4c78a8"
_LIMIT: Final = "#c44e52"
_ROOM: Final = 1.05  # above the highest line
_LIMIT_TIMES: Final = 5.0  # a limit further above the band is told in words alone

Point = tuple[float, float]


def table(title: str, members: Mapping[str, Any]) -> str:
    """A table of members; those that are None are left out."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in members.items()
        if value is not None
    )
    return f"<table><caption>{_text(title)}</caption>{rows}</table>"


def band(
    run: str,
    points: Sequence[Mapping[str, Any]],
    *,
    delta: float | None,
    limit: float | None,
    note: str = "",
) -> str:
    """An inline SVG of the lower and upper end of epsilon over steps.

    Args:
        run: its name.
        points: of `History`: steps, epsilon (nats, upper, None if unbounded) and epsilon_lower.
        delta: at which the points hold.
        limit: of what is charged, in nats; a dashed line. It is not a limit of epsilon itself.
        note: what to say below.
    """
    known = [one for one in points if one["epsilon"] is not None]
    if not known:
        return table(f"Run {run}", {"delta": delta, "epsilon": "no bounded step yet", "note": note})
    uppers = [(float(one["steps"]), float(one["epsilon"])) for one in known]
    lowers = [(float(one["steps"]), float(one["epsilon_lower"] or 0.0)) for one in known]
    top, drawn = max(epsilon for _, epsilon in uppers) or 1.0, limit
    if drawn is not None and drawn > _LIMIT_TIMES * top:
        drawn = None
    scale = _Scale(max(steps for steps, _ in uppers) or 1.0, _ROOM * max(top, drawn or 0.0))
    caption = _caption(run, known[-1], delta, limit)
    parts = [
        f'<polygon points="{scale.path(uppers + lowers[::-1])}" fill="{_BAND}" opacity="0.25"/>',
        f'<polyline points="{scale.path(uppers)}" fill="none" stroke="{_BAND}" stroke-width="2"/>',
        f'<polyline points="{scale.path(lowers)}" fill="none" stroke="{_BAND}" '
        'stroke-dasharray="2 2"/>',
        *_axes(scale),
    ]
    if drawn is not None:
        y = scale.y(drawn)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{_LIMIT}" stroke-dasharray="6 4"/>'
            f'<text x="{_LEFT + 4}" y="{y - 4:.1f}" fill="{_LIMIT}">'
            f"limit of what is charged: {drawn:g}</text>"
        )
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'font-size="11" font-family="sans-serif" fill="currentColor">'
        f"<title>{_text(caption)}</title>{''.join(parts)}</svg>"
    )
    below = f"<div>{_text(note)}</div>" if note else ""
    words = f"<figcaption>{_text(caption)}</figcaption>{below}"
    return f"<figure style='margin:0'>{picture}{words}</figure>"


class _Scale:
    """Where steps and epsilons are in the picture."""

    def __init__(self, steps: float, epsilon: float) -> None:
        self.steps, self.epsilon = steps, epsilon

    def x(self, steps: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * steps / self.steps

    def y(self, epsilon: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * epsilon / self.epsilon

    def path(self, points: Sequence[Point]) -> str:
        return " ".join(f"{self.x(steps):.1f},{self.y(epsilon):.1f}" for steps, epsilon in points)


def _axes(scale: _Scale) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    highest = scale.epsilon / _ROOM
    ticks = [0.0, highest / 2, highest]
    return [
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>',
        *(
            f'<text x="{_LEFT - 6}" y="{scale.y(tick) + 4:.1f}" text-anchor="end">{tick:.3g}</text>'
            for tick in ticks
        ),
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">0</text>',
        f'<text x="{right}" y="{_HEIGHT - 8}" text-anchor="end">{scale.steps:,.0f} steps</text>',
    ]


def _caption(run: str, last: Mapping[str, Any], delta: float | None, limit: float | None) -> str:
    told = f"Run {run}: epsilon at most {up(float(last['epsilon']))}"
    if last["epsilon_lower"] is not None:
        told += f" (at least {down(float(last['epsilon_lower']))})"
    told += f" after {last['steps']:,} steps"
    if delta is not None:
        told += f", delta {delta!r}"
    return told + ("" if limit is None else f"; limit {limit:g}")


def _text(value: object) -> str:
    return escape(str(value))
