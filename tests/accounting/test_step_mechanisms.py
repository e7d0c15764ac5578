"""Curves of Laplace noise, randomized response and pure DP against the sums that define them."""

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.renyi.declared import approximate_dp_rdp, zcdp_rdp
from accounting.renyi.laplace import laplace_rdp, poisson_laplace_rdp
from accounting.renyi.orders import ORDERS
from accounting.renyi.pure import LOSS_MIN, amplified_epsilon, pure_dp_rdp
from accounting.renyi.randomized_response import (
    randomized_response_null_rdp,
    randomized_response_rdp,
)
from accounting.renyi.revealed import revealed_sampling_rdp
from accounting.rounding import Array

DIGITS = 400  # an order of 1024 and a chance of 1e-12 cancel hundreds of them
SOME_ORDERS = np.array([1.1, 1.9, 2.0, 7.3, 63.0, 1024.0])
PROPERTY = settings(deadline=None, max_examples=50)
NOISE = st.floats(-9, 9).map(lambda x: 10.0**x)
RATE = st.floats(-12, 0).map(lambda x: 10.0**x)


def assert_upper(bounds: Array, exact: list[Any], *, within: float) -> None:
    with mp.workdps(DIGITS):
        for bound, value in zip(bounds, exact, strict=True):
            excess = (mp.mpf(float(bound)) - value) / value
            assert 0 <= excess <= within, mp.nstr(excess, 5)


def divergence(first: list[Any], second: list[Any], order: float) -> Any:
    """Of finite distributions, by definition."""
    power = mp.mpf(order)
    moment = mp.fsum(p**power * q ** (1 - power) for p, q in zip(first, second, strict=True))
    return mp.log(moment) / (power - 1)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5, 40.0])
def test_the_laplace_curve_is_the_defining_integral_from_above(scale: float) -> None:
    orders = np.array([1.1, 2.0, 5.5, 30.0])
    with mp.workdps(40):
        b, exact = mp.mpf(scale), []
        for order in orders:
            a = mp.mpf(float(order))

            def integrand(x: Any, a: Any = a) -> Any:
                return mp.exp(-a * abs(x) / b - (1 - a) * abs(x - 1) / b) / (2 * b)

            far = 150 * b  # e^-150 is below the precision
            ends = [-far, -far / 9, -b, 0, mp.mpf("0.25"), mp.mpf("0.5"), mp.mpf("0.75"), 1, 1 + b]
            moment = mp.quad(integrand, [*sorted(ends), 1 + far / 9, 1 + far])
            exact.append(mp.log(moment) / (a - 1))
    curve = laplace_rdp(noise_multiplier=scale, sensitivity=1.0, orders=orders)
    assert_upper(curve, exact, within=1e-11)


@pytest.mark.parametrize("sensitivity", [1.0, 2.0])
@pytest.mark.parametrize("noise", [1e-9, 1e-3, 0.03, 0.5, 1.0, 33.3, 1024.5, 1e5, 1e9, 1e100])
def test_the_laplace_curve_keeps_its_digits_for_any_noise(noise: float, sensitivity: float) -> None:
    with mp.workdps(DIGITS):
        b, exact = mp.mpf(noise) / sensitivity, []
        for order in SOME_ORDERS:
            a = mp.mpf(float(order))
            rise, fall = mp.exp((a - 1) / b), mp.exp(-a / b)
            exact.append(mp.log((a * rise + (a - 1) * fall) / (2 * a - 1)) / (a - 1))
    curve = laplace_rdp(noise_multiplier=noise, sensitivity=sensitivity, orders=SOME_ORDERS)
    assert_upper(curve, exact, within=1e-11)


def test_much_laplace_noise_costs_half_the_square_of_its_inverse() -> None:
    curve = laplace_rdp(noise_multiplier=1e9, sensitivity=1.0, orders=ORDERS)
    np.testing.assert_allclose(curve, ORDERS / 2e18, rtol=1e-5)


@given(first=st.floats(1e-3, 50), second=st.floats(1e-3, 50))
def test_a_contribution_spread_over_coordinates_costs_no_more_than_on_one(
    first: float, second: float
) -> None:
    def curve(shift: float) -> Array:
        return laplace_rdp(noise_multiplier=1.0, sensitivity=shift, orders=ORDERS)

    assert np.all(curve(first) + curve(second) <= curve(first + second) * (1 + 1e-11))


@pytest.mark.parametrize("epsilon", [1e-100, 1e-12, 1e-3, 0.7, 3.0, 40.0, 700.0, 1e4])
def test_the_pure_curve_is_that_of_binary_randomized_response(epsilon: float) -> None:
    with mp.workdps(DIGITS):
        truth = 1 / (1 + mp.exp(-mp.mpf(epsilon)))
        pair = [truth, mp.exp(-mp.mpf(epsilon)) * truth]
        e = mp.mpf(epsilon)
        exact = [divergence(pair, pair[::-1], order) for order in SOME_ORDERS]
        for order, value in zip(SOME_ORDERS, exact, strict=True):
            a = mp.mpf(float(order))
            closed = mp.log((mp.sinh(a * e) - mp.sinh((a - 1) * e)) / mp.sinh(e)) / (a - 1)
            assert mp.almosteq(value, closed, rel_eps=mp.mpf(10) ** -100)
    curve = pure_dp_rdp(epsilon=epsilon, orders=SOME_ORDERS)
    assert_upper(curve, exact, within=1e-11)


@given(epsilon=st.floats(0, 1e4), more=st.floats(0, 10))
def test_the_pure_curve_grows_with_epsilon_and_never_passes_it(epsilon: float, more: float) -> None:
    curve = pure_dp_rdp(epsilon=epsilon, orders=ORDERS)
    larger = pure_dp_rdp(epsilon=epsilon + more, orders=ORDERS)
    assert np.all(curve <= larger * (1 + 1e-11))
    assert np.all(curve <= max(epsilon, LOSS_MIN) * (1 + 1e-11))
    assert np.all(curve <= ORDERS * (0.5 * epsilon * epsilon * (1 + 1e-11)) + 1e-290)


RESPONSES = [
    (0.6, 2), (0.5 + 1e-15, 2), (0.625, 4), (0.0595, 100), (1e-12, 2), (1e-12, 10**6),
    (1 - 1e-12, 2), (1 - 1e-12, 10**6), (0.25 + 1e-9, 4), (0.1, 4), (0.999, 1000), (1e-6, 999_999),
]  # fmt: skip


@pytest.mark.parametrize(("p", "k"), RESPONSES)
def test_a_replaced_answer_is_the_sum_over_the_categories_from_above(p: float, k: int) -> None:
    with mp.workdps(DIGITS):
        truth = mp.mpf(p)
        other = (1 - truth) / (k - 1)
        rest = (k - 2) * other
        pair = [truth, other] + ([rest] if rest else [])
        swapped = [other, truth] + ([rest] if rest else [])
        exact = [divergence(pair, swapped, order) for order in SOME_ORDERS]
    curve = randomized_response_rdp(probability_of_truth=p, categories=k, orders=SOME_ORDERS)
    assert_upper(curve, exact, within=1e-11)


@pytest.mark.parametrize(("p", "k"), RESPONSES)
def test_an_answer_against_a_null_record_is_the_worse_direction_from_above(
    p: float, k: int
) -> None:
    with mp.workdps(DIGITS):
        truth, one = mp.mpf(p), mp.mpf(1)
        answer, null = [truth, 1 - truth], [one / k, 1 - one / k]
        exact = [
            max(divergence(answer, null, order), divergence(null, answer, order))
            for order in SOME_ORDERS
        ]
    curve = randomized_response_null_rdp(probability_of_truth=p, categories=k, orders=SOME_ORDERS)
    assert_upper(curve, exact, within=1e-8)


@pytest.mark.parametrize(("p", "k"), [(0.5, 2), (0.25, 4), (2.0**-19, 2**19)])
def test_an_answer_at_chance_tells_nothing(p: float, k: int) -> None:
    null = randomized_response_null_rdp(probability_of_truth=p, categories=k, orders=ORDERS)
    assert not np.any(null)
    replaced = randomized_response_rdp(probability_of_truth=p, categories=k, orders=ORDERS)
    assert np.all(replaced < 1e-290)


@given(p=st.floats(1e-12, 1 - 1e-12), k=st.integers(2, 10**6))
def test_a_null_record_is_no_farther_than_another_category(p: float, k: int) -> None:
    null = randomized_response_null_rdp(probability_of_truth=p, categories=k, orders=ORDERS)
    replaced = randomized_response_rdp(probability_of_truth=p, categories=k, orders=ORDERS)
    if p > 1 / k:  # the uniform law is a mixture of the categories' laws
        assert np.all(null <= replaced * (1 + 1e-8))
    assert np.all(np.isfinite(null))
    assert np.all(null >= 0)


@PROPERTY
@given(epsilon=st.floats(-9, 3.9).map(lambda x: 10.0**x), q=RATE)
def test_amplification_is_the_logarithm_from_above(epsilon: float, q: float) -> None:
    amplified = amplified_epsilon(epsilon=epsilon, sampling_probability=q)
    with mp.workdps(60):
        exact = mp.log1p(mp.mpf(q) * mp.expm1(mp.mpf(epsilon)))
        if amplified < epsilon:
            assert 0 <= (mp.mpf(amplified) - exact) / exact <= 1e-11
        else:
            assert exact <= epsilon


def test_nothing_is_amplified_at_the_ends() -> None:
    assert amplified_epsilon(epsilon=0.0, sampling_probability=0.5) == 0
    assert amplified_epsilon(epsilon=1e100, sampling_probability=1e-12) <= 1e100
    assert amplified_epsilon(epsilon=3.0, sampling_probability=1.0) == 3


@PROPERTY
@given(noise=NOISE, q=RATE, more=st.floats(1, 100))
def test_more_laplace_noise_and_less_sampling_never_cost_more(
    noise: float, q: float, more: float
) -> None:
    def full(b: float) -> Array:
        return laplace_rdp(noise_multiplier=b, sensitivity=1.0, orders=ORDERS)

    def part(b: float, rate: float) -> Array:
        return poisson_laplace_rdp(noise_multiplier=b, sampling_probability=rate, orders=ORDERS)

    room = 1 + 1e-10
    assert np.all(full(noise * more) <= full(noise) * room)
    assert np.all(part(noise * more, q) <= part(noise, q) * room)
    assert np.all(part(noise, q) <= full(noise))
    assert np.all(part(noise, q / more) <= part(noise, q) * room)


@pytest.mark.parametrize(("noise", "q"), [(1.0, 0.1), (0.2, 0.01), (5.0, 0.5), (0.05, 0.9)])
def test_sampled_laplace_noise_is_nowhere_below_the_mixture_itself(noise: float, q: float) -> None:
    x = np.linspace(-40 * noise, 1 + 40 * noise, 400_001)
    absent = np.exp(-np.abs(x) / noise) / (2 * noise)
    present = (1 - q) * absent + q * np.exp(-np.abs(x - 1) / noise) / (2 * noise)
    orders = np.array([1.5, 2.0, 4.0, 9.0])
    curve = poisson_laplace_rdp(noise_multiplier=noise, sampling_probability=q, orders=orders)
    for first, second in ((present, absent), (absent, present)):
        for order, bound in zip(orders, curve, strict=True):
            moment = np.trapezoid(first**order * second ** (1 - order), x)
            assert bound >= math.log(moment) / (order - 1) * (1 - 1e-6)


@pytest.mark.parametrize("rdp", [0.0, 1e-300, 1e-20, 1e-3, 1.0, 30.0, 1e5, 1e100])
@pytest.mark.parametrize("q", [1e-12, 1e-3, 0.5, 1 - 1e-9, 1.0])
def test_telling_who_was_sampled_is_a_mixture_with_nothing(rdp: float, q: float) -> None:
    given = np.full_like(SOME_ORDERS, rdp)
    curve = revealed_sampling_rdp(rdp=given, sampling_probability=q, orders=SOME_ORDERS)
    assert np.all(curve <= given)
    if rdp > 1e-200:
        with mp.workdps(DIGITS):
            exact = [
                mp.log(1 - mp.mpf(q) + mp.mpf(q) * mp.exp((mp.mpf(float(a)) - 1) * mp.mpf(rdp)))
                / (mp.mpf(float(a)) - 1)
                for a in SOME_ORDERS
            ]
            # At q = 1 the bound is the exact value, of which the reference knows 300 digits.
            for bound, value in zip(curve, exact, strict=True):
                assert 1 - mp.mpf(10) ** -300 <= mp.mpf(float(bound)) / value <= 1 + 1e-9


def test_what_is_not_known_stays_unknown_under_sampling() -> None:
    unknown = np.full_like(ORDERS, math.inf)
    curve = revealed_sampling_rdp(rdp=unknown, sampling_probability=0.1, orders=ORDERS)
    assert np.all(np.isinf(curve))


def test_declared_curves_are_their_definitions_from_above() -> None:
    curve = zcdp_rdp(rho=0.3, orders=ORDERS)
    assert_upper(curve, [mp.mpf(0.3) * mp.mpf(float(a)) for a in ORDERS], within=1e-14)
    declared = approximate_dp_rdp(epsilon=0.3, orders=ORDERS)
    np.testing.assert_array_equal(declared, pure_dp_rdp(epsilon=0.3, orders=ORDERS))


@pytest.mark.parametrize("noise", [1e-100, 1e-9, 1e100])
@pytest.mark.parametrize("q", [1e-100, 0.5, 1.0])
def test_curves_are_finite_to_the_ends_of_their_ranges(noise: float, q: float) -> None:
    part = poisson_laplace_rdp(noise_multiplier=noise, sampling_probability=q, orders=ORDERS)
    full = laplace_rdp(noise_multiplier=noise, sensitivity=2.0, orders=ORDERS)
    shown = revealed_sampling_rdp(rdp=full, sampling_probability=q, orders=ORDERS)
    for p, k in ((1e-100, 2), (1e-100, 10**6), (1 - 2**-53, 2), (1 - 2**-53, 10**6)):
        part = part + randomized_response_rdp(probability_of_truth=p, categories=k, orders=ORDERS)
        full = full + randomized_response_null_rdp(
            probability_of_truth=p, categories=k, orders=ORDERS
        )
    assert np.all(np.isfinite(part))
    assert np.all(np.isfinite(full))
    assert np.all(shown <= full)
