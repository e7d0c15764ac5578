"""Envelopes as they are asked for, certified, stored, read back and shown."""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from accounting.bounds.event_bounds import REASON_SELECTION
from accounting.events import Event, NeighboringRelation, PrivateSelection
from accounting.filters import EnvelopeFilter, EnvelopeItem, RenyiFilter, Total, choose
from accounting.guarantees import Status
from accounting.rounding import rounded_down
from service.errors import BudgetExhaustedError, InvalidRequestError
from service.ledger.budgets import cost_cache
from service.ledger.budgets.cost_cache import EnvelopeCost
from service.schemas.event_codec import canonical, content_of, event_of, to_event
from service.schemas.requests import Budget, EnvelopeItemMessage

REMEMBERED: Final = 256  # envelopes, of up to 256 items each
KIND: Final = EnvelopeFilter.kind
OUTSIDE: Final = "outside_envelope"
_ITEMS_MISSING: Final = "must list what the envelope holds"
_ITEMS_UNUSED: Final = "belongs to a budget whose filter is envelope"
_ONE_ORDER: Final = "an envelope has at most one, of the filter beside its items"
_NOTHING_LEFT: Final = "the items leave no delta to a filter beside them"
_PARAMETERS: Final = {  # what a step may have less or more of, and still be covered
    "noise_multiplier": "at least",
    "sampling_probability": "at most",
    "batch_size": "at most",
    "max_weight": "at most",
    "epsilon": "at most",
    "delta": "at most",
}


def envelope_record(
    budget: Budget,
    *,
    scope: str,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    dataset_size: int,
    location: str = "body.budget",
) -> str:
    """The record of an envelope that is certified to be within its budget.

    Raises:
        InvalidRequestError: the items are missing or do not fit the dataset, or are a selection.
        BudgetExhaustedError: all of them together are not certified to be within the budget.
        UnpricedError: a lock is held, and the certificate is not known.
    """
    if not budget.envelope:
        raise InvalidRequestError(f"{location}.envelope", _ITEMS_MISSING)
    order = _order_beside(budget, f"{location}.orders")
    items = tuple(
        EnvelopeItem(
            event=to_event(
                item, dataset_size=dataset_size, location=f"{location}.envelope[{index}]"
            ),
            steps=item.steps,
            name=item.name,
        )
        for index, item in enumerate(budget.envelope)
    )
    for index, one in enumerate(items):
        if isinstance(one.event.mechanism, PrivateSelection):
            here = f"{location}.envelope[{index}].mechanism"
            raise InvalidRequestError(here, f"cannot be held. {REASON_SELECTION}")
    asked = EnvelopeCost(relation, accept, budget.delta, budget.epsilon, order is not None)
    found = cost_cache.ask(asked, items)
    if not found.epsilon <= budget.epsilon:
        raise BudgetExhaustedError([_too_much(scope, budget, found.epsilon)], found.fit)
    weight = rounded_down(found.unused_delta / budget.delta)
    if order is not None and not rounded_down(weight * budget.delta) > 0:
        raise InvalidRequestError(f"{location}.orders", _NOTHING_LEFT)
    stored = [
        {"event": json.loads(content_of(one.event)), "name": one.name, "steps": one.steps}
        for one in items
    ]
    certified = EnvelopeFilter(
        items=items,
        epsilon=budget.epsilon,
        delta=budget.delta,
        certified=found.epsilon,
        order=order,
        weight=weight if order is not None else 0.0,
    )
    return canonical(certified.record() | {"items": stored})


def _order_beside(budget: Budget, location: str) -> float | None:
    """The order of the filter beside the items; None without one."""
    if budget.orders is None:
        return None
    if len(budget.orders) != 1:
        raise InvalidRequestError(location, _ONE_ORDER)
    try:
        given: dict[str, Any] = {"epsilon": budget.epsilon, "delta": budget.delta}
        choose(RenyiFilter.kind, orders=budget.orders, **given)
    except ValueError as error:
        raise InvalidRequestError(location, str(error)) from None
    return budget.orders[0]


def require_no_items(budget: Budget | None) -> None:
    """Refuse items beside another filter.

    Raises:
        InvalidRequestError: there are some.
    """
    if budget is not None and budget.envelope is not None:
        raise InvalidRequestError("body.budget.envelope", _ITEMS_UNUSED)


def _too_much(scope: str, budget: Budget, epsilon: float) -> dict[str, object]:
    return {
        "scope": scope,
        "limit": budget.epsilon,
        "delta": budget.delta,
        "spent": 0.0,
        "reserved": 0.0,
        "requested": epsilon if math.isfinite(epsilon) else None,
    }


def item_messages(record: Mapping[str, Any]) -> list[EnvelopeItemMessage]:
    """The items of a stored envelope, as they may be asked for again."""
    return [
        EnvelopeItemMessage.model_validate(
            {**one["event"], "steps": one["steps"], "name": one["name"]}
        )
        for one in record["items"]
    ]


@lru_cache(maxsize=REMEMBERED)
def read_envelope(
    record: str, *, epsilon: float, delta: float, dataset_size: int
) -> EnvelopeFilter:
    """The envelope that was stored, under its limit."""
    stored = json.loads(record)
    return EnvelopeFilter(
        items=tuple(
            EnvelopeItem(
                event=event_of(canonical(one["event"]), dataset_size),
                steps=one["steps"],
                name=one["name"],
            )
            for one in stored["items"]
        ),
        epsilon=epsilon,
        delta=delta,
        certified=stored["certified"],
        order=next(iter(stored["orders"]), None),
        weight=next(iter(stored["weights"]), 0.0),
    )


def item_answers(held_by: EnvelopeFilter, *, spent: Total, held: Total) -> list[dict[str, Any]]:
    """What each item allows, and how much of it is used and reserved, in steps."""
    used, ahead = held_by.charged(spent), held_by.charged(held)
    open_ = held_by.holds_items(held)
    return [
        {
            **one,
            "used": min(count * item.unit, item.steps),
            "reserved": max(0, min(more * item.unit, item.steps) - count * item.unit),
            "remaining": max(0, item.steps - more * item.unit) if open_ else 0,
        }
        for item, one, count, more in zip(
            held_by.items, _constant_answers(held_by), used, ahead, strict=True
        )
    ]


@lru_cache(maxsize=REMEMBERED)
def _constant_answers(held_by: EnvelopeFilter) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {**json.loads(content_of(item.event)), "name": item.name, "allowed": item.steps}
        for item in held_by.items
    )


def remaining_steps(held_by: EnvelopeFilter, held: Total) -> int:
    """How many steps all items hold beside what is used and reserved; 0 once they were left."""
    if not held_by.holds_items(held):
        return 0
    charged = zip(held_by.items, held_by.charged(held), strict=True)
    return sum(max(0, item.steps - count * item.unit) for item, count in charged)


def nearest_item(held_by: EnvelopeFilter, event: Event) -> tuple[int, str]:
    """The item that comes nearest to covering an event, and what would make the event fit it."""
    found = [_differences(item.event, event) for item in held_by.items]
    index = min(range(len(found)), key=lambda at: found[at][0])
    return index, ", ".join(found[index][1])


def _differences(item: Event, event: Event) -> tuple[tuple[int, float], list[str]]:
    """How far an event is from an item, and what of it would have to be another."""
    kinds, distance, needed = 0, 0.0, []
    for wanted, given in ((item.mechanism, event.mechanism), (item.sampling, event.sampling)):
        mine, other = _fields(wanted), _fields(given)
        if mine["kind"] != other["kind"]:
            kinds += 1
            needed.append(
                f"{type(wanted).__name__} with {_describe_fields(mine)}"
                if len(mine) > 1
                else type(wanted).__name__
            )
            continue
        for name, value in mine.items():
            far, need = _parameter(name, value, other[name])
            if need:
                distance += far
                needed.append(need)
    return (kinds, distance), needed


def _fields(part: Any) -> dict[str, Any]:
    names = [name for name in type(part).__slots__ if name != "dataset_size"]
    return {"kind": type(part).__name__} | {name: getattr(part, name) for name in names}


def _describe_fields(fields: Mapping[str, Any]) -> str:
    return " and ".join(f"{name} {value}" for name, value in fields.items() if name != "kind")


def _parameter(name: str, wanted: Any, given: Any) -> tuple[float, str]:
    """How far a parameter is from an item's, and what it must be; nothing where it may stay."""
    if wanted == given:
        return 0.0, ""
    limit = _PARAMETERS.get(name)
    if limit is None:
        return 1.0, f"{name} {wanted}"
    if given >= wanted if limit == "at least" else given <= wanted:
        return 0.0, ""
    far = abs(math.log(wanted) - math.log(given)) if min(wanted, given) > 0 else 1.0
    return far, f"{name} {limit} {wanted:.10g}"
