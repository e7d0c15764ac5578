"""Tables of atoms: sums are put back onto a grid outward or inward, whatever the rounding."""

from fractions import Fraction

import numpy as np
import pytest

from accounting.rounding import UNIT_ROUNDOFF
from accounting.shuffling import sums
from accounting.shuffling.sums import LOST, Table, mean_table


@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0, 30.0, 1000.0])
def test_cells_are_narrow_enough_for_the_rule_that_integrates_over_them(sigma: float) -> None:
    z = np.linspace(-sums.REACH, sums.REACH + 1 / sigma, 2001)
    rough = Table(np.exp((z - 0.5 / sigma) / sigma), np.exp(-0.5 * z * z))
    edges = sums._grid(rough, sigma, float(rough.places[-1]))
    z = sigma * np.log(edges[1:]) + 0.5 / sigma
    half, size = 0.5 * np.diff(z), np.maximum(np.abs(z[1:]), np.abs(z[:-1])) + 1 / sigma
    error = 5 * 4.0**-40 * np.exp(3.2 * half * size + 2 * half**2)
    assert np.all(error < 0.01 * UNIT_ROUNDOFF * (128 + 8 * size**2))


def test_losses_too_close_for_doubles_are_refused() -> None:
    with pytest.raises(ArithmeticError, match="differ by too little"):
        mean_table(1e13, 2, upper=True)


# What one operation on tables does, in exact arithmetic.


def _value(table: Table, level: Fraction, *, call: bool) -> Fraction:
    """The sum of (S - a)_+ or (a - S)_+ over the atoms, exactly."""
    total = Fraction(0)
    for place, mass in zip(table.places, table.masses, strict=True):
        gap = Fraction(float(place)) - level
        total += Fraction(float(mass)) * max(gap if call else -gap, Fraction(0))
    return total + (Fraction(table.infinite) if call else 0)


def _exact_sums(rows: Table, columns: Table) -> list[tuple[Fraction, Fraction]]:
    return [
        (
            Fraction(float(a)) + Fraction(float(b)),
            Fraction(float(v)) * Fraction(float(w)),
        )
        for a, v in zip(rows.places, rows.masses, strict=True)
        for b, w in zip(columns.places, columns.masses, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_put_onto_a_grid_outward_and_inward_exactly(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = Table(np.sort(random.uniform(0, 1, 4)), random.uniform(0, 1, 4))
    columns = Table(np.sort(random.uniform(0, 1, 4)), random.uniform(0, 1, 4))
    exact = _exact_sums(rows, columns)
    # Some edges are where rounded sums are, or next to it; some cells are very narrow.
    rounded = np.sort(np.add.outer(rows.places, columns.places).ravel())
    near = rounded[random.integers(0, 16, 3)] * (1 + random.integers(-2, 3, 3) * 2.0**-52)
    narrow = rounded[3] * (1 + np.array([1e-9, 3e-9]))
    edges = np.unique(np.concatenate(([0.0], near, narrow, rounded[-1:])))
    edges = edges[edges <= rounded[-1]]
    apart = np.diff(edges, append=np.inf) > 1e-10
    cells = sums._Cells(edges[apart])
    cells.add(rows, columns)
    outward, inward = cells.outward(), cells.inward()
    for level in [Fraction(float(edge)) for edge in edges] + [place for place, _ in exact]:
        for call in (True, False):
            true = sum(
                (
                    mass * max(place - level if call else level - place, Fraction(0))
                    for place, mass in exact
                ),
                Fraction(0),
            )
            assert true <= _value(outward, level, call=call)
            if call:
                assert _value(inward, level, call=True) <= true


@pytest.mark.parametrize("width", [0.1, 1e-3, 1e-7])
@pytest.mark.parametrize("shift", [-7, -1, 0, 1, 7])
@pytest.mark.parametrize("way", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("cell", [0, 3, 5])
def test_an_atom_whose_place_is_off_by_a_few_roundoffs_is_covered(
    width: float, shift: int, way: float, cell: int
) -> None:
    edges = np.append(0.0, 1 + width * np.arange(-2.0, 4.0))
    cells = sums._Cells(edges, off=8.0)
    cells.take(np.array([cell]), np.ones(1), np.array([way]))
    here, there = (Fraction(float(edge)) for edge in edges[cell : cell + 2])
    true = (here + Fraction(way) * (there - here)) * (1 + shift * Fraction(1, 2**53))
    outward, inward = cells.outward(), cells.inward()
    for level in [Fraction(float(edge)) for edge in edges] + [true]:
        assert max(true - level, Fraction(0)) <= _value(outward, level, call=True)
        assert max(level - true, Fraction(0)) <= _value(outward, level, call=False)
        assert _value(inward, level, call=True) <= max(true - level, Fraction(0))


@pytest.mark.parametrize("small", [2.0**-54, 1.1 * 2.0**-53])
def test_a_sum_that_loses_or_gains_by_each_addition_is_covered(small: float) -> None:
    columns = Table(np.full(1001, 0.75), np.append(1.0, np.full(1000, small)))
    cells = sums._Cells(np.array([0.0, 0.5, 1.0, 1.5]))
    cells.add(Table(np.zeros(1), np.ones(1)), columns)
    true = Fraction(3, 4) * (1 + 1000 * Fraction(small))
    assert true <= _value(cells.outward(), Fraction(0), call=True)
    assert _value(cells.inward(), Fraction(0), call=True) <= true


def test_a_table_without_its_ends_is_still_above() -> None:
    places = np.array([0.0, 1e-9, 0.5, 1.0, 2.0, 1e3, 1e9])
    masses = np.array([1e-70, 4e-65, 1e-64, 0.4, 0.3, 1e-66, 1e-74])
    table = Table(places, masses, 1e-90)
    found = sums._trim(table)
    assert found.places.tolist() == [0.0, 0.5, 1.0, 2.0, 1e3]
    assert found.infinite == 1e-90 + LOST
    for level in (0.0, 1e-10, 1e-9, 0.5, 1.5, 2.0, 3.0, 1e8, 1e10):
        for call in (True, False):
            true = _value(table, Fraction(level), call=call)
            assert true <= _value(found, Fraction(level), call=call)


def test_infinite_losses_add_up() -> None:
    one, three, eight = (mean_table(1.0, steps, upper=True) for steps in (1, 3, 8))
    assert one.infinite >= LOST
    assert one.infinite + 5 / 3 * LOST <= three.infinite
    assert one.infinite + 3 * LOST <= eight.infinite <= 1e-62
    assert LOST <= eight.masses[0] <= 1e-62


def test_a_thinner_table_is_more_spread_above_and_less_below() -> None:
    for upper in (True, False):
        table = mean_table(1.0, 6, upper=upper)
        thin = sums._thin(table, 8, sigma=1.0, upper=upper)
        assert len(thin.places) < 0.2 * len(table.places)
        for level in (0.1, 0.7, 1.0, 1.5, 20.0):
            here, there = (
                float(np.maximum(one.places - level, 0) @ one.masses) for one in (table, thin)
            )
            assert (here <= there * (1 + 1e-12)) if upper else (there <= here * (1 + 1e-12))
