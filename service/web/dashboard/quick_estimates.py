"""A quick upper bound on planned events, shown until the certified bracket is ready.

It is a valid but looser bound: if a whole Renyi curve takes long, the same theorem is evaluated at
a few orders. It is never enforced or stored.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from accounting.accountants import best_bound
from accounting.bounds.event_bounds import NoBoundError
from accounting.event_counts import EventCounts
from accounting.events import (
    BallsAndBins,
    Event,
    FixedSize,
    Gaussian,
    NeighboringRelation,
    NonUniform,
    Poisson,
    RandomAllocation,
    Sampling,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.guarantees import Bound, Status
from accounting.renyi.allocation import allocation_rdp, random_allocation_rdp
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.fixed_size import (
    fixed_size_gaussian_add_remove_rdp,
    fixed_size_gaussian_rdp,
    poisson_gaussian_replace_rdp,
)
from accounting.renyi.poisson import poisson_gaussian_rdp
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_down, rounded_up
from accounting.subsampling.curves import (
    likely_copies,
    non_uniform_rdp,
    truncated_poisson_rdp,
    with_replacement_rdp,
)
from accounting.subsampling.replacement import TooManyCopiesError
from accounting.theorem import Theorem
from accounting.work_limit import attempted
from service.work_limit import bounded

_POINTS: Final = 1_500_000  # of work: some 50 milliseconds
# The orders that most plans are read best at; between them little is lost.
ORDERS: Final[Array] = np.array(
    [1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64],
    dtype=np.float64,
)
FEW: Final[Array] = np.array([1.2, 1.5, 2, 3, 4, 6, 8, 12, 20, 40], dtype=np.float64)
_SLOW: Final = (WithReplacement, BallsAndBins, RandomAllocation)  # at each order
_DIGITS: Final = 64  # roundings that a product and a sum may have taken
_THEOREMS: Final[dict[type[Sampling], tuple[Theorem[..., Array], ...]]] = {
    Poisson: (poisson_gaussian_rdp, poisson_gaussian_replace_rdp),
    FixedSize: (fixed_size_gaussian_add_remove_rdp, fixed_size_gaussian_rdp),
    TruncatedPoisson: (truncated_poisson_rdp,),
    WithReplacement: (with_replacement_rdp,),
    NonUniform: (non_uniform_rdp,),
    BallsAndBins: (allocation_rdp,),
    RandomAllocation: (random_allocation_rdp,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """A bound, and what found it."""

    epsilon: float  # nats, upper
    accountant: str
    bound: str  # the theorem's id
    status: Status


def quick_bound(
    counts: EventCounts,
    *,
    relation: NeighboringRelation,
    delta: float,
    accept: frozenset[Status],
) -> Quick | None:
    """The least of a few bounds that are found at once; None where none is finite and accepted.

    Args:
        counts: units of each distinct event.
        relation: the neighbouring relation.
        delta: in (0, 1).
        accept: statuses that count.
    """
    with bounded("The quick answer"):
        found = [
            one
            for one in (
                _few_orders(counts, relation, delta, accept),
                *(_whole(counts, name, relation, delta, accept) for name in ("gdp", "rdp")),
            )
            if one is not None and math.isfinite(one.epsilon)
        ]
    return min(found, key=lambda one: one.epsilon, default=None)


def _whole(
    counts: EventCounts,
    name: str,
    relation: NeighboringRelation,
    delta: float,
    accept: frozenset[Status],
) -> Quick | None:
    """An accountant's own answer, where that takes little work."""
    if name == "rdp" and any(_theorem_of(event, relation) for event in counts.steps):
        return None  # the same theorem was asked at few orders

    def ask() -> Bound | None:
        return best_bound.best_bound(
            counts, relation=relation, delta=delta, accept=accept, accountant=name, floor=False
        )

    bound = attempted(_POINTS, ask)
    if bound is None:
        return None
    return Quick(
        epsilon=bound.epsilon, accountant=name, bound=bound.bound, status=Status(bound.status)
    )


def _few_orders(
    counts: EventCounts, relation: NeighboringRelation, delta: float, accept: frozenset[Status]
) -> Quick | None:
    """Epsilon of one kind of sampled Gaussian steps, from its theorem at a few orders."""
    units = counts.counted()
    if len(units) != 1:
        return None
    ((event, count),) = units
    theorem = _theorem_of(event, relation)
    if theorem is None or theorem.status not in accept:
        return None
    orders = FEW if isinstance(event.sampling, _SLOW) else ORDERS
    try:
        curve = attempted(_POINTS, lambda: _curve(theorem, event, relation, orders))
        failed = rounded_up(count * _failure(event))
    except (NoBoundError, TooManyCopiesError):
        return None
    left = rounded_down(delta - failed) if failed else delta
    if curve is None or not left > 0:
        return None
    total = curve * count * (1 + _DIGITS * UNIT_ROUNDOFF)
    epsilon, _ = rdp_epsilon(rdp=total, orders=orders, delta=left)
    return Quick(epsilon=epsilon, accountant="rdp", bound=theorem.id, status=theorem.status)


def _theorem_of(event: Event, relation: NeighboringRelation) -> Theorem[..., Array] | None:
    """The theorem whose curve is asked at few orders, where it is for this relation, too."""
    if not isinstance(event.mechanism, Gaussian):
        return None
    stated = _THEOREMS.get(type(event.sampling), ())
    return next((theorem for theorem in stated if relation in theorem.relations), None)


def _curve(
    theorem: Theorem[..., Array], event: Event, relation: NeighboringRelation, orders: Array
) -> Array:
    assert isinstance(event.mechanism, Gaussian)  # noqa: S101 (_theorem_of looked)
    given: dict[str, Any] = {"noise_multiplier": event.mechanism.noise_multiplier}
    match event.sampling:
        case Poisson(sampling_probability=rate):
            given["sampling_probability"] = rate
        case FixedSize(batch_size=size, dataset_size=whole):
            given |= {"batch_size": size, "dataset_size": whole}
        case WithReplacement(batch_size=size, dataset_size=whole):
            given |= {"batch_size": size, "dataset_size": whole, "relation": relation}
        case TruncatedPoisson() as sampling:
            given |= {"sampling": sampling, "relation": relation}
        case NonUniform(max_weight=weight):
            given["max_weight"] = weight
        case BallsAndBins(steps_per_pass=length):
            given["steps_per_pass"] = length
        case RandomAllocation(steps_per_pass=length, participations=places):
            given |= {"steps_per_pass": length, "participations": places}
    return theorem(orders=orders, **given)


def _failure(event: Event) -> float:
    """The probability with which a step's curve does not hold. Upper."""
    if not isinstance(event.sampling, WithReplacement):
        return 0.0
    size = {
        "batch_size": event.sampling.batch_size,
        "dataset_size": event.sampling.dataset_size,
    }
    return likely_copies(**size)[1]
