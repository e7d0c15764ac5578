"""What a unit of each event of a dataset costs: in its filter's currency, and as a Renyi curve."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Row, bindparam, select

from accounting.bounds.event_bounds import NoBoundError, accepted, failure, least_curve
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import Event, NeighboringRelation
from accounting.filters import EnvelopeFilter, Total
from accounting.filters.event_costs import losses_at
from accounting.guarantees import Status
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_down, rounded_up
from accounting.work_limit import cached_with_cost
from service.errors import TooExpensiveError
from service.ledger.budgets.accumulator import BudgetAccumulator
from service.ledger.budgets.event_counts import by_pass
from service.ledger.budgets.lineage import RowsPerParent, rows_of, seen_as
from service.schemas.event_codec import event_of
from service.storage.tables import datasets, distinct_events, lineage
from service.work_limit import bounded

PRICED_EVENTS_MAX: Final = 10_000  # different ones of a dataset: each takes some 0.15 milliseconds
_FEW: Final = 32  # events whose whole Renyi curve is worked out, some milliseconds each
_SOME: Final = 1000  # whose larger orders are, half a millisecond each
_SMALL: Final = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0)
_LARGE: Final = (48.0, 64.0, 128.0)  # at which little is read best
_ALL: Final[tuple[float, ...]] = tuple(ORDERS.tolist())
LOSSES_MAX: Final = 4096  # remembered; at most a kilobyte each

_HOMES: Final = (
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
    .where(distinct_events.c.dataset_id.in_(bindparam("homes", expanding=True)))
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
        for row in connection.execute(_HOMES, {"dataset": dataset.id})
    }
    return {dataset.id: found.pop(dataset.id), **found}


class EventCosts:
    """The prices of all events of a dataset, as its own records see them."""

    def __init__(
        self,
        connection: Connection,
        homes: Mapping[int, PricedDataset],
        accumulator: BudgetAccumulator,
    ) -> None:
        """Read the events.

        Raises:
            TooExpensiveError: there are too many, or they take too much work.
        """
        rows = connection.execute(_EVENTS, {"homes": list(homes)}).all()
        if len(rows) > PRICED_EVENTS_MAX:
            raise TooExpensiveError(
                f"The dataset has more than {PRICED_EVENTS_MAX} different events."
            )
        self.accumulator = accumulator
        held_by, sums = accumulator.filter, accumulator.sums()
        self._beside = isinstance(held_by, EnvelopeFilter) and held_by.is_read_beside(sums.held)
        self.place = {row.id: place for place, row in enumerate(rows)}
        self.events = [self._seen(row.content, homes[row.dataset_id]) for row in rows]
        self.by_pass = [by_pass(event) for event in self.events]
        self.everything = self.units((row.id, row.steps, row.passes) for row in rows)
        self.reserved_steps = sum(row.reserved_steps for row in rows)
        self.orders = _orders(len(rows))
        with bounded("The explanation"):
            self._column = _column(accumulator)
            totals = [accumulator.cost(event) for event in self.events]
            self.curves, self.failures = self._curves()
        self.costs = [self.told(total) for total in totals]

    def told(self, total: Total) -> tuple[int, int]:
        """(units without a bound, what is told as spent) of a total: of an envelope its steps.

        Where the filter beside the items is read, of that filter.
        """
        held_by = self.accumulator.filter
        if isinstance(held_by, EnvelopeFilter):
            if self._beside:
                uncovered, _, loss = held_by.beside_part(total)
                return uncovered, loss
            return int(held_by.is_outside(total)), held_by.steps_of(total)
        return total[0], total[self._column]

    def _seen(self, content: str, home: PricedDataset) -> Event:
        event = event_of(content, home.dataset_size)
        if home.own:
            return event
        relation = self.accumulator.relation
        return seen_as(event, relation=relation, rows=home.rows)

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
        found = np.zeros(len(self.events), dtype=np.int64)
        for event_id, steps, passes in rows:
            place = self.place[event_id]
            found[place] += self.count(place, steps, passes)
        return found

    def losses(self, units: Units) -> Array:
        """RDP of units of the events at each of `orders`, in nats. Upper."""
        there = units > 0
        slack = 1 + 4 * (len(units) + 2) * UNIT_ROUNDOFF
        return np.asarray((units[there] @ self.curves[there]) * slack)

    def epsilon(self, units: Units, delta: float) -> tuple[float | None, float | None]:
        """(epsilon at delta, the order that attains it), for a schedule fixed in advance. Upper.

        None where it is infinite.
        """
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
        bounds = accepted(renyi_bounds(event, relation), accept=accept)
    except NoBoundError:
        return np.full(len(orders), np.inf), 0.0
    return least_curve(bounds), failure(bounds)
