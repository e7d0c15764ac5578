"""Certified delta and epsilon of a composition of different pairs, on a lattice of losses.

Every step is replaced by two laws on the multiples of h: one whose profile lies above the step's
and one whose profile lies below. Both compose, because profiles are integrals of increasing convex
functions. docs/theory/lattice.md has the proofs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from scipy import fft

from accounting.events import Direction
from accounting.numerics import Array
from accounting.pld.convolution import (
    Composition,
    Frame,
    Law,
    Outlook,
    compose,
    outlook,
    read_delta,
)
from accounting.pld.laws import LAWS_KEPT, joined_dots, laws
from accounting.pld.pairs import DiscretePair, LaplacePair, Pair, SymmetricPair
from accounting.pld.tails import LOSS_MAX, Tails, tails

MAX_CELLS: Final = 2**21  # lattice points of one step's law: 16 MB an array
MAX_TRANSFORM: Final = 2**21  # lattice points of a composition: about a second
MAX_ROUNDS: Final = 6  # refinements; each costs at least what the one before did
MAX_EVALUATIONS: Final = 60  # of delta, in a search for one epsilon


class NotCertifiedError(ArithmeticError):
    """Not even a trivial bracket can be stated, because the question is not one."""


# What to look at: none of this is certified, and none of it needs to be


_GRID: Final = np.sinh(np.linspace(0.0, math.asinh(LOSS_MAX * 1e9), 400)) * 1e-9
_SKETCH: Final = 192  # losses in a sketch


@lru_cache(maxsize=4 * LAWS_KEPT)
def _reach(pair: Pair, *, direction: Direction, log10_above: int, log10_below: int) -> Array:
    """Losses, in order: where P has 10^log10_below below, its quartiles, 10^log10_above above."""
    grid = np.concatenate((-_GRID[:0:-1], _GRID))
    levels = (10.0**log10_below, 0.25, 0.5, 0.75)
    at = tails(pair, direction=direction, losses=grid)
    beyond = at.p_above[-1]  # infinite, or treated so

    def place(at: Tails) -> list[int]:
        below = [int(np.searchsorted(at.p_below, level, side="right")) for level in levels]
        return [
            *below,
            int(np.argmax(at.p_above - beyond <= 10.0**log10_above)) or len(at.p_above) - 1,
        ]

    found = []
    for number, index in enumerate(place(at)):
        high = min(index, len(grid) - 1)
        fine = np.linspace(grid[max(high - 1, 0)], grid[high], 65)
        inner = place(tails(pair, direction=direction, losses=fine))[number]
        # The lowest is taken from the left end of its cell, so that it has no more below it.
        found.append(fine[max(min(inner, 64) - (number == 0), 0)])
    return np.array(found)


@lru_cache(maxsize=4 * LAWS_KEPT)
def _sketch(
    pair: Pair, *, direction: Direction, log10_above: int, log10_below: int
) -> tuple[Array, Array]:
    """A coarse law on losses that are dense near the median: losses and logarithms of P-masses."""
    bottom, low, middle, high, top = _reach(
        pair, direction=direction, log10_above=log10_above, log10_below=log10_below
    )
    scale = max(0.1 * (high - low), 1e-3 * (top - bottom), 1e-12)
    ends = np.arcsinh((np.array([bottom, top]) - middle) / scale)
    losses = middle + scale * np.sinh(np.linspace(ends[0], ends[1] + 1e-9, _SKETCH))
    losses = np.clip(losses, -LOSS_MAX, LOSS_MAX)
    losses = losses[np.append(True, np.diff(losses) > 0)]
    mass = joined_dots(losses, tails(pair, direction=direction, losses=losses))
    return losses[mass > 0], np.log(mass[mass > 0])


def _atoms(pair: Pair, direction: Direction) -> list[float]:
    """Losses of positive probability that the lattice should hit."""
    sign = 1.0 if direction is Direction.REMOVE else -1.0
    match pair:
        case LaplacePair(scale=b, sampling_probability=q):
            return [sign * math.log1p(q * math.expm1(edge)) for edge in (1 / b, -1 / b)]
        case SymmetricPair(near=LaplacePair(scale=b), far=LaplacePair(scale=c)):
            q = pair.sampling_probability
            up = [math.log1p(q * math.expm1(edge)) for edge in (1 / b, 1 / c)]
            return up + [-loss for loss in up]
        case DiscretePair():
            both = zip(pair.first, pair.second, strict=True)
            return [sign * (math.log(p) - math.log(q)) for p, q in both if p > 0 and q > 0]
        case _:
            return []


# An atom lies this much above its lattice point, relatively: enough that the profile between the
# two is known to a few digits, too little to matter.
_ATOM_MARGIN: Final = 2.0**-26
_ALIGNMENTS: Final = 4096  # widths tried
_TILT_MAX: Final = 8.0  # nats a cell; more would magnify what upper laws move one cell up


def _lattice_width(width: float, *, atoms: Sequence[float], bare: bool, cells: float) -> float:
    """A width near the wanted one that nearly divides every atom, of few bits.

    An atom off the lattice costs a first-order error. If there are only atoms, the widest lattice
    that hits all of them is exact.
    """
    sizes = np.unique(np.abs(np.array([a for a in atoms if abs(a) > 0.5 * width * (not bare)])))
    if len(sizes):
        top = sizes[-1] * (1 - _ATOM_MARGIN)
        start = max(1, math.ceil(top / width))
        base = 1 if bare else start
        parts = np.arange(base, base + min(_ALIGNMENTS, start + bare * _ALIGNMENTS))
        places = np.abs(sizes)[:, None] / sizes[-1] * parts
        off = np.max(np.abs(places - np.rint(places)), axis=0)
        exact = np.flatnonzero(off < 1e-7)
        part = parts[exact[0]] if len(exact) else max(parts[int(np.argmin(off))], start)
        width = top / int(part)
        cells = max(cells * bare, 4.0 * int(part))
    mantissa, exponent = math.frexp(width)
    bits = 50 - max(1, math.ceil(math.log2(max(cells, 2.0))))
    return math.ldexp(math.floor(math.ldexp(mantissa, bits)), exponent - bits)


# Questions

Units = Sequence[tuple[Pair, int]]


@dataclass(frozen=True, slots=True)
class _Question:
    """Units of one direction with what is known of the answer before it is computed."""

    units: tuple[tuple[Pair, int], ...]
    direction: Direction
    reaches: tuple[tuple[float, float], ...]  # losses of each unit that matter, nats
    view: Outlook
    width: float  # relative, wanted


def _question(
    units: Units,
    *,
    direction: Direction,
    delta: float | None,
    epsilon: float | None,
    width: float,
) -> _Question:
    merged: dict[Pair, int] = {}
    for pair, count in units:
        merged[pair] = merged.get(pair, 0) + count
    steps = sum(merged.values())
    below = math.floor(math.log10(1e-5 * width / steps))
    tail = 1e-100 if delta is None else 1e-5 * width * delta / steps
    above = max(-280, math.floor(math.log10(tail)))
    sides = {"log10_above": above, "log10_below": below}
    marks = [(*_sketch(pair, direction=direction, **sides), k) for pair, k in merged.items()]
    log_delta = None if delta is None else math.log(delta)
    view = outlook(marks, log_delta=log_delta, epsilon=epsilon, tolerance=1e-5 * width)
    if delta is None:
        log10 = (view.log_delta + math.log(1e-6 * width / steps)) / math.log(10)
        sides["log10_above"] = max(-280, math.floor(min(log10, -1)))
    reaches = [_reach(pair, direction=direction, **sides) for pair in merged]
    return _Question(
        units=tuple(merged.items()),
        direction=direction,
        reaches=tuple((float(reach[0]), float(reach[-1])) for reach in reaches),
        view=view,
        width=width,
    )


def _span(question: _Question) -> tuple[float, float]:
    """Ends of the window: where the mass is, but not beyond what the steps can reach."""
    counts = [count for _, count in question.units]
    low = math.fsum(k * r[0] for k, r in zip(counts, question.reaches, strict=True))
    high = math.fsum(k * r[1] for k, r in zip(counts, question.reaches, strict=True))
    return max(low, question.view.low), min(high, question.view.high)


def _limit(question: _Question) -> float:
    """The narrowest lattice within the limits on sizes, in nats."""
    low, high = _span(question)
    widest = max(top - bottom for bottom, top in question.reaches)
    return 1.01 * max(widest / MAX_CELLS, (high - low) / MAX_TRANSFORM)


def _compositions(question: _Question, wanted: float) -> tuple[Composition, Composition]:
    """Lower and upper composition on a lattice of about the wanted width."""
    pairs = [pair for pair, _ in question.units]
    h = _lattice_width(
        wanted,
        atoms=[a for pair in pairs for a in _atoms(pair, question.direction)],
        bare=all(isinstance(pair, DiscretePair) for pair in pairs),
        cells=max(max(abs(end) for end in reach) for reach in question.reaches) / wanted,
    )
    small = 10.0 ** max(-280, math.floor(question.view.log_delta / math.log(10)))
    both = []
    for pair, reach in zip(pairs, question.reaches, strict=True):
        first, last = math.floor(reach[0] / h) - 1, math.ceil(reach[1] / h) + 1
        both.append(
            laws(
                pair,
                direction=question.direction,
                width=h,
                first=first,
                last=last,
                small=small,
            )
        )
    first, last = _window(question, h, [law for law, _ in both], [law for _, law in both])
    size = fft.next_fast_len(last - first + 1, real=True)
    view = question.view
    frame = Frame(
        order=min(view.order, _TILT_MAX / h),
        first=first,
        size=size,
        order_below=view.order_below,
        order_above=view.order_above,
    )

    def composed(side: int) -> Composition:
        units = [(law[side], count) for law, (_, count) in zip(both, question.units, strict=True)]
        return compose(units, width=h, frame=frame)

    return composed(0), composed(1)


def _window(question: _Question, h: float, *sides: Sequence[Law]) -> tuple[int, int]:
    """First and last lattice point of the window, which takes in ends of the support nearby."""
    counts = [count for _, count in question.units]
    low, high = _span(question)
    first, last = math.floor(low / h), math.ceil(high / h)
    room = (last - first) // 4 + 8
    bottom = min(sum(k * w.first for k, w in zip(counts, side, strict=True)) for side in sides)
    top = max(
        sum(k * (w.first + len(w.mass) - 1) for k, w in zip(counts, side, strict=True))
        for side in sides
    )
    first = bottom if first - room <= bottom else first
    last = top if last + room >= top else last
    return first, last


def _refined(
    question: _Question,
    width: float,
    answer: Callable[[Composition, Composition], tuple[float, float]],
) -> tuple[float, float]:
    """Brackets on ever narrower lattices, until one is as narrow as wanted; they intersect.

    The error falls with the square of the width, or with the width where atoms are off the lattice.
    """
    limit = _limit(question)
    low, high, h = 0.0, math.inf, max(width, limit)
    for _ in range(MAX_ROUNDS):
        new_low, new_high = answer(*_compositions(question, h))
        low, high = max(low, new_low), min(high, new_high)
        gap = (high - low) / high if 0 < high < math.inf else 1.0
        if high == 0 or gap <= question.width or h <= limit:
            break
        h = max(limit, h * min(0.8, max(0.1, math.sqrt(0.6 * question.width / gap))))
    return low, high


def lattice_delta(
    units: Units, *, direction: Direction, epsilon: float, width: float
) -> tuple[float, float]:
    """Delta of a composition at an epsilon, certified on both sides.

    Args:
        units: pairs and how many steps of each, counts in [1, 1e9].
        direction: which law of each pair is first.
        epsilon: nats, >= 0 and finite.
        width: wanted (upper - lower) / upper, in (0, 1); what is reached may be wider.

    Returns:
        Lower and upper delta in [0, 1].

    Raises:
        NotCertifiedError: the arguments are out of range.
    """
    _require(units, width, 0 <= epsilon < math.inf)
    question = _question(units, direction=direction, delta=None, epsilon=epsilon, width=width)
    order = question.view.order
    guess = math.sqrt(4 * width / (_steps(question) * order * (order + 1)))

    def answer(lower: Composition, upper: Composition) -> tuple[float, float]:
        return (
            read_delta(lower, epsilon=epsilon).lower,
            read_delta(upper, epsilon=epsilon).upper,
        )

    low, high = _refined(question, min(guess, 0.5 * question.view.deviation), answer)
    return low, min(1.0, high)


def lattice_epsilon(
    units: Units, *, direction: Direction, delta: float, width: float
) -> tuple[float, float]:
    """Epsilon of a composition at a delta, certified on both sides.

    Args:
        units: pairs and how many steps of each, counts in [1, 1e9].
        direction: which law of each pair is first.
        delta: in (0, 1).
        width: wanted (upper - lower) / upper, in (0, 1); what is reached may be wider.

    Returns:
        Lower and upper epsilon in nats. At the upper one the upper delta was evaluated to be at
        most delta, at the lower one the lower delta at least delta; 0 and inf where none was found.

    Raises:
        NotCertifiedError: the arguments are out of range.
    """
    _require(units, width, 0 < delta < 1)
    question = _question(units, direction=direction, delta=delta, epsilon=None, width=width)
    view = question.view
    guess = math.sqrt(4 * width * max(view.epsilon, 1e-12) / (_steps(question) * (view.order + 1)))

    def answer(lower: Composition, upper: Composition) -> tuple[float, float]:
        return _last_above(lower, delta, question), _first_below(upper, delta, question)

    return _refined(question, min(guess, 0.5 * view.deviation), answer)


def _steps(question: _Question) -> int:
    return sum(count for _, count in question.units)


def _require(units: Units, width: float, in_range: bool) -> None:
    counts = all(1 <= count <= 10**9 for _, count in units)
    if not (units and counts and in_range and 0 < width < 1):
        raise NotCertifiedError("Units, width and epsilon or delta are in range.")


def _first_below(upper: Composition, delta: float, question: _Question) -> float:
    """An epsilon at which the upper delta was evaluated to be at most delta, near the least."""

    def read(epsilon: float) -> tuple[float, float]:
        reading = read_delta(upper, epsilon=epsilon)
        return reading.upper, reading.slope

    if upper.infinite >= delta:
        return math.inf
    return _search(read, delta, question, safe_above=True)


def _last_above(lower: Composition, delta: float, question: _Question) -> float:
    """An epsilon at which the lower delta was evaluated to be at least delta, near the greatest."""

    def read(epsilon: float) -> tuple[float, float]:
        reading = read_delta(lower, epsilon=epsilon)
        return reading.lower, reading.slope

    return _search(read, delta, question, safe_above=False)


def _search(
    read: Callable[[float], tuple[float, float]],
    delta: float,
    question: _Question,
    *,
    safe_above: bool,
) -> float:
    """Newton's method on log delta, between bisections; returns only what was evaluated."""
    low, high = 0.0, math.inf
    tolerance = 0.02 * question.width
    epsilon = max(0.0, question.view.epsilon)
    for _ in range(MAX_EVALUATIONS):
        value, slope = read(epsilon)
        held = value <= delta if safe_above else value >= delta
        if value <= delta:
            high = min(high, epsilon)
        if value >= delta:
            low = max(low, epsilon)
        if (epsilon == 0 and value <= delta) or high - low <= tolerance * low:
            break
        root = epsilon + math.log(max(value, 5e-324) / delta) / max(-slope, 1e-12)
        if held and abs(root - epsilon) <= tolerance * epsilon:
            break
        epsilon = root * (1 + (0.4 if safe_above else -0.4) * tolerance)
        if not low < epsilon < high:
            epsilon = 0.5 * (low + high) if high < math.inf else 2 * low + question.view.deviation
        if high <= 1e-9 * question.view.deviation:
            epsilon = 0.0
    return high if safe_above else low
