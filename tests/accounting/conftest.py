"""Reference values by arbitrary-precision integration of the definitions."""

from collections.abc import Callable
from typing import Any

import mpmath as mp
import pytest

# E[S^beta - 1 - beta (S - 1)] as a function of (beta, q, sigma).
Moment = Callable[[float, float, float], Any]
DIGITS = 30


def _moment(beta: float, q: float, sigma: float) -> Any:
    """The integral that defines J(beta), x being normal with deviation sigma."""
    with mp.workdps(DIGITS):
        power, rate, deviation = mp.mpf(beta), mp.mpf(q), mp.mpf(sigma)

        def integrand(x: Any) -> Any:
            d = rate * mp.expm1((2 * x - 1) / (2 * deviation**2))
            bregman = (1 + d) ** power - 1 - power * d
            return bregman * mp.exp(-0.5 * (x / deviation) ** 2)

        size = abs(power)
        peaks = {mp.mpf(0), mp.mpf("0.5"), mp.mpf(1), size / 2, size}
        around = {-20 * deviation - size, -5 * deviation - size, -5 * deviation}
        around |= {size - 5 * deviation, size + 5 * deviation, size + 20 * deviation}
        ends = sorted(peaks | around)
        return mp.quad(integrand, ends, method="gauss-legendre") / (deviation * mp.sqrt(2 * mp.pi))


@pytest.fixture(scope="session")
def exact_moment() -> Moment:
    """J(beta) by its definition, to about twenty digits."""
    return _moment


@pytest.fixture(scope="session")
def exact_rdp() -> Callable[..., Any]:
    """The Renyi divergence of a subsampled Gaussian by its definition."""

    def rdp(order: float, *, q: float, sigma: float, add: bool = False) -> Any:
        with mp.workdps(DIGITS):
            moment = _moment(1 - order if add else order, q, sigma)
            return mp.log1p(moment) / (mp.mpf(order) - 1)

    return rdp
