import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.rounding import (
    MAX_BISECTIONS,
    exact_sum,
    least_true,
    rounded_down,
    rounded_up,
    sum_up,
    up_to_places,
)

FINITE = st.floats(min_value=-1e300, max_value=1e300)
PROPERTY = settings(deadline=None)


@PROPERTY
@given(value=FINITE, ulps=st.integers(1, 64))
def test_rounding_leaves_the_value_strictly_inside(value: float, ulps: int) -> None:
    assert rounded_down(value, ulps=ulps) < value < rounded_up(value, ulps=ulps)


@PROPERTY
@given(value=FINITE, ulps=st.integers(1, 64))
def test_rounding_moves_by_at_least_as_many_units_as_asked(value: float, ulps: int) -> None:
    # Half a unit is lost when the moved value is itself rounded.
    distance = (Fraction(ulps) - Fraction(1, 2)) * Fraction(abs(value)) * Fraction(2) ** -53
    assert Fraction(rounded_up(value, ulps=ulps)) - Fraction(value) >= distance
    assert Fraction(value) - Fraction(rounded_down(value, ulps=ulps)) >= distance


@PROPERTY
@given(value=st.floats(min_value=1e-300, max_value=1e300))
def test_rounding_costs_next_to_nothing(value: float) -> None:
    assert rounded_up(value) <= value * (1 + 1e-15)
    assert rounded_down(value) >= value * (1 - 1e-15)


def test_an_infinite_value_is_never_rounded_below_infinity() -> None:
    assert rounded_up(math.inf) == math.inf
    assert not rounded_down(math.inf) < math.inf  # NaN: every comparison with it fails closed


@PROPERTY
@given(terms=st.lists(st.floats(min_value=0, max_value=1e100), min_size=1, max_size=20))
def test_a_sum_is_above_the_true_one_by_at_most_two_units(terms: list[float]) -> None:
    true = sum((Fraction(term) for term in terms), Fraction(0))
    assert true < Fraction(sum_up(terms)) <= true * (1 + Fraction(2) ** -51) + Fraction(5e-324) * 2


@PROPERTY
@given(terms=st.lists(st.floats(min_value=0, max_value=1e100), max_size=20))
def test_a_sum_has_the_same_bits_in_every_order(terms: list[float]) -> None:
    assert sum_up(terms) == sum_up(terms[::-1]) == sum_up(sorted(terms))


@settings(deadline=None, max_examples=1000)
@given(terms=st.lists(st.floats(min_value=-1e300, max_value=1e300)))
def test_an_exact_sum_is_rounded_once(terms: list[float]) -> None:
    assert exact_sum(np.array(terms)) == math.fsum(terms)


def test_an_empty_sum_is_exactly_zero_and_an_infinite_term_stays() -> None:
    assert sum_up([]) == 0
    assert sum_up([1.0, math.inf]) == math.inf


@PROPERTY
@given(threshold=st.floats(min_value=1e-9, max_value=1e9))
def test_the_search_returns_a_value_that_holds_right_above_the_threshold(threshold: float) -> None:
    found = least_true(lambda x: x >= threshold, low=0.0, high=1e9)
    assert threshold <= found <= threshold * (1 + 1e-14)


def test_the_search_returns_only_what_it_has_evaluated() -> None:
    seen: set[float] = set()

    def holds(x: float) -> bool:
        seen.add(x)
        return x > 1 / 3

    found = least_true(holds, low=0.0, high=1.0)
    assert found in seen
    assert found > 1 / 3


def test_the_search_crosses_zero() -> None:
    assert least_true(lambda x: x >= -2, low=-50.0, high=690.0) == pytest.approx(-2, rel=1e-14)


def test_the_search_refuses_when_the_upper_end_does_not_hold() -> None:
    with pytest.raises(ValueError, match="No value"):
        least_true(lambda _: False, low=0.0, high=1.0)
    with pytest.raises(ValueError, match="No value"):
        least_true(lambda x: x <= math.nan, low=0.0, high=1.0)


def test_the_search_ends_on_neighbouring_values_and_on_a_threshold_of_zero() -> None:
    above = math.nextafter(1.0, 2.0)
    assert least_true(lambda x: x >= above, low=1.0, high=above) == above
    calls = 0

    def always(_: float) -> bool:
        nonlocal calls
        calls += 1
        return True

    # Every halving holds, down to the last of the bisections that are allowed.
    assert least_true(always, low=0.0, high=1.0) == 2.0**-MAX_BISECTIONS
    assert calls == MAX_BISECTIONS + 1


@PROPERTY
@given(value=FINITE, places=st.integers(0, 12))
def test_a_decimal_number_is_the_least_of_so_many_places(value: float, places: int) -> None:
    found = up_to_places(value, places)
    written, unit = Fraction(repr(value)), Fraction(1, 10**places)
    assert written <= Fraction(found) < written + unit
    assert (Fraction(found) / unit).denominator == 1
    assert float(found) >= value


def test_the_next_double_has_the_next_decimal_number() -> None:
    above = math.nextafter(0.1234, 1.0)  # ten thousand times that rounds to 1234
    assert (up_to_places(0.1234, 4), up_to_places(above, 4)) == (
        Decimal("0.1234"),
        Decimal("0.1235"),
    )
