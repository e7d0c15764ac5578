"""The lower convex hull of a profile that joins dots, taken on its masses."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.rounding import Array
from accounting.work_limit import spend

Indices = npt.NDArray[np.intp]
_ROUNDS: Final = 12  # in which many points leave at once; then one after the other


def take_hull(mass: Array, *, losses: Array) -> None:
    """Lower convex hull, in place: negative masses go to both neighbours, keeping P and Q.

    Left of the first point lies loss minus infinity, which holds no P-mass. Each point that leaves
    does so for good, so that there are at most as many steps as points; in which order makes no
    difference.

    Args:
        mass: P-masses at the losses, shape (k,).
        losses: nats, rising, shape (k,).
    """
    spend(5000 + 20 * len(mass))
    places = np.flatnonzero(mass != 0)
    for _ in range(_ROUNDS):
        below = mass[places] < 0
        if not below.any():
            return
        # The first of each run of negative points, the third, and so on.
        counts = np.cumsum(below)
        runs: Indices = counts - np.maximum.accumulate(np.where(below, 0, counts))
        leaving = np.flatnonzero(below & (runs % 2 == 1))
        _leave_together(mass, losses, places, leaving)
        places = np.delete(places, leaving)
    _leave_in_turn(mass, losses, places)


def _leave_together(mass: Array, losses: Array, places: Indices, leaving: Indices) -> None:
    """Move the masses of points, no two of them neighbours, to the points next to them."""
    spend(10_000 + 3 * len(places))
    at = places[leaving]
    last, first = leaving == len(places) - 1, leaving == 0
    before = places[np.maximum(leaving - 1, 0)]
    after = places[np.minimum(leaving + 1, len(places) - 1)]
    # (x_j - x_a) / (x_b - x_a) of the Q-mass goes to b, x_b / x_j times that of P.
    down, up = losses[before] - losses[at], losses[after] - losses[at]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(first, 1.0, np.expm1(down) / np.expm1(down - up))
    moved = np.where(last, 0.0, mass[at])
    np.add.at(mass, after, np.where(last, 0.0, moved * gain))
    np.add.at(mass, before, np.where(last | first, 0.0, moved * (1 - gain)))
    mass[at] = 0.0


def _leave_in_turn(mass: Array, losses: Array, places: Indices) -> None:
    """The same, point by point, where one that leaves makes the next one negative."""
    spend(20 * len(places))
    held, at = mass[places].tolist(), losses[places].tolist()
    before, after = list(range(-1, len(held) - 1)), list(range(1, len(held) + 1))
    waiting = [j for j, value in enumerate(held) if value < 0]
    while waiting:
        spend(170)
        j = waiting.pop()
        if held[j] >= 0:
            continue
        a, b = before[j], after[j]
        if b < len(held):
            down, up = at[a] - at[j], at[b] - at[j]
            gain = 1.0 if a < 0 else math.expm1(down) / math.expm1(down - up)
            held[b] += held[j] * gain
            before[b] = a
            if a >= 0:
                held[a] += held[j] * (1 - gain)
        if a >= 0:
            after[a] = b
        waiting += [i for i in (a, b) if 0 <= i < len(held) and held[i] < 0]
        held[j] = 0.0
    mass[places] = held
