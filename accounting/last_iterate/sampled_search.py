"""Where the last steps should begin and how to split the noise: estimates, none of them a bound.

Any choice gives a true bound; a good one is found by Renyi divergences at whole orders.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting import special
from accounting.last_iterate.declared import DataOrder
from accounting.last_iterate.sampled_run import SampledChoice, SampledRun, shift_of
from accounting.rounding import Array

STARTS: Final = 64  # numbers of last steps that are tried, at most twice as many
SHARES: Final[Array] = 1 / (1 + np.exp(-np.linspace(-4, 4, 12)))  # of the noise's variance
FINER: Final = 9  # shares that are tried around the best
FEW: Final = 64  # steps, whose composition is always worth a try
NEAR: Final = 0.03  # of the least estimated epsilon, above it: what is composed
ORDERS: Final = np.array([*range(2, 33), *range(36, 65, 4), 80, 96, 128, 192, 256], dtype=float)


@dataclass(frozen=True, slots=True)
class Aim:
    """What is to be small: epsilon at a delta, or delta at an epsilon."""

    delta: float | None  # None asks for it
    epsilon: float | None  # nats

    def estimates(self, rdp: Array) -> Array:
        """Epsilon, or the logarithm of delta, from curves at ORDERS along the last axis."""
        if self.delta is not None:
            costs = np.log1p(-1 / ORDERS) - (np.log(self.delta) + np.log(ORDERS)) / (ORDERS - 1)
            return np.asarray(np.min(rdp + costs, axis=-1))
        gaps = rdp - (self.epsilon or 0.0) + np.log1p(-1 / ORDERS)
        return np.asarray(np.min((ORDERS - 1) * gaps - np.log(ORDERS), axis=-1))

    def near(self, value: float, least: float) -> bool:
        """Whether an estimate may belong to the best choice."""
        return value <= least + (NEAR * abs(least) if self.delta is not None else np.log(2.0))


def _step_curves(run: SampledRun, noises: Array) -> Array:
    """Renyi divergences of a sampled Gaussian step at ORDERS, shape (k, orders)."""
    from scipy.special import logsumexp  # more comes with it than few answers are worth

    rate = run.rate
    orders, k = ORDERS[:, None], np.arange(ORDERS[-1] + 1)
    inside = k <= orders
    left = np.where(inside, orders - k, 0.0)
    ways = special.gammaln(orders + 1) - special.gammaln(k + 1) - special.gammaln(left + 1)
    ways = ways + special.xlogy(left, 1 - rate) + special.xlogy(k, rate)
    gains = 0.5 * k * (k - 1) / np.clip(noises, 1e-10, 1e10)[:, None, None] ** 2
    logs = np.maximum(logsumexp(np.where(inside, ways, -np.inf) + gains, axis=2), 0.0)
    if run.sampling is DataOrder.FIXED_SIZE:
        factors = _symmetrised(1 / noises)[:, None]
        logs = logs + np.log(factors - (factors - 1) * np.exp(-logs))
    return np.asarray(logs / (ORDERS - 1))


def _symmetrised(mus: Array) -> Array:
    """By how much chi^2 of a sampled step grows where both orders of its pair count, in (1, 2)."""
    mus = np.clip(mus, 0.01, 5.0)
    both = np.exp(mus**2) * special.ndtr(1.5 * mus) + 3 * special.ndtr(-0.5 * mus) - 2
    return np.asarray(2 * both / np.expm1(mus**2))


def _starts(steps: int) -> list[int]:
    """Numbers of last steps to try, short of all: few, or nearly all, by equal factors."""
    few = {int(r) for r in np.geomspace(1, max(1, steps - 1), STARTS)}
    return sorted((few | {steps - r for r in few}) - {0, steps})


def _estimates(run: SampledRun, starts: list[int], shares: Array, aim: Aim) -> Array:
    """Estimates for each number of last steps and share, shape (k, m)."""
    curves = _step_curves(
        run, np.array([run.sampled_noise(starts[0], float(share)) for share in shares])
    )
    counts = np.array(starts, dtype=np.float64)
    shifts = np.array([shift_of(run, SampledChoice(last_steps=r, noise_share=0.0)) for r in starts])
    with np.errstate(over="ignore", invalid="ignore"):
        squares = 0.5 * shifts[:, None] ** 2 / (1 - shares)
        rdp = counts[:, None, None] * curves + squares[:, :, None] * ORDERS
    return aim.estimates(rdp)


def choices(run: SampledRun, aim: Aim) -> list[SampledChoice]:
    """What is worth composing, the most promising first: at most two choices.

    One is plain composition of all steps, which is left out where it is far from the best.
    """
    every = SampledChoice(last_steps=run.steps, noise_share=1.0)
    starts = _starts(run.steps)
    if not starts:
        return [every]
    whole = float(_estimates(run, [run.steps], np.ones(1) - 2.0**-53, aim)[0, 0])
    found = _estimates(run, starts, SHARES, aim)
    row, column = np.unravel_index(int(np.argmin(found)), found.shape)
    around = SHARES[max(0, int(column) - 1) : int(column) + 2]
    shares = np.linspace(around[0], around[-1], FINER)
    best = _estimates(run, [starts[int(row)]], shares, aim)[0]
    count, share = starts[int(row)], float(shares[int(np.argmin(best))])
    if shift_of(run, SampledChoice(last_steps=count, noise_share=share)) == 0:
        share = 1.0  # nothing is left to move
    hidden = SampledChoice(last_steps=count, noise_share=share)
    value = float(np.min(best))
    if not (value < np.inf and aim.near(value, whole)):
        return [every]
    # Estimates by whole orders are rough where there are few steps, which cost little to compose.
    few = run.steps <= FEW
    return [hidden, every] if few or aim.near(whole, value) else [hidden]
