"""What a unit of each event of a dataset costs: in its filter's currency, and as a Renyi curve."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Row, bindparam, select

from accounting.bounds.event_bounds import NoBoundError, failure, filter_accepted, least_curve
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import EventCounts, reveal_order
from accounting.events import Event, NeighboringRelation, Reshuffle, Shuffle
from accounting.filters import EnvelopeFilter, Total
from accounting.filters.event_costs import losses_at
from accounting.guarantees import Status
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_down, rounded_up
from accounting.work_limit import cached_with_cost
from service.errors import TooExpensiveError
from service.guarantees.event_counts import RecordedCounts
from service.guarantees.recorded_facts import facts_of_corrected_runs
from service.ledger.budgets.accumulator import BudgetAccumulator
from service.ledger.budgets.lineage import RowsPerParent, rows_of, view_event
from service.ledger.budgets.steps_and_passes import by_pass
from service.schemas.event_codec import event_of
from service.storage.tables import datasets, distinct_events, lineage
from service.work_limit import bounded

PRICED_EVENTS_MAX: Final = 10_000  # different ones of a dataset: each takes some 0.15 milliseconds
_FEW: Final = 32  # events whose whole Renyi curve is worked out, some milliseconds each
_SOME: Final = 1000  # whose larger orders are, half a millisecond each
_SMALL: Final = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0)
_LARGE: Final = (48.0, 64.0, 128.0)  # at which little is read best
_ALL: Final[tuple[float, ...]] = tuple(ORDERS.tolist())
LOSSES_MAX: Final = 4096  # cached; at most a kilobyte each

_DATASETS: Final = (
    select(
        *(datasets.c.id, datasets.c.name, datasets.c.dataset_size),
        *(lineage.c.exactly_one, lineage.c.most_rows),
    )
    .outerjoin(
        lineage,
        (lineage.c.dataset_id == datasets.c.id) & (lineage.c.ancestor_id == bindparam("dataset")),
    )
    .where(
        (datasets.c.id == bindparam("dataset")) | (lineage.c.ancestor_id == bindparam("dataset"))
    )
    .order_by(datasets.c.id)
)
_EVENTS: Final = (
    select(distinct_events)
    .where(distinct_events.c.dataset_id.in_(bindparam("datasets", expanding=True)))
    .limit(PRICED_EVENTS_MAX + 1)
)

Units = npt.NDArray[np.int64]  # how often each event counts


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDataset:
    """A dataset whose steps count: the one that is asked about, or one that was made from it."""

    name: str
    dataset_size: int
    rows: RowsPerParent
    own: bool


def priced_datasets(connection: Connection, dataset: Row[Any]) -> dict[int, PricedDataset]:
    """The dataset first, then all that were made from it."""
    found = {
        row.id: PricedDataset(
            name=row.name,
            dataset_size=row.dataset_size,
            rows=rows_of(row),
            own=row.id == dataset.id,
        )
        for row in connection.execute(_DATASETS, {"dataset": dataset.id})
    }
    return {dataset.id: found.pop(dataset.id), **found}


class EventCosts:
    """The prices of all events of a dataset, as its own records see them."""

    def __init__(
        self,
        connection: Connection,
        priced: Mapping[int, PricedDataset],
        accumulator: BudgetAccumulator,
    ) -> None:
        """Read the events.

        Raises:
            TooExpensiveError: there are too many, or they take too much work.
        """
        rows = connection.execute(_EVENTS, {"datasets": list(priced)}).all()
        if len(rows) > PRICED_EVENTS_MAX:
            raise TooExpensiveError(
                f"The dataset has more than {PRICED_EVENTS_MAX} different events."
            )
        self.accumulator = accumulator
        held_by, sums = accumulator.filter, accumulator.sums()
        self._beside = isinstance(held_by, EnvelopeFilter) and held_by.is_read_beside(sums.held)
        self.place = {row.id: place for place, row in enumerate(rows)}
        own = {
            (row.dataset_id, event_of(row.content, priced[row.dataset_id].dataset_size)): place
            for place, row in enumerate(rows)
        }
        facts = list(facts_of_corrected_runs(connection, priced))
        for run, found in facts:  # a correction may leave passes that no entry counts
            for event in _changes(found):
                own.setdefault((run.dataset_id, event), len(own))
        self.events = [self._seen(event, priced[dataset_id]) for dataset_id, event in own]
        self._known_orders = _known_orders(self.events)
        self.events += sorted(self._known_orders - set(self.events), key=repr)
        self.by_pass = [by_pass(event) for event in self.events]
        self.everything = self.units((row.id, row.steps, row.passes) for row in rows)
        self.reserved_steps = sum(row.reserved_steps for row in rows)
        self._corrected = {run.id: self._change(found, run.dataset_id, own) for run, found in facts}
        self.corrected = sum(self._corrected.values(), self._nothing())
        self.orders = _orders(len(self.events))
        with bounded("The explanation"):
            self._column = _column(accumulator)
            totals = [accumulator.cost(event) for event in self.events]
            self.curves, self.failures = self._curves()
        self.costs = [self.spent_of(total) for total in totals]

    def spent_of(self, total: Total) -> tuple[int, int]:
        """(units without a bound, what counts as spent) of a total: of an envelope its steps.

        Where the filter beside the items is read, of that filter.
        """
        held_by = self.accumulator.filter
        if isinstance(held_by, EnvelopeFilter):
            if self._beside:
                uncovered, _, loss = held_by.beside_part(total)
                return uncovered, loss
            return int(held_by.is_outside(total)), held_by.steps_of(total)
        return total[0], total[self._column]

    def _seen(self, event: Event, dataset: PricedDataset) -> Event:
        if dataset.own:
            return event
        relation = self.accumulator.relation
        return view_event(event, relation=relation, rows=dataset.rows)

    def _curves(self) -> tuple[Array, Array]:
        found = [
            _losses(
                event,
                self.accumulator.relation,
                self.accumulator.accept,
                tuple(self.orders.tolist()),
            )
            for event in self.events
        ]
        curves = np.array([curve for curve, _ in found], dtype=np.float64)
        return curves.reshape(len(found), len(self.orders)), np.array([one for _, one in found])

    def count(self, place: int, steps: int, passes: int) -> int:
        """What of an event counts."""
        return passes if self.by_pass[place] else steps

    def units(self, rows: Iterable[tuple[int, int, int]]) -> Units:
        """How often each event counts in rows of (event, steps, passes)."""
        found = self._nothing()
        for event_id, steps, passes in rows:
            place = self.place[event_id]
            found[place] += self.count(place, steps, passes)
        return found

    def _nothing(self) -> Units:
        return np.zeros(len(self.events), dtype=np.int64)

    def _change(
        self, found: RecordedCounts, dataset_id: int, own: Mapping[tuple[int, Event], int]
    ) -> Units:
        """What the corrections of a run change of how often each event counts."""
        change = self._nothing()
        for event, (steps, passes) in _changes(found).items():
            place = own[dataset_id, event]
            change[place] += self.count(place, steps, passes)
        return change

    def corrected_of(self, run: int) -> Units:
        """What the corrections of a run add to its units; where they take some away, negative."""
        found = self._corrected.get(run)
        return self._nothing() if found is None else found

    def losses(self, units: Units) -> Array:
        """RDP of units of the events at each of `orders`, in nats. Upper."""
        there = units > 0
        slack = 1 + 4 * (np.count_nonzero(there) + 2) * UNIT_ROUNDOFF
        return np.asarray((units[there] @ self.curves[there]) * slack)

    def epsilon(
        self, units: Units, corrected: Units, delta: float
    ) -> tuple[float | None, float | None]:
        """(epsilon at delta, the order that attains it), for a schedule fixed in advance. Upper.

        Args:
            units: of each event, as recorded.
            corrected: what corrections add to them; epsilon holds for both accounts.
            delta: in (0, 1).

        Returns:
            None where it is infinite.
        """
        found = self._epsilon(units, delta)
        if found[0] is None or not corrected.any():
            return found
        other = self._epsilon(np.maximum(units + corrected, 0), delta)
        return found if other[0] is not None and other[0] <= found[0] else other

    def with_and_without(
        self, units: Units, corrected: Units, delta: float
    ) -> dict[str, float | None]:
        """Epsilon of some units alone, and of all others together; as `epsilon` has it."""
        rest = self.everything - units, self.corrected - corrected
        return {
            "epsilon": self.epsilon(units, corrected, delta)[0],
            "epsilon_without": self.epsilon(*rest, delta)[0],
        }

    def _epsilon(self, units: Units, delta: float) -> tuple[float | None, float | None]:
        units = self._with_known_orders(units)
        there = units > 0
        if not there.any():
            return 0.0, None
        slack = 1 + 4 * (len(units) + 2) * UNIT_ROUNDOFF
        failed = rounded_up(float(units @ self.failures) * slack)
        left = rounded_down(delta - failed) if failed else delta
        rdp = self.losses(units)
        if not left > 0 or not np.isfinite(rdp).any():
            return None, None
        return rdp_epsilon(rdp=rdp, orders=self.orders, delta=left)

    def _with_known_orders(self, units: Units) -> Units:
        """Units with orders that may have been used again as known ones."""
        if not self._known_orders:
            return units
        passes: Counter[Event] = Counter()
        for place in np.flatnonzero(units):
            if self.by_pass[place]:
                passes[self.events[place]] += int(units[place])
        told = units.copy()
        told[self.by_pass] = 0
        places = {event: place for place, event in enumerate(self.events)}
        for event, count in EventCounts(passes=passes).with_known_orders().passes.items():
            told[places[event]] += count
        return told


def _known_orders(events: Sequence[Event]) -> set[Event]:
    """What passes of shuffles may be told as, where their orders may have been used again."""
    samplings = {event.sampling for event in events}
    found: set[Event] = set()
    for event in events:
        known = reveal_order(event)
        if isinstance(event.sampling, Shuffle) and known != event:
            once = replace(event.sampling, reshuffle=Reshuffle.ONCE)
            told = samplings & {once, known.sampling} - {event.sampling}
            found |= {replace(event, sampling=one) for one in told}
    return found


def _changes(found: RecordedCounts) -> dict[Event, tuple[int, int]]:
    """(steps, passes) that the corrections of a run change of each event."""
    changes: dict[Event, tuple[int, int]] = {}
    for counts, sign in ((found.recorded, -1), (found.accounts[-1], 1)):
        for event in {*counts.steps, *counts.passes}:
            steps, passes = changes.get(event, (0, 0))
            steps += sign * counts.steps.get(event, 0)
            changes[event] = steps, passes + sign * counts.passes.get(event, 0)
    return {event: change for event, change in changes.items() if any(change)}


def _column(accumulator: BudgetAccumulator) -> int:
    """Which number of a total is told as what was spent: that of the order that binds."""
    order = accumulator.filter.binding_order(accumulator.sums().held)
    orders: list[float] = accumulator.filter.record()["orders"]
    return len(accumulator.filter.zero()) - 1 if order is None else 2 + orders.index(order)


def _orders(count: int) -> Array:
    """At which orders so many events are told."""
    if count <= _FEW:
        return ORDERS
    return np.array([*_SMALL, *_LARGE] if count <= _SOME else _SMALL)


@cached_with_cost(maxsize=LOSSES_MAX)
def _losses(
    event: Event,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
) -> tuple[Array | list[float], float]:
    """RDP of a unit at the orders, and the probability that it fails. Upper."""
    try:
        if orders != _ALL:
            return losses_at(event, relation, accept, orders)
        bounds = filter_accepted(renyi_bounds(event, relation), accept=accept)
    except NoBoundError:
        return np.full(len(orders), np.inf), 0.0
    return least_curve(bounds), failure(bounds)
