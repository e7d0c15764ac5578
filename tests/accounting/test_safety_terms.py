"""Each term that only ever raises a bound: without it the bound falls below the truth."""

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from accounting import gaussian
from accounting.renyi import moments
from accounting.rounding import Array

# (power, q, sigma): both signs, peaks inside and outside the bulk.
CASES = [(1.5, 0.5, 2.0), (2.5, 0.9, 2.0), (-0.5, 0.9, 2.0), (-2.5, 0.5, 1.0)]


def nothing(betas: Array, *_: Any, **__: Any) -> Array:
    return np.full(len(betas), -np.inf)


def excess(beta: float, q: float, sigma: float, exact_moment: Any) -> float:
    """How far the log moment lies above the exact one."""
    (bound,) = moments.log_real_moments(np.array([beta]), q=q, sigma=sigma)
    return float(bound - mp.log(exact_moment(beta, q, sigma)))


@pytest.mark.parametrize(("beta", "q", "sigma"), CASES)
def test_the_tails_cover_what_a_near_cut_leaves_out(
    beta: float, q: float, sigma: float, exact_moment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "_CUT", 1.5)
    assert excess(beta, q, sigma, exact_moment) > 0
    monkeypatch.setattr(moments, "_log_tails", nothing)
    assert excess(beta, q, sigma, exact_moment) < -0.01


@pytest.mark.parametrize(("beta", "q", "sigma"), CASES)
def test_the_strip_bound_covers_the_error_of_a_coarse_grid(
    beta: float, q: float, sigma: float, exact_moment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "_TARGET", 1.0)
    if q == 0.9:
        monkeypatch.setattr(moments, "_TARGET", 2.0)  # with 1 the grid is refused
    assert excess(beta, q, sigma, exact_moment) > 0
    monkeypatch.setattr(moments, "_log_strip_error", nothing)
    assert excess(beta, q, sigma, exact_moment) < -0.01


@pytest.mark.parametrize("beta", [2.5, -2.5])
@pytest.mark.parametrize(("q", "sigma"), [(0.1, 0.5), (0.5, 1.0), (0.9, 0.3)])
@pytest.mark.parametrize("cut", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("target", [2.5, 6.0])
def test_bounds_hold_however_coarse_and_near_the_grid(
    beta: float,
    q: float,
    sigma: float,
    cut: float,
    target: float,
    exact_moment: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moments, "_CUT", cut)
    monkeypatch.setattr(moments, "_TARGET", target)
    assert excess(beta, q, sigma, exact_moment) > 0


def test_a_grid_that_cannot_bound_its_own_error_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moments, "_TARGET", 0.0)
    with pytest.raises(ArithmeticError, match="too coarse"):
        moments.log_real_moments(np.array([2.5]), q=0.9, sigma=1.0)


def test_the_grid_reaches_a_peak_far_to_the_left(exact_moment: Any) -> None:
    # A large negative power moves the peak by nearly its own size, here past the cut at -14 sigma.
    assert 0 < excess(-1000.0, 0.9, 20.0, exact_moment) < 1e-8


@pytest.mark.parametrize("beta", [1 + 1e-9, 1 + 1e-6, 1.001, 2.5, -0.001, -2.5])
def test_powers_near_one_lose_digits_that_are_added_back(beta: float, exact_moment: Any) -> None:
    for q, sigma in ((0.1, 0.4), (0.9, 2.0)):
        assert excess(beta, q, sigma, exact_moment) > 0


def test_rounding_is_added_to_quadrature(
    exact_moment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "UNIT_ROUNDOFF", 0.0)
    assert excess(1 + 1e-9, 0.1, 0.4, exact_moment) < 0
    assert excess(1 + 1e-6, 0.9, 2.0, exact_moment) < 0


@pytest.mark.parametrize(
    ("beta", "q", "sigma"), [(7.5, 0.3, 0.15), (4.0, 3e-66, 0.1036), (-300.5, 0.99999, 2.0)]
)
def test_exponents_beyond_doubles_are_taken_as_logarithms(
    beta: float, q: float, sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bound,) = moments.log_real_moments(np.array([beta]), q=q, sigma=sigma)
    monkeypatch.setattr(moments, "_EXPONENT_MAX", math.inf)
    with np.errstate(all="ignore"):
        (other,) = moments.log_real_moments(np.array([beta]), q=q, sigma=sigma)
    assert math.isfinite(bound)
    assert not math.isfinite(other)


@pytest.mark.parametrize(("beta", "q", "sigma"), [*CASES, (10.9, 0.01, 0.9), (1.1, 1e-5, 300.0)])
def test_sums_of_doubles_and_of_logarithms_agree(
    beta: float, q: float, sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bound,) = moments.log_real_moments(np.array([beta]), q=q, sigma=sigma)
    monkeypatch.setattr(moments, "_EXPONENT_MAX", 0.0)
    (other,) = moments.log_real_moments(np.array([beta]), q=q, sigma=sigma)
    assert bound == pytest.approx(other, rel=1e-13, abs=1e-11)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 2.0), (0.3, 0.7), (0.999, 30.0), (1e-9, 1.0)])
def test_powers_that_share_a_grid_are_each_bounded(
    q: float, sigma: float, sign: int, exact_moment: Any
) -> None:
    betas = np.array([1.0001, 1.1, 2.5, 7.7, 10.9])
    betas = betas if sign > 0 else 1 - betas
    bounds = moments.log_real_moments(betas, q=q, sigma=sigma)
    for beta, bound in zip(betas, bounds, strict=True):
        assert 0 < float(bound - mp.log(exact_moment(float(beta), q, sigma))) < 1e-5


def integer_shortfalls() -> int:
    """How many binomial sums come out below their exact value."""
    below = 0
    for order in (2, 3, 5, 9, 17, 40):
        for q in (0.001, 0.03, 0.2, 0.7):
            for sigma in (0.037, 0.37, 0.9, 3.1):
                with mp.workdps(50):
                    exact = mp.fsum(
                        mp.binomial(order, k)
                        * (1 - mp.mpf(q)) ** (order - k)
                        * mp.mpf(q) ** k
                        * mp.expm1(k * (k - 1) / (2 * mp.mpf(sigma) ** 2))
                        for k in range(2, order + 1)
                    )
                    bound = moments.log_integer_moments([order], q=q, sigma=sigma)[0]
                    below += bool(bound < mp.log(exact))
    return below


def test_rounding_is_added_to_binomial_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    assert integer_shortfalls() == 0
    monkeypatch.setattr(moments, "UNIT_ROUNDOFF", 0.0)
    assert integer_shortfalls() > 0


def gaussian_shortfalls() -> int:
    """How many deltas come out below their exact value."""
    below = 0
    for mu in (0.013, 0.2, 0.7, 2.3, 9.1):
        for share in (0.0, 0.3, 1.1, 2.9, 6.7, 11.3):
            epsilon = share * mu + 0.5 * mu * mu
            with mp.workdps(80):
                e, m = mp.mpf(epsilon), mp.mpf(mu)
                exact = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
            below += bool(mp.mpf(gaussian.gaussian_delta(epsilon, mu=mu)) < exact)
    return below


def test_rounding_is_added_to_the_gaussian_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gaussian_shortfalls() == 0
    monkeypatch.setattr(gaussian, "UNIT_ROUNDOFF", 0.0)
    monkeypatch.setattr(gaussian, "rounded_up", lambda value, **_: value)
    assert gaussian_shortfalls() > 0
