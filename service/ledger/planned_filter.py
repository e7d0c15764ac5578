"""The filter of a new dataset that names the plan which its budget is for."""

from typing import Final

from accounting.event_counts import count_events
from accounting.filters import choose, order_for
from accounting.filters.renyi import RenyiFilter
from service.errors import InvalidRequestError
from service.schemas.event_codec import canonical, spans_of
from service.schemas.requests import NewDataset, accepted_statuses, relation_of
from service.work_limit import bounded

_LOCATION: Final = "body.for"
_NEEDS_BUDGET: Final = "needs a budget"
_ONE_ORDER: Final = "chooses the order of a fixed_order_renyi budget, and names no other filter"
_NOT_BOTH: Final = "chooses the order: leave out budget.orders"
_NO_ORDER: Final = "at no Renyi order does the budget hold a step of this plan"


def planned_filter(new: NewDataset) -> str | None:
    """Return the record of the filter that holds the most of the plan; None without a plan.

    It prices the plan's events: call it before a transaction, so that no lock waits for it.

    Raises:
        InvalidRequestError: the plan has no budget or another filter, or no order holds a step.
        TooExpensiveError: it would take too much work.
    """
    plan, budget = new.for_, new.budget
    if plan is None:
        return None
    if budget is None:
        raise InvalidRequestError(_LOCATION, _NEEDS_BUDGET)
    if budget.orders is not None:
        raise InvalidRequestError(_LOCATION, _NOT_BOTH)
    if budget.filter != RenyiFilter.kind:
        raise InvalidRequestError(_LOCATION, _ONE_ORDER)
    spans = spans_of(
        plan.events, dataset_size=new.dataset_size, first_step=0, location=f"{_LOCATION}.events"
    )
    with bounded("The plan of the budget"):
        order = order_for(
            count_events([spans]),
            relation=relation_of(new.neighboring_relation),
            epsilon=budget.epsilon,
            delta=budget.delta,
            accept=accepted_statuses(new.accept),
        )
    if order is None:
        raise InvalidRequestError(_LOCATION, _NO_ORDER)
    chosen = choose(budget.filter, epsilon=budget.epsilon, delta=budget.delta, orders=[order])
    return canonical(chosen.record())
