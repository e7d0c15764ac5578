"""Where to look at a composition: the tilt, the window and the lattice that suit a question.

Nothing here is certified and nothing needs to be: any choice gives a true bracket, a good one a
narrow bracket.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.events import Direction
from accounting.pld.lattice.discretization import (
    LAWS_KEPT,
    has_atoms,
    joined_dots,
    mean_excess,
    tangent_gap,
)
from accounting.pld.pairs import (
    DiscretePair,
    LaplacePair,
    Pair,
    SymmetricPair,
)
from accounting.pld.tails import LOSS_MAX, Tails, profiles, tails
from accounting.rounding import Array
from accounting.work_limit import cached_with_cost

_GRID: Final = np.sinh(np.linspace(0.0, math.asinh(LOSS_MAX * 1e9), 400)) * 1e-9
_FINE: Final = np.linspace(0.0, 1.0, 65)
_SKETCH: Final = 192  # losses in a sketch


# Sketches of one step


@cached_with_cost(maxsize=4 * LAWS_KEPT)
def reach(pair: Pair, *, direction: Direction, log10_above: int, log10_below: int) -> Array:
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

    high = np.minimum(place(at), len(grid) - 1)
    low = np.maximum(high - 1, 0)
    fine = grid[low][:, None] + (grid[high] - grid[low])[:, None] * _FINE
    inside = tails(pair, direction=direction, losses=fine.ravel())
    found = []
    for number in range(len(high)):
        rows = slice(number * len(_FINE), (number + 1) * len(_FINE))
        inner = place(Tails(*(getattr(inside, name)[rows] for name in Tails.__slots__)))[number]
        # The lowest is taken from the left end of its cell, so that it has no more below it.
        found.append(fine[number, max(min(inner, 64) - (number == 0), 0)])
    return np.array(found)


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """A coarse law of one step, on losses that are dense near the median."""

    losses: Array
    logs: Array  # natural logarithms of P-masses, shape (k,)
    middle: float  # the median
    quartiles: float  # how far they are apart
    count: int  # steps


@cached_with_cost(maxsize=4 * LAWS_KEPT)
def sketch(
    pair: Pair, *, direction: Direction, log10_above: int, log10_below: int
) -> tuple[Array, Array, float, float]:
    """A coarse law on losses that are dense near the median: the first fields of `Marks`."""
    bottom, low, middle, high, top = reach(
        pair, direction=direction, log10_above=log10_above, log10_below=log10_below
    )
    scale = max(0.1 * (high - low), 1e-3 * abs(middle), 1e-6 * (top - bottom), 1e-12)
    ends = np.arcsinh((np.array([bottom, top]) - middle) / scale)
    losses = middle + scale * np.sinh(np.linspace(ends[0], ends[1] + 1e-9, _SKETCH))
    losses = np.clip(losses, -LOSS_MAX, LOSS_MAX)
    losses = losses[np.append(True, np.diff(losses) > 0)]
    mass = joined_dots(losses, tails(pair, direction=direction, losses=losses))
    if not np.any(mass > 0):
        raise ArithmeticError("The step's losses lie beyond what a lattice holds.")
    return losses[mass > 0], np.log(mass[mass > 0]), float(middle), float(high - low)


# The lattice


def atoms(pair: Pair, direction: Direction) -> list[float]:
    """Losses of positive probability that the lattice should hit."""
    sign = 1.0 if direction is Direction.REMOVE else -1.0
    match pair:
        case LaplacePair(scale=b, sampling_probability=q):
            return [sign * _sampled_loss(q, edge) for edge in (1 / b, -1 / b)]
        case SymmetricPair(near=LaplacePair(scale=b), far=LaplacePair(scale=c)):
            q = pair.sampling_probability
            up = [_sampled_loss(q, edge) for edge in (1 / b, 1 / c)]
            return up + [-loss for loss in up]
        case DiscretePair():
            both = zip(pair.first, pair.second, strict=True)
            return [sign * (math.log(p) - math.log(q)) for p, q in both if p > 0 and q > 0]
        case _:
            return []


_LARGE: Final = 700.0  # exponents from here on overflow


def _sampled_loss(q: float, edge: float) -> float:
    """log(1 - q + q e^edge), which neither overflows nor meets the logarithm of zero."""
    if edge > _LARGE:
        return edge + math.log(q + (1 - q) * math.exp(-edge))
    return edge if q == 1 and edge < 0 else math.log1p(q * math.expm1(edge))


# An atom lies this much above its lattice point, relatively: enough that the profile between the
# two is known to a few digits, too little to matter.
_ATOM_MARGIN: Final = 2.0**-26
_ALIGNMENTS: Final = 4096  # widths tried
_CELLS_MAX: Final = 2.0**48  # up to an atom; more are not told apart


def lattice_width(
    width: float, *, atoms: Sequence[float], bare: bool, cells: float
) -> tuple[float, float]:
    """A width near the wanted one that nearly divides every atom, of few bits; and its last bit.

    An atom off the lattice costs a first-order error. If there are only atoms, the widest lattice
    that hits all of them is exact.
    """
    sizes = np.unique(np.abs(np.array([a for a in atoms if abs(a) > 0.5 * width * (not bare)])))
    if len(sizes):
        top = sizes[-1] * (1 - _ATOM_MARGIN)
        if not top < _CELLS_MAX * width:
            raise ArithmeticError("Atoms lie too far apart for a lattice of doubles.")
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
    last = math.ldexp(1.0, exponent - bits)
    return math.floor(math.ldexp(mantissa, bits)) * last, last


def lattice_offset(
    pair: Pair, *, direction: Direction, ends: tuple[float, float], width: float, last: float
) -> float:
    """Where the lattice of a step is best shifted to, a multiple of `last`; 0 for pairs with atoms.

    The first point x of the lower law is the mean of the likelihood ratio on losses up to the first
    tangent: all mass up to it then goes there whole. A bulk that lies in one cell goes to its mean,
    and the upper law spreads it the least.
    """
    if has_atoms(pair):
        return 0.0
    low, high = ends[0] - width, min(ends[1], LOSS_MAX - width)
    for _ in range(_CENTRINGS):
        grid = low + (high - low) * _FINE
        above = profiles(pair, direction=direction, losses=grid + width)[1]
        next_up = tails(pair, direction=direction, losses=grid + width)
        tangent = grid + width - tangent_gap(mean_excess(grid + width, next_up, above), width)
        at = tails(pair, direction=direction, losses=np.append(ends[0], tangent))
        p, q = at.p_below[1:] - at.p_below[0], at.q_below[1:] - at.q_below[0]
        whole = (q > 0) & (p <= np.exp(grid) * q) & (tangent > ends[0])
        index = max(int(np.argmax(whole)), 1) if whole.any() else len(grid) - 1
        low, high = float(grid[index - 1]), float(grid[index])
    point = high - width * round(high / width)
    return (math.ceil((point + _MARGIN) / last) + 1) * last


_CENTRINGS: Final = 8  # each narrows the place 64 times
_MARGIN: Final = 2.0**-50  # the mean is then below the point however the masses are rounded


# Compositions


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where a composition has its mass under the tilt that suits a question."""

    order: float  # lambda
    epsilon: float  # Chernoff's, nats
    log_delta: float  # Chernoff's
    low: float  # losses between which the tilted mass lies, nats
    high: float
    order_below: float
    order_above: float
    deviation: float  # of the tilted composition, nats
    spread: float  # and of the composition itself


def cumulants(marks: Sequence[Marks], orders: Array) -> Array:
    """Sum of k log E[e^(order L)] at each order, of coarse laws."""
    total = np.zeros(len(orders))
    for mark in marks:
        exponents = orders[:, None] * mark.losses + mark.logs
        top = np.max(exponents, axis=1)
        total += mark.count * (top + np.log(np.sum(np.exp(exponents - top[:, None]), axis=1)))
    return total


def _weights(mark: Marks, order: float) -> Array:
    exponents = order * mark.losses + mark.logs
    weights = np.exp(exponents - np.max(exponents))
    return np.asarray(weights / np.sum(weights), dtype=np.float64)


def _deviation(marks: Sequence[Marks], order: float) -> float:
    total = 0.0
    for mark in marks:
        weights = _weights(mark, order)
        mean = float(weights @ mark.losses)
        total += mark.count * float(weights @ (mark.losses - mean) ** 2)
    return math.sqrt(total)


def rounding_spread(marks: Sequence[Marks], *, order: float, widths: Array) -> Array:
    """What upper laws add to the variance of a composition and lower laws take, for many widths.

    A loss at distance d from a point adds d (h - d) above and takes d^2 below; near the median,
    where a point is put, d is known, elsewhere it is taken to be uniform.
    """
    total = np.zeros(len(widths))
    for mark in marks:
        weights, off = _weights(mark, order), np.abs(mark.losses - mark.middle)[:, None]
        adds = np.where(off < widths, off * (widths - off), widths**2 / 6)
        takes = np.where(off < 0.5 * widths, off * off, widths**2 / 12)
        total += mark.count * (weights @ (adds + takes))
    return total


def outlook(
    marks: Sequence[Marks], *, log_delta: float | None, epsilon: float | None, tolerance: float
) -> Outlook:
    """The tilt and the window for a question: epsilon at a delta, or delta at an epsilon.

    Args:
        marks: coarse laws of the steps.
        log_delta: natural logarithm of delta; None if epsilon is given.
        epsilon: nats; None if log_delta is given.
        tolerance: tilted mass outside the window.
    """

    def chernoff(orders: Array) -> Array:
        peak = -orders * np.log1p(1 / orders) - np.log1p(orders)
        bound = cumulants(marks, orders) + peak
        if log_delta is not None:
            return np.asarray((bound - log_delta) / orders, dtype=np.float64)
        return np.asarray(bound - orders * (epsilon or 0.0), dtype=np.float64)

    spread = max(_deviation(marks, 0.0), 1e-12)
    orders = np.geomspace(min(0.1, 0.1 / spread), max(50.0, 50 / spread), 40)
    for _ in range(2):
        best = int(np.argmin(chernoff(orders)))
        orders = np.geomspace(orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)], 12)
    order, value = float(orders[len(orders) // 2]), float(np.min(chernoff(orders)))
    deviation = max(_deviation(marks, order), 1e-15)
    nats = -math.log(tolerance)
    steps = np.geomspace(0.02, 100.0, 20) * math.sqrt(2 * nats) / deviation
    here = cumulants(marks, np.array([order]))[0]
    above = (cumulants(marks, order + steps) - here + nats) / steps
    below = -(cumulants(marks, order - steps) - here + nats) / steps
    return Outlook(
        order=order,
        epsilon=value if epsilon is None else epsilon,
        log_delta=value if log_delta is None else log_delta,
        low=float(np.max(below)),
        high=float(np.min(above)),
        order_below=float(steps[np.argmax(below)]),
        order_above=float(steps[np.argmin(above)]),
        deviation=deviation,
        spread=spread,
    )
