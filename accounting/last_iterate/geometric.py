"""Sums of powers of a Lipschitz constant, by expm1: for as many steps as one likes, at any L."""

import math
from typing import Final

import numpy as np

from accounting.rounding import UNIT_ROUNDOFF, Array

UP: Final = 1 + 512 * UNIT_ROUNDOFF  # covers a hundred operations, library functions included
TINY: Final = 1e-300  # no power is taken to be less: nothing underflows to an understatement
SURELY: Final = 1 + 1e-11  # one rate exceeds another by this, or the blocks stay apart


def rate_of(lipschitz: float) -> float:
    """|log L| for L > 0."""
    return abs(math.log(lipschitz))


def power(rate: float, exponents: Array | float) -> Array:
    """e^(-n rate) for n >= 0. Upper, at least TINY."""
    # The rate is off by four ulps, its multiple by two roundings.
    found = np.exp(-np.asarray(exponents) * (rate * (1 - 16 * UNIT_ROUNDOFF)))
    return np.asarray(np.maximum(found, TINY))


def total(rate: float, counts: Array | float) -> Array:
    """The sum of e^(-j rate) over 0 <= j < n; to a relative 20 u."""
    each = np.asarray(counts, dtype=np.float64)
    return np.asarray(np.expm1(-each * rate) / math.expm1(-rate)) if rate > 0 else each
