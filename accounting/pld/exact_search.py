"""Epsilon where delta is known in closed form at each: by bisection."""

import math
from collections.abc import Callable
from typing import Final

from accounting.rounding import crossing, least_true

_EPSILON_MAX: Final = 1e9  # where the search for a single unit's epsilon gives up


def exact_epsilon(
    read: Callable[[float], tuple[float, float]], delta: float
) -> tuple[float, float]:
    """(lower, upper) epsilon by bisection; both ends have been evaluated."""

    def within(epsilon: float) -> bool:
        return read(epsilon)[1] <= delta

    def below(epsilon: float) -> bool:
        return not read(epsilon)[0] >= delta

    if within(0.0):
        return 0.0, 0.0
    high = 1.0
    while not within(high):
        high *= 2
        if high > _EPSILON_MAX:
            return 0.0, math.inf
    upper = least_true(within, low=0.0, high=high)
    if below(0.0):
        return 0.0, upper
    if not below(upper):  # the profile is flat at delta, and known exactly
        return upper, upper
    return crossing(below, low=0.0, high=upper)[0], upper
