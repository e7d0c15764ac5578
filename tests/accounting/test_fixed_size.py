import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from accounting.renyi.fixed_size import (
    fixed_size_gaussian_add_remove_rdp,
    fixed_size_gaussian_rdp,
    poisson_gaussian_replace_rdp,
)
from accounting.renyi.orders import ORDERS
from accounting.renyi.poisson import gaussian_rdp, poisson_gaussian_rdp
from accounting.rounding import Array

BATCHES = st.integers(1, 10_000)
SIGMA = st.floats(0.2, 100)
PROPERTY = settings(deadline=None, max_examples=20)


def fixed_size(orders: Array, *, sigma: float, batch_size: int, dataset_size: int) -> Array:
    return fixed_size_gaussian_rdp(
        noise_multiplier=sigma, batch_size=batch_size, dataset_size=dataset_size, orders=orders
    )


def symmetrised_pair_rdp(order: float, *, rate: float, sigma: float) -> float:
    """1 + E[B_alpha(S) + B_(1-alpha)(S); S > 1] by quadrature, in logarithm over alpha - 1.

    S is the ratio of (1-g) N(0, sigma^2) + g N(2, sigma^2) to N(0, sigma^2): above one from x = 1.
    """

    def bregman(power: float, s: float) -> float:
        return math.pow(s, power) - 1 - power * (s - 1)

    def integrand(x: float) -> float:
        s = 1 + rate * math.expm1((2 * x - 2) / sigma**2)
        density = math.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
        return (bregman(order, s) + bregman(1 - order, s)) * density

    ends = sorted({1.0, 2.0, 2 * order, 2 * order + 5 * sigma, 2 * order + 20 * sigma})
    parts = [
        integrate.quad(integrand, low, high, epsabs=0, epsrel=1e-10, limit=400)[0]
        for low, high in pairwise(ends)
    ]
    return math.log1p(math.fsum(parts)) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 2.0, 4.3, 8.0])
@pytest.mark.parametrize(
    ("batch_size", "sigma"), [(10, 1.0), (100, 2.0), (1, 1.5), (500, 10.0), (300, 4.0)]
)
def test_the_bound_dominates_the_symmetrised_pair(
    order: float, batch_size: int, sigma: float
) -> None:
    (bound,) = fixed_size(np.array([order]), sigma=sigma, batch_size=batch_size, dataset_size=1000)
    pair = symmetrised_pair_rdp(order, rate=batch_size / 1000, sigma=sigma)
    # Where noise is large both halves of the pair weigh alike, and the bound counts both.
    assert pair * (1 - 1e-9) <= bound <= 2 * pair * (1 + 1e-9)


@PROPERTY
@given(batch_size=BATCHES, sigma=SIGMA)
def test_a_fixed_size_never_costs_less_than_poisson_sampling_at_its_rate(
    batch_size: int, sigma: float
) -> None:
    poisson = poisson_gaussian_rdp(
        noise_multiplier=sigma, sampling_probability=batch_size / 10_000, orders=ORDERS
    )
    given = {"noise_multiplier": sigma, "dataset_size": 10_000, "orders": ORDERS}
    add_remove = fixed_size_gaussian_add_remove_rdp(batch_size=batch_size, **given)  # type: ignore[arg-type]
    replace = fixed_size(ORDERS, sigma=sigma, batch_size=batch_size, dataset_size=10_000)
    assert np.all(add_remove >= poisson * (1 - 1e-7))
    assert np.all(replace >= add_remove * (1 - 1e-7))


@PROPERTY
@given(batch_size=BATCHES, sigma=SIGMA)
def test_a_fixed_size_never_costs_more_than_replacing_in_the_full_batch(
    batch_size: int, sigma: float
) -> None:
    full = gaussian_rdp(noise_multiplier=sigma, sensitivity=2.0, orders=ORDERS)
    assert np.all(
        fixed_size(ORDERS, sigma=sigma, batch_size=batch_size, dataset_size=10_000) <= full
    )


@PROPERTY
@given(batch_size=st.integers(1, 9_999), sigma=SIGMA, factor=st.floats(1.001, 3))
def test_more_noise_or_a_smaller_batch_never_costs_more(
    batch_size: int, sigma: float, factor: float
) -> None:
    cost = fixed_size(ORDERS, sigma=sigma, batch_size=batch_size + 1, dataset_size=10_000)
    smaller = fixed_size(ORDERS, sigma=sigma, batch_size=batch_size, dataset_size=10_000)
    noisier = fixed_size(
        ORDERS, sigma=sigma * factor, batch_size=batch_size + 1, dataset_size=10_000
    )
    assert np.all(smaller <= cost * (1 + 1e-7))
    assert np.all(noisier <= cost * (1 + 1e-7))


def test_a_batch_of_the_whole_dataset_is_the_full_batch() -> None:
    full = gaussian_rdp(noise_multiplier=1.5, sensitivity=2.0, orders=ORDERS)
    assert np.array_equal(fixed_size(ORDERS, sigma=1.5, batch_size=7, dataset_size=7), full)
    both = fixed_size_gaussian_add_remove_rdp(
        noise_multiplier=1.5, batch_size=7, dataset_size=7, orders=ORDERS
    )
    np.testing.assert_allclose(both, full, rtol=1e-14)


def test_adding_or_removing_is_poisson_sampling_at_half_the_noise() -> None:
    fixed = fixed_size_gaussian_add_remove_rdp(
        noise_multiplier=2.0, batch_size=10, dataset_size=1000, orders=ORDERS
    )
    poisson = poisson_gaussian_rdp(noise_multiplier=1.0, sampling_probability=0.01, orders=ORDERS)
    assert np.array_equal(fixed, poisson)


def test_replacing_under_poisson_sampling_is_the_same_pair_at_the_same_rate() -> None:
    poisson = poisson_gaussian_replace_rdp(
        noise_multiplier=2.0, sampling_probability=0.01, orders=ORDERS
    )
    fixed = fixed_size(ORDERS, sigma=2.0, batch_size=10, dataset_size=1000)
    assert np.array_equal(poisson, fixed)


@pytest.mark.parametrize("orders", [[1.0], [np.nan], [1e9]])
def test_orders_out_of_range_are_refused(orders: list[float]) -> None:
    with pytest.raises(ValueError, match="Orders lie in"):
        fixed_size(np.array(orders), sigma=1.0, batch_size=1, dataset_size=10)
    with pytest.raises(ValueError, match="Orders lie in"):
        poisson_gaussian_replace_rdp(
            noise_multiplier=1.0, sampling_probability=0.1, orders=np.array(orders)
        )
