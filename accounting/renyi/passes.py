"""Loaders that go through the data pass by pass: one Gaussian a pass."""

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status
from accounting.numerics import Array
from accounting.renyi.poisson import gaussian_rdp
from accounting.theorem import theorem


@theorem(
    id="gaussian-per-pass",
    source="Chua et al. 2024, NeurIPS (Scalable DP-SGD), arXiv:2411.04205v1, Section 3",
    status=Status.PUBLISHED,
    relations=(NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.REPLACE_ONE),
    assumptions=(Assumption.ONE_STEP_PER_PASS, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def gaussian_per_pass_rdp(*, noise_multiplier: float, sensitivity: float, orders: Array) -> Array:
    """RDP of one pass of a cyclic or shuffled loader.

    Tell the adversary the order of the records. Then one step of the pass holds the record that
    differs and every other step is the same for both datasets, so the pass is one Gaussian release.
    Not telling can only help, and a pass that stops early is part of a whole one. Under
    add_or_remove_one this fails: a missing record moves all that follow it into other batches.

    Args:
        noise_multiplier: the least sigma of the pass's steps, > 0.
        sensitivity: in norm bounds; 1 for replace_special, 2 for replace_one.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP of the whole pass in nats, shape (k,). Upper.
    """
    return gaussian_rdp(noise_multiplier=noise_multiplier, sensitivity=sensitivity, orders=orders)


THEOREMS = (gaussian_per_pass_rdp,)
