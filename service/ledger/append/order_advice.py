"""What a refusal says where a budget's order does not suit the steps: the cause and the remedy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from accounting.event_counts import count_events, pass_length
from accounting.events import Event, NeighboringRelation, Span
from accounting.filters import RenyiFilter, default_order, order_for
from accounting.filters.integer_totals import LOSS_BITS
from accounting.guarantees import Status
from accounting.rounding import rounded_up
from accounting.work_limit import attempt
from service.errors import BudgetExhaustedError
from service.formatting import charged_of

ADVICE_POINTS: Final = 5_000_000  # of work: some 60 ms; beyond it a refusal says nothing of orders
_GAIN: Final = 1.2  # an order is named if it holds so many times as many steps


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderUse:
    """A budget that counts at one order, and the step that did not fit."""

    scope: str  # "dataset:NAME" or "run:NAME"
    filter: RenyiFilter
    relation: NeighboringRelation
    accept: frozenset[Status]
    event: Event

    def steps_at(self, order: float) -> int:
        """How many such steps the budget holds at an order while nothing is spent. Lower.

        Of a loader that counts passes, those of whole passes.
        """
        held = RenyiFilter(order=order, epsilon=self.filter.epsilon, delta=self.filter.delta)
        cost = held.cost(self.event, relation=self.relation, accept=self.accept)
        return held.admissible(held.zero(), cost) * (pass_length(self.event) or 1)


def advise(refusal: BudgetExhaustedError) -> None:
    """Add to a refusal which order would hold more of the steps that were refused.

    It prices a step at every order: call it outside any transaction, and not in the event loop.
    """
    sentences = [
        attempt(ADVICE_POINTS, partial(order_advice, use))
        for use in refusal.order_uses
        if isinstance(use, OrderUse)
    ]
    refusal.order_uses = ()
    refusal.detail = " ".join([refusal.detail, *filter(None, sentences)])


def order_advice(use: OrderUse) -> str | None:
    """Return in words which order would hold more of a step; None where none holds much more."""
    budget = use.filter
    better = order_for(
        count_events([[Span(event=use.event, steps=1)]]),
        relation=use.relation,
        epsilon=budget.epsilon,
        delta=budget.delta,
        accept=use.accept,
    )
    if better is None or better == budget.order:
        return None
    now, then = use.steps_at(budget.order), use.steps_at(better)
    if then < max(1, _GAIN * now):
        return None
    return (
        f"{use.scope} counts at order {budget.order:g}{_suits(budget)}: of such steps it holds "
        f"{now:,} in all, and at order {better:g} it would hold {then:,}. An order never changes: "
        "create the budget of the next dataset or run with that order in `orders`, or a dataset "
        "with the plan in `for`."
    )


def _suits(budget: RenyiFilter) -> str:
    full = default_order(epsilon=budget.epsilon, delta=budget.delta, share=1.0)
    return ", which suits full batches" if budget.order >= 0.9 * full else ""


def order_uses(
    failing: Sequence[tuple[str, object, NeighboringRelation, frozenset[Status]]], event: Event
) -> tuple[OrderUse, ...]:
    """Return the budgets among those that failed which count at one order."""
    return tuple(
        OrderUse(scope=scope, filter=held_by, relation=relation, accept=accept, event=event)
        for scope, held_by, relation, accept in failing
        if isinstance(held_by, RenyiFilter)
    )


def recorded_advice(
    scope: str, budget: RenyiFilter, orders: Sequence[float], losses: Sequence[float]
) -> str | None:
    """Return in words which order would hold more of what is recorded; None where none does.

    Args:
        scope: the budget's name.
        budget: its filter.
        orders: Renyi orders.
        losses: RDP of everything recorded at each order, in nats; upper.
    """
    held = {order: _times(budget, order, loss) for order, loss in zip(orders, losses, strict=True)}
    better = max(held, key=lambda order: held[order])
    now = held.get(budget.order)
    if now is None or held[better] < _GAIN * now or not 0 < held[better] < math.inf:
        return None
    return (
        f"The budget of {scope.replace(':', ' ', 1)} counts at order {budget.order:g}"
        f"{_suits(budget)}. {_used(budget.order, now)}; at order {better:g} they would use "
        f"{_part(held[better])}. An order never changes: the next dataset can have that order "
        "(`orders`), or one that is chosen for its training."
    )


def _used(order: float, held: float) -> str:
    """What recorded steps use of a budget at an order that holds so many times as many."""
    if not held:
        return f"At order {order:g} no finite bound is proved for the recorded steps"
    return f"At order {order:g} the recorded steps use {_part(held)}"


def _part(held: float) -> str:
    return charged_of(rounded_up(1 / held), "its capacity")


def _times(budget: RenyiFilter, order: float, loss: float) -> float:
    limit = RenyiFilter(order=order, epsilon=budget.epsilon, delta=budget.delta).limits[2]
    if limit <= 0 or not 0 < loss < math.inf:
        return 0.0
    return math.ldexp(limit, -LOSS_BITS) / loss
