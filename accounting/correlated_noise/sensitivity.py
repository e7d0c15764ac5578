"""How far one record moves a pass of correlated noise: the sensitivity of a strategy.

docs/theory/correlated_noise.md has the proofs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add, mul, sub
from typing import Final, assert_never

import numpy as np

from accounting.correlated_noise.strategies import (
    ROWS_MAX,
    STEPS_MAX,
    UNIT_BITS,
    BandedRows,
    BufferedToeplitz,
    Identity,
    Strategy,
    Toeplitz,
    Tree,
    bands_of,
    in_units,
    ratio_up,
)
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import UNIT_ROUNDOFF, Array, require, rounded_up
from accounting.work_limit import spend

_BOTH: Final = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """In which steps of a pass a record may take part."""

    steps: int  # of the pass
    min_separation: int  # two of its steps are at least so many apart, >= 1
    participations: int  # at most so many steps, >= 1

    def __post_init__(self) -> None:
        """Refuse what no record can do."""
        require(1 <= self.steps <= STEPS_MAX, f"steps from 1 to {STEPS_MAX}")
        require(1 <= self.min_separation <= self.steps, "1 <= min_separation <= steps")
        most = -(-self.steps // self.min_separation)
        require(1 <= self.participations <= most, f"participations from 1 to {most}")

    @property
    def first(self) -> range:
        """The steps of the record that takes part as early and as often as it may."""
        return range(0, self.participations * self.min_separation, self.min_separation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The square of the most that one record of norm 1 moves the rows of a pass."""

    squared: float  # upper; rounding included
    rule: str  # one_participation, banded, monotone, dominated or separated
    attained: bool  # whether some record moves them so far, but for the rounding


@theorem(
    id="correlated-gaussian",
    source="docs/theory/correlated_noise.md, Theorem 1",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def correlated_gaussian_mu(*, sensitivity_squared: float, noise_multiplier: float) -> float:
    """A pass of correlated noise is mu-GDP, mu = sqrt(sensitivity_squared) / noise_multiplier.

    It holds where gradients, the steps in which a record takes part and what runs between the
    steps depend on earlier answers, as long as the record keeps to its schema on every path. The
    pass is one release: it is charged as a whole when its first step is taken. Where a record is
    replaced by another, that moves the rows twice as far, and the pass is (2 mu)-GDP.

    Args:
        sensitivity_squared: of the strategy under the record's schema, for gradients of norm 1.
        noise_multiplier: standard deviation of the noise before it is correlated / clipping norm.

    Returns:
        mu. Upper.

    Raises:
        ValueError: an argument is not above 0 and finite.
    """
    require(0 < sensitivity_squared < math.inf, "0 < sensitivity_squared < inf")
    require(0 < noise_multiplier < math.inf, "0 < noise_multiplier < inf")
    return rounded_up(math.sqrt(sensitivity_squared) / noise_multiplier, ulps=2)


@theorem(
    id="banded-sensitivity",
    source="docs/theory/correlated_noise.md, Proposition 2",
    status=Status.DERIVED,
    relations=_BOTH,
)
def banded_sensitivity(
    *, column_norms_squared: Sequence[float], min_separation: int, participations: int
) -> float:
    """The squared sensitivity of a strategy with at most min_separation bands.

    Columns that are at least so far apart have no row in common, so that a record moves the rows by
    the sum of the squared norms of its columns.

    Args:
        column_norms_squared: of the strategy, shape (n,), finite, >= 0.
        min_separation: two steps of a record are at least so many apart, >= 1.
        participations: steps of a record, at most.

    Returns:
        The squared sensitivity. Upper; exact but for the rounding.

    Raises:
        ValueError: an argument is out of range.
    """
    require(all(0 <= norm <= 2.0**420 for norm in column_norms_squared), "norms in [0, 2^420]")
    units, bits = in_units(column_norms_squared)
    schema = Participation(
        steps=len(units), min_separation=min_separation, participations=participations
    )
    return ratio_up(_best_sum(units, schema), bits)


@theorem(
    id="toeplitz-sensitivity",
    source="docs/theory/correlated_noise.md, Proposition 2 and Proposition 3",
    status=Status.DERIVED,
    relations=_BOTH,
)
def toeplitz_sensitivity(
    *, coefficients: Sequence[float], steps: int, min_separation: int, participations: int
) -> float:
    """The squared sensitivity of a Toeplitz strategy.

    With coefficients c >= 0 that do not increase, zeros after the last included, it is that of the
    record in steps 0, b, 2b, ... Others are bounded by c'_i = max over j >= i of |c_j|.

    Args:
        coefficients: of the strategy, the first above 0; further ones are 0.
        steps: n, of the pass.
        min_separation: b: two steps of a record are at least so many apart, >= 1.
        participations: steps of a record, at most.

    Returns:
        The squared sensitivity. Upper; exact but for the rounding if 0 <= c is non-increasing, or
        if there are at most b coefficients.

    Raises:
        ValueError: an argument is out of range.
    """
    schema = Participation(
        steps=steps, min_separation=min_separation, participations=participations
    )
    return _toeplitz(*in_units(Toeplitz(coefficients=tuple(coefficients)).coefficients), schema)[0]


@theorem(
    id="separated-sensitivity",
    source="docs/theory/correlated_noise.md, Proposition 4",
    status=Status.DERIVED,
    relations=_BOTH,
)
def separated_sensitivity(
    *, rows: Sequence[Sequence[float]], min_separation: int, participations: int
) -> float:
    """The squared sensitivity of any strategy, from the overlaps of its columns.

    With X = C^T C and v_i = the most that |X_ij| adds up to over the steps j of a record, it is at
    most the most that v_i adds up to over the steps of a record.

    Args:
        rows: of C, each with its diagonal last, shape (n, at most n).
        min_separation: two steps of a record are at least so many apart, >= 1.
        participations: steps of a record, at most.

    Returns:
        The squared sensitivity. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    strategy = BandedRows(rows=tuple(tuple(row) for row in rows))
    schema = Participation(
        steps=len(strategy.rows), min_separation=min_separation, participations=participations
    )
    return _add_overlaps(_overlaps(_matrix(strategy)), schema)


def sensitivity_of(strategy: Strategy, schema: Participation) -> Sensitivity:
    """The squared sensitivity of a strategy, by the first rule that applies.

    Args:
        strategy: the matrix C.
        schema: in which steps a record may take part.

    Raises:
        ValueError: a strategy that is given row by row has another number of rows; or the schema
            asks for a rule that serves ROWS_MAX steps only.
    """
    match strategy:
        case Identity():
            return _of_unit_columns(schema)
        case Toeplitz(column_normalized=True) | BufferedToeplitz(column_normalized=True):
            bands = bands_of(strategy, schema.steps)
            require(
                schema.participations == 1 or bands <= schema.min_separation,
                f"of a column-normalized strategy of {bands} bands one participation, or a "
                f"min_separation of at least {bands}",
            )
            return _of_unit_columns(schema)
        case Toeplitz(coefficients=coefficients):
            return _best_toeplitz(*in_units(coefficients), schema)
        case BufferedToeplitz():
            found = _best_toeplitz(strategy.coefficients_up(schema.steps), UNIT_BITS, schema)
            if found.rule == "monotone" and min(strategy.output_scale) < 0:  # sizes, not signs
                return replace(found, rule="dominated", attained=False)
            return found
        case BandedRows():
            return _banded(strategy, schema)
        case Tree():
            return _tree(schema)
        case _:
            assert_never(strategy)


def _of_unit_columns(schema: Participation) -> Sensitivity:
    """Of columns of norm 1 that have no row in common: as many as there are participations."""
    rule = "one_participation" if schema.participations == 1 else "banded"
    return Sensitivity(squared=float(schema.participations), rule=rule, attained=True)


def _best_toeplitz(units: Sequence[int], bits: int, schema: Participation) -> Sensitivity:
    """By columns that overlap nowhere, by monotone coefficients, or the lesser of two bounds."""
    squared, rule, attained = _toeplitz(units, bits, schema)
    if not attained and schema.steps <= ROWS_MAX:
        other = _add_overlaps(_overlaps(_toeplitz_matrix(units, bits, schema.steps)), schema)
        if other < squared:
            return Sensitivity(squared=other, rule="separated", attained=False)
    return Sensitivity(squared=squared, rule=rule, attained=attained)


def _toeplitz(units: Sequence[int], bits: int, schema: Participation) -> tuple[float, str, bool]:
    """(upper bound, rule, whether it is attained) of coefficients in units of 2^-bits."""
    spend(20 * schema.steps)
    present = list(units[: schema.steps])
    while not present[-1]:
        present.pop()
    if schema.participations == 1 or len(present) <= schema.min_separation:
        norms = list(accumulate(one * one for one in present))
        # Column j ends after steps - j rows; norms of columns do not increase.
        total = sum(norms[min(len(norms), schema.steps - j) - 1] for j in schema.first)
        rule = "one_participation" if schema.participations == 1 else "banded"
        return ratio_up(total, 2 * bits), rule, True
    dominating = list(accumulate(map(abs, reversed(present)), max))[::-1]
    total = _monotone_sum(dominating, schema)
    monotone = dominating == present
    return ratio_up(total, 2 * bits), "monotone" if monotone else "dominated", monotone


def _monotone_sum(units: Sequence[int], schema: Participation) -> int:
    """The squared norm of the sum of columns 0, b, ..., (k - 1) b of a Toeplitz matrix."""
    steps, apart = schema.steps, schema.min_separation
    padded = [*units, *[0] * (steps - len(units))]
    total, moved = 0, [0] * apart
    for block in range(-(-steps // apart)):
        here = padded[block * apart : (block + 1) * apart]
        moved = list(map(add, moved, here))  # the last block may be shorter
        if block >= schema.participations:
            gone = block - schema.participations
            moved = list(map(sub, moved, padded[gone * apart : (gone + 1) * apart]))
        total += sum(map(mul, moved, moved))
    return total


def _banded(strategy: BandedRows, schema: Participation) -> Sensitivity:
    require(
        len(strategy.rows) == schema.steps, f"steps equal to the {len(strategy.rows)} rows given"
    )
    if schema.participations == 1 or strategy.bands <= schema.min_separation:
        norms, bits = _column_norms(strategy)
        rule = "one_participation" if schema.participations == 1 else "banded"
        squared = ratio_up(_best_sum(norms, schema), bits)
        return Sensitivity(squared=squared, rule=rule, attained=True)
    squared = _add_overlaps(_overlaps(_matrix(strategy)), schema)
    return Sensitivity(squared=squared, rule="separated", attained=False)


def _column_norms(strategy: BandedRows) -> tuple[list[int], int]:
    """Squared norms of the columns, in units of 2^-bits, exactly."""
    spend(20 * sum(map(len, strategy.rows)))
    entries, bits = in_units([entry for row in strategy.rows for entry in row])
    norms, place = [0] * len(strategy.rows), 0
    for index, row in enumerate(strategy.rows):
        for column in range(index - len(row) + 1, index + 1):
            norms[column] += entries[place] * entries[place]
            place += 1
    return norms, 2 * bits


def _best_sum(values: Sequence[int], schema: Participation) -> int:
    """The most that values add up to over the steps of a record."""
    spend(20 * len(values) * schema.participations)
    apart, size = schema.min_separation, len(values)
    best = [0] * (size + apart)
    for _ in range(schema.participations):
        one_more = (value + best[at + apart] for at, value in enumerate(values))
        best = [*_from_the_right(list(one_more)), *[0] * apart]
    return best[0]


def _from_the_right(values: Sequence[int]) -> Iterable[int]:
    """For each place the most of what stands there and behind it."""
    return reversed(list(accumulate(reversed(values), max)))


def _tree(schema: Participation) -> Sensitivity:
    """Of the tree: column j is in one interval of each size that ends within the pass."""
    height = schema.steps.bit_length()
    if schema.participations == 1:
        return Sensitivity(squared=float(height), rule="one_participation", attained=True)
    require(schema.steps <= ROWS_MAX, f"at most {ROWS_MAX} steps with several participations")
    at = np.arange(schema.steps)
    overlaps = np.zeros((schema.steps, schema.steps))
    for level in range(height):
        interval = at >> level
        whole = (interval + 1) << level <= schema.steps
        overlaps += (interval[:, None] == interval) & whole[:, None]
    return Sensitivity(squared=_add_overlaps(overlaps, schema), rule="separated", attained=False)


def _matrix(strategy: BandedRows) -> Array:
    size = len(strategy.rows)
    matrix = np.zeros((size, size))
    for index, row in enumerate(strategy.rows):
        matrix[index, index - len(row) + 1 : index + 1] = row
    return matrix


def _toeplitz_matrix(units: Sequence[int], bits: int, steps: int) -> Array:
    column = np.zeros(steps)
    column[: len(units)] = [one / (1 << bits) for one in units[:steps]]
    row, col = np.indices((steps, steps))
    return np.where(row >= col, column[np.abs(row - col)], 0.0)


def _overlaps(matrix: Array) -> Array:
    """|C^T C|, entry by entry. Upper: entries of C may be off by one rounding."""
    spend(matrix.size * len(matrix))
    size = np.abs(matrix)
    error = (len(matrix) + 8) * UNIT_ROUNDOFF
    return np.asarray(np.abs(matrix.T @ matrix) + 2 * error * (size.T @ size))


def _add_overlaps(overlaps: Array, schema: Participation) -> float:
    """What overlaps add up to over the steps of a record, twice over. Upper."""
    spend(4 * overlaps.size * schema.participations)
    rows = _most(overlaps, schema)
    return rounded_up(float(_most(rows[None, :], schema)[0]), ulps=2 * schema.participations + 4)


def _most(values: Array, schema: Participation) -> Array:
    """For each row the most that it adds up to over the steps of a record; values >= 0."""
    apart, size = schema.min_separation, values.shape[1]
    best = np.zeros((len(values), size + apart))
    for _ in range(schema.participations):
        one_more = values + best[:, apart:]
        best[:, :size] = np.maximum.accumulate(one_more[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(best[:, 0])


THEOREMS = (
    correlated_gaussian_mu,
    banded_sensitivity,
    toeplitz_sensitivity,
    separated_sensitivity,
)
