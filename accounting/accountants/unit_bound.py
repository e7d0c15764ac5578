"""What planned steps cost a person with several records: docs/theory/units.md."""

import math
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from accounting.accountants.best_bound import best_bound
from accounting.bounds.event_bounds import NoBoundError
from accounting.composition import EPSILON_MAX, group_privacy
from accounting.event_counts import EventCounts
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    Poisson,
    PrivateSelection,
    Sampling,
    Shuffle,
)
from accounting.guarantees import Bound, Status, weakest
from accounting.pld.certified_composition import epsilon_bracket, lower_epsilon
from accounting.pld.pairs import GaussianPair, Pair
from accounting.rounding import Array, require, rounded_down, rounded_up
from accounting.subsampling.units import (
    ROWS_MAX,
    TooManyRowsError,
    poisson_unit_lower_pair,
    poisson_unit_pair,
    unit_release_mu,
)

REASON_SAMPLING: Final = (
    "No bound is known for a person with several records under this sampling and relation."
)
_TRIES: Final = 40  # of a delta of one record that leaves the group's within its own
_LESS: Final = 0.98
_LEAST_DELTA: Final = 1e-300  # of one record; a chain that needs less is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBound:
    """Epsilon for a person with at most so many records."""

    rows: int
    epsilon: float  # nats at the delta that was asked about, upper; infinite where none is known
    group_epsilon: float  # by a chain of neighbours, upper; infinite where none is known
    epsilon_lower: float | None = None  # some person with so many records loses at least this
    bound: str | None = None  # the theorem's id; None where epsilon is infinite
    status: Status | None = None


def unit_bound(
    counts: EventCounts,
    *,
    rows: int,
    relation: NeighboringRelation,
    delta: float,
    accept: frozenset[Status],
) -> UnitBound:
    """Return what planned events cost a person with at most so many records.

    Args:
        counts: the plan's events.
        rows: of one person, at most, in [1, ROWS_MAX].
        relation: of a record; that of a person is the same for all of the person's records.
        delta: in (0, 1).
        accept: statuses of theorems that may be used.

    Raises:
        ValueError: rows is out of range.
    """
    require(1 <= rows <= ROWS_MAX, f"rows from 1 to {ROWS_MAX}")
    if rows == 1:
        return _of_one(best_bound(counts, relation=relation, delta=delta, accept=accept))
    group, status = _by_chain(counts, rows, relation, delta, accept)
    direct, lower, names = math.inf, None, [""]
    with suppress(NoBoundError, TooManyRowsError):
        found = _pairs(counts, rows, relation, accept)
        names = sorted({theorem.id for _, _, theorem in found})
        direct = epsilon_bracket(_compose(pair for pair, _, _ in found), delta=delta).upper
        lower_pairs = [lower_pair for _, lower_pair, _ in found if lower_pair is not None]
        if len(lower_pairs) == len(found):
            lower = lower_epsilon(_compose(lower_pairs), delta=delta)
    best = min(direct, group)
    if math.isinf(best):
        return UnitBound(rows=rows, epsilon=best, group_epsilon=group)
    by_group = group <= direct
    return UnitBound(
        rows=rows,
        epsilon=best,
        epsilon_lower=lower if lower is None else min(lower, best),
        bound=group_privacy.id if by_group else names[-1],
        status=status if by_group else Status.DERIVED,
        group_epsilon=group,
    )


def _of_one(found: Bound | None) -> UnitBound:
    """A person with one record is a record."""
    if found is None:
        return UnitBound(rows=1, epsilon=math.inf, group_epsilon=math.inf)
    return UnitBound(
        rows=1,
        epsilon=found.epsilon,
        epsilon_lower=found.epsilon_lower,
        bound=found.bound,
        status=found.status,
        group_epsilon=found.epsilon,
    )


Counted = tuple[Pair, int]
Found = tuple[Counted, Counted | None, Any]  # above, below if known, and the theorem


def _pairs(
    counts: EventCounts, rows: int, relation: NeighboringRelation, accept: frozenset[Status]
) -> list[Found]:
    """Of each event the pairs and how often they count.

    Raises:
        NoBoundError: no accepted theorem speaks of some event.
        TooManyRowsError: a person may have too many rows in one batch.
    """
    if Status.DERIVED not in accept:
        raise NoBoundError(REASON_SAMPLING)
    found = []
    for event, count in counts.units():
        pair, lower_pair, theorem = _pair(event, rows, relation)
        found.append(((pair, count), None if lower_pair is None else (lower_pair, count), theorem))
    return found


def _compose(counted: Iterable[Counted]) -> list[Counted]:
    total: Counter[Pair] = Counter()
    for pair, count in counted:
        total[pair] += count
    return list(total.items())


def _pair(event: Event, rows: int, relation: NeighboringRelation) -> tuple[Pair, Pair | None, Any]:
    if not isinstance(event.mechanism, Gaussian):
        raise NoBoundError(REASON_SAMPLING)
    sigma, sampling = event.mechanism.noise_multiplier, event.sampling
    added = relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    exchanged = relation is NeighboringRelation.REPLACE_ONE
    match sampling:
        case Poisson(sampling_probability=rate) if not exchanged and rate < 1:
            given: dict[str, Any] = {
                "noise_multiplier": sigma, "sampling_probability": rate, "rows": rows,
            }  # fmt: skip
            return poisson_unit_pair(**given), poisson_unit_lower_pair(**given), poisson_unit_pair
        case Full():
            pass
        case BallsAndBins() if not exchanged:
            pass
        case Cyclic() | Shuffle() if not added:
            pass
        case _:
            raise NoBoundError(REASON_SAMPLING)
    mu = unit_release_mu(noise_multiplier=sigma, rows=rows, exchanged=exchanged)
    release = GaussianPair(noise_multiplier=rounded_down(1 / mu, ulps=2))
    # What a person attains in a pass, whose rows may be in other steps, is not told.
    lower_pair = GaussianPair(noise_multiplier=rounded_up(1 / mu, ulps=4))
    return release, lower_pair if isinstance(sampling, Full) else None, unit_release_mu


def chain_holds(counts: EventCounts, relation: NeighboringRelation) -> bool:
    """Whether bounds of one record lead to bounds of several: docs/theory/units.md.

    Where records are added, the datasets along the chain have other sizes than the declared one;
    then only samplings that do not depend on the size have the same bound at each link.
    """
    return relation is not NeighboringRelation.ADD_OR_REMOVE_ONE or all(
        isinstance(_batch_sampling(event), Full | Poisson | BallsAndBins) for event in counts.steps
    )


def _batch_sampling(event: Event) -> Sampling:
    """How records come into batches; those of a selection into the batches of its trials."""
    mechanism = event.mechanism
    return mechanism.base.sampling if isinstance(mechanism, PrivateSelection) else event.sampling


def group_profile(epsilons: Array, deltas: Array, *, rows: int) -> tuple[Array, Array]:
    """Points of the privacy profile of several records together, from points of that of one.

    Each by Theorem 3 of docs/theory/composition.md; it holds where `chain_holds`.

    Args:
        epsilons: nats, >= 0, shape (k,).
        deltas: of one record at each of them, in [0, 1], shape (k,). Upper.
        rows: of one person, at least 1.

    Returns:
        Epsilons in nats and their deltas, each of shape (m,) with m <= k: points that prove
        nothing are left out. Upper.
    """
    useful = (epsilons <= EPSILON_MAX) & (deltas < 1)
    found = [
        group_privacy(epsilon=float(epsilon), delta=float(delta), size=rows)
        for epsilon, delta in zip(epsilons[useful], deltas[useful], strict=True)
    ]
    each = np.array(found, dtype=np.float64).reshape(-1, 2)
    return each[:, 0], each[:, 1]


def _by_chain(
    counts: EventCounts,
    rows: int,
    relation: NeighboringRelation,
    delta: float,
    accept: frozenset[Status],
) -> tuple[float, Status | None]:
    """Epsilon by so many neighbours, one record apart each. Upper; infinite where none is known.

    The delta of one record is lowered until that of the chain is within the one asked about.
    """
    none = math.inf, None
    if not chain_holds(counts, relation) or group_privacy.status not in accept:
        return none
    one = delta / rows
    for _ in range(_TRIES):
        bound = best_bound(
            counts, relation=relation, delta=one, accept=accept, accountant="best", with_lower=False
        )
        if bound is None or not bound.epsilon <= EPSILON_MAX:
            return none
        together, lost = group_privacy(epsilon=bound.epsilon, delta=one, size=rows)
        if lost <= delta:
            return together, weakest([bound.status, group_privacy.status])
        one = max(one * _LESS * delta / lost, _LEAST_DELTA)
    return none
