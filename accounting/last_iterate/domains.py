"""Equal cyclic steps in a bounded domain: from where to begin, in closed form.

The best start is right after a use: steps before the next use add noise and nothing else. Passes
then make one block as long as each, alone, would release at a lower rate. docs/theory/
last_iterate.md has the proofs.
"""

import math
from typing import Final

import numpy as np

from accounting.last_iterate.geometric import SURELY, TINY, UP, power, rate_of, total
from accounting.rounding import UNIT_ROUNDOFF, Array

_CANDIDATES: Final = 256  # numbers of passes tried at a time
_ROUNDS: Final = 12  # in which a range of 10^12 narrows to fewer than that


def _first_block(
    lipschitz: float, start: float, use: float, period: int, passes: Array
) -> tuple[Array, Array, Array]:
    """A block of period - 1 idle steps and then passes that begin with a use, with sigma = 1.

    Returns:
        (S, N, w). Where L > 1, S is divided by the product of the constants and N by its square, so
        that S / sqrt(N) is mu and w S / N the rate in either case.
    """
    rate, steps = rate_of(lipschitz), (passes + 1) * period - 1.0
    if lipschitz > 1:
        distance = start + use * power(rate, float(period)) * total(period * rate, passes)
        return distance, total(2 * rate, steps) * math.exp(-2 * rate), np.exp(-steps * rate)
    gathered = use * power(rate, period - 1.0) * total(period * rate, passes)
    return start * power(rate, steps) + gathered, total(2 * rate, steps), np.ones_like(steps)


def _one_block(lipschitz: float, start: float, use: float, period: int, passes: Array) -> Array:
    """Whether each of the passes surely joins the block of all that is before it."""
    lower = lipschitz ** (2 * period - 1) if lipschitz < 1 else lipschitz
    level = lower * use / float(total(2 * rate_of(lipschitz), float(period))) * SURELY
    joins = np.ones(len(passes), dtype=bool)
    for before in (np.zeros_like(passes), np.maximum(passes - 1, 0)):
        distance, variance, weight = _first_block(lipschitz, start, use, period, before)
        joins &= weight * distance >= level * variance
    return np.asarray(joins | (passes == 0))


def domain_mus(lipschitz: float, start: float, use: float, period: int, passes: Array) -> Array:
    """Mu of the worst place from right after a use on, `start` apart then, with sigma = 1. Upper.

    Args:
        lipschitz: L > 0.
        start: distance at the start, > 0.
        use: s > 0.
        period: steps of a pass.
        passes: before the last one, >= 0, shape (m,); infinite where they do not make one block.
    """
    distance, variance, weight = _first_block(lipschitz, start, use, period, passes)
    tail = power(rate_of(lipschitz), (passes + 1) * period) if lipschitz > 1 else 1.0
    grown = distance if lipschitz > 1 else lipschitz * distance
    spread = variance if lipschitz > 1 else lipschitz * lipschitz * variance
    hidden = spread + tail * tail
    with np.errstate(divide="ignore"):
        together = np.where(hidden > TINY, (grown + use * tail) / np.sqrt(hidden), np.inf)
        apart = np.where(variance > TINY, np.hypot(distance / np.sqrt(variance), use), np.inf)
    joins = weight * distance >= lipschitz * use * SURELY * variance
    found = np.where(joins, together, apart)
    # Where L is large the last factor covers an exponent of one rate, which _power rounds up.
    found *= UP + 64 * UNIT_ROUNDOFF * rate_of(lipschitz)
    return np.where(_one_block(lipschitz, start, use, period, passes), found, np.inf)


def least_bounded(lipschitz: float, start: float, use: float, period: int, most: int) -> float:
    """The least of domain_mus over numbers of passes up to `most`, as far as it is found. Upper."""
    low, high, least = 0.0, float(most), math.inf
    spacing = np.expm1(np.linspace(0.0, math.log1p(high), _CANDIDATES))
    for _ in range(_ROUNDS):
        places = np.unique(np.clip(np.round(low + spacing), low, high))
        found = domain_mus(lipschitz, start, use, period, places)
        best = int(np.argmin(found))
        least = min(least, float(found[best]))
        low, high = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
        spacing = np.linspace(0.0, high - low, _CANDIDATES)
    return least
