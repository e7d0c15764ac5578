"""What is asked of a ledger, and the pairs that bound it from either side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accounting import work_budgets
from accounting.accountants.event_grouping import GroupedEvents, group_events
from accounting.accountants.shuffled_passes import bounds_with_passes
from accounting.bounds.dominating_pairs import bounds_offered, units_of
from accounting.bounds.event_bounds import EventBound, Pairs
from accounting.bounds.lower_bounds import lower_bound_units
from accounting.bounds.pair_choice import choose_bounds
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import Bound, Status, Theorem, weakest
from accounting.pld.certified_composition import WIDTH, lower_epsilon
from accounting.pld.pairs import Units
from accounting.work_limit import attempt, remaining_points

DELTA_MIN: Final = 1e-290  # below, products of probabilities underflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked of a ledger: epsilon at a delta, or delta at an epsilon."""

    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float | None  # in (0, 1); None asks for it
    epsilon: float | None  # nats, >= 0; None asks for it
    rounded: GroupedEvents | None = None  # where the ledger that is asked about is its upper side
    gathered: bool = False  # the ledger is one of fewer events that dominates what is asked about
    width: float = WIDTH  # relative, aimed at where the ledger was not rounded outward
    with_lower: bool = True  # whether a lower bound is wanted, too, where it takes work of its own
    share: float = 1.0  # of what an answer may take that this one may

    def answer(
        self,
        value: float,
        *,
        accountant: str,
        used: Sequence[EventBound[Any]],
        composed: tuple[Theorem[..., Any], ...],
        order: float | None = None,
        lower: float | None = None,
    ) -> Bound:
        """The bound whose unknown half is `value`."""
        names = {bound.theorem.id for bound in used}
        ids = sorted({theorem.id for bound in used for theorem in bound.theorems})
        assumptions = {assumption for bound in used for assumption in bound.assumptions}
        rounding = (group_events.id,) if self.rounded or self.gathered else ()
        reached = value if self.epsilon is None else self.epsilon
        return Bound(
            epsilon=reached,
            delta=value if self.delta is None else self.delta,
            accountant=accountant,
            bound=names.pop() if len(names) == 1 else "composition",
            theorems=(*ids, *rounding, *(theorem.id for theorem in composed)),
            status=weakest(
                [theorem.status for bound in used for theorem in bound.theorems]
                + [theorem.status for theorem in composed]
            ),
            assumptions=tuple(sorted(assumptions)),
            order=order,
            epsilon_lower=lower,
        )


Accountant = Callable[[EventCounts, Query], Bound]


def pairs_above(
    counts: EventCounts,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    aside: float = 0.0,
) -> tuple[list[EventBound[Pairs]], Units]:
    """(bounds used, the pairs that together dominate the ledger), in an order of the events.

    Of the pairs of an event those are taken that cost least at the delta, or at the epsilon. They
    dominate but for the delta of the bounds used, which is zero where nothing was set aside.

    Raises:
        NoBoundError: some event is dominated by no accepted pair; the text says why.
    """
    if aside:
        offered = bounds_with_passes(counts, relation, accept, aside=aside)
    else:
        offered = bounds_offered(counts, relation, accept)
    if all(len(bounds) == 1 for bounds, _ in offered):
        used = [bounds[0] for bounds, _ in offered]
    else:
        used = choose_bounds(offered, delta=delta, epsilon=epsilon)
    return used, units_of(offered, used)


def attained_epsilon(below: Units, *, delta: float, width: float = WIDTH) -> float | None:
    """What is attained; None where that takes too much work, which loses no upper bound."""
    return attempt(
        min(work_budgets.LOWER_BOUND, remaining_points()),
        lambda: lower_epsilon(below, delta=delta, width=width),
    )


def epsilon_lower_bound(
    counts: EventCounts, *, relation: NeighboringRelation, delta: float, width: float = WIDTH
) -> float | None:
    """What epsilon at a delta is at least, whatever the accountant. Lower; None if unknown."""
    units = lower_bound_units(counts, relation)
    if not units or delta < DELTA_MIN:
        return None
    return attained_epsilon(units, delta=delta, width=width)


def lower_end(
    bounds: list[Bound],
    headline: Bound | None,
    lower_counts: EventCounts,
    relation: NeighboringRelation,
    width: float = WIDTH,
) -> float | None:
    """The best proved lower bound beside a headline; what is attained does not hang on a status.

    Raises:
        ArithmeticError: it exceeds the headline, so one of them is wrong.
    """
    if headline is None:
        return None
    known = [
        bound.epsilon_lower
        for bound in bounds
        # At a larger delta less is lost, so a lower bound there is one here, too.
        if bound.epsilon_lower is not None and bound.delta >= headline.delta
    ]
    lower = max(known) if known else None
    if not known and 0 < headline.delta < 1:
        lower = epsilon_lower_bound(
            lower_counts, relation=relation, delta=headline.delta, width=width
        )
    if lower is not None and not lower <= headline.epsilon:
        raise ArithmeticError("A lower bound exceeds an upper one.")
    return lower
