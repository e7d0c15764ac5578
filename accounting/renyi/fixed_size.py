"""Renyi curves where two records may be exchanged for one another inside a batch.

A subset of fixed size that loses a record gains another in its place: the batch sum moves by up to
two norm bounds, not one. The same pair bounds Poisson sampling when a record may be replaced.
"""

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.orders import checked_orders
from accounting.renyi.poisson import (
    add_moments,
    curve_of,
    gaussian_rdp,
    poisson_gaussian_rdp,
    remove_moments,
)
from accounting.rounding import Array


def swap_moments(*, noise_multiplier: float, rate: float, orders: Array) -> Array:
    """Log J of the symmetrised pair ((1-g) N(0) + g N(2), N(0)), J = E[S^alpha] - 1.

    Its profile h(a) is the pair's for a >= 1 and 1 - a + a h(1/a) below. With S the pair's ratio,

      J = alpha (alpha-1) int_1^inf (a^(alpha-2) + a^(-alpha-1)) h(a) da
        = E[B_alpha(S) + B_(1-alpha)(S); S > 1],  B_b(s) = s^b - 1 - b (s - 1).

    Both integrands are positive everywhere, so leaving out the restriction to S > 1 gives an upper
    bound: the sum of the two moments of the sampled Gaussian at half the noise.

    Args:
        noise_multiplier: sigma, > 0.
        rate: g, in (0, 1].
        orders: alpha > 1, shape (k,).

    Returns:
        Logarithms, shape (k,). Upper.
    """
    full = (orders - 1) * gaussian_rdp(
        noise_multiplier=noise_multiplier, sensitivity=2.0, orders=orders
    )
    log_full = np.where(full < 1, np.log(np.expm1(np.minimum(full, 1.0))), full)
    if rate == 1:
        return np.asarray(log_full * (1 + 1e-14 * np.sign(log_full)))
    half = 0.5 * noise_multiplier
    moments = np.logaddexp(
        remove_moments(orders, q=rate, sigma=half), add_moments(orders, q=rate, sigma=half)
    )
    return np.asarray(np.minimum(moments, log_full + 1e-13))


def swap_rdp(*, noise_multiplier: float, rate: float, orders: Array) -> Array:
    """RDP of the symmetrised pair ((1-g) N(0) + g N(2), N(0)). Upper, shape (k,)."""
    full = gaussian_rdp(noise_multiplier=noise_multiplier, sensitivity=2.0, orders=orders)
    if rate == 1:
        return full
    moments = swap_moments(noise_multiplier=noise_multiplier, rate=rate, orders=orders)
    least: Array = np.minimum(curve_of(moments, orders), full)
    return least


@theorem(
    id="fixed-size-gaussian-replace",
    source="Zhu, Dong and Wang 2022, AISTATS, arXiv:2106.08567v4, Proposition 30",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    assumptions=(Assumption.FIXED_SIZE_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def fixed_size_gaussian_rdp(
    *, noise_multiplier: float, batch_size: int, dataset_size: int, orders: Array
) -> Array:
    """RDP of one Gaussian step on a uniform batch of fixed size, when a record is replaced.

    With g = batch_size / dataset_size, the step is dominated by the symmetrised pair
    ((1-g) N(0, sigma^2) + g N(2, sigma^2), N(0, sigma^2)): this is not Poisson sampling at the same
    rate. A null record is one of the records that may replace, so replace_special is covered.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        batch_size: in [1, dataset_size].
        dataset_size: a public constant.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper; above the pair's own divergence by what the symmetrised
        pair loses over S <= 1, which is little unless noise_multiplier is large.
    """
    rate = batch_size / dataset_size
    return swap_rdp(noise_multiplier=noise_multiplier, rate=rate, orders=checked_orders(orders))


@theorem(
    id="fixed-size-gaussian-add-remove",
    source="Zhu, Dong and Wang 2022, AISTATS, arXiv:2106.08567v4, Theorem 11",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE,),
    assumptions=(Assumption.FIXED_SIZE_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def fixed_size_gaussian_add_remove_rdp(
    *, noise_multiplier: float, batch_size: int, dataset_size: int, orders: Array
) -> Array:
    """RDP of one Gaussian step on a uniform batch of fixed size, when a record is added or removed.

    Where the larger dataset's batch holds the record, the smaller one's holds another: the pair is
    ((1-g) N(0, sigma^2) + g N(2, sigma^2), N(0, sigma^2)), g = batch_size / dataset_size, which is
    Poisson sampling at half the noise.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        batch_size: in [1, dataset_size].
        dataset_size: a public constant; the larger of the two sizes, so the rate is not too small.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper; as tight as poisson_gaussian_rdp.
    """
    return poisson_gaussian_rdp(
        noise_multiplier=0.5 * noise_multiplier,
        sampling_probability=batch_size / dataset_size,
        orders=orders,
    )


@theorem(
    id="poisson-gaussian-replace",
    source="docs/theory/renyi.md, Proposition 4; from Balle, Barthe and Gaboardi 2018, NeurIPS, "
    "arXiv:1807.01647v2, Theorem 2",
    status=Status.DERIVED,
    relations=(NeighboringRelation.REPLACE_ONE,),
    assumptions=(Assumption.POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def poisson_gaussian_replace_rdp(
    *, noise_multiplier: float, sampling_probability: float, orders: Array
) -> Array:
    """RDP of one Poisson-subsampled Gaussian step when a record is replaced.

    Without the record, with it, and with its replacement, the step's means lie within two norm
    bounds of each other, so advanced joint convexity gives the same symmetrised pair as for subsets
    of fixed size, at rate q.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sampling_probability: q, in (0, 1].
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper.
    """
    return swap_rdp(
        noise_multiplier=noise_multiplier,
        rate=sampling_probability,
        orders=checked_orders(orders),
    )


THEOREMS = (
    fixed_size_gaussian_rdp,
    fixed_size_gaussian_add_remove_rdp,
    poisson_gaussian_replace_rdp,
)
