"""Renyi curves of batches drawn afresh each step: what filters and the Renyi accountant add up.

J is E[S^alpha] - 1, as in docs/theory/renyi.md; a mixture that is told has the mixture of the J.
"""

import math
from typing import Final

import numpy as np

from accounting.events import Direction, NeighboringRelation, TruncatedPoisson
from accounting.guarantees import Assumption, Status, theorem
from accounting.pld.contour.real_moments import finite_losses, log_moments_of_atoms
from accounting.pld.pairs import DensePair
from accounting.renyi.fixed_size import swap_moments, swap_rdp
from accounting.renyi.orders import checked_orders
from accounting.renyi.poisson import curve_of, gaussian_rdp, remove_moments
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF, Array, rounded_up
from accounting.subsampling.replacement import CHANCE_ERROR, chance_of_any, copies
from accounting.subsampling.truncated import branches
from accounting.subsampling.units import poisson_unit_pair, poisson_unit_replace_pair
from accounting.work_limit import cached_with_cost

ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL

COPIES_FAIL: Final = 1e-18  # chance of more copies in a batch than a curve provides for


def _mix(parts: list[tuple[float, Array]], orders: Array) -> Array:
    """The curve whose J is the weighted sum. Upper, shape (k,)."""
    logs = [
        math.log(rounded_up(weight, ulps=LIBRARY_ULPS)) + moments
        for weight, moments in parts
        if weight > 0
    ]
    return curve_of(np.logaddexp.reduce(logs) + 1e-13, orders)


def _single(rate: float, sigma: float, orders: Array) -> Array:
    """Log J of the pair ((1-q) N(0) + q N(1), N(0)), the larger of both orders, shape (k,)."""
    if rate >= 1:
        curve = gaussian_rdp(noise_multiplier=sigma, sensitivity=1.0, orders=orders)
        with np.errstate(over="ignore"):
            exponents = (orders - 1) * curve
            return np.where(exponents < 1, np.log(np.expm1(exponents)), exponents)
    return remove_moments(orders, q=rate, sigma=sigma)


@theorem(
    id="truncated-poisson-gaussian-rdp",
    source="docs/theory/subsampling.md, Proposition 3 and Proposition 4",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.TRUNCATED_POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def truncated_poisson_rdp(
    *,
    noise_multiplier: float,
    sampling: TruncatedPoisson,
    relation: NeighboringRelation,
    orders: Array,
) -> Array:
    """RDP of one step of Poisson sampling with a cap on the batch.

    Tell whether the others alone fill the batch. If not, the step is Poisson-sampled; if they do,
    it is one on a batch of fixed size, at the rate at which a record is kept.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        sampling: with the declared dataset_size.
        relation: which record is set against which; under add_or_remove_one the larger of both
            neighbours' bounds is taken.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper.
    """
    orders = checked_orders(orders)
    grows = relation is ADD_OR_REMOVE_ONE
    found = []
    for size in (sampling.dataset_size, sampling.dataset_size + 1)[: 1 + grows]:
        chances = branches(sampling, dataset_size=size)
        parts = [
            (chances.open_chance, sampling.sampling_probability, False),
            (chances.full_chance, chances.kept_rate, True),
        ]
        found.append(
            _mix(
                [
                    (chance, _branch(rate, noise_multiplier, relation, orders, full=full))
                    for chance, rate, full in parts
                    if chance > 0
                ],
                orders,
            )
        )
    return np.asarray(np.max(found, axis=0), dtype=np.float64)


def _branch(
    rate: float, sigma: float, relation: NeighboringRelation, orders: Array, *, full: bool
) -> Array:
    """Log J of a step whose batch is open, or full and exchanges records, shape (k,)."""
    if relation is REPLACE_ONE or (relation is REPLACE_SPECIAL and full):
        return swap_moments(noise_multiplier=sigma, rate=min(rate, 1.0), orders=orders)
    return _single(rate, sigma / 2 if full else sigma, orders)


def likely_copies(*, batch_size: int, dataset_size: int) -> tuple[Array, float]:
    """Chances of 1, 2, ... copies up to where more are negligible, and the chance of more.

    Returns:
        Chances, shape (k,), and an upper bound of the rest, at most about COPIES_FAIL.

    Raises:
        TooManyCopiesError: a record is in a batch too often.
    """
    chances, rest = copies(batch_size=batch_size, dataset_size=dataset_size)
    beyond = np.append(np.cumsum(chances[:0:-1])[::-1], 0.0) + rest
    count = max(1, int(np.argmax(beyond <= COPIES_FAIL)))
    return chances[1 : count + 1], float(beyond[count]) * (1 + CHANCE_ERROR)


@theorem(
    id="with-replacement-gaussian-rdp",
    source="docs/theory/subsampling.md, Proposition 7",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.WITH_REPLACEMENT_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def with_replacement_rdp(
    *,
    noise_multiplier: float,
    batch_size: int,
    dataset_size: int,
    relation: NeighboringRelation,
    orders: Array,
) -> Array:
    """RDP of one step on independent draws, given that no record comes up improbably often.

    J is at most the mixture, over the number k of copies given that there is one, of the J of a
    step that holds a record k-fold with the chance of any copy.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        batch_size: draws, >= 1.
        dataset_size: a public constant, >= 2.
        relation: which record is set against which.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper, but for the chance that `likely_copies` leaves out.

    Raises:
        TooManyCopiesError: a record is in a batch too often.
    """
    orders = checked_orders(orders)
    chances, _ = likely_copies(batch_size=batch_size, dataset_size=dataset_size)
    rate = min(1.0, rounded_up(chance_of_any(batch_size, dataset_size), ulps=LIBRARY_ULPS))
    parts = []
    for k, chance in enumerate(chances, start=1):
        sigma = noise_multiplier / k
        moments = (
            _single(rate, sigma / 2, orders)
            if relation is ADD_OR_REMOVE_ONE
            else swap_moments(noise_multiplier=sigma, rate=rate, orders=orders)
        )
        parts.append((float(chance) / rate * (1 + CHANCE_ERROR), moments))
    return _mix(parts, orders)


@theorem(
    id="poisson-unit-rdp",
    source="docs/theory/units.md, Proposition 3",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def poisson_unit_rdp(
    *,
    noise_multiplier: float,
    sampling_probability: float,
    rows: int,
    relation: NeighboringRelation,
    orders: Array,
) -> Array:
    """RDP of one Poisson step for a record with several rows.

    The moments of `poisson_unit_pair` or `poisson_unit_replace_pair`, of its finite losses.

    Args:
        noise_multiplier: sigma, > 0; noise std over the norm bound of one row.
        sampling_probability: q of each row, in (0, 1).
        rows: of one record, at most, in [1, ROWS_MAX].
        relation: which record is set against which; of its rows each alike.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,), the larger of both orders. Upper, but for the chance that
        `unit_lost` tells.

    Raises:
        TooManyRowsError: a record may have too many rows in one batch.
    """
    orders = checked_orders(orders)
    pair = _unit_pair(noise_multiplier, sampling_probability, rows, relation)
    logs = [log_moments_of_atoms(pair, direction, orders - 1) for direction in Direction]
    curve = np.max(logs, axis=0) / (orders - 1) * (1 + 8 * UNIT_ROUNDOFF)
    return np.asarray(np.maximum(curve, 0.0) + 5e-324)


def unit_lost(
    *,
    noise_multiplier: float,
    sampling_probability: float,
    rows: int,
    relation: NeighboringRelation,
) -> float:
    """The chance that the curve of `poisson_unit_rdp` leaves out. Upper.

    Raises:
        TooManyRowsError: a record may have too many rows in one batch.
    """
    pair = _unit_pair(noise_multiplier, sampling_probability, rows, relation)
    return rounded_up(max(finite_losses(pair, direction)[2] for direction in Direction), ulps=8)


@cached_with_cost(maxsize=64)
def _unit_pair(sigma: float, rate: float, rows: int, relation: NeighboringRelation) -> DensePair:
    found = poisson_unit_replace_pair if relation is REPLACE_ONE else poisson_unit_pair
    return found(noise_multiplier=sigma, sampling_probability=rate, rows=rows)


@theorem(
    id="non-uniform-gaussian-rdp",
    source="docs/theory/subsampling.md, Proposition 8",
    status=Status.DERIVED,
    relations=(REPLACE_ONE, REPLACE_SPECIAL),
    assumptions=(Assumption.DATA_INDEPENDENT_WEIGHTS, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def non_uniform_rdp(*, noise_multiplier: float, max_weight: float, orders: Array) -> Array:
    """RDP of one step on a single record that is drawn by weights that do not depend on the data.

    The record is drawn with some chance w <= c, and any two records are within two norm bounds: a
    step is dominated by the pair of a batch of fixed size at rate c.

    Args:
        noise_multiplier: sigma, > 0; noise std / max_grad_norm.
        max_weight: c, in (0, 1].
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper.
    """
    return swap_rdp(
        noise_multiplier=noise_multiplier, rate=max_weight, orders=checked_orders(orders)
    )


THEOREMS = (truncated_poisson_rdp, with_replacement_rdp, poisson_unit_rdp, non_uniform_rdp)
