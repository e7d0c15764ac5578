"""Where the formulas are pushed hardest: very little noise, rates next to one."""

import math

import mpmath as mp
import numpy as np
import pytest

from accounting.events import Direction
from accounting.gaussian import gaussian_epsilon, log_gaussian_delta
from accounting.pld.certified_composition import delta_bracket
from accounting.pld.pairs import SampledGaussianPair
from accounting.renyi.moments import log_real_moments
from accounting.renyi.poisson import curve_of, poisson_gaussian_rdp


@pytest.mark.parametrize("delta", [0.5, 0.008524937849931495, 1e-6, 1e-300])
@pytest.mark.parametrize("mu", [1e3, 1e8, 381047100.50498027, 1e9, 1e13])
def test_epsilon_of_very_little_noise_is_never_understated(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(delta, mu=mu)
    with mp.workdps(60):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        a, b = e / m - m / 2, e / m + m / 2
        # e^epsilon Phi(-b) = phi(a) m(b), and Mills' ratio at such b is 1/b (1 - 1/b^2 ...) <= 1/b.
        exact_upper_part = mp.ncdf(-a)
        second = mp.npdf(a) * (1 / b - 1 / b**3)
        assert exact_upper_part - second <= mp.mpf(delta) * (1 + mp.mpf(10) ** -9)


def test_the_error_of_log_delta_is_bounded_where_large_terms_would_cancel() -> None:
    for mu in (1e8, 1e10, 1e13):
        for a in (-3.0, -0.5, 0.0):
            epsilon = mu * (a + mu / 2)
            found, error = log_gaussian_delta(epsilon, mu=mu)
            with mp.workdps(60):
                at = mp.mpf(epsilon) / mp.mpf(mu) - mp.mpf(mu) / 2
                exact = mp.log(mp.ncdf(-at))  # the second term is below 1/b
                assert abs(mp.mpf(found) - exact) <= error + mp.mpf(1) / mu


@pytest.mark.parametrize(
    ("beta", "short", "sigma"),
    [(-40.0, 1e-15, 1.0), (-62.0, 1e-12, 1.0), (-10.0, 1e-6, 0.7), (-3.0, 1e-15, 5.0)],
)
def test_negative_powers_are_bounded_where_the_rate_is_next_to_one(
    beta: float, short: float, sigma: float
) -> None:
    q = 1 - short
    found = float(log_real_moments(np.array([beta]), q=q, sigma=sigma)[0])
    with mp.workdps(50):
        rate, s = mp.mpf(q), mp.mpf(sigma)

        def integrand(x: mp.mpf) -> mp.mpf:
            ratio = (1 - rate) + rate * mp.e ** ((2 * x - 1) / (2 * s * s))
            return mp.npdf(x, 0, s) * (ratio**beta - 1 - beta * (ratio - 1))

        low, high = float(beta) - 20 * sigma, 20 * sigma + 1
        points = [mp.mpf(low) + (high - low) * mp.mpf(k) / 40 for k in range(41)]
        exact = mp.log(mp.quad(integrand, points, method="gauss-legendre", maxdegree=5))
        assert 0 <= mp.mpf(found) - exact < 1e-3


def test_a_moment_too_small_for_a_double_still_costs_something() -> None:
    assert curve_of(np.array([-800.0]), np.array([2.0]))[0] > 0


def test_the_added_record_with_very_little_noise_is_bounded() -> None:
    q, sigma, orders = 1.252837029582718e-12, 9.177e-5, np.array([64.0])
    found = poisson_gaussian_rdp(
        noise_multiplier=sigma, sampling_probability=q, orders=orders, direction=Direction.ADD
    )
    assert found[0] >= -math.log1p(-q)


def test_a_lattice_without_a_point_where_the_answer_lies_is_given_up_on() -> None:
    pair = SampledGaussianPair(noise_multiplier=0.01, sampling_probability=0.01)
    found = delta_bracket(((pair, 3000),), epsilon=1.0)
    # Each step that a record joins gives it away, and one of 3000 does.
    assert found.lower <= 1 - 0.99**3000 <= found.upper
