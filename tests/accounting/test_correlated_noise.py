"""Sensitivities of strategies against every index set, and passes against the best adversary."""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.correlated_noise import (
    BandedRows,
    BufferedToeplitz,
    Identity,
    Participation,
    Sensitivity,
    Strategy,
    Toeplitz,
    Tree,
    sensitivity_of,
)
from accounting.correlated_noise.sensitivity import (
    banded_sensitivity,
    correlated_gaussian_mu,
    separated_sensitivity,
    toeplitz_sensitivity,
)
from accounting.correlated_noise.strategies import ratio_up
from accounting.gaussian import log_gaussian_delta

Matrix = list[list[Fraction]]
Floats = npt.NDArray[np.float64]


def schema(steps: int, apart: int, times: int) -> Participation:
    return Participation(steps=steps, min_separation=apart, participations=times)


def index_sets(one: Participation) -> Iterator[tuple[int, ...]]:
    for size in range(1, one.participations + 1):
        for found in combinations(range(one.steps), size):
            if all(b - a >= one.min_separation for a, b in pairwise(found)):
                yield found


def by_enumeration(matrix: Matrix, one: Participation) -> Fraction:
    """The most that |X_ij| adds up to over the steps of a record, exactly."""
    size = one.steps
    overlaps = [
        [abs(sum((row[i] * row[j] for row in matrix), Fraction(0))) for j in range(size)]
        for i in range(size)
    ]
    sums = (sum((overlaps[i][j] for i in at for j in at), Fraction(0)) for at in index_sets(one))
    return max(sums)


def toeplitz_rows(coefficients: Sequence[float], steps: int) -> Matrix:
    c = [Fraction(one) for one in coefficients[:steps]]
    return [
        [c[i - j] if 0 <= i - j < len(c) else Fraction(0) for j in range(steps)]
        for i in range(steps)
    ]


def banded_rows(rows: Sequence[Sequence[float]]) -> Matrix:
    full = [[Fraction(0)] * len(rows) for _ in rows]
    for i, row in enumerate(rows):
        for place, entry in enumerate(row):
            full[i][i - len(row) + 1 + place] = Fraction(entry)
    return full


def tree_rows(steps: int) -> Matrix:
    return [
        [Fraction(int(first <= j < first + size)) for j in range(steps)]
        for size in (1 << level for level in range(steps.bit_length()))
        for first in range(0, steps - size + 1, size)
    ]


def square_root(steps: int) -> tuple[float, ...]:
    """The coefficients 1, 1/2, 3/8, ... of the square root of the prefix sums."""
    found = [1.0]
    for i in range(1, steps):
        found.append(found[-1] * (2 * i - 1) / (2 * i))
    return tuple(found)


def holds(found: Sensitivity, truth: Fraction) -> None:
    """Never below the truth, and equal to it where that is said."""
    assert Fraction(found.squared) >= truth
    if found.attained:
        assert found.squared == ratio_up(*_over_power(truth))


def _over_power(value: Fraction) -> tuple[int, int]:
    bits = value.denominator.bit_length() - 1
    assert value.denominator == 1 << bits
    return value.numerator, bits


NUMBERS = st.one_of(st.just(0.0), st.floats(-3.0, 3.0).filter(lambda x: abs(x) > 1e-6))
SCHEMAS = st.tuples(st.integers(1, 10), st.integers(1, 10), st.integers(1, 10)).map(
    lambda it: schema(it[0], b := min(it[1], it[0]), min(it[2], -(-it[0] // b)))
)


@given(rest=st.lists(NUMBERS, max_size=9), one=SCHEMAS)
def test_no_toeplitz_strategy_moves_further_than_its_sensitivity(
    rest: list[float], one: Participation
) -> None:
    strategy = Toeplitz(coefficients=(1.0, *rest))
    found = sensitivity_of(strategy, one)
    holds(found, by_enumeration(toeplitz_rows(strategy.coefficients, one.steps), one))
    loose = toeplitz_sensitivity(
        coefficients=(1.0, *rest),
        steps=one.steps,
        min_separation=one.min_separation,
        participations=one.participations,
    )
    assert loose >= found.squared


@given(
    falls=st.lists(st.floats(0.0, 1.0).filter(lambda x: not 0 < x < 1e-6), max_size=9), one=SCHEMAS
)
def test_falling_coefficients_are_worst_at_the_first_steps(
    falls: list[float], one: Participation
) -> None:
    coefficients = tuple(np.cumprod([1.0, *falls]).tolist())
    coefficients = tuple(c if c > 1e-50 else 0.0 for c in coefficients)
    found = sensitivity_of(Toeplitz(coefficients=coefficients), one)
    assert found.attained
    holds(found, by_enumeration(toeplitz_rows(coefficients, one.steps), one))


@given(data=st.data(), one=SCHEMAS)
def test_no_strategy_given_by_rows_moves_further_than_its_sensitivity(
    data: st.DataObject, one: Participation
) -> None:
    rows = tuple(
        (*data.draw(st.lists(NUMBERS, max_size=min(i, 4))), data.draw(st.floats(0.1, 3.0)))
        for i in range(one.steps)
    )
    found = sensitivity_of(BandedRows(rows=rows), one)
    truth = by_enumeration(banded_rows(rows), one)
    holds(found, truth)
    bound = separated_sensitivity(
        rows=rows, min_separation=one.min_separation, participations=one.participations
    )
    assert Fraction(bound) >= truth


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 11, 12])
def test_no_tree_moves_further_than_its_sensitivity(steps: int) -> None:
    for apart in range(1, steps + 1):
        for times in range(1, min(4, -(-steps // apart)) + 1):
            one = schema(steps, apart, times)
            truth = by_enumeration(tree_rows(steps), one)
            found = sensitivity_of(Tree(), one)
            holds(found, truth)
            assert found.squared <= 1.5 * truth + 1e-9


@given(
    buffers=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(-0.6, 0.9)), min_size=1, max_size=3),
    one=SCHEMAS,
)
def test_no_buffered_strategy_moves_further_than_its_sensitivity(
    buffers: list[tuple[float, float]], one: Participation
) -> None:
    kept = [(d if d > 1e-6 else 0.0, s if abs(s) > 1e-6 else 0.0) for d, s in buffers]
    decays, scales = zip(*kept, strict=True)
    exact = [Fraction(1)] + [
        sum((Fraction(s) * Fraction(d) ** (i - 1) for d, s in kept), Fraction(0))
        for i in range(1, one.steps)
    ]
    matrix = [
        [exact[i - j] if i >= j else Fraction(0) for j in range(one.steps)]
        for i in range(one.steps)
    ]
    found = sensitivity_of(BufferedToeplitz(buffer_decay=decays, output_scale=scales), one)
    truth = by_enumeration(matrix, one)
    assert Fraction(found.squared) >= truth
    if found.attained:
        assert found.squared <= float(truth) * (1 + 1e-14)
    negative = BufferedToeplitz(buffer_decay=(0.5,), output_scale=(-0.5,))
    assert sensitivity_of(negative, schema(4, 1, 2)).rule in ("dominated", "separated")


# n, b, k and what two other programs give, by brute force or by another formula.
ROOT = [
    (64, 8, 8, 50.15585143397344, 9.499816013276556),
    (64, 8, 3, 12.936953309984117, 4.331813352752875),
    (1000, 100, 10, 83.79650325012167, 12.958170554048339),
    (2048, 128, 16, 196.78954352464535, 22.190439375848367),
    (2048, 2048, 1, 3.4932286006780044, 2.092622774426979),
]


@pytest.mark.parametrize(("steps", "apart", "times", "squared", "epsilon"), ROOT)
def test_the_square_root_has_the_values_of_others(
    steps: int, apart: int, times: int, squared: float, epsilon: float
) -> None:
    found = sensitivity_of(Toeplitz(coefficients=square_root(steps)), schema(steps, apart, times))
    assert found.squared == pytest.approx(squared, rel=5e-15)
    mu = correlated_gaussian_mu(sensitivity_squared=found.squared, noise_multiplier=4.0)
    log_delta, _ = log_gaussian_delta(epsilon, mu=mu)
    assert math.exp(log_delta) == pytest.approx(1e-6, rel=1e-8)


SHORT = Toeplitz(coefficients=(1.0, 0.5, 0.375, 0.3125))
BUFFERED = BufferedToeplitz(buffer_decay=(0.99, 0.8), output_scale=(0.2, 0.3))
VALUES: list[tuple[Strategy, Participation, float, str]] = [
    (SHORT, schema(16, 4, 4), 5.953125, "banded"),
    (SHORT, schema(16, 4, 2), 2.9765625, "banded"),
    (SHORT, schema(16, 3, 6), 11.56640625, "monotone"),
    (Toeplitz(coefficients=(1.0, 0.2, 0.9)), schema(8, 3, 3), 4.74, "banded"),
    (Toeplitz(coefficients=(1.0, -0.9)), schema(8, 1, 8), 26.27, "dominated"),
    (BUFFERED, schema(1000, 100, 10), 62.006273891423334, "monotone"),
    (BUFFERED, schema(64, 8, 8), 77.56469498130525, "monotone"),
    (BUFFERED, schema(2052, 342, 6), 23.844792065706354, "monotone"),
    (Tree(), schema(16, 4, 4), 36.0, "separated"),
    (Tree(), schema(15, 4, 4), 15.0, "separated"),
    (Tree(), schema(15, 4, 2), 10.0, "separated"),
    (Tree(), schema(255, 255, 1), 8.0, "one_participation"),
    (Tree(), schema(256, 256, 1), 9.0, "one_participation"),
    (Identity(), schema(100, 10, 7), 7.0, "banded"),
]


@pytest.mark.parametrize(("strategy", "one", "squared", "rule"), VALUES)
def test_strategies_have_the_values_of_others(
    strategy: Strategy, one: Participation, squared: float, rule: str
) -> None:
    found = sensitivity_of(strategy, one)
    assert found.squared == pytest.approx(squared, rel=1e-13)
    assert found.squared >= squared * (1 - 1e-15)
    assert found.rule == rule


def test_the_formula_of_falling_coefficients_is_false_of_others() -> None:
    """The rule that the first, the (b+1)-th and so on are worst needs what it asks for."""
    one, alternating = schema(8, 1, 8), (1.0, -0.9)
    first = sum(Fraction(c) for c in (1.0,)) ** 2 + 7 * (Fraction(1.0) + Fraction(-0.9)) ** 2
    assert float(first) == pytest.approx(1.07)
    truth = by_enumeration(toeplitz_rows(alternating, 8), one)
    assert float(truth) == pytest.approx(26.27)
    rising = (1.0, 0.227, 1.666, 0.144, 1.991)
    two = schema(5, 1, 2)
    rows = toeplitz_rows(rising, 5)
    at_first = sum(((row[0] + row[1]) ** 2 for row in rows), Fraction(0))
    assert float(by_enumeration(rows, two) / at_first) == pytest.approx(1.557, abs=1e-3)
    assert sensitivity_of(Toeplitz(coefficients=rising), two).rule != "monotone"


def test_a_looser_rule_serves_where_it_is_the_lesser() -> None:
    """One late coefficient makes all earlier ones as large: overlaps tell less."""
    late = Toeplitz(coefficients=(1.0, *[0.0] * 6, 0.9))
    one = schema(32, 4, 8)
    found = sensitivity_of(late, one)
    assert found.rule == "separated"
    by_domination = toeplitz_sensitivity(
        coefficients=late.coefficients, steps=32, min_separation=4, participations=8
    )
    assert found.squared < 0.5 * by_domination


def test_columns_that_never_meet_add_up() -> None:
    norms = (1.25, 1.0, 4.0, 1.0, 2.0)
    assert (
        banded_sensitivity(column_norms_squared=norms, min_separation=2, participations=3) == 7.25
    )
    assert banded_sensitivity(column_norms_squared=norms, min_separation=2, participations=1) == 4.0


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Toeplitz(coefficients=()), "coefficients"),
    (lambda: Toeplitz(coefficients=(0.0, 1.0)), "first coefficient above 0"),
    (lambda: Toeplitz(coefficients=(1.0, math.nan)), "size"),
    (lambda: Toeplitz(coefficients=(1.0, math.inf)), "size"),
    (lambda: Toeplitz(coefficients=(1.0, 2.0**-201)), "size"),
    (lambda: BufferedToeplitz(buffer_decay=(), output_scale=()), "buffers"),
    (lambda: BufferedToeplitz(buffer_decay=(0.5,), output_scale=()), "each buffer"),
    (lambda: BufferedToeplitz(buffer_decay=(1.5,), output_scale=(0.1,)), "decay"),
    (lambda: BandedRows(rows=()), "rows"),
    (lambda: BandedRows(rows=((1.0, 1.0),)), "entries"),
    (lambda: BandedRows(rows=((-1.0,),)), "diagonal"),
    (lambda: schema(0, 1, 1), "steps"),
    (lambda: schema(4, 5, 1), "min_separation"),
    (lambda: schema(4, 2, 3), "participations from 1 to 2"),
    (lambda: schema(4, 2, 0), "participations"),
    (lambda: sensitivity_of(BandedRows(rows=((1.0,),)), schema(2, 1, 1)), "1 rows"),
    (lambda: sensitivity_of(Tree(), schema(4096, 64, 3)), "at most 2048 steps"),
    (lambda: correlated_gaussian_mu(sensitivity_squared=0.0, noise_multiplier=1.0), "sensitivity"),
    (lambda: correlated_gaussian_mu(sensitivity_squared=1.0, noise_multiplier=math.nan), "noise"),
    (
        lambda: banded_sensitivity(
            column_norms_squared=(1.0, -1.0), min_separation=1, participations=1
        ),
        "norms",
    ),
]


@pytest.mark.parametrize(("ask", "text"), REFUSED)
def test_what_is_out_of_range_is_refused(ask: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ask()


def test_numbers_of_very_different_size_are_whole_numbers_of_one_unit() -> None:
    wide = Toeplitz(coefficients=(2.0**200, 2.0**-200))
    found = sensitivity_of(wide, schema(3, 1, 2))
    truth = by_enumeration(toeplitz_rows(wide.coefficients, 3), schema(3, 1, 2))
    assert Fraction(found.squared) >= truth
    large = Toeplitz(coefficients=(2.0**90, 2.0**80))
    holds(
        sensitivity_of(large, schema(3, 1, 2)),
        by_enumeration(toeplitz_rows(large.coefficients, 3), schema(3, 1, 2)),
    )
