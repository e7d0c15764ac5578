"""The filter of a new dataset that names the plan which its budget is for."""

from typing import Any, Final

from accounting.event_counts import EventCounts, count_events
from accounting.events import NeighboringRelation
from accounting.filters import EnvelopeFilter, choose, order_for, share_held
from accounting.filters.renyi import RenyiFilter
from service.errors import InvalidRequestError
from service.ledger.budgets.envelopes import envelope_record
from service.ledger.budgets.planned_envelopes import plan_envelope
from service.schemas.event_codec import canonical, spans_of
from service.schemas.requests import Budget, NewDataset, accepted_statuses
from service.work_limit import bounded

_LOCATION: Final = "body.for"
_NEEDS_BUDGET: Final = "needs a budget"
_ONE_ORDER: Final = "chooses the order of a fixed_order_renyi budget, and names no other filter"
_NOT_BOTH: Final = "chooses the order: leave out budget.orders"
_NO_FILTER: Final = (
    "at no Renyi order does the budget hold a step of this plan, nor does it hold all of it"
)


def planned_filter(new: NewDataset) -> str | None:
    """Return the record of the filter that suits a plan; None without a plan.

    It counts at the order that holds the most of the plan. Where no order holds all of it and an
    envelope does, it is the envelope, unless `accept` is given without the envelope's status.

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
    counts, relation = count_events([spans]), NeighboringRelation(new.neighboring_relation)
    limit: dict[str, Any] = {"epsilon": budget.epsilon, "delta": budget.delta}
    given: dict[str, Any] = {"relation": relation, "accept": accepted_statuses(new.accept)}
    with bounded("The plan of the budget"):
        order = order_for(counts, **limit, **given)
        whole = order is not None and share_held(counts, order=order, **limit, **given) == 1
        record = None
        # An envelope is set before the first answer. Its status is refused by a list without it.
        refused = new.accept is not None and EnvelopeFilter.status not in given["accept"]
        if not (whole or new.opening_balance or refused):
            record = _envelope(new.name, new.dataset_size, counts, limit, given)
    if record is not None:
        return record
    if order is None:
        raise InvalidRequestError(_LOCATION, _NO_FILTER)
    chosen = choose(budget.filter, epsilon=budget.epsilon, delta=budget.delta, orders=[order])
    return canonical(chosen.record())


def _envelope(
    name: str, dataset_size: int, counts: EventCounts, limit: dict[str, Any], given: dict[str, Any]
) -> str | None:
    """The record of the plan's envelope; None where the budget does not hold the whole plan."""
    try:
        found = plan_envelope(counts, delta=limit["delta"], epsilon=limit["epsilon"], **given)
    except InvalidRequestError:  # some step can be no item
        return None
    if found.epsilon > limit["epsilon"]:
        return None
    wished = Budget(**limit, filter=found.filter, envelope=found.envelope)
    return envelope_record(wished, scope=f"dataset:{name}", dataset_size=dataset_size, **given)
