"""Closed forms for Gaussian noise: mu-GDP, the privacy profile and the trade-off curve."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import (
    ERFCX_UNITS,
    LIBRARY_ULPS,
    UNIT_ROUNDOFF,
    crossing,
    least_true,
    rounded_down,
    rounded_up,
)

_HALF_LOG_TWO_PI: Final = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI: Final = math.sqrt(0.5 * math.pi)
# Below this mu the two terms of the profile cancel; their difference is integrated instead.
_SMALL_MU: Final = 0.5
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# From here on 1 - t m(t) cancels; 25 terms of the continued fraction give it to full precision.
_FAR: Final = 5.0
_FRACTION_TERMS: Final = 25
_SECANTS: Final = 12
_PIN: Final = 1e-9  # relative half-width of what is left to bisection
MU_MAX: Final = 1e150  # mu squared must stay finite
MU_MIN: Final = 1e-300  # below, a release says nothing; rounded up to this


def _mills(t: float) -> float:
    """Mills' ratio: the upper tail over the density of the standard normal, at t."""
    return _SQRT_HALF_PI * float(special.erfcx(t / math.sqrt(2)))


def _mills_slope(t: float) -> float:
    """Minus the derivative of Mills' ratio, 1 - t m(t), without cancellation."""
    if t < _FAR:
        return 1 - t * _mills(t)
    fraction = 0.0
    for term in range(_FRACTION_TERMS, 1, -1):
        fraction = term / (t + fraction)
    return _mills(t) / (t + fraction)


def log_gaussian_delta(epsilon: float, *, mu: float) -> tuple[float, float]:
    """Natural logarithm of the least delta at which mu-GDP gives (epsilon, delta).

    delta = Phi(-a) - e^epsilon Phi(-b) with a = epsilon/mu - mu/2 and b = a + mu. Since
    e^epsilon phi(b) = phi(a), it is phi(a) (m(a) - m(b)) with Mills' ratio m. For small mu the
    difference is the integral of -m' over (a, b), which is positive and does not cancel.

    Args:
        epsilon: nats, >= 0.
        mu: > 0, at most MU_MAX.

    Returns:
        log(delta), exact up to the second number: a bound on its absolute error.
    """
    scaled = epsilon / mu
    a, b = scaled - 0.5 * mu, scaled + 0.5 * mu
    error = UNIT_ROUNDOFF * (64 + 2 * ERFCX_UNITS + 8 * (abs(a) + 1) * (b + 1))
    if mu < _SMALL_MU:
        # 1 - t m(t) is at least 1/(t^2 + 3), so that what m is off by counts t^2 + 2 times.
        error += UNIT_ROUNDOFF * ERFCX_UNITS * (abs(a) + 1) * (b + 1)
        slopes = [_mills_slope(a + 0.5 * mu * (1 + node)) for node in _NODES]
        difference = 0.5 * mu * math.fsum(w * s for w, s in zip(_WEIGHTS, slopes, strict=True))
        if difference == 0:  # underflow: a is beyond 1e4, delta below exp(-5e7)
            return -math.inf, 0.0
        return _with_error(math.log(difference) - 0.5 * a * a - _HALF_LOG_TWO_PI, error)
    # m(b) / (m(a) - m(b)) is at most (a + 1.5)/mu, which is how often both ratios' errors count.
    error += UNIT_ROUNDOFF * 2 * ERFCX_UNITS * (max(a, 0.0) + 1.5) / mu
    log_first = float(special.log_ndtr(-a))
    if a > 0:
        ratio = _mills(b) / _mills(a)
    else:
        # e^epsilon Phi(-b) = phi(a) m(b): the large logarithms of its factors are never subtracted.
        ratio = math.exp(-0.5 * a * a - _HALF_LOG_TWO_PI - log_first) * _mills(b)
    return _with_error(log_first + math.log1p(-ratio) if ratio < 1 else -math.inf, error)


def _with_error(log_delta: float, error: float) -> tuple[float, float]:
    """The logarithm and its error, that of writing it down and of adding the error included."""
    return log_delta, error + 4 * UNIT_ROUNDOFF * (1 + min(abs(log_delta), 1e300))


@theorem(
    id="gaussian-dp",
    source="Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Theorem 2.7",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def gaussian_dp(*, noise_multiplier: float, sensitivity: float) -> float:
    """Gaussian DP of one Gaussian step: mu = sensitivity / noise_multiplier.

    It stays true when the records of the step are sampled in a way that does not depend on the
    data: given the sample the step is such a release, and mixing cannot tell more.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sensitivity: in norm bounds; 1 for add_or_remove_one and replace_special, 2 for replace_one.

    Returns:
        mu. Upper, to rounding; exact without sampling.
    """
    return rounded_up(sensitivity / noise_multiplier)


@theorem(
    id="gaussian-profile",
    source="Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Corollary 2.13; "
    "Balle and Wang 2018, ICML, arXiv:1805.06530v2, Theorem 8",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def gaussian_delta(epsilon: float, *, mu: float) -> float:
    """Privacy profile of mu-GDP: the delta at a given epsilon.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

    Args:
        epsilon: nats, >= 0.
        mu: >= 0; 1/noise_multiplier for one full-batch Gaussian step of sensitivity one norm bound.

    Returns:
        delta in [0, 1]. Upper; relative excess at most 1e-10 for delta >= 1e-300, mu <= 1e4.

    Raises:
        ValueError: epsilon or mu is negative or not a number.
    """
    if not (0 <= epsilon < math.inf and mu >= 0):
        raise ValueError("epsilon is finite, and neither epsilon nor mu is negative.")
    if mu == 0:
        return 0.0
    if mu > MU_MAX:
        return 1.0
    mu = max(mu, MU_MIN)
    log_delta, error = log_gaussian_delta(epsilon, mu=mu)
    return min(1.0, rounded_up(math.exp(min(0.0, log_delta + error)), ulps=4))


@theorem(
    id="gaussian-epsilon",
    source="Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Corollary 2.13",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def gaussian_epsilon(delta: float, *, mu: float) -> float:
    """Inverse of the privacy profile of mu-GDP: the least epsilon at a given delta.

    The profile falls in epsilon. Bisection on its logarithm returns a value at which
    delta(epsilon) <= delta was evaluated to hold with the evaluation's error added.

    Args:
        delta: in (0, 1).
        mu: >= 0.

    Returns:
        epsilon in nats, >= 0; infinite above MU_MAX. Upper; relative excess about 1e-13.

    Raises:
        ValueError: delta is not in (0, 1), or mu is negative or not a number.
    """
    if not (0 < delta < 1 and mu >= 0):
        raise ValueError("delta lies in (0, 1) and mu is not negative.")
    if mu == 0:
        return 0.0
    if mu > MU_MAX:
        return math.inf
    mu = max(mu, MU_MIN)
    log_target = rounded_down(math.log(delta), ulps=2)

    def holds(epsilon: float) -> bool:
        log_delta, error = log_gaussian_delta(epsilon, mu=mu)
        return log_delta + error <= log_target

    if holds(0.0):
        return 0.0
    low, high = _bracket_epsilon(holds, mu, log_target)
    return least_true(holds, low=low, high=high)


def _bracket_epsilon(
    holds: Callable[[float], bool], mu: float, log_target: float
) -> tuple[float, float]:
    """(low, high) around where log(delta) meets a target, close together if secants converge."""
    high = _large_enough(mu, log_target)
    before, after = 0.5 * high, high
    value_before = log_gaussian_delta(before, mu=mu)[0] - log_target
    for _ in range(_SECANTS):
        value = log_gaussian_delta(after, mu=mu)[0] - log_target
        if not (math.isfinite(value) and value != value_before):
            break
        step = value * (after - before) / (value - value_before)
        before, value_before = after, value
        after = min(max(after - step, 1e-3 * after), high)
        if abs(step) <= 1e-11 * after:
            break
    low, near = after * (1 - _PIN), min(after * (1 + _PIN), high)
    return (0.0 if holds(low) else low), (near if holds(near) else high)


def _large_enough(mu: float, log_target: float) -> float:
    # Phi(-a) <= exp(-a^2/2) gives an epsilon that is large enough; the factor covers rounding.
    return (0.5 * mu * mu + mu * math.sqrt(2 * -log_target)) * (1 + 1e-9) + 1e-300


def gaussian_bracket_epsilon(delta: float, *, mu: tuple[float, float]) -> tuple[float, float]:
    """(lower, upper) epsilon at delta of mu-GDP, tight: the Gaussian pair itself attains it.

    Args:
        delta: in (0, 1).
        mu: (lower, upper), >= 0.

    Returns:
        Epsilon in nats, >= 0. At the lower end delta was evaluated to be too large, its error taken
        off.
    """
    low, high = mu
    upper = gaussian_epsilon(delta, mu=high)
    if not MU_MIN < low < MU_MAX:
        return 0.0, upper
    log_target = rounded_up(math.log(delta), ulps=2)

    def small_enough(epsilon: float) -> bool:
        log_delta, error = log_gaussian_delta(epsilon, mu=low)
        return not log_delta - error >= log_target

    if small_enough(0.0):
        return 0.0, upper
    below, above = _bracket_epsilon(small_enough, low, log_target)
    return crossing(small_enough, low=below, high=above)[0], upper


def gaussian_bracket_delta(epsilon: float, *, mu: tuple[float, float]) -> tuple[float, float]:
    """(lower, upper) delta at epsilon of mu-GDP, tight: the Gaussian pair itself attains it.

    Args:
        epsilon: nats, >= 0.
        mu: (lower, upper), >= 0.

    Returns:
        Delta in [0, 1].
    """
    low, high = mu
    upper = gaussian_delta(epsilon, mu=high)
    if not MU_MIN < low < MU_MAX:
        return 0.0, upper
    log_delta, error = log_gaussian_delta(epsilon, mu=low)
    return max(0.0, rounded_down(math.exp(min(0.0, log_delta - error)), ulps=4)), upper


@theorem(
    id="analytic-gaussian",
    source="Balle and Wang 2018, ICML, arXiv:1805.06530v2, Theorem 8",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def gaussian_mu(epsilon: float, *, delta: float) -> float:
    """The largest mu for which mu-GDP gives (epsilon, delta): how precise one release may be.

    A Gaussian release of sensitivity s norm bounds then needs noise_multiplier >= s / mu.

    Args:
        epsilon: nats, >= 0.
        delta: in (0, 1).

    Returns:
        mu > 0. Lower: at the returned mu the pair was evaluated to hold.

    Raises:
        ValueError: epsilon is negative or delta not in (0, 1).
    """
    if not (0 <= epsilon < math.inf and 0 < delta < 1):
        raise ValueError("epsilon is finite and not negative, and delta lies in (0, 1).")
    # In the variable -log(mu), (epsilon, delta) is false, then true.
    negative_log = least_true(
        lambda x: gaussian_delta(epsilon, mu=math.exp(-x)) <= delta, low=-50.0, high=690.0
    )
    return math.exp(-negative_log)


@theorem(
    id="classical-gaussian",
    source="Dwork and Roth 2014, Foundations and Trends in Theoretical Computer Science, as in "
    "document 004 (Berthier 2019), Proposition 2.2",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.INDEPENDENT_GAUSSIAN_NOISE,),
)
def classical_gaussian_noise(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """The standard deviation of Gaussian noise that textbooks give for (epsilon, delta)-DP.

    sigma = sqrt(2 log(1.25/delta)) sensitivity / epsilon, for epsilon below 1 only: at delta = 1e-5
    and an epsilon of 8.42 or more it is too little noise. gaussian_mu asks for less, and is right
    at every epsilon.

    Args:
        epsilon: nats, in (0, 1).
        delta: in (0, 1).
        sensitivity: how far one record moves the answer, in L2; >= 0 and finite.

    Returns:
        sigma, in the unit of the answer. Upper, to rounding: more noise than needed.

    Raises:
        ValueError: an argument is out of range; an epsilon of 1 or more above all.
    """
    if not 0 < epsilon < 1:
        raise ValueError("epsilon lies in (0, 1): beyond, the classical Gaussian is not proved.")
    if not (0 < delta < 1 and 0 <= sensitivity < math.inf):
        raise ValueError("delta lies in (0, 1), and sensitivity is finite and not negative.")
    factor = math.sqrt(2 * (math.log(1.25) - math.log(delta)))
    return rounded_up(factor * sensitivity / epsilon, ulps=4 * LIBRARY_ULPS)


@theorem(
    id="gaussian-trade-off",
    source="Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Theorem 2.7",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def gaussian_trade_off(false_positive_rate: float, *, mu: float) -> float:
    """Trade-off curve of mu-GDP: the least false-negative rate of any membership test.

    beta(alpha) = Phi(Phi^-1(1 - alpha) - mu), with Phi^-1(1 - alpha) = -Phi^-1(alpha).

    Args:
        false_positive_rate: alpha, in [0, 1].
        mu: >= 0.

    Returns:
        The false-negative rate, in [0, 1]. Exact, to a relative error of about 1e-12.
    """
    if not (0 <= false_positive_rate <= 1 and 0 <= mu < math.inf):
        raise ValueError("false_positive_rate lies in [0, 1]; mu is finite and not negative.")
    return float(special.ndtr(-special.ndtri(false_positive_rate) - mu))


THEOREMS = (
    gaussian_dp,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    classical_gaussian_noise,
    gaussian_trade_off,
)
