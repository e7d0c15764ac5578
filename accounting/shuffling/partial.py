"""Shuffled passes that stop early, every answer released.

A record that has not come up yet is somewhere in the rest of the pass. A pass that always leaves a
part of the records out keeps that uncertainty to its last step, and so is amplified;
docs/theory/partial_shuffle.md has the proofs.
"""

import math
from collections import Counter
from itertools import pairwise
from typing import Final

import numpy as np

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.pairs import GaussianPair, SymmetricPair
from accounting.renyi.fixed_size import swap_rdp
from accounting.renyi.orders import checked_orders
from accounting.rounding import UNIT_ROUNDOFF, Array, require, rounded_up

# Distinct rates of a pass. Each costs the lattice some 80 ms and a Renyi curve 25 ms; eight keep
# epsilon within 0.5 % where rates double along the pass.
RATES: Final = 8
# More are used where neighbouring rates would differ by over a quarter.
_SHARE_MAX: Final = 0.2
# Up to here a rate is told from one by a double, and its rounding up stays below one.
DATASET_SIZE_MAX: Final = 2**50

_RELATIONS = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
_ASSUMPTIONS = (
    Assumption.FRESH_SECRET_ORDER,
    Assumption.ONE_STEP_PER_PASS,
    Assumption.INDEPENDENT_GAUSSIAN_NOISE,
)


@theorem(
    id="partial-shuffle",
    source="docs/theory/partial_shuffle.md, Proposition 1 and Proposition 2",
    status=Status.DERIVED,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
)
def partial_shuffle_pairs(
    *, noise_multiplier: float, batch_size: int, dataset_size: int, steps_per_pass: int
) -> tuple[tuple[SymmetricPair, int], ...]:
    """Pairs that dominate one pass, in a fresh secret order, that stops before all records came up.

    Step t = 0, 1, .. of the pass, given all earlier answers, is dominated by the symmetrised pair

    ((1-c) N(0, sigma^2) + c N(2, sigma^2), N(0, sigma^2)),  c = b / (n - t b),

    that of a batch drawn from the n - t b records that are left. With m = n/b batches, c is
    1/(m-t). Where a pass has more steps than RATES, half of a run of steps counts at the first rate
    of the run and half at the first rate of the next run: a published coin rounds each rate up or
    down and keeps the chance of every order.

    Args:
        noise_multiplier: the least sigma of the pass's steps, > 0; noise std / max_grad_norm.
        batch_size: b, at least 1.
        dataset_size: n, a public constant, at most DATASET_SIZE_MAX.
        steps_per_pass: k, at least 1, with k b < n.

    Returns:
        Distinct pairs and how many steps of the pass each stands for. Upper, in both orders.

    Raises:
        ValueError: a count is out of range; the text names it.
    """
    rates = _rates(batch_size, dataset_size, steps_per_pass)
    half = GaussianPair(noise_multiplier=0.5 * noise_multiplier)
    return tuple(
        (SymmetricPair(near=half, far=half, sampling_probability=rate), count)
        for rate, count in rates
    )


@theorem(
    id="partial-shuffle-rdp",
    source="docs/theory/partial_shuffle.md, Proposition 1 and Proposition 2",
    status=Status.DERIVED,
    relations=_RELATIONS,
    assumptions=_ASSUMPTIONS,
)
def partial_shuffle_rdp(
    *,
    noise_multiplier: float,
    batch_size: int,
    dataset_size: int,
    steps_per_pass: int,
    orders: Array,
) -> Array:
    """RDP of one pass, in a fresh secret order, that stops before all records came up.

    The sum of the curves of the pairs that dominate the pass, each as often as it counts.

    Args:
        noise_multiplier: the least sigma of the pass's steps, > 0; noise std / max_grad_norm.
        batch_size: b, at least 1.
        dataset_size: n, a public constant, at most DATASET_SIZE_MAX.
        steps_per_pass: k, at least 1, with k b < n.
        orders: alpha > 1, one-dimensional.

    Returns:
        RDP of the whole pass in nats, at each order. Upper.

    Raises:
        ValueError: a count or an order is out of range; the text names it.
    """
    orders = checked_orders(orders)
    rates = _rates(batch_size, dataset_size, steps_per_pass)
    total = np.zeros_like(orders)
    for rate, count in rates:
        total += count * swap_rdp(noise_multiplier=noise_multiplier, rate=rate, orders=orders)
    return np.asarray(total * (1 + 4 * len(rates) * UNIT_ROUNDOFF), dtype=np.float64)


def _require_left_out(batch_size: int, dataset_size: int, steps_per_pass: int) -> None:
    require(batch_size >= 1, "batch_size is at least 1")
    require(steps_per_pass >= 1, "steps_per_pass is at least 1")
    require(dataset_size <= DATASET_SIZE_MAX, "dataset_size is at most 2^50")
    require(
        steps_per_pass * batch_size < dataset_size,
        "steps_per_pass times batch_size is below dataset_size",
    )


def _rates(
    batch_size: int, dataset_size: int, steps_per_pass: int
) -> tuple[tuple[float, int], ...]:
    """Rising rates and how many steps of the pass each stands for. Upper.

    A run of N steps at rates from c to just below d <= 2c counts as N - N//2 steps at c and N//2 at
    d (Proposition 2).
    """
    _require_left_out(batch_size, dataset_size, steps_per_pass)
    counts = Counter[int]()  # by the step whose rate it is
    for start, end in pairwise(_landmarks(dataset_size / batch_size, steps_per_pass)):
        higher = (end - start) // 2
        counts[start] += end - start - higher
        counts[end] += higher
    counts[steps_per_pass - 1] += 1
    return tuple(
        (rounded_up(batch_size / (dataset_size - step * batch_size)), count)
        for step, count in sorted(counts.items())
    )


def _landmarks(batches: float, steps: int) -> list[int]:
    """The steps where runs start, and the last step.

    Each run takes about the same share of the batches that are left, so that rates grow by one
    factor, and an odd number of steps: half of which, rounded down, is what its rates come to. A
    run of three or more starts with ten batches or more and takes at most a fifth and one: less
    than half, which Proposition 2 asks for.
    """
    if steps <= RATES:
        return list(range(steps))
    share = min(_SHARE_MAX, -math.expm1(math.log1p((1 - steps) / batches) / (RATES - 1)))
    marks = [0]
    while marks[-1] < steps - 1:
        taken = 2 * math.floor(0.5 * share * (batches - marks[-1])) + 1
        marks.append(min(steps - 1, marks[-1] + taken))
    return marks


THEOREMS = (partial_shuffle_pairs, partial_shuffle_rdp)
