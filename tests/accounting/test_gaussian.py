import math
from itertools import product
from typing import Any

import mpmath as mp
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from accounting.accountants.best_bound import guarantee
from accounting.accountants.composed_bounds import compose_gdp
from accounting.event_counts import EventCounts
from accounting.events import Event, Full, Gaussian, NeighboringRelation
from accounting.gaussian import (
    MU_MAX,
    gaussian_delta,
    gaussian_dp,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_trade_off,
)

MUS = [1e-6, 1e-3, 0.1, 0.4999, 0.5, 1.0, 3.0, 10.0, 100.0, 1e3]
DELTAS = [0.5, 0.1, 1e-3, 1e-6, 1e-12, 1e-50, 1e-150, 1e-300]
ACCURACY = 1e-10
# Deep tails cancel: the two terms of the profile agree to hundreds of digits of what they are.
DIGITS = 700
PROPERTY = settings(deadline=None)


def exact_delta(epsilon: Any, mu: float) -> Any:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
    with mp.workdps(DIGITS):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


@pytest.mark.no_cover
@pytest.mark.parametrize(("mu", "delta"), list(product(MUS, DELTAS)))
def test_epsilon_is_the_least_at_which_the_exact_delta_is_reached(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(delta, mu=mu)
    assert exact_delta(epsilon, mu) <= delta
    if epsilon > 0:
        assert exact_delta(epsilon * (1 - ACCURACY), mu) > delta


@pytest.mark.no_cover
@pytest.mark.parametrize(("mu", "delta"), list(product(MUS, DELTAS)))
def test_delta_is_an_upper_bound_of_the_exact_profile(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(delta, mu=mu) * 0.999
    exact = exact_delta(epsilon, mu)
    assert exact <= gaussian_delta(epsilon, mu=mu) <= exact * (1 + ACCURACY)


@pytest.mark.parametrize("mu", MUS)
def test_delta_at_epsilon_zero_is_the_total_variation(mu: float) -> None:
    with mp.workdps(40):
        exact = mp.erf(mp.mpf(mu) / mp.sqrt(8))
    assert exact <= gaussian_delta(0.0, mu=mu) <= exact * (1 + ACCURACY)


@PROPERTY
@given(
    mu=st.floats(1e-3, 50),
    epsilon=st.floats(0, 100),
    more=st.floats(1.001, 2),
)
def test_delta_rises_with_mu_and_falls_with_epsilon(mu: float, epsilon: float, more: float) -> None:
    delta = gaussian_delta(epsilon, mu=mu)
    assert delta <= gaussian_delta(epsilon, mu=mu * more) * (1 + ACCURACY) + 1e-300
    assert delta >= gaussian_delta(epsilon * more, mu=mu) * (1 - ACCURACY) - 1e-300


@pytest.mark.no_cover
@pytest.mark.parametrize(("epsilon", "delta"), list(product([0.0, 0.1, 1.0, 8.0, 100.0], DELTAS)))
def test_mu_inverts_the_profile_from_below(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta=delta)
    assert exact_delta(epsilon, mu) <= delta
    assert exact_delta(epsilon, mu * (1 + ACCURACY)) > delta
    if epsilon > 0:
        assert gaussian_epsilon(delta, mu=mu) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("mu", [0.0, 1e-3, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("rate", [0.0, 1e-10, 1e-3, 0.2, 0.5, 0.9, 1.0])
def test_the_trade_off_curve_is_the_exact_one(rate: float, mu: float) -> None:
    if rate in (0.0, 1.0):
        assert gaussian_trade_off(rate, mu=mu) == 1 - rate
        return
    with mp.workdps(40):
        quantile = mp.sqrt(2) * mp.erfinv(1 - 2 * mp.mpf(rate))
        exact = mp.ncdf(quantile - mu)
    assert gaussian_trade_off(rate, mu=mu) == pytest.approx(float(exact), rel=1e-12)


@PROPERTY
@given(mu=st.floats(0.05, 8), epsilon=st.floats(0, 20))
def test_the_trade_off_curve_touches_the_line_of_every_epsilon(mu: float, epsilon: float) -> None:
    # The curve is the convex dual of the profile: its tangent of slope -e^epsilon meets the axis
    # at 1 - delta(epsilon), and the curve lies above every such line.
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    touching = 0.5 * math.erfc(b / math.sqrt(2))
    assume(touching > 1e-300)
    delta = gaussian_delta(epsilon, mu=mu)
    line = 1 - delta - math.exp(epsilon) * touching
    assert gaussian_trade_off(touching, mu=mu) == pytest.approx(line, abs=1e-9)
    for rate in (touching / 3, min(1.0, 3 * touching), 0.5 * math.erfc(a)):
        below = 1 - delta - math.exp(epsilon) * rate
        assert gaussian_trade_off(rate, mu=mu) >= below - 1e-9


def test_mu_of_a_step_is_sensitivity_over_noise() -> None:
    assert gaussian_dp(noise_multiplier=4.0, sensitivity=2.0) == pytest.approx(0.5, rel=1e-15)
    assert gaussian_dp(noise_multiplier=3.0, sensitivity=1.0) > 1 / 3


def test_many_full_batch_steps_have_the_published_epsilon() -> None:
    mu = compose_gdp(mus=[gaussian_dp(noise_multiplier=20.0, sensitivity=1.0)], counts=[1000])
    assert gaussian_epsilon(1e-6, mu=mu) == pytest.approx(8.306225, abs=5e-7)
    event = Event(mechanism=Gaussian(noise_multiplier=20.0), sampling=Full())
    answer = guarantee(
        EventCounts(steps={event: 1000}),
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        delta=1e-6,
    )
    assert answer.epsilon == pytest.approx(8.306225, abs=5e-7)


def test_nothing_released_costs_nothing() -> None:
    assert gaussian_delta(0.0, mu=0.0) == 0
    assert gaussian_epsilon(1e-9, mu=0.0) == 0
    assert 0 < gaussian_delta(0.0, mu=1e-320) < 1e-299


def test_a_loss_too_large_to_compute_is_infinite() -> None:
    assert gaussian_epsilon(1e-5, mu=2 * MU_MAX) == math.inf
    assert gaussian_delta(1.0, mu=2 * MU_MAX) == 1
    assert gaussian_epsilon(1e-5, mu=math.inf) == math.inf


def test_a_delta_that_underflows_is_not_said_to_be_zero() -> None:
    assert 0 < gaussian_delta(1e3, mu=1e-2) < 1e-300
    assert 0 < gaussian_delta(1e5, mu=1.0) < 1e-300
    assert 0 < gaussian_delta(1e12, mu=1e-300) < 1e-300


@pytest.mark.parametrize(("epsilon", "mu"), [(-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0)])
def test_the_profile_refuses_what_is_out_of_range(epsilon: float, mu: float) -> None:
    with pytest.raises(ValueError, match="negative"):
        gaussian_delta(epsilon, mu=mu)


@pytest.mark.parametrize(
    ("delta", "mu"), [(0.0, 1.0), (1.0, 1.0), (-0.1, 1.0), (math.nan, 1.0), (0.1, math.nan)]
)
def test_the_inverse_refuses_what_is_out_of_range(delta: float, mu: float) -> None:
    with pytest.raises(ValueError, match="delta lies"):
        gaussian_epsilon(delta, mu=mu)


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, 0.1), (1.0, 0.0), (1.0, 1.0), (1.0, 2.0)])
def test_mu_refuses_what_is_out_of_range(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="epsilon is finite"):
        gaussian_mu(epsilon, delta=delta)


@pytest.mark.parametrize(("rate", "mu"), [(-0.1, 1.0), (1.1, 1.0), (0.5, -1.0), (math.nan, 1.0)])
def test_the_trade_off_curve_refuses_what_is_out_of_range(rate: float, mu: float) -> None:
    with pytest.raises(ValueError, match="lies in"):
        gaussian_trade_off(rate, mu=mu)
