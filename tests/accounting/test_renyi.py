import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.events import Direction
from accounting.renyi import moments
from accounting.renyi.moments import NOISE_MIN, log_integer_moments, log_real_moments
from accounting.renyi.orders import ORDER_MAX, ORDERS
from accounting.renyi.passes import gaussian_per_pass_rdp
from accounting.renyi.poisson import (
    add_moments,
    curve_of,
    gaussian_rdp,
    poisson_gaussian_rdp,
    remove_moments,
)
from accounting.rounding import Array

# (sampling probability, noise multiplier), corners included.
SETTINGS = [
    (0.01, 1.0),
    (1e-7, 0.7),
    (1e-4, 0.15),
    (0.3, 0.3),
    (0.9, 1.0),
    (0.004, 4.0),
    (0.5, 20.0),
    (1e-3, 100.0),
]
ACCURACY = 1e-8
PROPERTY = settings(deadline=None, max_examples=25)
SIGMA = st.floats(0.05, 200)
PROBABILITY = st.floats(1e-8, 0.999)


def curve(
    orders: list[float] | Array, *, q: float, sigma: float, direction: Direction = Direction.REMOVE
) -> Array:
    return poisson_gaussian_rdp(
        noise_multiplier=sigma,
        sampling_probability=q,
        orders=np.asarray(orders, dtype=np.float64),
        direction=direction,
    )


def assert_upper(bound: float, exact: Any, *, within: float) -> None:
    """The bound is nowhere below the exact value, and above it by at most a relative amount."""
    with mp.workdps(40):
        excess = (mp.mpf(float(bound)) - exact) / exact
        assert 0 <= excess <= within, f"relative excess {mp.nstr(excess, 5)}"


@pytest.mark.no_cover
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
def test_the_curve_is_the_defining_integral_from_above(
    q: float, sigma: float, add: bool, exact_rdp: Callable[..., Any]
) -> None:
    orders = [1.1, 4.5, 33.7]
    bounds = curve(orders, q=q, sigma=sigma, direction=Direction.ADD if add else Direction.REMOVE)
    for order, bound in zip(orders, bounds, strict=True):
        assert_upper(bound, exact_rdp(order, q=q, sigma=sigma, add=add), within=ACCURACY)


@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
def test_integer_orders_are_the_exact_binomial_sum_from_above(q: float, sigma: float) -> None:
    for order in (2, 3, 8, 63, 256):
        with mp.workdps(60):
            rate, variance = mp.mpf(q), mp.mpf(sigma) ** 2
            exact = mp.fsum(
                mp.binomial(order, k)
                * (1 - rate) ** (order - k)
                * rate**k
                * mp.expm1(k * (k - 1) / (2 * variance))
                for k in range(2, order + 1)
            )
            exact_curve = mp.log1p(exact) / (order - 1)
        (bound,) = curve([float(order)], q=q, sigma=sigma)
        assert_upper(bound, exact_curve, within=1e-10)


@pytest.mark.parametrize("q", [1e-12, 1e-3, 0.3, 0.9, 1 - 1e-9])
def test_with_little_noise_the_last_term_is_nearly_all(q: float) -> None:
    for order, sigma in itertools.product((2, 3, 17, 64), (1e-6, 0.02, 0.05, 0.08, 0.0975, 0.11)):
        with mp.workdps(60):
            terms = [
                mp.binomial(order, k)
                * (1 - mp.mpf(q)) ** (order - k)
                * mp.mpf(q) ** k
                * mp.expm1(k * (k - 1) / (2 * mp.mpf(sigma) ** 2))
                for k in range(2, order + 1)
            ]
            exact = mp.log(mp.fsum(terms))
        found = log_integer_moments([order], q=q, sigma=sigma)[0]
        assert found >= exact
        assert found - exact <= 1e-13 * (1 + abs(exact) + order * abs(math.log(q)))


@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
def test_quadrature_agrees_with_the_binomial_sum_at_integer_orders(q: float, sigma: float) -> None:
    for order in (2, 3, 7, 40):
        (quadrature,) = log_real_moments(np.array([float(order)]), q=q, sigma=sigma)
        assert quadrature == pytest.approx(
            log_integer_moments([order], q=q, sigma=sigma)[0], rel=1e-12, abs=1e-8
        )


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("q", "sigma"), [(1e-3, 0.09), (0.2, 0.05)])
def test_the_closed_forms_for_little_noise_are_upper_bounds(
    q: float, sigma: float, add: bool, exact_rdp: Callable[..., Any]
) -> None:
    assert sigma < NOISE_MIN
    orders = [1.1, 2.5, 6.0]
    bounds = curve(orders, q=q, sigma=sigma, direction=Direction.ADD if add else Direction.REMOVE)
    for order, bound in zip(orders, bounds, strict=True):
        assert_upper(bound, exact_rdp(order, q=q, sigma=sigma, add=add), within=30)


@pytest.mark.parametrize("exponent", [-20, -72, -200, -290])
def test_the_closed_forms_for_little_noise_are_upper_bounds_at_the_smallest_rates(
    exponent: int,
) -> None:
    for part in range(200):
        q = (1 + part / 21) * 10.0**exponent
        (added,) = curve([64.0], q=q, sigma=0.01, direction=Direction.ADD)
        assert q <= added <= q * (1 + 1e-11)  # beside q nothing is left of E[S^-63]
        (between,) = remove_moments(np.array([2.5]), q=q, sigma=0.09)
        with mp.workdps(50):
            ends = [mp.log1p(mp.exp(one)) for one in log_integer_moments([2, 3], q=q, sigma=0.09)]
            chord = mp.log(mp.expm1((ends[0] + ends[1]) / 2))
        assert chord <= between <= max(chord + 1e-11, -743)  # below there are no numbers


@pytest.mark.parametrize(("q", "sigma"), [(1e-8, 0.107), (1e-3, 0.2), (1e-9, 1.0)])
def test_orders_whose_grid_would_be_too_fine_lie_on_chords(q: float, sigma: float) -> None:
    below, between, above = curve([1023.0, 1023.9, 1024.0], q=q, sigma=sigma)
    assert moments.is_too_fine(1023.9, q=q, sigma=sigma)
    chord = (0.1 * 1022 * below + 0.9 * 1023 * above) / 1022.9
    assert chord <= between * (1 + 1e-12)
    assert between <= chord * (1 + 1e-9)
    (added,) = curve([1023.9], q=q, sigma=sigma, direction=Direction.ADD)
    assert 0 < added <= -math.log1p(-q) * (1 + 1e-9)


@pytest.mark.parametrize("direction", list(Direction))
def test_a_chord_is_above_what_a_finer_grid_finds(
    direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = [1.5, 2.25, 5.2, 17.3, 63.5]
    exact = curve(orders, q=0.01, sigma=0.7, direction=direction)
    monkeypatch.setattr(moments, "POINTS_MAX", 400)
    coarse = [moments.is_too_fine(one, q=0.01, sigma=0.7) for one in orders]
    assert coarse == [False, False, False, True, True]
    found = curve(orders, q=0.01, sigma=0.7, direction=direction)
    assert np.all(found >= exact * (1 - 1e-9))
    if direction is Direction.REMOVE:
        assert np.all(found <= exact * 1.1)


def test_the_closed_form_takes_over_from_quadrature_without_a_fall() -> None:
    for direction in Direction:
        below = curve(ORDERS, q=0.01, sigma=NOISE_MIN * (1 - 1e-9), direction=direction)
        above = curve(ORDERS, q=0.01, sigma=NOISE_MIN, direction=direction)
        assert np.all(below >= above * (1 - 1e-6))


@PROPERTY
@given(q=PROBABILITY, sigma=SIGMA)
def test_adding_a_record_never_costs_more_than_removing_it(q: float, sigma: float) -> None:
    remove = curve(ORDERS, q=q, sigma=sigma)
    add = curve(ORDERS, q=q, sigma=sigma, direction=Direction.ADD)
    if sigma >= NOISE_MIN:  # the closed form for an added record is looser
        assert np.all(add <= remove * (1 + 1e-7))


@PROPERTY
@given(q=PROBABILITY, sigma=SIGMA, direction=st.sampled_from(Direction))
def test_subsampling_never_costs_more_than_the_full_batch(
    q: float, sigma: float, direction: Direction
) -> None:
    full = gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=ORDERS)
    assert np.all(curve(ORDERS, q=q, sigma=sigma, direction=direction) <= full)


@PROPERTY
@given(q=PROBABILITY, sigma=st.floats(0.1, 200), factor=st.floats(1.001, 3))
def test_more_noise_never_costs_more(q: float, sigma: float, factor: float) -> None:
    assert np.all(
        curve(ORDERS, q=q, sigma=sigma * factor) <= curve(ORDERS, q=q, sigma=sigma) * (1 + 1e-7)
    )


@PROPERTY
@given(q=PROBABILITY, sigma=SIGMA, share=st.floats(0.01, 0.999))
def test_a_lower_rate_never_costs_more(q: float, sigma: float, share: float) -> None:
    assert np.all(
        curve(ORDERS, q=q * share, sigma=sigma) <= curve(ORDERS, q=q, sigma=sigma) * (1 + 1e-7)
    )


@PROPERTY
@given(q=PROBABILITY, sigma=SIGMA, direction=st.sampled_from(Direction))
def test_a_curve_is_finite_positive_and_rises_with_the_order(
    q: float, sigma: float, direction: Direction
) -> None:
    rdp = curve(ORDERS, q=q, sigma=sigma, direction=direction)
    assert np.all(np.isfinite(rdp) & (rdp > 0))
    assert np.all(rdp[1:] >= rdp[:-1] * (1 - 1e-7))


@PROPERTY
@given(q=PROBABILITY, sigma=st.floats(0.1, 50), order=st.floats(1.01, 100))
def test_an_order_costs_the_same_alone_and_in_company(q: float, sigma: float, order: float) -> None:
    (alone,) = curve([order], q=q, sigma=sigma)
    company = curve([*ORDERS, order], q=q, sigma=sigma)[-1]
    assert alone == pytest.approx(company, rel=1e-7)


def test_a_rate_of_one_is_the_full_batch_and_rates_near_one_tend_to_it() -> None:
    full = gaussian_rdp(noise_multiplier=1.3, sensitivity=1.0, orders=ORDERS)
    for direction in Direction:
        assert np.array_equal(curve(ORDERS, q=1.0, sigma=1.3, direction=direction), full)
        near = curve(ORDERS[:40], q=1 - 1e-9, sigma=1.3, direction=direction)
        np.testing.assert_allclose(near, full[:40], rtol=1e-6)


def test_a_full_batch_costs_half_the_order_times_the_squared_ratio() -> None:
    rdp = gaussian_rdp(noise_multiplier=2.0, sensitivity=1.0, orders=np.array([2.0, 10.0]))
    np.testing.assert_allclose(rdp, [0.25, 1.25], rtol=1e-14)
    for sigma in (0.3, 1.7, 33.3):
        rdp = gaussian_rdp(noise_multiplier=sigma, sensitivity=2.0, orders=ORDERS)
        for order, bound in zip(ORDERS, rdp, strict=True):
            with mp.workdps(40):
                exact = mp.mpf(float(order)) * 2 / mp.mpf(sigma) ** 2
            assert_upper(bound, exact, within=1e-14)


def test_a_pass_costs_one_full_batch_at_its_sensitivity() -> None:
    for sensitivity in (1.0, 2.0):
        assert np.array_equal(
            gaussian_per_pass_rdp(noise_multiplier=1.5, sensitivity=sensitivity, orders=ORDERS),
            gaussian_rdp(noise_multiplier=1.5, sensitivity=sensitivity, orders=ORDERS),
        )


@pytest.mark.parametrize(
    "orders", [[1.0], [0.5], [-2.0], [ORDER_MAX * 1.001], [np.nan], [np.inf], [2.0, 1.0]]
)
def test_orders_out_of_range_are_refused(orders: list[float]) -> None:
    with pytest.raises(ValueError, match="Orders lie in"):
        curve(orders, q=0.01, sigma=1.0)
    with pytest.raises(ValueError, match="Orders lie in"):
        gaussian_rdp(noise_multiplier=1.0, sensitivity=1.0, orders=np.array(orders))


def test_orders_are_one_row() -> None:
    with pytest.raises(ValueError, match="shape"):
        gaussian_rdp(noise_multiplier=1.0, sensitivity=1.0, orders=np.array([[2.0]]))


def test_the_default_orders_are_fixed_and_rising() -> None:
    assert len(ORDERS) == 156
    assert np.all(np.diff(ORDERS) > 0)
    with pytest.raises(ValueError, match="read-only"):
        ORDERS[0] = 1.5


def test_a_curve_that_is_not_a_number_is_refused() -> None:
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(ArithmeticError, match="not negative"),
    ):
        curve_of(np.array([0.0, np.nan]), np.array([2.0, 3.0]))


def test_moments_of_the_largest_order_are_finite() -> None:
    orders = np.array([ORDER_MAX - 0.5, ORDER_MAX])
    assert np.all(np.isfinite(remove_moments(orders, q=0.01, sigma=0.5)))
    assert np.all(np.isfinite(add_moments(orders, q=0.01, sigma=0.5)))
