"""What a change request would change, as its page tells it: from, to, and how many wait."""

import json
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from service.errors import LedgerError
from service.formatting import many, plain
from service.identity.access import datasets_within
from service.identity.authentication import Caller
from service.ledger.change_requests.messages import ChangeRequestAnswer
from service.ledger.change_requests.records import count_requests, in_state
from service.ledger.reservations import find_reservation, remaining_steps_of
from service.storage.engine import snapshot
from service.storage.tables import datasets, settings_changes

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
    thaws = request.kind == "limit" and request.change.get("frozen") is False
    title = "The end of a freeze" if thaws and not request.change.get("budget") else None
    return f"{title or _TITLES[request.kind]}: {about}"


def changed_rows(
    connection: Connection, request: ChangeRequestAnswer
) -> list[tuple[str, str, str]]:
    """Each thing that would change: its name, what it was, and what it would be."""
    change = request.change
    if request.kind == "correction":
        return [
            (
                f"{part.capitalize()} of {_corrected_steps(change)}",
                "as recorded",
                _said(change[part]),
            )
            for part in ("mechanism", "sampling")
        ]
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
        (name.capitalize(), "as it is", _said(budget[name]))
        for name in ("filter", "orders")
        if name in budget
    ]
    rows += [
        (f"Item {at} of the envelope", "", f"{item['steps']:,} steps of {_said(item)}")
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
        return [(_corrected_steps(request.change), "as recorded", _said(request.change))]
    return [one for one in changed_rows(connection, request) if one[1] != one[2]]


def _corrected_steps(change: Mapping[str, Any]) -> str:
    last = change["first_step"] + change["steps"] - 1
    return f"branch {change['branch']}, steps {change['first_step']} to {last}"


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
    return NONE_BEFORE if value is None else str(plain(value))


def _truth(value: bool) -> str:
    return "yes" if value else "no"


def _words(values: list[str]) -> str:
    return ", ".join(sorted(values))


def _said(value: Any) -> str:
    """An event, a mechanism or a sampling in words."""
    if not isinstance(value, dict):
        return _words([str(one) for one in value]) if isinstance(value, list) else str(value)
    if "mechanism" in value:
        return f"{_said(value['mechanism'])}, {_said(value['sampling'])}"
    kind = str(value.get("kind", "")).replace("_", " ")
    fields = [f"{n.replace('_', ' ')} {v}" for n, v in value.items() if n != "kind"]
    return ", ".join([kind, *fields])


def pending_requests(engine: Any, viewer: Caller) -> int | None:
    """How many requests wait that the viewer may see; None if the database does not say."""
    try:
        with snapshot(engine) as connection:
            return count_requests(connection, datasets_within(viewer.datasets), in_state("pending"))
    except LedgerError:
        return None
