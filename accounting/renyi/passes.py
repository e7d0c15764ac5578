"""Loaders that go through the data pass by pass: one Gaussian a pass."""

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.poisson import gaussian_rdp
from accounting.rounding import Array


@theorem(
    id="gaussian-per-pass",
    source="Chua et al. 2024, NeurIPS (Scalable DP-SGD), arXiv:2411.04205v1, Section 3",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.ONE_STEP_PER_PASS, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def gaussian_per_pass_rdp(*, noise_multiplier: float, sensitivity: float, orders: Array) -> Array:
    """RDP of one pass of a loader that shows each record to one of its steps.

    Tell the adversary the order of the records. Then one step of the pass holds the record that
    differs and every other step is the same for both datasets, so the pass is one Gaussian release.
    Not telling can only help, and a pass that stops early is part of a whole one. Under
    add_or_remove_one this holds where each record's step is its own (balls and bins); in a cyclic
    or shuffled pass a missing record moves others into other batches.

    Args:
        noise_multiplier: the least sigma of the pass's steps, > 0.
        sensitivity: in norm bounds; 2 for replace_one, else 1; times the root
            of the steps a record takes part in, where these are several.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP of the whole pass in nats, shape (k,). Upper.
    """
    return gaussian_rdp(noise_multiplier=noise_multiplier, sensitivity=sensitivity, orders=orders)


THEOREMS = (gaussian_per_pass_rdp,)
