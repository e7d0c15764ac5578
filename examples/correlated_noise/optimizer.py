"""Gradient descent with noise that is correlated over the steps, in plain numpy.

The strategy is a lower triangular Toeplitz matrix C. The optimizer adds C^-1 z to the sums of
clipped gradients, z independent: what one step adds, later steps take back in part.
"""

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def square_root(bands: int) -> list[float]:
    """The first coefficients of the square root of the matrix of prefix sums: 1, 1/2, 3/8, ..."""
    found = [1.0]
    for i in range(1, bands):
        found.append(found[-1] * (2 * i - 1) / (2 * i))
    return found


def sensitivity(coefficients: list[float], *, separation: int, participations: int) -> float:
    """How far one record moves a pass, in norm bounds; of at most `separation` coefficients.

    The steps of a record then touch different rows, so that their squares add up.
    """
    if len(coefficients) > separation:
        raise ValueError("At most as many coefficients as steps between two of a record.")
    return math.sqrt(participations) * math.hypot(*coefficients)


class CorrelatedDescent:
    """Weights that move against noisy sums; with the one coefficient 1 the noise is independent.

    Args:
        weights: to begin with.
        coefficients: of the strategy, c_0 > 0 first.
        deviation: of the raw noise z in each coordinate: noise multiplier times norm bound.
        rate: learning rate over the expected number of records in a batch.
    """

    def __init__(
        self, weights: Floats, *, coefficients: list[float], deviation: float, rate: float
    ) -> None:
        self.weights = weights
        self._first, *self._others = coefficients
        self._deviation, self._rate = deviation, rate
        self._source = np.random.default_rng()  # of the operating system; never seed it
        self._added: deque[Floats] = deque(maxlen=len(self._others))  # the newest first

    def step(self, clipped_sum: Floats) -> None:
        """Move by a sum of clipped gradients, each of norm 1 at most, with the next noise."""
        raw = self._source.normal(0.0, self._deviation, self.weights.shape)
        for coefficient, earlier in zip(self._others, self._added, strict=False):
            raw -= coefficient * earlier
        noise = raw / self._first
        self._added.appendleft(noise)
        self.weights = self.weights - self._rate * (clipped_sum + noise)
