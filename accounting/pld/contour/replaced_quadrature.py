"""Integrals over the noise of the pair of a replaced record: those of a sampled pair on both sides.

Under N(0, sigma^2) the laws of the pair are S(x) and S(-x), S the ratio of the sampled pair, so the
loss is log S(x) - log S(-x), and the moment of order lam integrates density times S(x)^(1+lam)
S(-x)^-lam. docs/theory/contour.md, section 8, derives every term.
"""

from dataclasses import dataclass

import numpy as np

from accounting import special
from accounting.pld.contour.quadrature import (
    CUT,
    Losses,
    grid_spacing,
    losses_at,
    strip_share,
    tail_slack,
)
from accounting.pld.pairs import ReplacedGaussianPair, SampledGaussianPair
from accounting.rounding import UNIT_ROUNDOFF, Array


@dataclass(frozen=True, slots=True)
class Sides:
    """The ratio at the points of a grid and at their mirror images."""

    here: Losses  # log S(x)
    there: Losses  # log S(-x); its weight falls in x

    @property
    def loss(self) -> Array:
        """Log S(x) - log S(-x), shape (m,)."""
        return self.here.loss - self.there.loss

    @property
    def loss_errors(self) -> Array:
        """Bound on the rounding of the loss, shape (m,)."""
        return self.here.error + self.there.error + UNIT_ROUNDOFF * np.abs(self.loss)

    def exponents(self, order: float) -> Array:
        """Log of S(x)^(1+lam) S(-x)^-lam, shape (m,)."""
        return np.asarray((1 + order) * self.here.loss - order * self.there.loss)

    def sizes(self, order: float) -> Array:
        """The sum of the moduli of what the exponents are the difference of, shape (m,)."""
        return np.asarray((1 + order) * np.abs(self.here.loss) + order * np.abs(self.there.loss))

    def exponent_errors(self, order: float) -> Array:
        """What the rounding of both losses does to the exponents, shape (m,)."""
        return np.asarray((1 + order) * self.here.error + order * self.there.error)


def one_sided(pair: ReplacedGaussianPair) -> SampledGaussianPair:
    """The pair whose ratio is S."""
    return SampledGaussianPair(
        noise_multiplier=pair.noise_multiplier, sampling_probability=pair.sampling_probability
    )


def sides_at(x: Array, pair: ReplacedGaussianPair) -> Sides:
    """Both ratios at equally spaced points."""
    single = one_sided(pair)
    return Sides(losses_at(x, single), losses_at(-x, single))


def turns(pair: ReplacedGaussianPair) -> float:
    """How far the phase of e^(i theta L) may turn in the strip, in units of theta phase.

    The phases of S(x) and S(-x) are each at most the strip's. With odds r = q e^u / (1-q) of one
    and r' of the other, they add up to at most one where r r' <= 1, which q <= 1/2 ensures.
    """
    return 1.0 if pair.sampling_probability <= 0.5 else 2.0


def replaced_spacing(
    pair: ReplacedGaussianPair, *, order: float, theta: float, share: float
) -> tuple[float, float]:
    """(phase, h): the widest grid whose strip bound is at most `share` of the moment."""
    return grid_spacing(one_sided(pair), power=-order, theta=turns(pair) * theta, share=share)


def replaced_share(
    pair: ReplacedGaussianPair, *, order: float, theta: float, phase: float, h: float
) -> float:
    """The trapezoidal sum's distance from the integral, as a share of M(lam). Upper.

    In the strip |S(x)| <= S(Re x) and |S(-x)| >= cos(phase/2) S(-Re x): only the second costs.
    """
    single, turned = one_sided(pair), turns(pair) * theta
    return strip_share(single, power=-order, theta=turned, phase=phase, h=h)


def replaced_range(pair: ReplacedGaussianPair, *, order: float) -> tuple[float, float]:
    """Beyond which the integrand is probably negligible; the tails beyond are bounded and added."""
    sigma = pair.noise_multiplier
    return -CUT * sigma, 1 + turns(pair) * order + CUT * sigma


def log_replaced_tails(pair: ReplacedGaussianPair, orders: Array, x: Array, sides: Sides) -> Array:
    """Log of what a sum over the grid leaves out beyond both ends. Upper, shape (k,).

    Left of the grid S(x) is at most S(left) and S(-x) at least S(-left). Right of it log S(x) -
    log S(right) is at most (x-right)/sigma^2 and log S(-right) - log S(-x) at most w(-right) times
    that, which gives a shifted normal tail.
    """
    sigma = pair.noise_multiplier
    left, right = float(x[0]), float(x[-1])
    ends = [(1 + orders) * sides.here.loss[end] - orders * sides.there.loss[end] for end in (0, -1)]
    shift = (1 + orders) + orders * float(sides.there.weight[-1]) * (1 + 1e-9)
    grown = -shift * right / sigma**2 + 0.5 * (shift / sigma) ** 2
    logs = (
        ends[0] + special.log_ndtr(left / sigma),
        ends[1] + grown + special.log_ndtr((shift - right) / sigma),
    )
    slacks = (
        tail_slack(
            1 + 2 * orders,
            float(abs(sides.here.loss[end]) + abs(sides.there.loss[end])),
            float(x[end]),
            sigma,
        )
        for end in (0, -1)
    )
    both = np.logaddexp(*(log + slack for log, slack in zip(logs, slacks, strict=True)))
    return np.asarray(both, dtype=np.float64)
