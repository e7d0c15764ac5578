"""Renyi curves of pure differential privacy, and its amplification by Poisson sampling."""

import math
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.orders import checked_orders
from accounting.renyi.poisson import curve_of
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up

# Losses below this are rounded up to it: their moment, about loss^2, must stay a normal number.
LOSS_MIN: Final = 1e-150
_LARGE: Final = 600.0  # below the overflow of exp


def two_point_moments(*, loss: float, log_mass: float, orders: Array) -> Array:
    """Log of the moment, less one, of two outcomes that exchange their probabilities. Upper.

    With probabilities M >= m of which loss = log(M/m) and log_mass = log(M),

      J = M^alpha m^(1-alpha) + m^alpha M^(1-alpha) - M - m
        = M e^((alpha-1) loss) (1 - e^(-alpha loss)) (1 - e^(-(alpha-1) loss)).

    A product of positive factors: nothing cancels, whatever the loss.

    Args:
        loss: nats, >= 0.
        log_mass: log of the larger probability, <= 0.
        orders: alpha > 1, shape (k,).
    """
    loss = max(loss, LOSS_MIN)
    low, high = (orders - 1) * loss, orders * loss
    rests = np.log(-np.expm1(-low)) + np.log(-np.expm1(-high))
    slack = 32 * UNIT_ROUNDOFF * (4 + abs(log_mass) + low + np.abs(rests))
    return np.asarray(log_mass + low + rests + slack, dtype=np.float64)


@theorem(
    id="pure-dp-renyi",
    source="Bun and Steinke 2016, TCC, arXiv:1605.02065v1, Proposition 3.3",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def pure_dp_rdp(*, epsilon: float, orders: Array) -> Array:
    """RDP of any epsilon-DP step: that of binary randomized response, which is the worst one.

    rdp(alpha) = log((sinh(alpha epsilon) - sinh((alpha-1) epsilon)) / sinh(epsilon)) / (alpha-1)

    With M = 1/(1 + e^-epsilon) the argument is 1 + M e^((alpha-1) epsilon) (1 - e^(-alpha epsilon))
    (1 - e^(-(alpha-1) epsilon)), which neither cancels nor overflows.

    Args:
        epsilon: nats, >= 0; below 1e-150 it is rounded up to that.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper; relative excess below 1e-11.
    """
    orders = checked_orders(orders)
    log_mass = -math.log1p(math.exp(-epsilon))
    return curve_of(two_point_moments(loss=epsilon, log_mass=log_mass, orders=orders), orders)


@theorem(
    id="poisson-amplification",
    source="Balle, Barthe and Gaboardi 2018, NeurIPS, arXiv:1807.01647v2, Theorem 8",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE,),
    assumptions=(Assumption.POISSON_SAMPLING,),
)
def amplified_epsilon(*, epsilon: float, sampling_probability: float) -> float:
    """Epsilon of an (epsilon, delta)-DP step whose records join independently.

    epsilon' = log(1 + q (e^epsilon - 1)), at delta' = q delta

    Args:
        epsilon: nats, >= 0.
        sampling_probability: q, in (0, 1].

    Returns:
        epsilon' in nats, at most epsilon. Upper; relative excess below 1e-11.
    """
    if epsilon < _LARGE:
        amplified = math.log1p(sampling_probability * math.expm1(epsilon))
    else:
        amplified = float(np.logaddexp(0.0, math.log(sampling_probability) + epsilon))
    # epsilon's own rounding is magnified by at most 1 + epsilon, below the overflow of exp.
    return min(epsilon, rounded_up(amplified, ulps=16384))


THEOREMS = (pure_dp_rdp, amplified_epsilon)
