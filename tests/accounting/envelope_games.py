"""Games against an envelope, exactly: each outcome, order and stop is looked at, backwards.

A step is a pair of laws over few outcomes. Of a past it matters which steps may still be taken,
and the ratio of its two chances. So the best trainer is found by recursion, whatever it
does with the answers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
Laws = tuple[Array, Array]  # on the record's side and on the other
Left = tuple[tuple[Laws, ...], ...]  # per item that is left, the steps that may be charged to it
Stop = Callable[[Array], Array]  # of the ratio times e^epsilon: what a trainer has that stops


def laws(first: Sequence[float], second: Sequence[float]) -> Laws:
    """A pair of laws."""
    return np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)


def mirrored(pair: Laws) -> Laws:
    """The other order."""
    return pair[1], pair[0]


def product(pairs: Sequence[Laws]) -> Laws:
    """The pair of steps that are all taken."""
    first, second = np.ones(1), np.ones(1)
    for p, q in pairs:
        first, second = np.outer(first, p).ravel(), np.outer(second, q).ravel()
    return first, second


def delta_of(pair: Laws, epsilon: float) -> float:
    """The hockey-stick divergence at e^epsilon."""
    p, q = pair
    return math.fsum(np.maximum(p - math.exp(epsilon) * q, 0.0).tolist())


def epsilon_of(pair: Laws, delta: float) -> float:
    """The least epsilon >= 0 at a delta, to 1e-12. Upper."""
    low, high = 0.0, 50.0
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if delta_of(pair, middle) <= delta else (middle, high)
    return high


def mapped(pair: Laws, kernel: Array) -> Laws:
    """What a random map of the outcomes, a row of chances for each, leaves of a pair."""
    return pair[0] @ kernel, pair[1] @ kernel


def sampled_cells(*, rate: float, noise: float, cells: int) -> Laws:
    """A sampled Gaussian pair that tells only a cell of the line."""
    edges = np.linspace(-4 * noise, 1 + 4 * noise, cells - 1)

    def masses(mean: float) -> Array:
        below = np.concatenate(([0.0], special.ndtr((edges - mean) / noise), [1.0]))
        return np.diff(below)

    base, moved = masses(0.0), masses(1.0)
    return (1 - rate) * base + rate * moved, base


def _after(pair: Laws, a: Array, rest: Callable[[Array], Array]) -> Array:
    """What a step is worth: the mean, over its answers, of what follows."""
    p, q = pair
    seen = p > 0  # where p has no mass nothing is added
    p, ratio = p[seen], q[seen] / p[seen]
    return np.asarray(rest(np.outer(a, ratio).ravel()).reshape(len(a), -1) @ p)


def best_value(left: Left, a: Array, stop: Stop | None = None) -> Array:
    """The delta that the best trainer attains with the items left, by its ratio times e^epsilon."""
    value = stop(a) if stop else np.maximum(1 - a, 0.0)
    seen = set()
    for at, steps in enumerate(left):
        if id(steps) in seen:  # one of equal items is as good as another
            continue
        seen.add(id(steps))
        rest = left[:at] + left[at + 1 :]
        for step in steps:
            value = np.maximum(value, _after(step, a, lambda b: best_value(rest, b, stop)))  # noqa: B023
    return value


def attained(left: Left, epsilon: float) -> float:
    """The delta at an epsilon of the best trainer, from the beginning."""
    return float(best_value(left, np.array([math.exp(epsilon)]))[0])


def alone(pairs: Sequence[Laws]) -> Left:
    """Items to which nothing but themselves is charged; equal pairs are equal items."""
    known: dict[int, tuple[Laws, ...]] = {}
    return tuple(known.setdefault(id(pair), (pair,)) for pair in pairs)


# With probability .01 the first tells all.
RESPONSE: Final = laws((0.6, 0.3, 0.1), (0.3, 0.6, 0.1))
TELLING: Final = laws((0.01, 0.54, 0.45), (0.0, 0.45, 0.55))
BOX: Final = laws((0.02, 0.6, 0.38, 0.0), (0.0, 0.38, 0.6, 0.02))
RARE: Final = laws((0.1, 0.9), (0.05, 0.95))
COIN: Final = laws((0.65, 0.35), (0.4, 0.6))
