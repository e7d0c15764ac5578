"""The lower convex hull of a profile that joins dots, taken on its masses."""

import numpy as np
import numpy.typing as npt

from accounting.numerics import Array

Indices = npt.NDArray[np.intp]


def take_hull(mass: Array, *, losses: Array) -> None:
    """Lower convex hull, in place: negative masses go to both neighbours, keeping P and Q.

    Left of the first point lies loss minus infinity, which holds no P-mass. In each round every
    other one of neighbouring negative points leaves for good; in which order makes no difference.

    Args:
        mass: P-masses at the losses, shape (k,).
        losses: nats, rising, shape (k,).
    """
    places, left = np.flatnonzero(mass != 0), mass
    while True:
        held = left[places]
        below = held < 0
        if not below.any():
            return
        # The first of each run of negative points, the third, and so on.
        runs: Indices = np.cumsum(below) - np.maximum.accumulate(
            np.where(below, 0, np.cumsum(below))
        )
        leaving = np.flatnonzero(below & (runs % 2 == 1))
        _leave(left, losses, places, leaving)
        places = np.delete(places, leaving)


def _leave(mass: Array, losses: Array, places: Indices, leaving: Indices) -> None:
    """Move the masses of points, no two of them neighbours, to the points next to them."""
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
