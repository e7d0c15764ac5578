"""What an append answers beside what it counted: the run's guarantee, and what is left."""

from dataclasses import dataclass
from typing import Any

from accounting.events import Event, NeighboringRelation
from accounting.guarantees import Status
from service import meter, pricing
from service.books import Book, RunBook
from service.tallies import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A run's guarantee at some moment that is still to be worked out, which may take time."""

    run: RunBook
    known: meter.Meter | None  # of these events, if there is one
    units: dict[Event, Counts]
    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float
    sequence: int

    def read(self) -> dict[str, Any]:
        """A GuaranteeAnswer; what it rests on is kept for the appends that follow."""
        given: dict[str, Any] = {"relation": self.relation, "accept": self.accept}
        known = self.known or meter.meter_of(self.units, delta=self.delta, **given)
        self.run.reading = known  # whoever reads it sees whether it is of the events it has by then
        return meter.read(known, self.units, sequence=self.sequence, **given)


def read(answer: dict[str, Any]) -> dict[str, Any]:
    """The AppendAnswer to what was committed, with a guarantee that no lock could wait for."""
    return answer | {"guarantee": answer["guarantee"].read()}


def is_unread(answer: dict[str, Any]) -> bool:
    """Whether the guarantee is still to be worked out."""
    return isinstance(answer["guarantee"], Unread)


def reading(book: Book, run: RunBook) -> dict[str, Any] | Unread | None:
    """The run's guarantee after the append, where a delta is known."""
    delta = book.delta if run.delta is None else run.delta
    if delta is None:
        return None
    if run.units is None:
        tally = run.scope.tally if run.scope else book.tally
        return {**meter.read_filter(tally, delta), "steps": run.steps, "sequence": book.head}
    return _metered(book, run, run.units, delta)


def _metered(
    book: Book, run: RunBook, units: dict[Event, Counts], delta: float
) -> dict[str, Any] | Unread:
    known: meter.Meter | None = run.reading
    # Events of a run are never taken off, so as many as before are the same.
    if known and (known.form["delta"] != delta or len(known.events) != len(units)):
        known = None
    given: dict[str, Any] = {"relation": book.relation, "accept": book.accept}
    if known and known.curves is not None:
        return meter.read(known, units, sequence=book.head, **given)
    unread = Unread(
        run=run, known=known, units=dict(units), delta=delta, sequence=book.head, **given
    )
    return unread if pricing.is_locked() else unread.read()


def budget(book: Book, run: RunBook) -> dict[str, Any] | None:
    """The budget that holds the dataset, or else the run."""
    scope = book.scope or run.scope
    return scope.answer() if scope else None
