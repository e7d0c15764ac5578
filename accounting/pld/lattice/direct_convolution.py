"""Composition of lattice laws by sums of positive terms, without a transform.

A transform errs by a roundoff of all the mass, wherever it lies. Where the loss has so heavy a
tail that no tilt moves the mass to the losses asked about, that is more than the answer. Sums of
products of positive numbers err by a roundoff of themselves. docs/theory/lattice.md derives it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.pld.lattice.fft_convolution import (
    Composition,
    Frame,
    Law,
    excess_slack,
    infinite_mass,
)
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import spend

_U: Final = UNIT_ROUNDOFF
# Masses below this are moved out of the law: products of two of the others do not underflow, and
# arithmetic with numbers too small to be normal is slow.
_LEAST: Final = 1e-150
_BLOCK: Final = 64  # rows and columns of a Toeplitz block
_GATHERED: Final = 12  # points that a mass takes whose Toeplitz block is laid out
_PAIRS: Final = 200  # of masses that are multiplied in the time of a point
_ROWS: Final = 60  # of one matrix product, which is then too small for a library to use threads


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The sum of some steps, up to a greatest index; each mass is right to a relative error."""

    first: int
    mass: Array
    above: float  # P-mass above the greatest index
    slack: float  # relative error of the masses, as a logarithm

    def whole(self) -> float:
        """P-mass of finite loss, inside and above; about one."""
        return float(np.sum(self.mass)) + self.above


def convolve(a: Array, b: Array, *, size: int) -> Array:
    """The first `size` entries of a convolution of positive masses.

    Matrix products of Toeplitz blocks: entries are sums of at most len(a) positive products.
    """
    pairs = min(len(a), size) * min(len(b), size)
    spend(3 * size + _GATHERED * min(len(b), size) + pairs // _PAIRS)
    blocks = -(-size // _BLOCK)
    rows = np.zeros(blocks * _BLOCK)
    rows[: min(len(a), size)] = a[:size]
    table = rows.reshape(blocks, _BLOCK)
    used = -(-min(len(a), size) // _BLOCK)
    padded = np.zeros((blocks + 1) * _BLOCK)
    padded[_BLOCK : _BLOCK + min(len(b), size)] = b[:size]
    # Row s, column t of block d is b[d r + t - s].
    columns = np.arange(_BLOCK)
    shifts = _BLOCK + columns[None, :] - columns[:, None]
    out = np.zeros((blocks, _BLOCK))
    for d in range(min(blocks, -(-len(b) // _BLOCK) + 1)):
        rest = min(used, blocks - d)
        toeplitz = padded[d * _BLOCK + shifts]
        for row in range(0, rest, _ROWS):
            end = min(row + _ROWS, rest)
            out[d + row : d + end] += table[row:end] @ toeplitz
    return np.asarray(out.ravel()[:size], dtype=np.float64)


def _product(one: _Part, other: _Part, *, last: int) -> _Part:
    first = one.first + other.first
    full = len(one.mass) + len(other.mass) - 1
    size = min(full, max(last - first + 1, 1))
    shorter, longer = sorted((one, other), key=lambda part: len(part.mass))
    # What the pairs of points beyond the last weigh: each point times the tail of the other law.
    tail = np.append(np.cumsum(longer.mass[::-1])[::-1], 0.0)
    cut = np.clip(size - np.arange(len(shorter.mass)), 0, len(longer.mass))
    beyond = float(shorter.mass @ tail[cut])
    above = one.above * other.whole() + other.above * float(np.sum(one.mass)) + beyond
    return _without_dust(
        _Part(
            first=first,
            mass=convolve(shorter.mass, longer.mass, size=size),
            above=above,
            slack=one.slack + other.slack + product_slack(len(longer.mass)),
        )
    )


def _without_dust(part: _Part) -> _Part:
    """Only the masses that matter, from the first to the last of them; the others go above."""
    used = np.flatnonzero(part.mass >= _LEAST)
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
    mass = part.mass[first : last + 1]
    return _Part(
        first=part.first + first,
        mass=np.where(mass >= _LEAST, mass, 0.0),
        above=part.above + len(part.mass) * _LEAST,
        slack=part.slack,
    )


def product_slack(count: int) -> float:
    """Relative error of sums of at most `count` positive products, in any order."""
    return 2 * (count + 4) * _U


def _power(law: Law, count: int, *, last: int) -> _Part:
    """The sum of `count` steps, by squaring."""
    base = _without_dust(_Part(first=law.first, mass=law.mass, above=0.0, slack=0.0))
    found = base
    for bit in bin(count)[3:]:
        found = _product(found, found, last=last)
        if bit == "1":
            found = _product(found, base, last=last)
    return found


def products(counts: Sequence[int]) -> int:
    """How many convolutions a composition takes."""
    return sum(count.bit_length() + count.bit_count() - 2 for count in counts) + len(counts) - 1


def compose_directly(
    units: Sequence[tuple[Law, int]], *, width: float, last: int, upper: bool
) -> Composition:
    """The composition of lattice laws up to a greatest index, without a tilt.

    Args:
        units: laws on one lattice and how often each is taken.
        width: h, nats.
        last: greatest index kept; an upper law's mass above it becomes infinite, a lower law's is
            dropped.
        upper: whether the laws are upper laws.

    Returns:
        Masses with their relative error.
    """
    found = _power(*units[0], last=last)
    for law, count in units[1:]:
        found = _product(found, _power(law, count, last=last), last=last)
    # Sums of tails have the error of the masses and twice their number of roundoffs more.
    above = found.above * math.exp(min(1.0, 3 * found.slack + 4 * len(found.mass) * _U))
    return Composition(
        width=width,
        frame=Frame(
            order=0.0, first=found.first, size=len(found.mass), order_below=1.0, order_above=1.0
        ),
        shift=math.fsum(count * law.offset for law, count in units),
        shifts=math.fsum(count * abs(law.offset) for law, count in units),
        mass=found.mass,
        log_scale=0.0,
        log_slack=excess_slack(units) + found.slack,
        cell_error=0.0,
        outside=0.0,
        infinite=infinite_mass(units) + (above if upper else 0.0),
    )
