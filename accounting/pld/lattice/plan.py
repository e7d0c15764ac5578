"""What is asked of a composition, where its mass is, and which lattice would answer.

Nothing here is certified: any plan gives a true bracket, a good one a narrow bracket.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Final, ParamSpec

import numpy as np

from accounting.events import Direction
from accounting.pld.lattice.direct_convolution import products
from accounting.pld.lattice.parameters import (
    Marks,
    Outlook,
    outlook,
    reach,
    rounding_spread,
    sketch,
)
from accounting.pld.pairs import Pair, Units
from accounting.rounding import Array

MAX_CELLS: Final = 2**18  # lattice points of one step: about half a second
MAX_TRANSFORM: Final = 2**20  # lattice points of a composition: about a third of a second
MAX_DIRECT: Final = 2**14  # lattice points of a composition without a transform
MAX_WORK: Final = 3 * 2**22  # points of all laws and transforms of an answer: about two seconds
TAIL: Final = 1e-5  # of the wanted relative width, for what is cut off
_DIRECT_WORK: Final = 2**31  # pairs of points of an answer's convolutions: about half a second
_LAW_WORK: Final = 8.0  # what a point of a law costs, over what a point of a transform costs
_PLANS: Final = 48  # widths looked at

P = ParamSpec("P")


class NotCertifiedError(ArithmeticError):
    """No bracket can be stated: the question is not one, or no lattice serves it."""


def raising_not_certified(
    ask: Callable[P, tuple[float, float]],
) -> Callable[P, tuple[float, float]]:
    """The same function, with one error wherever numbers leave the range of doubles."""

    @wraps(ask)
    def asked(*args: P.args, **kwargs: P.kwargs) -> tuple[float, float]:
        try:
            return ask(*args, **kwargs)
        except NotCertifiedError:
            raise
        except ArithmeticError as failure:
            raise NotCertifiedError(f"No lattice serves the question: {failure}") from failure

    return asked


@dataclass(frozen=True, slots=True)
class LatticeQuery:
    """Units of one direction with what is known of the answer before it is computed."""

    units: tuple[tuple[Pair, int], ...]
    direction: Direction
    reaches: tuple[tuple[float, float], ...]  # losses of each unit that matter, nats
    marks: tuple[Marks, ...]
    view: Outlook
    width: float  # relative, wanted
    cap: float = math.inf  # if finite, the greatest loss kept, and no transform is used


def lattice_query(
    units: Units,
    *,
    direction: Direction,
    delta: float | None,
    epsilon: float | None,
    width: float,
) -> LatticeQuery:
    """A question with what its steps' sketches tell of the answer.

    With an epsilon, the delta is a guess.
    """
    merged: dict[Pair, int] = {}
    for pair, count in units:
        merged[pair] = merged.get(pair, 0) + count
    steps = sum(merged.values())
    below = math.floor(math.log10(TAIL * width / steps))
    tail = 1e-100 if delta is None else TAIL * width * delta / steps
    sides = {
        "log10_above": max(-280, math.floor(math.log10(max(tail, 1e-300)))),
        "log10_below": below,
    }
    marks = [
        Marks(*sketch(pair, direction=direction, **sides), count) for pair, count in merged.items()
    ]
    log_delta = None if delta is None or epsilon is not None else math.log(delta)
    view = outlook(marks, log_delta=log_delta, epsilon=epsilon, tolerance=TAIL * width)
    if delta is None:
        log10 = (view.log_delta + math.log(0.1 * TAIL * width / steps)) / math.log(10)
        sides["log10_above"] = max(-280, math.floor(min(log10, -1)))
    found = [reach(pair, direction=direction, **sides) for pair in merged]
    ends = [(float(r[0]), float(r[-1])) for r in found]
    reaches = _clip_low_losses(ends, list(merged.values()), epsilon or 0.0)
    if reaches != tuple(ends):
        marks = [
            replace(mark, losses=np.maximum(mark.losses, bottom))
            for mark, (bottom, _) in zip(marks, reaches, strict=True)
        ]
        view = outlook(marks, log_delta=log_delta, epsilon=epsilon, tolerance=TAIL * width)
    return LatticeQuery(
        units=tuple(merged.items()),
        direction=direction,
        reaches=reaches,
        marks=tuple(marks),
        view=view,
        width=width,
    )


def _clip_low_losses(
    ends: Sequence[tuple[float, float]], counts: Sequence[int], epsilon: float
) -> tuple[tuple[float, float], ...]:
    """Without losses so low that no other steps can make up for them, by a good margin."""
    top = math.fsum(count * max(high, 0.0) for count, (_, high) in zip(counts, ends, strict=True))
    least = min(0.0, 0.5 * epsilon - 2 * top)
    return tuple((min(max(low, least), high), high) for low, high in ends)


def span(question: LatticeQuery) -> tuple[float, float]:
    """Ends of the window: where the mass is, but not beyond what the steps can reach."""
    counts = [count for _, count in question.units]
    low = math.fsum(k * r[0] for k, r in zip(counts, question.reaches, strict=True))
    high = math.fsum(k * r[1] for k, r in zip(counts, question.reaches, strict=True))
    if question.cap < math.inf:
        return low, min(high, question.cap)
    return max(low, question.view.low), min(high, question.view.high)


def work_of(question: LatticeQuery) -> float:
    """Lattice points of all laws and transforms, times h."""
    low, high = span(question)
    cells = math.fsum(top - bottom for bottom, top in question.reaches)
    return _LAW_WORK * cells + (len(question.units) + 2) * (high - low)


def limit(question: LatticeQuery) -> float:
    """The narrowest lattice within the limits on sizes, in nats."""
    low, high = span(question)
    widest = max(top - bottom for bottom, top in question.reaches)
    size = MAX_TRANSFORM
    if question.cap < math.inf:
        convolutions = products([count for _, count in question.units]) + 1
        size = min(MAX_DIRECT, math.isqrt(_DIRECT_WORK // convolutions))
    return 1.01 * max(widest / MAX_CELLS, (high - low) / size, work_of(question) / MAX_WORK, 1e-300)


@dataclass(frozen=True, slots=True)
class Answer:
    """A bracket, and how wide it is in nats of loss."""

    low: float
    high: float
    epsilon: float  # where, or the upper end
    delta: float  # about
    slope: float  # -d log delta / d epsilon at the answer
    gap: float  # nats
    wanted: float  # nats
    noise: float  # nats of the gap that are errors of the transforms


def without_transform(question: LatticeQuery, found: Answer) -> LatticeQuery | None:
    """The same question by sums of positive terms, if transforms err too much and it is cheap.

    Losses are then kept up to where little delta is left.
    """
    if question.cap < math.inf or not 0.2 * found.wanted < found.noise < math.inf:
        return None
    part = 0.02 * question.width * found.delta / _step_count(question)
    ends = []
    for mark, (bottom, top) in zip(question.marks, question.reaches, strict=True):
        above = np.cumsum(np.exp(mark.logs)[::-1])[::-1]
        enough = mark.losses[min(int(np.sum(above > part)), len(above) - 1)]
        ends.append((bottom, min(top, max(float(enough), 1.5 * found.epsilon, bottom))))
    cap = max(1.5 * found.epsilon, *(top for _, top in ends))
    direct = replace(question, reaches=tuple(ends), cap=cap)
    low, high = span(direct)
    if not low < high:  # all losses would be above what is kept: nothing is told, at any width
        return None
    narrowest = np.array([limit(direct)])
    cheap = error_of(direct, found.slope, narrowest)[0] <= max(2 * found.wanted, 0.1 * found.noise)
    return direct if cheap else None


def error_of(question: LatticeQuery, slope: float, widths: Array) -> Array:
    """About the error of epsilon on lattices of several widths, in nats.

    Variance v moves epsilon by v (1 + slope) / 2. One large loss is always added to the typical.
    """
    # Where no tilt finds the answer, one step's tail makes it and the others are as ever.
    order = 0.0 if question.cap < math.inf else question.view.order
    variance = rounding_spread(question.marks, order=order, widths=widths)
    return np.asarray(0.5 * (slope + 1) * (variance + widths**2 / 4), dtype=np.float64)


def plan_width(question: LatticeQuery, nats: float, slope: float, trust: float) -> float:
    """The widest lattice whose error is likely to be below the wanted."""
    view = question.view
    widest = max(view.deviation, 1e-3 * (view.high - view.low))
    widths = np.geomspace(min(limit(question), 0.5 * widest), widest, _PLANS)
    fine = np.flatnonzero(trust * error_of(question, slope, widths) <= 0.6 * nats)
    return float(widths[fine[-1] if len(fine) else 0])


def _step_count(question: LatticeQuery) -> int:
    return sum(count for _, count in question.units)
