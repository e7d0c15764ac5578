"""Certified delta and epsilon of a composition of different pairs, on a lattice of losses.

Every step is replaced by two laws on the multiples of h: one whose profile lies above the step's
and one whose profile lies below. Both compose, because profiles are integrals of increasing convex
functions. docs/theory/lattice.md has the proofs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Final

import numpy as np

from accounting.events import Direction
from accounting.pld.lattice.direct_convolution import compose_directly
from accounting.pld.lattice.discretization import Lattice, laws
from accounting.pld.lattice.fft_convolution import (
    Composition,
    Frame,
    Law,
    compose,
    read_delta,
    transform_size,
)
from accounting.pld.lattice.parameters import atoms, lattice_offset, lattice_width, outlook
from accounting.pld.lattice.plan import (
    MAX_WORK,
    TAIL,
    Answer,
    LatticeQuery,
    NotCertifiedError,
    error_of,
    lattice_query,
    limit,
    plan_width,
    raising_not_certified,
    span,
    without_transform,
    work_of,
)
from accounting.pld.pairs import DiscretePair, Units

FIRST_TRANSFORM: Final = 2**13  # lattice points of the first composition, which plans the others
MAX_ROUNDS: Final = 6  # refinements; each costs at least what the one before did
MAX_EVALUATIONS: Final = 60  # of delta, in a search for one epsilon
_TILT_MAX: Final = 8.0  # nats a cell; more would magnify what upper laws move one cell up
_SMOOTH: Final = 4.0  # cells between a step's quartiles, from which on it fits any lattice
_FEW: Final = 2**12  # points of a support that fits a window whole
_NOTHING: Final = -600.0  # log of the mass of a lower law that has none


class End(IntEnum):
    """An end of a bracket."""

    LOWER = 0
    UPPER = 1


# From (question, width of the lattice, lower, upper) to (lower, upper): one of them is nearer.
OneEnd = Callable[[LatticeQuery, float, float, float], tuple[float, float]]


def _compositions(
    question: LatticeQuery, wanted: float, ends: Sequence[End] = tuple(End)
) -> list[Composition]:
    """Lower and upper composition on a lattice of about the wanted width, or one of them."""
    pairs = [pair for pair, _ in question.units]
    width = partial(
        lattice_width,
        wanted,
        atoms=[a for pair in pairs for a in atoms(pair, question.direction)],
        cells=max(max(abs(end) for end in ends) for ends in question.reaches) / wanted,
    )
    h, last_bit = width(bare=all(isinstance(pair, DiscretePair) for pair in pairs))
    if h < limit(question) and question.cap < math.inf:  # sums of products would take too long
        h, last_bit = width(bare=False)
    small = 10.0 ** max(-280, math.floor(question.view.log_delta / math.log(10)))
    both = []
    for pair, reach, mark in zip(pairs, question.reaches, question.marks, strict=True):
        offset = 0.0
        if mark.quartiles < _SMOOTH * h:
            offset = lattice_offset(
                pair, direction=question.direction, ends=reach, width=h, last=last_bit
            )
        lattice = Lattice(
            width=h,
            offset=offset,
            bottom=math.floor(reach[0] / last_bit) * last_bit,
            first=math.floor((reach[0] - offset) / h) - 1,
            last=math.ceil((reach[1] - offset) / h) + 1,
            bit=last_bit,
        )
        both.append(laws(pair, direction=question.direction, lattice=lattice, small=small))
    if question.cap < math.inf:
        return _composed_directly(question, both, h, ends)
    first, last = _window(question, h, [law for law, _ in both], [law for _, law in both])
    if last < first:  # so little noise that cells are coarser than what is asked for
        raise NotCertifiedError("The lattice has no point where the answer lies.")
    view = question.view
    frame = Frame(
        order=min(view.order, _TILT_MAX / h),
        first=first,
        size=transform_size(last - first + 1),
        order_below=view.order_below,
        order_above=view.order_above,
    )

    def composed(end: End) -> Composition:
        units = [(law[end], count) for law, (_, count) in zip(both, question.units, strict=True)]
        return compose(units, width=h, frame=frame)

    return [composed(end) for end in ends]


def _composed_directly(
    question: LatticeQuery, both: Sequence[tuple[Law, Law]], h: float, ends: Sequence[End]
) -> list[Composition]:
    counts = [count for _, count in question.units]
    shift = math.fsum(k * law.offset for k, (law, _) in zip(counts, both, strict=True))
    last = math.ceil((span(question)[1] - shift) / h)
    return [
        compose_directly(
            [(law[end], count) for law, count in zip(both, counts, strict=True)],
            width=h,
            last=last,
            upper=end is End.UPPER,
        )
        for end in ends
    ]


def _window(question: LatticeQuery, h: float, *sides: Sequence[Law]) -> tuple[int, int]:
    """First and last lattice point of the window, which takes in ends of the support nearby."""
    counts = [count for _, count in question.units]
    low, high = span(question)
    shift = math.fsum(k * law.offset for k, law in zip(counts, sides[0], strict=True))
    first, last = math.floor((low - shift) / h), math.ceil((high - shift) / h)
    room = (last - first) // 4 + 8
    bottom = min(sum(k * w.first for k, w in zip(counts, side, strict=True)) for side in sides)
    top = max(
        sum(k * (w.first + len(w.mass) - 1) for k, w in zip(counts, side, strict=True))
        for side in sides
    )
    if top - bottom < _FEW:
        return bottom, top
    first = bottom if first - room <= bottom else first
    last = top if last + room >= top else last
    return first, last


def _refine(
    question: LatticeQuery,
    nats: float,
    answer: Callable[[LatticeQuery, Composition, Composition], Answer],
    recentred: Callable[[LatticeQuery, Answer], LatticeQuery],
    one_end: OneEnd | None = None,
) -> tuple[float, float]:
    """Brackets on ever narrower lattices, until one is as narrow as wanted; they intersect.

    The first lattice is coarse; what it shows of the answer and of its own error plans the next.
    Where one end is asked for, the second lattice is the last, and has that end alone.
    """
    low, high, spent, trust = 0.0, math.inf, 0.0, 1.0
    low_end, high_end = span(question)
    slope = question.view.order
    h = plan_width(question, nats, slope, trust)
    if any(mark.quartiles < _SMOOTH * h for mark in question.marks):
        h = max(h, (high_end - low_end) / (FIRST_TRANSFORM * min(8, len(question.units))))
    for _ in range(MAX_ROUNDS):
        h = max(h, limit(question))
        if one_end is not None and 0 < low <= high < math.inf:
            return one_end(question, h, low, high)
        spent += work_of(question) / h
        found = answer(question, *_compositions(question, h))
        low, high = max(low, found.low), min(high, found.high)
        if high == 0 or found.gap <= found.wanted:
            break
        narrower, changed = 0.15 * h, False
        question = recentred(question, found) if found.high < math.inf else question
        without = without_transform(question, found)
        if without is not None:
            question, trust, changed = without, 1.0, True
            narrower = plan_width(question, found.wanted, found.slope, trust)
        elif found.low > 0 and found.high < math.inf:
            trust = found.gap / error_of(question, found.slope, np.array([h]))[0]
            narrower = min(0.7 * h, plan_width(question, found.wanted, found.slope, trust))
        h, before = (
            max(narrower, limit(question), work_of(question) / max(MAX_WORK - spent, 1.0)),
            h,
        )
        if not (0 < h < 0.8 * before or changed):
            break
    return low, high


def _shows_its_error(units: Units, direction: Direction, only: End | None) -> bool:
    """Whether one end alone is asked for, and a lattice tells how near a narrower one will be.

    Where lattices meet atoms they do not.
    """
    return only is not None and not any(atoms(pair, direction) for pair, _ in units)


@raising_not_certified
def lattice_delta(
    units: Units, *, direction: Direction, epsilon: float, width: float, only: End | None = None
) -> tuple[float, float]:
    """Delta of a composition at an epsilon, certified on both sides.

    Args:
        units: pairs and how many steps of each, counts in [1, 1e9].
        direction: which law of each pair is first.
        epsilon: nats, >= 0 and finite.
        width: wanted (upper - lower) / upper, in (0, 1); what is reached may be wider.
        only: the end that is asked for, where it is one: the other may then be farther off.

    Returns:
        Lower and upper delta in [0, 1].

    Raises:
        NotCertifiedError: the arguments are out of range, or no lattice serves the units.
    """
    _require(units, width, 0 <= epsilon < math.inf)
    question = lattice_query(units, direction=direction, delta=None, epsilon=epsilon, width=width)

    def answer(_: LatticeQuery, lower: Composition, upper: Composition) -> Answer:
        above = read_delta(upper, epsilon=epsilon)
        low, high = read_delta(lower, epsilon=epsilon).lower, min(1.0, above.upper)
        slope = max(-above.slope, 1e-9)
        gap = (high - low) / high if high > 0 else 0.0
        return Answer(
            low=low,
            high=high,
            epsilon=epsilon,
            delta=(high - upper.infinite) / (1 + above.noise),
            slope=slope,
            gap=gap / slope,
            wanted=width / slope,
            noise=above.noise / slope,
        )

    def recentred(asked: LatticeQuery, found: Answer) -> LatticeQuery:
        # Chernoff's delta may be far too large: what was cut off may then be most of the answer.
        guess = found.delta if found.delta > 0 else 1e-5 * found.high
        if asked.cap < math.inf or not 0 < guess < 0.1 * math.exp(asked.view.log_delta):
            return asked
        again = lattice_query(units, direction=direction, delta=guess, epsilon=epsilon, width=width)
        return replace(again, view=replace(again.view, log_delta=math.log(guess)))

    def one_end(asked: LatticeQuery, h: float, low: float, high: float) -> tuple[float, float]:
        if only is End.LOWER:
            (lower,) = _compositions(asked, h, [End.LOWER])
            return max(low, read_delta(lower, epsilon=epsilon).lower), high
        (upper,) = _compositions(asked, h, [End.UPPER])
        return low, min(high, read_delta(upper, epsilon=epsilon).upper)

    last = one_end if _shows_its_error(units, direction, only) else None
    return _refine(question, width / question.view.order, answer, recentred, last)


@raising_not_certified
def lattice_epsilon(
    units: Units, *, direction: Direction, delta: float, width: float, only: End | None = None
) -> tuple[float, float]:
    """Epsilon of a composition at a delta, certified on both sides.

    Args:
        units: pairs and how many steps of each, counts in [1, 1e9].
        direction: which law of each pair is first.
        delta: in (0, 1).
        width: wanted (upper - lower) / upper, in (0, 1); what is reached may be wider.
        only: the end that is asked for, where it is one: the other may then be farther off.

    Returns:
        Lower and upper epsilon in nats. At the upper one the upper delta was evaluated to be at
        most delta, at the lower one the lower delta at least delta; 0 and inf where none was found.

    Raises:
        NotCertifiedError: the arguments are out of range, or no lattice serves the units.
    """
    _require(units, width, 0 < delta < 1)
    question = lattice_query(units, direction=direction, delta=delta, epsilon=None, width=width)
    view = question.view

    def answer(asked: LatticeQuery, lower: Composition, upper: Composition) -> Answer:
        high = _first_below(upper, delta, asked)
        low = _last_above(lower, delta, asked, start=high)
        at = high if high < math.inf else low
        reading = read_delta(upper, epsilon=at)
        slope = max(-reading.slope, 1e-9)
        return Answer(
            low=low,
            high=high,
            epsilon=high,
            delta=delta,
            slope=slope,
            gap=high - low,
            wanted=width * high,
            noise=reading.noise / slope,
        )

    def recentred(asked: LatticeQuery, found: Answer) -> LatticeQuery:
        view = outlook(
            asked.marks,
            log_delta=None,
            epsilon=0.5 * (max(found.low, 0.8 * found.high) + found.high),
            tolerance=TAIL * width,
        )
        return replace(asked, view=replace(view, log_delta=math.log(delta)))

    def one_end(asked: LatticeQuery, h: float, low: float, high: float) -> tuple[float, float]:
        if only is End.LOWER:
            (lower,) = _compositions(asked, h, [End.LOWER])
            return max(low, _last_above(lower, delta, asked, start=high)), high
        (upper,) = _compositions(asked, h, [End.UPPER])
        return low, min(high, _first_below(upper, delta, asked))

    nats = width * max(view.epsilon, 0.02 * view.spread)
    last = one_end if _shows_its_error(units, direction, only) else None
    return _refine(question, nats, answer, recentred, last)


def _require(units: Units, width: float, in_range: bool) -> None:
    counts = all(1 <= count <= 10**9 for _, count in units)
    if not (units and counts and in_range and 0 < width < 1):
        raise NotCertifiedError("Units, width and epsilon or delta are in range.")


def _first_below(upper: Composition, delta: float, question: LatticeQuery) -> float:
    """An epsilon at which the upper delta was evaluated to be at most delta, near the least."""

    def read(epsilon: float) -> tuple[float, float]:
        reading = read_delta(upper, epsilon=epsilon)
        return reading.upper, reading.slope

    if upper.infinite >= delta:
        return math.inf
    start = question.view.epsilon if question.view.epsilon > question.view.spread else 0.0
    return _search(read, delta, question, start=start, safe_above=True)


def _last_above(lower: Composition, delta: float, question: LatticeQuery, *, start: float) -> float:
    """An epsilon at which the lower delta was evaluated to be at least delta, near the greatest."""
    if not start > 0 or lower.log_scale < _NOTHING or not np.any(lower.mass > 0):
        return 0.0
    highest = lower.shift + lower.width * (lower.frame.first + len(lower.mass))

    def read(epsilon: float) -> tuple[float, float]:
        reading = read_delta(lower, epsilon=epsilon)
        return reading.lower, reading.slope

    start = (1 - 0.1 * question.width) * min(start, highest)
    return _search(read, delta, question, start=start, safe_above=False)


def _search(
    read: Callable[[float], tuple[float, float]],
    delta: float,
    question: LatticeQuery,
    *,
    start: float,
    safe_above: bool,
) -> float:
    """Newton's method on log delta, between bisections; returns only what was evaluated."""
    low, high = 0.0, math.inf
    tolerance = 0.02 * question.width
    margin = (0.4 if safe_above else -0.4) * tolerance
    epsilon = start
    for number in range(1, MAX_EVALUATIONS):
        value, slope = read(epsilon)
        held = value <= delta if safe_above else value >= delta
        high = min(high, epsilon) if value <= delta else high
        low = max(low, epsilon) if value >= delta else low
        if (epsilon == 0 and value <= delta) or high - low <= tolerance * low:
            break
        root = epsilon + math.log(max(value, 5e-324) / delta) / max(-slope, 1e-12)
        if held and abs(root - epsilon) <= tolerance * epsilon:
            break
        if epsilon == 0:
            root = max(root, question.view.epsilon)
        epsilon = root * (1 + margin)
        # Newton's steps are slow where infinite loss is nearly all of delta.
        if not low < epsilon < high or (number % 4 == 0 and high < math.inf):
            epsilon = 0.5 * (low + high) if high < math.inf else 2 * low + question.view.deviation
        if high <= 1e-9 * question.view.spread:
            epsilon = 0.0
    return high if safe_above else low
