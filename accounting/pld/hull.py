"""The lower convex hull of a profile that joins dots, taken on its masses."""

import math

import numpy as np

from accounting.numerics import Array


def take_hull(mass: Array, *, losses: Array) -> None:
    """Lower convex hull, in place: negative masses go to both neighbours, keeping P and Q.

    Left of the first point lies loss minus infinity, which holds no P-mass. Each step removes a
    point of negative mass for good, so there are at most as many steps as points.

    Args:
        mass: P-masses at the losses, shape (k,).
        losses: nats, rising, shape (k,).
    """
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    waiting = [int(j) for j in np.flatnonzero(mass < 0)]
    while waiting:
        j = waiting.pop()
        if mass[j] >= 0:
            continue
        a, b = before.get(j, j - 1), after.get(j, j + 1)
        if b < len(mass):
            # (x_j - x_a) / (x_b - x_a) of the Q-mass goes to b, x_b / x_j times that of P.
            down, up = losses[a] - losses[j], losses[b] - losses[j]
            gain = 1.0 if a < 0 else math.expm1(down) / math.expm1(down - up)
            mass[b] += mass[j] * gain
            before[b] = a
            if mass[b] < 0:
                waiting.append(b)
            if a >= 0:
                mass[a] += mass[j] * (1 - gain)
        if a >= 0:
            after[a] = b
            if mass[a] < 0:
                waiting.append(a)
        mass[j] = 0.0
