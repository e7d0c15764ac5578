"""What one noisy step keeps, and what it loses, of the difference between two neighbours.

A step K maps a point to a law. Of any two laws at hockey-stick divergence d it leaves at most
d E, with E the largest divergence of K(y) and K(y') over two points of the domain. E near one is
of no use in a product of a billion steps, so 1 - E is carried beside it. docs/theory/contraction.md
has the errors.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from accounting import special
from accounting.gaussian import MU_MAX, MU_MIN, log_gaussian_delta
from accounting.rounding import ERFCX_UNITS, UNIT_ROUNDOFF, Array, rounded_down, rounded_up

_U: Final = UNIT_ROUNDOFF
_HALF_LOG_TWO_PI: Final = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI: Final = math.sqrt(0.5 * math.pi)
_LOG_HALF: Final = -math.log(2)
# Below this n (1 - B) three terms of the binomial sum are exact to 1e-11 of the logarithm.
_FEW: Final = 1e-5


class Noise(StrEnum):
    """The law of the noise that is added to the gradient of a step."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"  # in one dimension only


@dataclass(frozen=True, slots=True)
class Kernel:
    """Of a divergence at e^epsilon, the share that a step keeps, and the share that it loses."""

    log_kept: float  # log E, upper; minus infinity where the step forgets everything
    log_lost: float  # log(1 - E), lower


_ALL_LOST: Final = Kernel(-math.inf, 0.0)
_ALL_KEPT: Final = Kernel(0.0, -math.inf)


def step_kernel(noise: Noise, epsilon: float, *, shift: float) -> Kernel:
    """The divergence at e^epsilon of one noise from itself, shifted.

    Args:
        noise: the law.
        epsilon: nats, finite, >= 0.
        shift: in units of the noise's scale, in [0, infinity]. A larger shift keeps more.

    Returns:
        The kernel. Kept is upper and lost is lower, all rounding included.

    Raises:
        ValueError: epsilon or shift is out of range.
    """
    if not (0 <= epsilon < math.inf and shift >= 0):
        raise ValueError("epsilon lies in [0, infinity) and shift in [0, infinity].")
    if shift == 0:
        return _ALL_LOST
    if noise is Noise.LAPLACE:
        return _laplace(epsilon, shift)
    return _ALL_KEPT if shift > MU_MAX else _gaussian(epsilon, max(shift, MU_MIN))


def _gaussian(epsilon: float, shift: float) -> Kernel:
    """E = theta(r) = Phi(r/2 - epsilon/r) - e^epsilon Phi(-r/2 - epsilon/r), the Gaussian profile.

    1 - theta = Phi(a) + e^epsilon Phi(-b) with a = epsilon/r - r/2 and b = a + r: two positive
    terms. Whichever of the two shares is the smaller is evaluated, and gives the other.
    """
    log_theta, error = log_gaussian_delta(epsilon, mu=shift)
    log_theta += error
    if log_theta < _LOG_HALF:
        return Kernel(log_theta, _log_rest_down(log_theta))
    log_lost = float(log_gaussian_lost(epsilon, shifts=np.array([shift]))[0])
    return Kernel(_log_rest_up(log_lost), log_lost)


def log_gaussian_lost(epsilon: float, *, shifts: Array) -> Array:
    """log(1 - theta) at many shifts, lower; shape (k,).

    e^epsilon Phi(-b) is phi(a) m(b) with Mills' ratio m, and Phi(a) is phi(a) m(-a): the large
    logarithms of the factors are never subtracted. The error is that of the argument, squared.
    """
    a, b = epsilon / shifts - 0.5 * shifts, epsilon / shifts + 0.5 * shifts
    density = -0.5 * a * a - _HALF_LOG_TWO_PI
    other = np.log(_SQRT_HALF_PI * special.erfcx(b / math.sqrt(2)))
    # Far below zero the ratio of Phi(a) to its density is a double, and far above one Phi(a) is.
    own = np.log(_SQRT_HALF_PI * special.erfcx(np.maximum(-a, 0.0) / math.sqrt(2)))
    own = np.where(a < 0, own, special.log_ndtr(a) - density)
    error = _U * (64 + ERFCX_UNITS + 8 * (np.abs(a) + 1) * (b + 1))
    return np.asarray(np.minimum(density + np.logaddexp(own, other), 0.0) - error)


def _laplace(epsilon: float, shift: float) -> Kernel:
    """E = (1 - e^((epsilon - x)/2))_+ at shift x."""
    half = 0.5 * (shift - epsilon)
    if not half > 0:
        return _ALL_LOST
    half = rounded_up(half)
    return Kernel(_log_rest_up(-half), -half)


def _log_rest_up(log_part: float) -> float:
    """log(1 - e^x) for x <= 0, rounded up. The share that is left is at most this."""
    rest = -math.expm1(log_part)
    value = math.log(rest) if rest < 0.5 else math.log1p(-math.exp(log_part))
    return min(0.0, rounded_up(value, ulps=16) + (16 * _U if rest < 0.5 else 0.0))


def _log_rest_down(log_part: float) -> float:
    """log(1 - e^x) for x < log(1/2), rounded down."""
    return rounded_down(math.log1p(-math.exp(log_part)), ulps=16)


def log_mean_power(log_lost: float, count: int) -> float:
    """Logarithm of the mean of 1, B, ..., B^(n-1), with q = 1 - B known by its logarithm.

    (1 - B^n) / (n q) = -expm1(n log1p(-q)) / (n q); where n q is small the binomial sum
    1 - (n-1) q/2 + (n-1)(n-2) q^2/6, whose omitted terms alternate, so that it is not below.

    Args:
        log_lost: log q, a lower bound; <= 0, may be minus infinity.
        count: n, >= 1.

    Returns:
        log G, <= 0. Upper: G falls in q.
    """
    q = math.exp(log_lost)
    if count * q < _FEW:
        q = max(0.0, rounded_down(q, ulps=4))  # the smallest doubles have few digits
        first = 0.5 * (count - 1) * q
        second = first * (count - 2) * q / 3 if count > 2 else 0.0
        return min(0.0, rounded_up(math.log1p(second - first), ulps=32))
    slack = 16 * _U * (2 + math.log(count) - log_lost)
    missing = math.log(-math.expm1(count * math.log1p(-q))) if q < 1 else 0.0
    return min(0.0, missing - math.log(count) - log_lost + slack)
