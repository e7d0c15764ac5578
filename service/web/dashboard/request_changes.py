"""What a change request would change, as its page tells it: from, to, and how many wait."""

import json
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from service.errors import LedgerError
from service.formatting import all_digits, count, many, plain, words
from service.guarantees.noise_schedule import event_words
from service.identity.access import datasets_within
from service.identity.authentication import Caller
from service.ledger.change_requests.messages import ChangeRequestAnswer
from service.ledger.change_requests.records import count_requests, in_state
from service.ledger.corrections import recorded_contents
from service.ledger.lookups import branches_of, dataset_of, find_dataset, find_run
from service.ledger.reservations import find_reservation, remaining_steps_of
from service.schemas.event_codec import canonical, event_of
from service.storage.engine import snapshot
from service.storage.tables import datasets, settings_changes

_EVENTS_MAX: Final = 3  # of the corrected steps that are told
NONE_BEFORE: Final = "none"
_TITLES: Final = {
    "limit": "Another limit",
    "envelope": "A new envelope",
    "void": "A void of reservations",
    "correction": "A correction",
}


def request_title(request: ChangeRequestAnswer) -> str:
    """What is asked for, in a few words."""
    about = request.dataset if request.target is None else request.target
    title = _TITLES[request.kind]
    if request.kind == "limit" and not request.change.get("budget"):
        if request.change.get("frozen") is False:
            title = "The end of a freeze"
        elif "accept" in request.change:
            title = "Other accepted theorems"
    if request.kind == "void" and request.target is not None:
        title = "A void of a reservation"
    return f"{title}: {about}"


def changed_rows(
    connection: Connection, request: ChangeRequestAnswer
) -> list[tuple[str, str, str]]:
    """Each thing that would change: its name, what it was, and what it would be."""
    change = request.change
    if request.kind == "correction":
        return [_describe_correction(connection, request)]
    if request.target is not None:
        return [(f"Reservation {request.target}", *_void_of(connection, request))]
    before = _settings(connection, request)
    budget = change.get("budget") or {}
    rows = []
    for name, text, column in (("epsilon", "\u03b5, at most", "budget_epsilon"),
                               ("delta", "\u03b4", "budget_delta")):  # fmt: skip
        if name in budget:
            rows.append((text, _number(getattr(before, column, None)), _number(budget[name])))
    rows += [
        (name.capitalize(), "as it is", _describe_filter(budget[name]))
        for name in ("filter", "orders")
        if name in budget
    ]
    rows += [
        (f"Item {at} of the envelope", "", _item(connection, request, item))
        for at, item in enumerate(budget.get("envelope") or (), 1)
    ]
    if "accept" in change and before is not None:
        rows.append(
            ("Accepted statuses", _words(json.loads(before.accept)), _words(change["accept"]))
        )
    if "frozen" in change and before is not None:
        rows.append(("Frozen", _truth(before.frozen), _truth(change["frozen"])))
    if change.get("void_reservations"):
        rows.append(("Open reservations of all its runs", "held", "voided"))
    return rows


def listed_changes(
    connection: Connection, request: ChangeRequestAnswer
) -> list[tuple[str, str, str]]:
    """What a list says of it: what changes and nothing else; of a correction its steps once."""
    if request.kind == "correction":
        return [_describe_correction(connection, request)]
    return [one for one in changed_rows(connection, request) if one[1] != one[2]]


def _describe_correction(
    connection: Connection, request: ChangeRequestAnswer
) -> tuple[str, str, str]:
    """The steps of a correction, what they were recorded as, and what they really were."""
    change = request.change
    first, steps = change["first_step"], change["steps"]
    what = f"Branch {change['branch']}, steps {count(first)} to {count(first + steps - 1)}"
    run = find_run(connection, request.target or "")
    size = dataset_of(connection, run).dataset_size
    branch = next(one for one in branches_of(connection, run) if one.name == change["branch"])
    found = recorded_contents(connection, branch.id, first_step=first, steps=steps)
    told = [event_words(event_of(content, size)) for content in found[:_EVENTS_MAX]]
    left = len(found) - len(told)
    more = [f"and {many(left, 'other kind')} of step"] if left else []
    return what, "; ".join([*told, *more]), _event(change, size)


def _item(connection: Connection, request: ChangeRequestAnswer, item: Mapping[str, Any]) -> str:
    """The steps of an item of an envelope."""
    size = find_dataset(connection, request.dataset or "").dataset_size
    return f"{many(item['steps'], 'step')} of {_event(item, size)}"


def _event(given: Mapping[str, Any], dataset_size: int) -> str:
    parts = {part: given[part] for part in ("mechanism", "sampling")}
    return event_words(event_of(canonical(parts), dataset_size))


def _void_of(connection: Connection, request: ChangeRequestAnswer) -> tuple[str, str]:
    """What a void returns, as long as the request waits."""
    if request.state != "pending" or request.target is None:
        return "held", "voided"
    rows = find_reservation(connection, request.target)
    left = sum(remaining_steps_of(row) for row in rows)
    return f"{many(left, 'step')} held", "voided, returned to the budget"


def _settings(connection: Connection, request: ChangeRequestAnswer) -> Row[Any] | None:
    """The settings on which it was decided."""
    found = (
        select(settings_changes)
        .join(datasets, datasets.c.id == settings_changes.c.dataset_id)
        .where(datasets.c.name == request.dataset, settings_changes.c.revision == request.revision)
    )
    return connection.execute(found).one_or_none()


def _number(value: float | None) -> str:
    return NONE_BEFORE if value is None else all_digits(value)


def _truth(value: bool) -> str:
    return "yes" if value else "no"


def _words(values: list[str]) -> str:
    return ", ".join(sorted(values))


def _describe_filter(value: Any) -> str:
    """A filter by its kind, or its orders."""
    return ", ".join(map(plain, value)) if isinstance(value, list) else words(str(value)).lower()


def pending_requests(engine: Any, viewer: Caller) -> int | None:
    """How many requests wait that the viewer may see; None if the database does not say."""
    try:
        with snapshot(engine) as connection:
            return count_requests(connection, datasets_within(viewer.datasets), in_state("pending"))
    except LedgerError:
        return None
