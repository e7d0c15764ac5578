"""Where to begin: the step from which a bounded domain is worth more than all that came before.

A search in plain floating point. Whatever it finds is a valid start, so that nothing here needs to
be rounded; the bound is evaluated afterwards.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from accounting.rounding import Array

_SCALE: Final = 1e60  # products of constants are kept within this factor of one
_ENOUGH: Final = 1e-12  # relative: what a better start may still gain when the search ends


@dataclass(slots=True)
class _Hull:
    """The lower hull of what has gathered over the variance, seen from the end, left-most last."""

    x: list[float] = field(default_factory=lambda: [0.0])  # variance from here to the end
    y: list[float] = field(default_factory=lambda: [0.0])  # distance gathered from here to the end
    cost: list[float] = field(default_factory=lambda: [0.0])  # of the hull from here to the end

    def push(self, x: float, y: float) -> None:
        """Add the point of an earlier step."""
        xs, ys = self.x, self.y
        while len(xs) > 1 and (y - ys[-1]) * (xs[-1] - xs[-2]) >= (ys[-1] - ys[-2]) * (x - xs[-1]):
            del xs[-1], ys[-1], self.cost[-1]
        cost = self.cost[-1] + _cost(x - xs[-1], y - ys[-1])
        xs.append(x)
        ys.append(y)
        self.cost.append(cost)

    def from_below(self, distance: float) -> float:
        """The cost of the hull that begins a distance below the left-most point."""
        x, y = self.x[-1], self.y[-1] + distance
        low, high = 0, len(self.x) - 2  # the first chord that ends at `high` or further right
        while low < high:
            middle = (low + high + 1) // 2
            run, rise = self.x[middle] - self.x[middle - 1], self.y[middle] - self.y[middle - 1]
            if rise * (x - self.x[middle]) >= run * (y - self.y[middle]):
                low = middle
            else:
                high = middle - 1
        return self.cost[low] + _cost(x - self.x[low], y - self.y[low])

    def rescale(self, factor: float) -> None:
        """Measure distances in another unit; points that become the end are forgotten."""
        self.x = [factor * factor * x for x in self.x]
        self.y = [factor * y for y in self.y]
        first = max(sum(x == 0 for x in self.x) - 1, 0)
        self.x, self.y, self.cost = self.x[first:], self.y[first:], self.cost[first:]


def _cost(run: float, rise: float) -> float:
    if rise == 0:
        return 0.0
    return rise * (rise / run) if run > 0 else math.inf


def best_start(lipschitz: Array, shifts: Array, noises: Array, diameter: float) -> int | None:
    """The step before which to take the iterates as apart by the diameter, or None.

    Args:
        lipschitz: of each step, shape (T,).
        shifts: of each step, shape (T,).
        noises: of each step, shape (T,).
        diameter: of the domain, >= 0 and finite.

    Returns:
        The index of the first step that counts, best to rounding where constants are in
        (0, inf); None if the search finds no finite bound.
    """
    hull = _Hull()
    product, x, y = 1.0, 0.0, 0.0
    least, found = math.inf, None
    rows = zip(lipschitz[::-1].tolist(), shifts[::-1].tolist(), noises[::-1].tolist(), strict=True)
    for back, (constant, shift, noise) in enumerate(rows):
        reach = noise * product
        x, y = x + reach * reach, y + shift * product
        product *= constant
        if not (x < math.inf and y < math.inf and product < math.inf):
            break
        hull.push(x, y)
        cost = hull.from_below(diameter * product)
        if cost < least:
            least, found = cost, len(shifts) - 1 - back
        if product < 1 / _SCALE or hull.cost[-1] >= least * (1 - _ENOUGH):
            break
        if product > _SCALE:
            hull.rescale(1 / product)
            x, y, product = hull.x[-1], hull.y[-1], 1.0
    return found
