"""Poisson sampling of any step, by telling the adversary who was sampled."""

import math
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.orders import checked_orders
from accounting.renyi.poisson import curve_of
from accounting.rounding import UNIT_ROUNDOFF, Array

_EXPONENT_MIN: Final = 1e-300  # smaller exponents are rounded up to it, above the denormal numbers


@theorem(
    id="revealed-poisson-sampling",
    source="docs/theory/renyi.md, Proposition 5",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.POISSON_SAMPLING,),
)
def revealed_sampling_rdp(*, rdp: Array, sampling_probability: float, orders: Array) -> Array:
    """RDP of one Poisson-subsampled step from the curve of the same step without sampling.

    Tell the adversary who was sampled. With probability 1-q the record that differs was not, and
    both laws are the same; otherwise the step is one without sampling:

      rdp'(alpha) = log(1 - q + q e^((alpha-1) rdp(alpha))) / (alpha-1).

    A step that fails with probability delta then fails with probability q delta.

    Args:
        rdp: without sampling, nats, shape (k,); infinite where nothing is known.
        sampling_probability: q, in (0, 1].
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,), at most rdp. Upper.
    """
    orders = checked_orders(orders)
    x = np.maximum((orders - 1) * rdp, _EXPONENT_MIN)
    rest, log_q = np.log(-np.expm1(-x)), math.log(sampling_probability)
    slack = 16 * UNIT_ROUNDOFF * (4 + abs(log_q) + x + np.abs(rest))
    least: Array = np.minimum(curve_of(x + rest + log_q + slack, orders), rdp)
    return least


THEOREMS = (revealed_sampling_rdp,)
