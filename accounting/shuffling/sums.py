"""Means of independent lognormal variables: tables of atoms above and below their laws.

S is the mean of T variables e^(z/sigma - 1/(2 sigma^2)), z standard normal. Its law is found by
doubling. The sums of two tables are put back onto a grid: outward for an upper table, inward for a
lower one, so that a table is more spread than the law, or less, whatever the grid and the rounding.
docs/theory/allocation.md has the proofs.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import cached_with_cost, spend

_U: Final = UNIT_ROUNDOFF
TABLES_KEPT: Final = 32  # of each kind, 0.1 MB each
POINTS: Final = 1400  # of a table; the width of a bracket falls as their square
REACH: Final = 17.2  # standard deviations of one step's loss, under either law, that tables take in
LOST: Final = 1e-64  # mass that one operation may move to infinite loss of either sign
# What grids look like, which no bound depends on: see _grid.
_MESH: Final = 2001
_NARROW: Final = 0.5
_RELEVANT: Final = 1e-8
# Atoms this many standard deviations out meet every fourth point only: what lies so far out is
# rarely the sum of two such parts, and is put onto a grid as coarse as that.
_CENTRE: Final = 5.0
_THIN: Final = 4
_THIN_MAX: Final = 16
_ROWS: Final = 16  # of sums made at a time: they fit a processor's cache
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


@dataclass(frozen=True, slots=True)
class Table:
    """A law of S under Q: atoms, and what of P lies at infinite loss."""

    places: Array  # S, rising; the first of an upper table is zero
    masses: Array  # under Q; under P a mass is its place times as much
    infinite: float = 0.0  # mass of P that Q never gives; upper tables only

    def scaled(self, share: float) -> "Table":
        """The law of a share of S."""
        return Table(share * self.places, self.masses, share * self.infinite)

    def part(self, start: int, stop: int) -> "Table":
        """Some of the atoms."""
        return Table(self.places[start:stop], self.masses[start:stop])

    def moments(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Mean and standard deviation of log S under Q, then under P, about."""
        used = self.places > 0
        loss, q = np.log(self.places[used]), self.masses[used]

        def two(mass: Array) -> tuple[float, float]:
            mean = float(np.average(loss, weights=mass))
            return mean, math.sqrt(float(np.average((loss - mean) ** 2, weights=mass)))

        return two(q), two(q * self.places[used])


class _Cells:
    """Atoms gathered by the cells of a grid: how many, and where across the cell on average."""

    def __init__(self, edges: Array, *, off: float | Array = 8.0) -> None:
        self.edges = edges  # rising from zero; the last is not below any atom
        self._off = off  # by how many roundoffs places of atoms may be off, relative, by edge
        self._mass = np.zeros_like(edges)  # of the cell right of each edge
        self._risen = np.zeros_like(edges)  # the same times the way across it, from 0 to 1
        self._longest, self._sums = 0, 0  # terms of the longest sum at most, and sums in a row
        self._indices = np.arange(len(edges), dtype=np.float64)

    def add(self, rows: Table, columns: Table) -> None:
        """Take in the sum of every row and every column."""
        sums = np.add.outer(rows.places, columns.places).ravel()
        masses = np.multiply.outer(rows.masses, columns.masses).ravel()
        way = np.interp(sums, self.edges, self._indices)
        cells = way.astype(np.intp)
        way -= cells
        self.take(cells, masses, way)

    def take(self, cells: npt.NDArray[np.intp], masses: Array, way: Array) -> None:
        """Take in atoms, each by its cell and how far across it lies."""
        self._mass += np.bincount(cells, masses, minlength=len(self.edges))
        self._risen += np.bincount(cells, masses * way, minlength=len(self.edges))
        self._longest = max(self._longest, len(cells))  # if one cell has all
        self._sums += 1

    def _roundoffs(self) -> int:
        """By how many roundoffs a cell's mass is off, at most."""
        return self._longest + self._sums + 16

    def _widths(self) -> tuple[Array, Array, Array]:
        """Widths of the cells, and the least and the largest of each and its neighbours."""
        own = np.diff(self.edges, append=2 * self.edges[-1] - self.edges[-2])
        around = np.stack((np.append(own[:1], own[:-1]), own, np.append(own[1:], own[-1:])))
        return own, around.min(axis=0), around.max(axis=0)

    def outward(self) -> Table:
        """Each atom split onto the ends of its cell so that its mean is kept: a spread.

        Rounding may have moved an atom by up to `share` of a cell. A mass of that much at the next
        edge but one, on either side, makes up for it, and for what sums lack one at both ends.

        Raises:
            ArithmeticError: the cells are too narrow for doubles.
        """
        _, least, largest = self._widths()
        ends = np.append(self.edges[1:], self.edges[-1])
        moved = _U * (self._off * ends + (len(ends) + 8) * largest)
        share = moved / least
        if not np.all(share < 1):
            raise ArithmeticError("Losses differ by too little for a table of doubles.")
        beyond, lacking = share * self._mass, 4 * self._roundoffs() * _U * self._mass
        masses = self._mass - self._risen + lacking
        masses[1:] += self._risen[:-1] + lacking[:-1]
        masses[0] += beyond[0]
        masses[:-1] += beyond[1:]
        masses[2:] += beyond[:-2]
        above = float(moved[-2:] @ self._mass[-2:]) * (1 + 8 * _U)
        return Table(self.edges, masses * (1 + 8 * _U), above)

    def inward(self) -> Table:
        """The atoms of each cell brought together at their mean, rounded down: a contraction.

        A place that is low by as much as the mass may be high makes up for both.
        """
        own, _, largest = self._widths()
        used = self._mass > 0
        way = np.minimum(self._risen[used] / self._mass[used], 1.0)
        widest = float(np.max(largest[1:] / self.edges[1:]))
        off = float(np.max(self._off)) + 4 * self._roundoffs() + len(own)
        places = (self.edges[used] + way * own[used]) * (1 - _U * off * (2 + widest))
        return Table(places, self._mass[used])

    def table(self, *, upper: bool) -> Table:
        """The law on the grid, without its ends."""
        return _trim(self.outward()) if upper else _shorten(self.inward())


def _find_support(table: Table) -> tuple[int, int]:
    """First and last index of the atoms other than zero that hold more than next to nothing."""
    below = np.cumsum(table.masses)
    above = np.cumsum((table.places * table.masses)[::-1])
    first = int(np.searchsorted(below, 0.5 * LOST, side="right"))
    last = len(above) - int(np.searchsorted(above, 0.5 * LOST, side="right"))
    return max(first, int(table.places[0] == 0)), last


def _shorten(table: Table) -> Table:
    return table.part(*_find_support(table))


def _trim(table: Table) -> Table:
    """An upper table without its ends: f(x) <= f(0) + x f'(inf) for every convex f.

    What is added also makes up for products too small for doubles.
    """
    kept = table.part(*_find_support(table))
    return Table(
        np.append(0.0, kept.places),
        np.append(table.masses[0] + LOST, kept.masses),
        table.infinite + LOST,
    )


def _grid(table: Table, sigma: float, top: float) -> Array:
    """Edges for a law much like the table's, from zero to `top`; any edges would do.

    They are as far apart as they are from a centre, under Q or P, or as the spread around it; and
    no farther than a part of 1/sigma, the scale of one step's loss, where losses matter.
    """
    (mean, spread), (other, wide) = table.moments()
    used = table.places > 0
    loss, q = np.log(table.places[used]), table.masses[used]
    low, high = float(loss[0]), math.log(top)
    least = min(spread, wide)
    start, stop = (math.asinh((end - mean) / least) for end in (low, high))
    mesh = mean + least * np.sinh(np.linspace(start, stop, _MESH))
    last = len(loss) - 1
    left = loss[min(int(np.searchsorted(np.cumsum(q), _RELEVANT)), last)]
    p_above = np.cumsum((q * table.places[used])[::-1])
    right = loss[last - min(int(np.searchsorted(p_above, _RELEVANT)), last)]
    beyond = sigma * np.maximum(np.maximum(left - mesh, mesh - right), 0.0)
    density = _NARROW * sigma / (1 + beyond**4)
    density += 0.5 / np.hypot(spread, mesh - mean) + 0.5 / np.hypot(wide, mesh - other)
    number = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(mesh)))
    edges = np.exp(np.interp(np.linspace(0.0, number[-1], POINTS), number, mesh))
    edges[-1] = top
    return np.append(0.0, edges)


def _one_step(sigma: float, *, upper: bool) -> Table:
    """The law of Y = e^(z/sigma - 1/(2 sigma^2)), z standard normal.

    The masses and means of cells are integrals of smooth positive functions, by Gauss' rule.
    """
    spend(150 * POINTS)
    z = np.linspace(-REACH, REACH + 1 / sigma, _MESH)
    rough = Table(np.exp((z - 0.5 / sigma) / sigma), np.exp(-0.5 * z * z))
    edges = _grid(rough, sigma, float(rough.places[-1]))
    z = sigma * np.log(edges[1:]) + 0.5 / sigma
    size = np.abs(z) + 1 / sigma
    half = 0.5 * np.diff(z)[:, None]
    across = half * (1 + _NODES)
    density = np.exp(-0.5 * (z[:-1, None] + across) ** 2) / math.sqrt(2 * math.pi)
    density *= 1 + (1 if upper else -1) * _U * (128 + 8 * size[1:, None] ** 2)
    way = edges[1:-1, None] * np.expm1(across / sigma) / np.diff(edges[1:])[:, None]
    cells = _Cells(edges, off=16 * (1 + np.append(size[0], size) / sigma))
    index = np.repeat(np.arange(1, len(edges) - 1), len(_NODES))
    cells.take(index, (half * _WEIGHTS * density).ravel(), np.minimum(way, 1.0).ravel())
    return cells.table(upper=upper)


def _thin(table: Table, factor: int, *, sigma: float, upper: bool) -> Table:
    """The table on every `factor`-th of its places, and on more where they lie far apart."""
    places = table.places[table.places > 0]
    apart = np.diff(np.floor(2 * sigma * np.log(places)), prepend=0.0) > 0
    kept = apart | (np.arange(len(places)) % factor == 0)
    kept[-1] = True
    cells = _Cells(np.append(0.0, places[kept]))
    cells.add(Table(np.zeros(1), np.ones(1)), table)
    return cells.outward() if upper else cells.inward()


def _add(one: Table, other: Table, *, sigma: float, upper: bool) -> Table:
    """The law of the sum of two independent parts of S; `one` is the larger part."""
    mean = float(one.places @ one.masses)
    top = float(one.places[-1] + other.places[-1])
    cells = _Cells(_grid(one.scaled(1 / mean), sigma, top))
    start, stop = _centre(one)
    masses = other.masses.copy()
    for row in range(start, stop, _ROWS):
        end = min(row + _ROWS, stop)
        rows = one.part(row, end)
        spend(3 * (end - row) * len(other.places) // 2)
        if one is not other:
            cells.add(rows, other)
            continue
        # A pair within the centre is taken once, and then its mass twice.
        cells.add(rows, rows)
        if end < stop:
            cells.add(Table(rows.places, 2 * rows.masses), one.part(end, stop))
    if one is other:  # and a row further out meets the centre for both
        masses[start:stop] *= 2
    thin = _thin(Table(other.places, masses), _THIN, sigma=sigma, upper=upper)
    for first, last in ((0, start), (stop, len(one.places))):
        for row in range(first, last, _ROWS):
            spend(4 * _ROWS * len(thin.places))
            cells.add(one.part(row, min(row + _ROWS, last)), thin)
    found = cells.table(upper=upper)
    infinite = one.infinite + (other.infinite + thin.infinite) * float(one.masses.sum())
    return Table(found.places, found.masses, found.infinite + infinite)


def _centre(table: Table) -> tuple[int, int]:
    """First and last index of what is not far out, by the losses under either law."""
    (low, spread), (high, wide) = table.moments()
    reach = _CENTRE * min(spread, wide)
    start, stop = np.searchsorted(table.places, np.exp([low - reach, high + reach]))
    return int(start), int(stop)


@cached_with_cost(maxsize=TABLES_KEPT)
def mean_table(sigma: float, steps: int, *, upper: bool) -> Table:
    """A law above or below that of the mean of lognormal variables, by doubling and adding one.

    Args:
        sigma: of the normal variables' scale 1/sigma; in [0.1, 1e3].
        steps: T, how many variables; at least one.
        upper: which side.

    Returns:
        Upper: E[f(S)] is at most the sum of f over the atoms, plus `infinite` times the slope of f
        at infinity, for every convex f >= 0. Lower: at least the sum, for those that rise. Neither
        mass is exactly one.

    Raises:
        ArithmeticError: the values of S differ by too little for doubles.
    """
    single = _one_step(sigma, upper=upper)
    found, count = single, 1
    for bit in bin(steps)[3:]:
        half = found.scaled(0.5)
        found, count = _add(half, half, sigma=sigma, upper=upper), 2 * count
        if bit == "1":
            # The one is a small part of the sum: it may be known less well.
            factor = min(max(math.isqrt(count) // 2, 1), _THIN_MAX)
            few = _thin(single, factor, sigma=sigma, upper=upper)
            few = Table(few.places, few.masses, few.infinite + single.infinite)
            parts = found.scaled(count / (count + 1)), few.scaled(1 / (count + 1))
            found, count = _add(*parts, sigma=sigma, upper=upper), count + 1
    return found
