"""A plan's place in its dataset's budget: reserved as a whole, and returned at the run's end.

Its leases have no name and never expire. The run's own budget does not count them: the plan itself
holds that one.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from accounting.events import Span
from service import bulk
from service.admission import (
    Placed,
    ahead,
    held_since,
    holds,
    require_budget,
    require_unfrozen,
    scopes_of,
    uncounted,
)
from service.books import Book
from service.documents import MAIN
from service.errors import UnsupportedEventError
from service.facts import acts_of
from service.planned import leading
from service.reservations import OPEN, RELEASED
from service.shelf import Desk
from service.tables import reservations
from service.tallies import Move

_COLUMNS: Final = (
    "dataset_id", "run_id", "branch_id", "event_id", "first_step", "steps", "end_step", "state",
    "request", "created_at", "by",
)  # fmt: skip


def reserve_plan(
    desk: Desk, run_name: str, spans: Sequence[Span], moment: datetime, *, by: str | None = None
) -> None:
    """Reserve a whole plan in every budget but its run's own, by a key's name.

    Raises:
        DatasetFrozenError: the dataset is frozen, or one that it was made from.
        UnsupportedEventError: some budget's filter cannot count an event of it.
        BudgetExhaustedError: it does not fit; the transaction is to be undone.
    """
    book, run = desk.run(run_name)
    branch = desk.branch(run, MAIN)
    require_unfrozen(book)
    scopes = scopes_of(book, run, with_run=False)
    parts = _parts(spans)

    def moved(steps: int | None) -> Move:
        some = spans if steps is None else leading(spans, steps)
        return Move(reserved=ahead(branch.open_pass, some), own={})

    book.require_prices(run, moved(None))  # all at once, not one event after another
    for part in parts:
        if reason := uncounted(part.event, book, scopes):
            raise UnsupportedEventError(part.index, reason, where="plan")

    require_budget(scopes, parts, moved)
    _insert(desk, book, run.id, branch.id, parts, moment, by)
    book.take(run, moved(None), {})
    desk.write()


def _parts(spans: Sequence[Span]) -> list[Placed]:
    parts: list[Placed] = []
    first_step = 0
    for index, span in enumerate(spans):
        parts.append(Placed(first_step=first_step, event=span.event, steps=span.steps, index=index))
        first_step += span.steps
    return parts


def _insert(
    desk: Desk, book: Book, run_id: int, branch_id: int, parts: Sequence[Placed], moment: datetime,
    by: str | None,
) -> None:  # fmt: skip
    ids = desk.event_ids(book, [part.event for part in parts])
    common = (OPEN, "{}", desk.stored(moment), by)
    rows = [
        (book.id, run_id, branch_id, ids[one.event], one.first_step, one.steps, one.end, *common)
        for one in parts
    ]
    bulk.insert(desk.connection, reservations, _COLUMNS, rows)
    book.note(acts_of(desk.connection, "reservation", dataset_id=book.id, run_id=run_id, by=by))


def return_plan(desk: Desk, run_name: str, *, by: str | None = None) -> None:
    """Hold no step of a run's plan any longer; by is the key's name."""
    book, run = desk.run(run_name)
    branch = desk.branch(run, MAIN)
    before = holds(branch, branch.next_step, branch.open_pass)
    held = [one for one in branch.leases if one.name is None and one.state == OPEN]
    for lease in held:
        lease.end_step = max(lease.first_step, branch.next_step)
        lease.state = RELEASED
    after = holds(branch, branch.next_step, branch.open_pass)
    rows = [(lease.end_step, lease.state, lease.id) for lease in held]
    bulk.update(desk.connection, reservations, "id", ("end_step", "state"), rows)
    ended = acts_of(desk.connection, "reservation_end", dataset_id=book.id, run_id=run.id, by=by)
    returned = {(None, lease.first_step) for lease in held}
    book.note(act for act in ended if (act.content["name"], act.content["first_step"]) in returned)
    book.take(run, held_since(before, after), {})
    desk.write()
