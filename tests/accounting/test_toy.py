"""Two records and two steps, by listing what can happen; row 000-S4 has the documents' values."""

import math
from fractions import Fraction

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.literature.toy_shuffle import ENDS, toy_epsilon, toy_law

KEEP = st.floats(0, 1, exclude_min=True, exclude_max=True, allow_subnormal=False)


def exact(p: float, *, replacement: bool) -> Fraction:
    """The logarithm's argument less one."""
    q = Fraction(p)
    return max(3 * q / (2 + q), 3 * q / (4 * (1 - q))) if replacement else 3 * q / (1 - q)


@settings(deadline=None, max_examples=60)
@given(p=KEEP, replacement=st.booleans())
def test_epsilon_is_the_closed_form_rounded_up(p: float, replacement: bool) -> None:
    excess = exact(p, replacement=replacement)
    with mp.workdps(60):
        true = mp.log1p(mp.mpf(excess.numerator) / excess.denominator)
        found = mp.mpf(toy_epsilon(keep_probability=p, replacement=replacement))
        assert true <= found <= true * (1 + mp.mpf(10) ** -14) + mp.mpf(10) ** -300


def test_where_the_end_is_always_told_nothing_hides_it() -> None:
    for replacement in (True, False):
        assert toy_epsilon(keep_probability=1.0, replacement=replacement) == math.inf


def test_where_it_never_is_nothing_is_told() -> None:
    for replacement in (True, False):
        assert toy_epsilon(keep_probability=0.0, replacement=replacement) == 0


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan, math.inf])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="keep_probability"):
        toy_epsilon(keep_probability=p, replacement=True)


def test_the_ends_are_those_of_gradient_steps_on_the_sine() -> None:
    # l(x) = -sin(pi x)/pi has the slope -cos(pi x).
    for first, second in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        place = 0.0
        for loss in (first, second):
            place -= loss * -math.cos(math.pi * place)
        law = toy_law((first, second), keep_probability=1.0, replacement=False)
        other = toy_law((second, first), keep_probability=1.0, replacement=False)
        assert law == other  # the order is drawn
        assert law[round(place)] == (1 if first == second else Fraction(1, 2))
        assert round(place) in ENDS
