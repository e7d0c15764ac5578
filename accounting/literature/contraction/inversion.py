"""The inverse questions: the epsilon that a delta allows, and the noise that a pair needs."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from accounting.literature.contraction.contraction import (
    DECLARED_MAX,
    DECLARED_MIN,
    DeltaBound,
    ProjectedNoisySgd,
)
from accounting.rounding import least_true

EPSILON_MAX: Final = 1e9  # where the search for epsilon gives up


def least_epsilon(delta_at: Callable[[float], DeltaBound], *, delta: float) -> float:
    """The least epsilon at which a bound that falls in epsilon is at most delta.

    Args:
        delta_at: the bound by epsilon.
        delta: in (0, 1).

    Returns:
        epsilon in nats, >= 0. Upper: at it the bound was evaluated to be small enough.

    Raises:
        ValueError: delta is not in (0, 1), or no epsilon up to EPSILON_MAX is enough.
    """
    _require_delta(delta)

    def holds(epsilon: float) -> bool:
        return delta_at(epsilon).delta <= delta

    if holds(0.0):
        return 0.0
    high = 1.0
    while high < EPSILON_MAX and not holds(high):
        high *= 2
    return least_true(holds, low=0.0 if high == 1 else 0.5 * high, high=high)


def least_noise(
    delta_of: Callable[[ProjectedNoisySgd], DeltaBound], run: ProjectedNoisySgd, *, delta: float
) -> float:
    """The least noise scale at which a bound that falls in the noise is at most delta.

    Args:
        delta_of: the bound by run.
        run: what was declared; its own noise scale is left out of account.
        delta: in (0, 1).

    Returns:
        noise_scale. Upper: with it the bound was evaluated to be small enough.

    Raises:
        ValueError: delta is not in (0, 1), or no noise that may be declared is enough.
    """
    _require_delta(delta)

    def scale(log_scale: float) -> float:
        return min(max(math.exp(log_scale), DECLARED_MIN), DECLARED_MAX)

    def holds(log_scale: float) -> bool:
        return delta_of(replace(run, noise_scale=scale(log_scale))).delta <= delta

    low, high = math.log(DECLARED_MIN), math.log(DECLARED_MAX)
    return scale(low if holds(low) else least_true(holds, low=low, high=high))


def _require_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
