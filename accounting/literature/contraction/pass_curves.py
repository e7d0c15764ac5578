"""What else the profile of a pass says: its Renyi curve.

One (epsilon, delta) says nothing of it: a mechanism that fails openly with probability delta has
that one point, and no finite Renyi divergence. docs/theory/contraction.md has the proofs.
"""

import math
from typing import Final

import numpy as np

from accounting import special
from accounting.guarantees import Status, theorem
from accounting.literature.contraction.contraction import (
    RELATIONS,
    ProjectedNoisySgd,
    require_steps,
    shuffled_delta,
)
from accounting.literature.contraction.kernels import Noise
from accounting.literature.contraction.passes import SCALE_MIN
from accounting.pld.dense_pairs import loss_grid
from accounting.pld.profiles import LOSS_MAX
from accounting.renyi.orders import ORDERS, checked_orders
from accounting.rounding import UNIT_ROUNDOFF, Array

_SPACING_MAX: Final = 0.3  # nats, of a profile's epsilons; e^(order times it) stays a double
_BEYOND: Final = 76.0  # shifts that a grid for Renyi curves spans: 64 orders, and 12 deviations


@theorem(
    id="profile-to-renyi",
    source="docs/theory/contraction.md, Theorem 7",
    status=Status.DERIVED,
    relations=RELATIONS,
)
def profile_rdp(*, epsilons: Array, log_deltas: Array, log_tails: Array, orders: Array) -> Array:
    """Renyi curve of a mechanism from its profile, the same in both orders, at many epsilons.

    rdp = log(1 + a (a-1) int_0^inf (e^((a-1) x) + e^(-a x)) delta(x) dx)/(a-1). Between the
    epsilons delta is below its chord over e^x, whose share is at most (x - x_0)/(e^h - 1).

    Args:
        epsilons: rising from 0 in steps of at most 0.3, nats, shape (k,).
        log_deltas: logarithms of delta at them; upper, shape (k,).
        log_tails: upper bounds of log int e^((a-1) x) delta(x) dx from the last of them on, (m,).
        orders: alpha > 1, shape (m,).

    Returns:
        RDP in nats, shape (m,). Upper.

    Raises:
        ValueError: an order is out of range, or epsilons do not rise from 0.
    """
    orders = checked_orders(orders)
    widths = np.diff(epsilons)
    if not (len(widths) and epsilons[0] == 0 and np.all((widths > 0) & (widths <= _SPACING_MAX))):
        raise ValueError(f"epsilons rise from 0 in steps of at most {_SPACING_MAX:g}.")
    with np.errstate(invalid="ignore"):  # both minus infinity: nothing is left, nothing falls
        falls = np.nan_to_num(-np.expm1(np.diff(log_deltas)))
    moments = [
        _log_moment(epsilons[:-1], widths, log_deltas[:-1], np.maximum(falls, 0.0), power)
        for power in (orders - 1, -orders)
    ]
    # The second weight is the smaller, so that its tail is at most that of the first.
    logs = np.logaddexp(np.logaddexp(*moments), log_tails + math.log(2))
    # The largest terms of a logarithm are c x and log delta; a roundoff of each is left of them.
    finite = log_deltas[np.isfinite(log_deltas)]
    largest = orders * epsilons[-1] + float(np.max(np.abs(finite), initial=1.0))
    logs = logs + np.log(orders) + np.log(orders - 1) + 32 * UNIT_ROUNDOFF * (2 + largest) + 1e-13
    return np.asarray(np.logaddexp(0.0, logs) / (orders - 1))


def _log_moment(left: Array, widths: Array, log_deltas: Array, falls: Array, power: Array) -> Array:
    """Log of the integral of e^(c x) delta(x) over the cells, for each power c. Upper, (m,)."""
    c = power[:, None]
    whole = np.expm1(c * widths) / c
    # y e^(c y) >= y (1 + c y): the integral of the chord's share over a cell is at least this.
    fallen = np.maximum(widths**2 / 2 + c * widths**3 / 3, 0.0) / np.expm1(widths)
    with np.errstate(divide="ignore"):
        logs = c * left + log_deltas + np.log(whole - falls * fallen)
    return np.asarray(np.logaddexp.reduce(logs, axis=1))


def pass_rdp(run: ProjectedNoisySgd, *, steps: int) -> Array:
    """Renyi curve of one pass in a fresh secret order, on ORDERS. Upper, nats.

    Finite, but looser than the pair: a curve of passes costs more epsilon than their composition.

    Args:
        run: what was declared.
        steps: n, >= 1; batches of the pass.

    Raises:
        ValueError: steps is out of range.
    """
    require_steps(steps)
    shift = run.record_shift
    top = min(LOSS_MAX, shift if run.noise is Noise.LAPLACE else shift * _BEYOND)
    epsilons = loss_grid(scale=min(max(shift, SCALE_MIN), top), top=top)
    logs = [shuffled_delta(run, epsilon=float(one), steps=steps).log_delta for one in epsilons]
    tails = _log_tails(run, float(epsilons[-1]), logs[-1])
    return profile_rdp(epsilons=epsilons, log_deltas=np.array(logs), log_tails=tails, orders=ORDERS)


def _log_tails(run: ProjectedNoisySgd, top: float, log_delta: float) -> Array:
    """Log of the integral of e^((a-1) x) delta(x) from `top` on, by order. Upper, on ORDERS.

    delta is at most A, and Gaussian A at most Phi(mu/2 - x/mu), whose integral by parts is at most
    e^(a (a-1) mu^2/2) Phi(mu/2 + (a-1) mu - top/mu)/(a-1). Laplace A is 0 from the shift on.
    """
    shift, above = run.record_shift, ORDERS - 1
    if run.noise is Noise.LAPLACE:
        return np.asarray(log_delta + above * shift - np.log(above))
    reach = shift / 2 + above * shift - top / shift
    return np.asarray(ORDERS * above * shift**2 / 2 + special.log_ndtr(reach) - np.log(above))


THEOREMS: Final = (profile_rdp,)
