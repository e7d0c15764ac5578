import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.renyi.conversion import (
    classical_rdp_epsilon,
    conversion_costs,
    rdp_delta,
    rdp_epsilon,
)
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import gaussian_rdp

DELTA = st.floats(1e-12, 0.1)
SIGMA = st.floats(0.3, 50)
PROPERTY = settings(deadline=None)


def test_one_order_converts_as_by_hand() -> None:
    # rdp 0.5 at order 8, delta 1e-5: 0.5 + log(7/8) - (log(1e-5) + log(8)) / 7
    by_hand = 0.5 - 0.13353139262452263 + (11.512925464970229 - 2.0794415416798357) / 7
    epsilon, order = rdp_epsilon(rdp=np.array([0.5]), orders=np.array([8.0]), delta=1e-5)
    assert epsilon == pytest.approx(by_hand, rel=1e-14)
    assert order == 8
    # The same by dp-accounting: compute_epsilon([8.], [0.5], 1e-5).
    assert epsilon == pytest.approx(1.7141091678455336, rel=1e-14)


def test_one_order_converts_back_as_by_hand() -> None:
    by_hand = math.exp(7 * (0.5 - 2.0 + math.log(7 / 8))) / 8
    delta, order = rdp_delta(rdp=np.array([0.5]), orders=np.array([8.0]), epsilon=2.0)
    assert delta == pytest.approx(by_hand, rel=1e-13)
    assert order == 8


@pytest.mark.parametrize("delta", [0.5, 1e-3, 1e-5, 1e-12, 1e-300])
@pytest.mark.parametrize("order", [1.1, 1.7, 8.0, 63.0, 1024.0])
def test_the_cost_of_converting_is_the_exact_one_from_above(order: float, delta: float) -> None:
    with mp.workdps(40):
        a, d = mp.mpf(order), mp.mpf(delta)
        exact = mp.log1p(-1 / a) - (mp.log(d) + mp.log(a)) / (a - 1)
        cost = float(conversion_costs(np.array([order]), delta=delta)[0])
        excess = mp.mpf(cost) - exact
        assert 0 <= excess <= 1e-13 * (1 + abs(exact))


@PROPERTY
@given(rdp=st.floats(1e-3, 1e9), order=st.sampled_from(ORDERS.tolist()), delta=DELTA)
def test_epsilon_is_the_exact_conversion_from_above(rdp: float, order: float, delta: float) -> None:
    with mp.workdps(40):
        a, d = mp.mpf(order), mp.mpf(delta)
        exact = mp.mpf(rdp) + mp.log1p(-1 / a) - (mp.log(d) + mp.log(a)) / (a - 1)
        epsilon, _ = rdp_epsilon(rdp=np.array([rdp]), orders=np.array([order]), delta=delta)
        assert max(exact, 0) <= epsilon
        assert epsilon <= max(exact, 0) + mp.mpf(1e-12) * (1 + abs(exact))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 4.0, 60.0])
@pytest.mark.parametrize("sigma", [0.4, 2.0, 30.0])
def test_delta_is_the_exact_conversion_from_above(sigma: float, epsilon: float) -> None:
    rdp = gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=ORDERS)
    with mp.workdps(40):
        exact = min(
            mp.exp((mp.mpf(a) - 1) * (mp.mpf(r) - epsilon + mp.log1p(-1 / mp.mpf(a)))) / mp.mpf(a)
            for a, r in zip(ORDERS.tolist(), rdp.tolist(), strict=True)
        )
    delta, _ = rdp_delta(rdp=rdp, orders=ORDERS, epsilon=epsilon)
    assert min(exact, 1) <= delta <= max(exact * (1 + 1e-10), mp.mpf(5e-324))


@PROPERTY
@given(sigma=SIGMA, delta=DELTA)
def test_epsilon_to_delta_and_back_returns(sigma: float, delta: float) -> None:
    rdp = gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=ORDERS)
    epsilon, _ = rdp_epsilon(rdp=rdp, orders=ORDERS, delta=delta)
    if epsilon > 0:
        assert rdp_delta(rdp=rdp, orders=ORDERS, epsilon=epsilon)[0] == pytest.approx(
            delta, rel=1e-9
        )


@PROPERTY
@given(sigma=SIGMA, delta=DELTA, more=st.floats(1.01, 9))
def test_epsilon_falls_with_delta_and_rises_with_the_curve(
    sigma: float, delta: float, more: float
) -> None:
    rdp = gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=ORDERS)
    epsilon, _ = rdp_epsilon(rdp=rdp, orders=ORDERS, delta=delta)
    assert rdp_epsilon(rdp=rdp, orders=ORDERS, delta=delta * more)[0] <= epsilon
    assert rdp_epsilon(rdp=rdp * more, orders=ORDERS, delta=delta)[0] >= epsilon
    smaller, _ = rdp_delta(rdp=rdp, orders=ORDERS, epsilon=epsilon + more)
    larger, _ = rdp_delta(rdp=rdp, orders=ORDERS, epsilon=epsilon)
    assert smaller <= larger


@PROPERTY
@given(sigma=SIGMA, delta=DELTA, epsilon=st.floats(0, 20))
def test_no_conversion_is_below_the_exact_gaussian(
    sigma: float, delta: float, epsilon: float
) -> None:
    rdp = gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=ORDERS)
    mu = 1 / sigma
    lower = gaussian_epsilon(delta, mu=mu) * (1 - 1e-9)
    assert rdp_epsilon(rdp=rdp, orders=ORDERS, delta=delta)[0] >= lower
    exact = gaussian_delta(epsilon, mu=mu)
    assert rdp_delta(rdp=rdp, orders=ORDERS, epsilon=epsilon)[0] >= exact * (1 - 1e-9)


def test_orders_at_which_nothing_is_known_are_passed_over() -> None:
    rdp, orders = np.array([np.inf, 0.5, np.inf]), np.array([2.0, 8.0, 9.0])
    assert rdp_epsilon(rdp=rdp, orders=orders, delta=1e-5)[1] == 8
    assert rdp_delta(rdp=rdp, orders=orders, epsilon=2.0)[1] == 8


def test_a_curve_that_is_nowhere_known_says_nothing() -> None:
    rdp, orders = np.array([np.inf, np.inf]), np.array([2.0, 8.0])
    assert rdp_epsilon(rdp=rdp, orders=orders, delta=1e-5)[0] == math.inf
    assert rdp_delta(rdp=rdp, orders=orders, epsilon=2.0)[0] == 1


def test_a_curve_of_zeros_has_epsilon_zero() -> None:
    assert rdp_epsilon(rdp=np.zeros(2), orders=np.array([2.0, 8.0]), delta=0.5)[0] == 0


@pytest.mark.parametrize("wrong", [-1e-300, -1.0, np.nan])
def test_a_curve_that_is_negative_or_no_number_is_refused(wrong: float) -> None:
    rdp, orders = np.array([0.5, wrong]), np.array([2.0, 8.0])
    with pytest.raises(ValueError, match="not negative"):
        rdp_epsilon(rdp=rdp, orders=orders, delta=1e-5)
    with pytest.raises(ValueError, match="not negative"):
        rdp_delta(rdp=rdp, orders=orders, epsilon=1.0)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.5, np.nan])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta lies in"):
        rdp_epsilon(rdp=np.array([0.5]), orders=np.array([2.0]), delta=delta)


@pytest.mark.parametrize("epsilon", [-1e-9, np.nan])
def test_an_epsilon_out_of_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon is not negative"):
        rdp_delta(rdp=np.array([0.5]), orders=np.array([2.0]), epsilon=epsilon)


@pytest.mark.parametrize("order", [1.0, 0.5, -2.0, math.nan])
def test_an_order_that_is_not_above_one_converts_nothing(order: float) -> None:
    curve = {"rdp": np.array([0.5, 0.7]), "orders": np.array([2.0, order])}
    for convert in (rdp_epsilon, classical_rdp_epsilon):
        with pytest.raises(ValueError, match="Orders lie above 1"):
            convert(**curve, delta=1e-5)
    with pytest.raises(ValueError, match="Orders lie above 1"):
        rdp_delta(**curve, epsilon=1.0)
