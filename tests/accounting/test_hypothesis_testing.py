"""What tests, guesses and losses make of a bound, by enumeration of explicit laws."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.literature.hypothesis_testing import (
    guess_success,
    least_test_errors,
    uniform_stability,
)
from accounting.literature.total_variation import total_variation_of_dp
from accounting.privacy_profile import membership_advantage

PROPERTY = settings(deadline=None, max_examples=40)
LAW = st.lists(st.integers(0, 20), min_size=4, max_size=4).filter(any)


def _normal(weights: list[int]) -> list[Fraction]:
    return [Fraction(weight, sum(weights)) for weight in weights]


def _distance(p: list[Fraction], q: list[Fraction]) -> Fraction:
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), Fraction()) / 2


@PROPERTY
@given(first=LAW, second=LAW, prior=st.integers(0, 20))
def test_no_test_of_four_outcomes_does_better(
    first: list[int], second: list[int], prior: int
) -> None:
    p, q = _normal(first), _normal(second)
    apart = _distance(p, q)
    likely = Fraction(prior, 20)
    errors, right = [], []
    for chosen in range(16):  # every set of outcomes on which a test says the second
        says = [bool(chosen >> i & 1) for i in range(4)]
        false = sum((a for a, said in zip(p, says, strict=True) if said), Fraction())
        missed = sum((b for b, said in zip(q, says, strict=True) if not said), Fraction())
        errors.append(false + missed)
        right.append(likely * (1 - false) + (1 - likely) * (1 - missed))
    # The distance is passed as a double; it is within a roundoff of the law's.
    slack = Fraction(1, 2**48)
    least = Fraction(least_test_errors(distance=float(apart)))
    assert min(errors) - slack <= least <= min(errors) + slack
    assert max(right) <= Fraction(guess_success(distance=float(apart), prior=prior / 20)) + slack
    if prior == 10:
        success = Fraction(guess_success(distance=float(apart), prior=0.5))
        assert success <= max(right) + slack


@PROPERTY
@given(distance=st.floats(0, 1), prior=st.floats(0, 1))
def test_errors_are_rounded_down_and_successes_up(distance: float, prior: float) -> None:
    errors = least_test_errors(distance=distance)
    assert Fraction(errors) <= 1 - Fraction(distance)
    assert errors >= (1 - distance) * (1 - 1e-15) - 1e-320
    success = guess_success(distance=distance, prior=prior)
    rare = min(Fraction(prior), 1 - Fraction(prior))
    exact = (1 - rare) + rare * Fraction(distance)
    assert exact <= Fraction(success) <= exact + Fraction(1, 2**48)


def test_without_a_difference_one_guesses() -> None:
    assert guess_success(distance=0.0, prior=0.5) == pytest.approx(0.5, rel=1e-14)
    assert guess_success(distance=1.0, prior=0.3) == 1.0
    assert guess_success(distance=0.4, prior=1.0) == 1.0
    assert least_test_errors(distance=1.0) == 0.0


@PROPERTY
@given(epsilon=st.floats(1e-15, 20), delta=st.floats(0, 1), width=st.floats(1e-3, 1e3))
def test_the_worst_loss_moves_by_as_much(epsilon: float, delta: float, width: float) -> None:
    # Losses 0 and r, at the ends of the interval, on the worst pair for (epsilon, delta).
    found = uniform_stability(epsilon=epsilon, delta=delta, loss_range=width)
    with mp.workdps(50):
        truth = 1 / (1 + mp.exp(-mp.mpf(epsilon)))
        on = mp.mpf(delta) + (1 - mp.mpf(delta)) * truth
        off = (1 - mp.mpf(delta)) * (1 - truth)
        exact = (on - off) * mp.mpf(width)
        assert exact <= found <= exact * (1 + 1e-13)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 10.0])
def test_a_pure_guarantee_is_stable_by_half_of_it(epsilon: float) -> None:
    found = uniform_stability(epsilon=epsilon, delta=0.0, loss_range=1.0)
    assert found == pytest.approx(math.tanh(epsilon / 2), rel=1e-13)
    assert found < 0.5 * epsilon * (1 + 1e-13)


@PROPERTY
@given(epsilon=st.floats(0, 30), delta=st.floats(0, 1))
def test_the_advantage_of_one_point_is_the_distance(epsilon: float, delta: float) -> None:
    curve = membership_advantage(epsilons=np.array([epsilon]), deltas=np.array([delta]))
    assert curve == pytest.approx(total_variation_of_dp(epsilon=epsilon, delta=delta), rel=1e-12)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_questions_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"distance lies in \[0, 1\]"):
        least_test_errors(distance=value)
    with pytest.raises(ValueError, match=r"distance lies in \[0, 1\]"):
        guess_success(distance=value, prior=0.5)
    with pytest.raises(ValueError, match=r"prior lies in \[0, 1\]"):
        guess_success(distance=0.5, prior=value)


@pytest.mark.parametrize("width", [0.0, -1.0, math.inf, math.nan])
def test_a_loss_without_bounds_is_refused(width: float) -> None:
    with pytest.raises(ValueError, match="loss_range is positive and finite"):
        uniform_stability(epsilon=0.1, delta=0.0, loss_range=width)
