"""Binomial laws, against arbitrary precision."""

import math
from itertools import product

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.binomial import (
    LEAST,
    TAIL,
    TRIALS_MAX,
    Window,
    _series,
    fair_tails,
    sum_window,
    window,
)

PROPERTY = settings(deadline=None, max_examples=30)


def mass(trials: int, odds: float, count: int) -> mp.mpf:
    """The probability of a count, to thirty digits."""
    with mp.workdps(30 + int(math.log10(trials + 1))):
        p = mp.mpf(odds) / (1 + mp.mpf(odds))
        log = mp.loggamma(trials + 1) - mp.loggamma(count + 1) - mp.loggamma(trials - count + 1)
        log += count * mp.log(p) if count else 0
        log += (trials - count) * mp.log(1 - p)
        return mp.exp(log)


def counts(law: Window) -> list[int]:
    """A few counts of the window, its ends among them."""
    last = law.first + len(law.masses) - 1
    return sorted({law.first, (3 * law.first + last) // 4, (law.first + last) // 2, last})


@PROPERTY
@given(
    trials=st.integers(0, 10**6),
    log_odds=st.floats(-30, 30),
    cut=st.sampled_from([1e-3, 1e-12, 1e-40, LEAST]),
)
def test_each_probability_is_within_its_error(trials: int, log_odds: float, cut: float) -> None:
    odds = math.exp(log_odds)
    law = window(trials, odds=odds, cut=cut)
    assert law.error < 1e-10 + 2 * law.left_out
    for count in counts(law):
        exact, found = mass(trials, odds, count), law.masses[count - law.first]
        assert abs(found / exact - 1) <= law.error


@PROPERTY
@given(trials=st.integers(1, 60), log_odds=st.floats(-6, 6), cut=st.sampled_from([1e-3, 1e-9]))
def test_what_is_left_out_is_bounded(trials: int, log_odds: float, cut: float) -> None:
    odds = math.exp(log_odds)
    law = window(trials, odds=odds, cut=cut)
    inside = range(law.first, law.first + len(law.masses))
    missing = [mass(trials, odds, count) for count in range(trials + 1) if count not in inside]
    assert sum(missing) <= law.left_out
    assert law.left_out <= 200 * cut


def test_a_cut_leaves_something_out_on_either_side() -> None:
    law = window(40, odds=1.0, cut=1e-3)
    below = sum(mass(40, 1.0, count) for count in range(law.first))
    assert law.first > 0
    assert law.left_out >= 2 * below > 0
    assert law.error > law.left_out


def test_a_window_without_a_chance_is_the_count_zero() -> None:
    law = window(100, odds=0.0, cut=LEAST)
    assert (law.first, law.masses.tolist(), law.left_out) == (0, [1.0], 0.0)
    assert window(0, odds=2.0, cut=LEAST).masses.tolist() == [1.0]


def test_a_very_wide_law_adds_up_to_one() -> None:
    law = window(TRIALS_MAX, odds=1.0, cut=LEAST)
    assert law.first + len(law.masses) // 2 == TRIALS_MAX // 2
    assert abs(float(np.sum(law.masses)) - 1) <= law.error < 1e-8


@pytest.mark.parametrize(
    ("trials", "odds", "cut"),
    [
        (-1, 1.0, 0.001),
        (TRIALS_MAX + 1, 1.0, 0.001),
        (9, -1.0, 0.001),
        (9, math.inf, 0.001),
        (9, math.nan, 0.001),
        (9, 1.0, 0.0),
        (9, 1.0, 0.5),
    ],
)
def test_what_is_no_binomial_is_refused(trials: int, odds: float, cut: float) -> None:
    with pytest.raises(ValueError, match="trials lie in"):
        window(trials, odds=odds, cut=cut)


def test_a_series_that_does_not_fall_is_not_bounded() -> None:
    assert _series(1.0) == math.inf
    assert 1.0 < _series(0.5) < 1.0 + 1e-13


@PROPERTY
@given(first=st.integers(0, 14), second=st.integers(0, 14), log_odds=st.floats(-5, 5))
def test_a_sum_is_the_law_of_both(first: int, second: int, log_odds: float) -> None:
    odds = math.exp(log_odds)
    laws = window(first, odds=odds, cut=1e-9), window(second, odds=1 / odds, cut=1e-9)
    both = sum_window(*laws)
    exact = [mp.mpf(0)] * (first + second + 1)
    one = [mass(first, odds, count) for count in range(first + 1)]
    other = [mass(second, 1 / odds, count) for count in range(second + 1)]
    for i, j in product(range(first + 1), range(second + 1)):
        exact[i + j] += one[i] * other[j]
    inside = range(both.first, both.first + len(both.masses))
    missing = sum(chance for count, chance in enumerate(exact) if count not in inside)
    short = sum(
        max(mp.mpf(0), exact[count] - both.masses[count - both.first] * (1 + both.error))
        for count in inside
    )
    assert missing + short <= both.left_out
    for count in inside:
        assert both.masses[count - both.first] * (1 - both.error) <= exact[count]


def _tail(trials: int, least: int) -> mp.mpf:
    with mp.workdps(40):
        term = mp.exp(
            mp.loggamma(trials + 1)
            - mp.loggamma(least + 1)
            - mp.loggamma(trials - least + 1)
            - trials * mp.log(2)
        )
        total, count = mp.mpf(0), least
        while count <= trials and term > total * mp.mpf(10) ** -25:
            total += term
            term *= mp.mpf(trials - count) / (count + 1)
            count += 1
        return total


@pytest.mark.no_cover
@pytest.mark.parametrize("trials", [1, 10, 1000, 10**5, 10**6, 10**7])
@pytest.mark.parametrize("deviations", [0.5, 4.0, 9.0, 14.0])
def test_fair_tails_are_within_a_tenth_of_their_error(trials: int, deviations: float) -> None:
    least = min(trials, int(trials / 2 + deviations * math.sqrt(trials) / 2) + 1)
    found = fair_tails(np.array([float(trials)]), np.array([float(least)]))[0]
    assert abs(found / _tail(trials, least) - 1) < TAIL / 10


def test_fair_tails_beyond_the_ends_are_certain_or_impossible() -> None:
    trials = np.array([5.0, 5.0, 5.0, 0.0, 0.0])
    found = fair_tails(trials, np.array([0.0, -1.0, 6.0, 0.0, 1.0]))
    assert found.tolist() == [1.0, 1.0, 0.0, 1.0, 0.0]
