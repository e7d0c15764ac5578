"""Renyi curves of balls and bins and of random allocation, against sums, integrals and tables."""

import math
from functools import lru_cache
from itertools import product
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import THEOREMS
from accounting.pld.certified_composition import lower_epsilon
from accounting.renyi import allocation
from accounting.renyi.allocation import allocation_rdp, random_allocation_rdp
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import gaussian_rdp
from accounting.rounding import Array
from accounting.shuffling.allocation import allocation_lower_pair
from accounting.shuffling.sums import mean_table

FEW = np.array([1.1, 1.5, 2.0, 2.5, 4.0, 9.5, 32.0, 256.0])


def _curve(sigma: float, steps: int, orders: Array = FEW) -> Array:
    return allocation_rdp(noise_multiplier=sigma, steps_per_pass=steps, orders=orders)


def _gaussian(sigma: float, orders: Array = FEW) -> Array:
    return gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=orders)


def _whole(order: int, sigma: float, steps: int) -> Any:
    """E[S^n] by all ways to choose n steps, exactly but for mpmath's digits."""
    total = mp.mpf(0)
    for choice in product(range(steps), repeat=order):
        pairs = sum(m * (m - 1) // 2 for m in np.bincount(choice).tolist())
        total += mp.exp(pairs / mp.mpf(sigma) ** 2)
    return total / mp.mpf(steps) ** order


@lru_cache
def _ratios(sigma: float, steps: int, count: int = 601) -> tuple[Array, Array]:
    """S and weights for a trapezoidal sum over one, two or three variables."""
    reach = 8.0 + 6 / sigma
    z = np.linspace(-reach, reach, count if steps < 3 else 201)
    one = np.exp(-0.5 * z * z) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    y = np.exp((z - 0.5 / sigma) / sigma)
    total, weights = y, one
    for _ in range(steps - 1):
        total, weights = np.add.outer(total, y).ravel(), np.outer(weights, one).ravel()
    return total / steps, weights


def _power(power: float, sigma: float, steps: int) -> float:
    s, weights = _ratios(sigma, steps)
    return float(s**power @ weights)


@pytest.mark.parametrize(("sigma", "steps"), [(0.5, 2), (1.0, 3), (2.0, 4), (10.0, 2)])
def test_whole_orders_count_the_ways_to_meet(sigma: float, steps: int) -> None:
    orders = np.array([2.0, 3.0, 5.0])
    with mp.workdps(40):
        exact = [mp.log(_whole(int(n), sigma, steps)) / (n - 1) for n in orders]
    for found, wanted in zip(_curve(sigma, steps, orders), exact, strict=True):
        assert float(wanted) <= found <= float(wanted) * (1 + 1e-9)


@pytest.mark.parametrize(("sigma", "steps"), [(0.7, 2), (1.0, 2), (1.0, 3), (3.0, 3)])
@pytest.mark.parametrize("order", [1.1, 1.7, 2.5, 4.4, 8.0])
def test_each_order_is_above_both_integrals(sigma: float, steps: int, order: float) -> None:
    removed, added = (_power(power, sigma, steps) for power in (order, 1 - order))
    found = allocation._log_added(np.array([order]), sigma, steps)[0]
    assert math.expm1(math.log(added)) == pytest.approx(math.exp(found), rel=1e-6)
    exact = math.log(max(removed, added)) / (order - 1)
    loose = 0.25 / sigma**2 / (order - 1) if order > 2 and order % 1 else 0.0
    bound = _curve(sigma, steps, np.array([order]))[0]
    assert exact * (1 - 1e-6) <= bound <= exact * (1 + 1e-6) + loose


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 50), (0.5, 7), (4.0, 235)])
def test_curves_lie_between_the_moments_of_tables(sigma: float, steps: int) -> None:
    orders = np.array([1.3, 2.0, 3.0])
    lower, upper = (mean_table(sigma, steps, upper=side) for side in (False, True))
    places, masses = upper.places[1:], upper.masses[1:]
    for order, found in zip(orders, _curve(sigma, steps, orders), strict=True):

        def moment(s: Array, q: Array, power: float = order) -> float:
            return math.log(float((s**power - 1 - power * (s - 1)) @ q) + 1) / (power - 1)

        assert moment(lower.places, lower.masses) <= found * (1 + 1e-9)
        assert found <= moment(places, masses) * 1.001


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 1e3])
@pytest.mark.parametrize("steps", [10**6, 10**9, 10**12])
def test_long_passes_lose_no_digits(sigma: float, steps: int) -> None:
    r = math.expm1(1 / sigma**2)
    # E[S^3] - 1 = 3 r/T + r^2 (r+3)/T^2
    exact = np.array(
        [math.log1p(r / steps), math.log1p(3 * r / steps + r * r * (r + 3) / steps**2) / 2]
    )
    found = _curve(sigma, steps, np.array([2.0, 3.0]))
    assert np.all(exact * (1 - 1e-15) <= found)
    assert np.all(found <= exact * (1 + 1e-9))
    # For so long a pass E[S^p] - 1 is p (p-1) r / (2T), but for terms of its square.
    early = np.array([1.001, 1.5, 1.99])
    if sigma >= 1:
        assert np.allclose(_curve(sigma, steps, early), 0.5 * early * r / steps, rtol=1e-5)
        added = np.exp(allocation._log_added(early, sigma, steps))
        assert np.allclose(added, 0.5 * early * (early - 1) * r / steps, rtol=1e-5)


def test_one_step_a_pass_is_a_gaussian_release() -> None:
    assert np.array_equal(_curve(1.3, 1), _gaussian(1.3))


@pytest.mark.parametrize("sigma", [0.1, 0.2499, 1.1e6])
def test_noise_out_of_reach_is_bounded_by_a_gaussian_release(sigma: float) -> None:
    assert np.array_equal(_curve(sigma, 100), _gaussian(sigma))


def test_large_orders_serve_large_noise_only() -> None:
    orders = np.array([63.0, 64.5, 1024.0])
    assert np.array_equal(_curve(1.9, 100, orders) < _gaussian(1.9, orders), [True, False, False])
    assert np.all(_curve(2.0, 10**4, orders) < 0.95 * _gaussian(2.0, orders))
    alone = np.array([1024.0])
    assert np.array_equal(_curve(1.9, 100, alone), _gaussian(1.9, alone))
    assert _curve(30.0, 10**4, alone)[0] == _curve(30.0, 10**4, orders)[2]
    assert _curve(30.0, 10**4, alone)[0] < 1e-3 * _gaussian(30.0, alone)[0]


def test_where_the_integral_gives_up_the_geometric_mean_serves() -> None:
    order = np.array([60.0])
    low = allocation._log_low(1 - order, 0.5, 2)[0]
    assert low == math.inf
    exponent = 59 * (1 + 59 / 2) / (2 * 0.25)
    assert allocation._log_added(order, 0.5, 2)[0] == pytest.approx(exponent, rel=1e-12)
    assert _curve(0.5, 2, order)[0] < _gaussian(0.5, order)[0]


@settings(max_examples=15, deadline=None)
@given(
    sigma=st.floats(0.3, 20),
    steps=st.integers(2, 5000),
    more=st.floats(1.0, 3.0),
)
def test_more_noise_or_more_steps_never_cost_more(sigma: float, steps: int, more: float) -> None:
    curve = _curve(sigma, steps)
    assert np.all(curve <= _gaussian(sigma))
    assert np.all(np.diff(curve) >= -1e-9 * curve[1:])
    for other in (_curve(sigma * more, steps), _curve(sigma, math.ceil(steps * more))):
        whole = np.floor(FEW) == FEW  # elsewhere, and beyond the grids, bounds are not exact
        whole[-1] = False
        assert np.all(other[whole] <= curve[whole] * (1 + 1e-9))


def test_participations_cost_as_many_blocks() -> None:
    found = random_allocation_rdp(
        noise_multiplier=1.0, steps_per_pass=11, participations=3, orders=FEW
    )
    assert np.allclose(found, 3 * _curve(1.0, 3), rtol=1e-14)
    even = random_allocation_rdp(
        noise_multiplier=1.0, steps_per_pass=8, participations=2, orders=FEW
    )
    assert np.allclose(even, 2 * _curve(1.0, 4), rtol=1e-14)


@pytest.mark.parametrize(("sigma", "steps", "passes"), [(1.0, 100, 10), (0.6, 10, 3)])
def test_the_curve_costs_no_less_than_some_dataset_loses(
    sigma: float, steps: int, passes: int
) -> None:
    floor = allocation_lower_pair(noise_multiplier=sigma, steps_per_pass=steps, steps=steps)
    lower = lower_epsilon(((floor, passes),), delta=1e-5)
    curve = passes * _curve(sigma, steps, ORDERS)
    upper = rdp_epsilon(rdp=curve, orders=ORDERS, delta=1e-5)[0]
    assert lower <= upper <= 1.5 * lower


def test_grids_too_coarse_for_their_error_are_refused() -> None:
    with pytest.raises(ArithmeticError, match="too coarse"):
        allocation._with_strip(np.zeros(1), np.array([-30.0]), h=0.5, log_share=0.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"steps_per_pass": 0}, "steps_per_pass"),
        ({"orders": np.array([1.0])}, "Orders"),
    ],
)
def test_what_is_no_pass_is_refused(changed: dict[str, Any], message: str) -> None:
    passed: dict[str, Any] = {"noise_multiplier": 1.0, "steps_per_pass": 3, "orders": FEW} | changed
    with pytest.raises(ValueError, match=message):
        allocation_rdp(**passed)
    with pytest.raises(ValueError, match=message):
        random_allocation_rdp(**passed, participations=1)


@pytest.mark.parametrize("participations", [0, 4])
def test_participations_fit_into_the_pass(participations: int) -> None:
    with pytest.raises(ValueError, match="participations"):
        random_allocation_rdp(
            noise_multiplier=1.0, steps_per_pass=3, participations=participations, orders=FEW
        )


def test_its_theorems_are_listed() -> None:
    assert set(allocation.THEOREMS) <= set(THEOREMS)
