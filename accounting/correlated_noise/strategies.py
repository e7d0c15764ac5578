"""Strategy matrices: how the noise of a pass is correlated over its steps.

A pass of n steps releases the rows of C G + Z, where row t of G is the gradient of step t and Z is
independent noise. What a trainer applies is the inverse of C; C itself says what is released.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import lshift
from typing import Final, assert_never

import numpy as np

from accounting.rounding import require
from accounting.work_limit import spend

STEPS_MAX: Final = 1_000_000  # of a Toeplitz strategy, a tree or the identity
ROWS_MAX: Final = 2_048  # of a matrix that is given row by row
BUFFERS_MAX: Final = 64
# Numbers are 0 or of a size between these, so that whole numbers of units hold them exactly.
SIZE_MIN: Final = 2.0**-200
SIZE_MAX: Final = 2.0**200
_MANTISSA: Final = 53  # bits of a double
_ROUND: Final = 60  # points that one step of one buffer is taken for
UNIT_BITS: Final = 120  # a coefficient of a buffered strategy is rounded up to a multiple of 2^-120


def _require_numbers(values: Sequence[float], what: str) -> None:
    sizes = np.abs(np.asarray(values, dtype=np.float64))
    fits = bool(np.all((sizes == 0) | ((sizes >= SIZE_MIN) & (sizes <= SIZE_MAX))))
    require(fits, f"each of {what} is 0 or of a size from 2^-200 to 2^200")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Independent noise: C is the identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toeplitz:
    """Entry (i, j) of C is coefficients[i - j]; further coefficients are 0."""

    coefficients: tuple[float, ...]  # the first is above 0
    column_normalized: bool = False  # whether each column is then divided by its norm

    def __post_init__(self) -> None:
        """Refuse numbers that are out of range."""
        require(1 <= len(self.coefficients) <= STEPS_MAX, f"from 1 to {STEPS_MAX} coefficients")
        _require_numbers(self.coefficients, "the coefficients")
        require(self.coefficients[0] > 0, "the first coefficient above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedToeplitz:
    """Toeplitz with c_0 = 1 and c_i = the sum over j of scale_j decay_j^(i-1), i >= 1."""

    buffer_decay: tuple[float, ...]  # in [0, 1]
    output_scale: tuple[float, ...]
    column_normalized: bool = False  # whether each column is then divided by its norm

    def __post_init__(self) -> None:
        """Refuse numbers that are out of range."""
        count = len(self.buffer_decay)
        require(1 <= count <= BUFFERS_MAX, f"from 1 to {BUFFERS_MAX} buffers")
        require(count == len(self.output_scale), "an output scale for each buffer")
        _require_numbers(self.output_scale, "the output scales")
        _require_numbers(self.buffer_decay, "the decays")
        require(all(0 <= decay <= 1 for decay in self.buffer_decay), "0 <= decay <= 1")

    def coefficients_up(self, steps: int) -> list[int]:
        """|c_0|, ..., |c_(steps-1)| in units of 2^-UNIT_BITS. Upper, by a few units.

        A power of a decay is known between two whole numbers, each product rounded outward. Where
        no scale is negative, the upper ones do not increase from c_1 on.
        """
        spend(_ROUND * steps * len(self.buffer_decay))
        factors = [whole_number(decay) for decay in self.buffer_decay]
        scales = [whole_number(scale) for scale in self.output_scale]
        high = [1 << UNIT_BITS] * len(factors)
        low = list(high)
        found = [1 << UNIT_BITS]
        for _ in range(1, steps):
            upper = sum(
                _scale_up(scale, most if scale[0] > 0 else least)
                for scale, most, least in zip(scales, high, low, strict=True)
            )
            lower = -sum(
                _scale_up((-scale[0], scale[1]), least if scale[0] > 0 else most)
                for scale, most, least in zip(scales, high, low, strict=True)
            )
            found.append(max(upper, -lower, 0))
            high = [_scale_up(f, most) for f, most in zip(factors, high, strict=True)]
            low = [(f[0] * least) >> f[1] for f, least in zip(factors, low, strict=True)]
        return found[:steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandedRows:
    """C row by row: row i holds entries (i, i - p + 1) to (i, i), the diagonal last.

    A shorter row has zeros before it; the longest has p entries, and C has p bands.
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Refuse rows that reach beyond the first column, and numbers that are out of range."""
        require(1 <= len(self.rows) <= ROWS_MAX, f"from 1 to {ROWS_MAX} rows")
        for index, row in enumerate(self.rows):
            require(1 <= len(row) <= index + 1, "row i has from 1 to i + 1 entries, i from 0")
            _require_numbers(row, "the entries")
            require(row[-1] > 0, "a diagonal above 0")

    @property
    def bands(self) -> int:
        """The diagonals that are not 0, the main one included."""
        return max(map(len, self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The binary tree: the sum of each aligned interval of a power of two of steps, once ended."""


Strategy = Identity | Toeplitz | BufferedToeplitz | BandedRows | Tree


def bands_of(strategy: Strategy, steps: int) -> int:
    """The diagonals of a pass that are not 0, the main one included; at most the steps. Upper.

    Raises:
        ValueError: the strategy is the tree, whose rows are not those of a square matrix.
    """
    match strategy:
        case Identity():
            return 1
        case Toeplitz(coefficients=coefficients):
            return max(i for i, one in enumerate(coefficients[:steps], start=1) if one)
        case BufferedToeplitz():
            return steps
        case BandedRows():
            return strategy.bands
        case Tree():
            raise ValueError("Expected a strategy with bands, not the tree.")
        case _:
            assert_never(strategy)


def whole_number(value: float) -> tuple[int, int]:
    """(m, s) with value = m / 2^s, exactly."""
    over, under = value.as_integer_ratio()
    return over, under.bit_length() - 1


def _scale_up(factor: tuple[int, int], units: int) -> int:
    """A product of units, rounded up."""
    return -((-factor[0] * units) >> factor[1])


def in_units(values: Sequence[float]) -> tuple[list[int], int]:
    """Whole numbers m and one s with values = m / 2^s, exactly."""
    mantissas, powers = np.frexp(np.asarray(values, dtype=np.float64))
    present = powers[mantissas != 0]
    least = int(np.min(present)) if len(present) else 0
    whole = np.ldexp(mantissas, _MANTISSA).astype(np.int64).tolist()
    shifts = np.maximum(powers - least, 0).tolist()  # that of a zero does not matter
    found = list(map(lshift, whole, shifts))
    bits = _MANTISSA - least
    return (found, bits) if bits >= 0 else ([one << -bits for one in found], 0)


def ratio_up(over: int, bits: int) -> float:
    """The double at or above over / 2^bits, over >= 0."""
    found = over / (1 << bits)
    numerator, denominator = found.as_integer_ratio()
    return found if numerator << bits >= over * denominator else math.nextafter(found, math.inf)
