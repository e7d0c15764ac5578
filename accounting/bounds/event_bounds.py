"""What it takes to bound an event: reasons why not, and how bounds are chosen and combined."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from accounting.events import Event, NeighboringRelation
from accounting.guarantees import Assumption, Status, Theorem
from accounting.pld.pairs import Pair
from accounting.rounding import Array, rounded_up, sum_up

ADD_OR_REMOVE_ONE: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE: Final = NeighboringRelation.REPLACE_ONE
REPLACE_SPECIAL: Final = NeighboringRelation.REPLACE_SPECIAL

REASON_NO_NOISE = "A step ran without noise: it has no finite epsilon."
REASON_NOISE_AGAIN = (
    "Correlated noise may have been used again, or fell inside a sampled pass: after the first "
    "pass without noise_restarts_each_pass, beside an unfinished pass, or on a branch that does "
    "not say that its noise is fresh. No bound is proved."
)
REASON_NO_SCHEMA = (
    "Correlated noise has a bound with min_separation or cyclic_poisson sampling alone, and these "
    "with matrix_gaussian noise alone."
)
REASON_BATCHES_MOVE = (
    "Under add_or_remove_one a record's absence moves every later record of a cyclic, shuffled or "
    "by_slot pass into another batch: no bound is proved. Use replace_special or replace_one."
)
REASON_NOT_GAUSSIAN_DP = (
    "Under add_or_remove_one a batch of fixed size is not bounded as one Gaussian release."
)
REASON_WEIGHTS = (
    "Under add_or_remove_one a record's absence changes the weights of all others. Use "
    "replace_special or replace_one."
)
REASON_NOT_GAUSSIAN = "A step that adds no Gaussian noise is not a Gaussian release."
REASON_FULL_OR_POISSON = (
    "Without Gaussian noise, only full or poisson sampling is accounted so far."
)
REASON_SELECTION = (
    "Of a selection only a Renyi curve is proved: neither a pair that dominates it nor a mu. The "
    "Renyi accountant, fixed_order_renyi, union_of_orders and odometers take it."
)
REASON_MISSING_ANSWER = (
    "Under add_or_remove_one a record's absence leaves out its randomized response, which anyone "
    "can see: there is no finite bound. Use replace_special or replace_one."
)

L = TypeVar("L")
Pairs = tuple[tuple[Pair, int], ...]  # that together dominate a unit, and how often each counts


class NoBoundError(ValueError):
    """No accepted theorem bounds the event; the text says why."""


@dataclass(frozen=True, kw_only=True)
class EventBound(Generic[L]):
    """A theorem applied to one unit of an event: a step, or a pass where passes count."""

    theorem: Theorem[..., Any]
    assumptions: tuple[Assumption, ...]
    loss: L  # upper: a Renyi curve on ORDERS, read-only; mu; or dominating pairs
    delta: float = 0.0  # upper; the probability that the unit fails and the loss does not hold
    premises: tuple[Theorem[..., Any], ...] = ()  # what the theorem was applied to

    @property
    def theorems(self) -> tuple[Theorem[..., Any], ...]:
        """Everything the bound rests on."""
        return (self.theorem, *self.premises)


def bound_of(theorem: Theorem[..., Any], *pairs: Pair) -> EventBound[Pairs]:
    """The bound that these pairs, one of each, dominate a unit in both orders."""
    loss = tuple((pair, 1) for pair in pairs)
    return EventBound(theorem=theorem, assumptions=theorem.assumptions, loss=loss)


def reason_without_noise(event: Event) -> str:
    """Why a step or a pass without noise has no bound."""
    return REASON_NOISE_AGAIN if event.is_correlated else REASON_NO_NOISE


def sensitivity_of(relation: NeighboringRelation) -> float:
    """How far one record can move a sum in which it keeps its place, in norm bounds."""
    return 2.0 if relation is REPLACE_ONE else 1.0


# Of an unknown sampler only this is assumed: a record joins a step at most once, and neither its
# presence nor its content decides who else does.
UNKNOWN_SAMPLER = (Assumption.OTHERS_UNAFFECTED,)


def filter_accepted(
    bounds: tuple[EventBound[L], ...], *, accept: frozenset[Status]
) -> tuple[EventBound[L], ...]:
    """The bounds all of whose theorems have an accepted status.

    Raises:
        NoBoundError: none has.
    """
    chosen = tuple(
        bound for bound in bounds if accept.issuperset(one.status for one in bound.theorems)
    )
    if not chosen:
        statuses = ", ".join(sorted({one.status for bound in bounds for one in bound.theorems}))
        raise NoBoundError(f"Every bound for this event is {statuses}, which is not accepted.")
    return chosen


def least_curve(bounds: tuple[EventBound[Array], ...]) -> Array:
    """The least of the curves, order by order. Upper, nats, shape (len(ORDERS),)."""
    curve = bounds[0].loss
    for bound in bounds[1:]:
        curve = np.minimum(curve, bound.loss)
    return curve


def failure(bounds: tuple[EventBound[Array], ...]) -> float:
    """The probability with which a unit may fail its least_curve. Upper."""
    if not any(bound.delta for bound in bounds):  # nearly always
        return 0.0
    curve = least_curve(bounds)
    return max(bound.delta for bound in bounds if np.any(bound.loss == curve))


def total_failure(units: Iterable[tuple[tuple[EventBound[Array], ...], int]]) -> float:
    """The probability that any unit fails: at most the sum over units. Upper; 0 if none can."""
    failures = [count * failure(bounds) for bounds, count in units]
    return sum_up([rounded_up(delta) for delta in failures if delta])
