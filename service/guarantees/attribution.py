"""Who spent what of a dataset: run by run, in the budget's own currency and as an epsilon."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from accounting.events import NeighboringRelation
from accounting.filters import EnvelopeFilter, RenyiFilter, Total
from accounting.guarantees import ValidFor
from service.clock import now
from service.errors import TooExpensiveError
from service.guarantees.event_costs import EventCosts, PricedDataset, Units, priced_datasets
from service.guarantees.event_counts import run_counts
from service.guarantees.guarantee import Question, resolve_query
from service.ledger.append.order_advice import recorded_advice
from service.ledger.append.state_rows import tally_of
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta, Totals
from service.ledger.budgets.budget import EnforcedBudget, dataset_scope
from service.ledger.expired_reservations import expired_reservations
from service.ledger.lookups import find_dataset
from service.schemas.responses import AccountantName, Answer, BudgetAnswer
from service.storage.tables import corrections, run_balances, runs
from service.work_limit import bounded

ATTRIBUTED_RUNS_MAX: Final = 100  # told one by one; the others are told together
_ROWS_MAX: Final = 1_000_000  # of how often each event counts in each run: about two seconds
_FETCHED: Final = 5000  # rows at a time

_COUNTS: Final = (
    select(
        run_balances.c.run_id,
        run_balances.c.event_id,
        run_balances.c.steps,
        run_balances.c.passes,
        runs.c.dataset_id,
    )
    .join(runs, runs.c.id == run_balances.c.run_id)
    .where(runs.c.dataset_id.in_(bindparam("datasets", expanding=True)))
    .limit(_ROWS_MAX + 1)
)
_COUNTS_OF_RUNS: Final = select(
    run_balances.c.run_id,
    run_balances.c.event_id,
    run_balances.c.steps,
    run_balances.c.passes,
).where(run_balances.c.run_id.in_(bindparam("runs", expanding=True)))
_CORRECTED_STEPS: Final = select(func.sum(corrections.c.steps)).where(
    corrections.c.dataset_id.in_(bindparam("datasets", expanding=True))
)
_NAMES: Final = select(runs.c.id, runs.c.name).where(
    runs.c.id.in_(bindparam("runs", expanding=True))
)


class Spent(Answer):
    """The steps and the cost of a run or of a group of runs."""

    steps: int
    # Of all that the budget's filter has added up; null where a step has no bound, or nothing is.
    share: float | None
    epsilon: float | None  # nats, upper, alone at delta; null when infinite
    epsilon_without: float | None  # nats, upper, of all others at delta; null when infinite


class RunSpent(Spent):
    """One run's part."""

    run: str
    dataset: str


class RestSpent(Spent):
    """The part of all runs that are not told one by one."""

    runs: int


class DatasetSpent(Answer):
    """The part of one dataset's runs: its own, or of one that was made from it."""

    dataset: str
    runs: int
    steps: int
    share: float | None


class ReservedPart(Answer):
    """The part of what was admitted and has not run."""

    steps: int
    share: float | None


class CorrectedPart(Answer):
    """What corrections add to the recorded steps; the shares of runs are told as recorded."""

    steps: int  # that were corrected
    share: float | None


class Explanation(Answer):
    """Who spent what; epsilons are Renyi bounds, with corrections, for fixed schedules."""

    dataset: str
    neighboring_relation: NeighboringRelation
    sequence: int
    delta: float
    epsilon: float | None  # nats, upper: of all, with corrections
    order: float | None  # that epsilon is read at; a filter's is chosen in advance
    accountant: AccountantName
    valid_for: ValidFor
    budget: BudgetAnswer | None  # its order is the one that binds
    order_advice: str | None  # where another order would hold noticeably more, and none corrects
    runs: list[RunSpent]  # that spent most first
    others: RestSpent | None
    datasets: list[DatasetSpent]  # this one first
    corrected: CorrectedPart
    pending: ReservedPart
    forfeited: ReservedPart


@dataclass(slots=True)
class AttributedPart:
    """What some steps add to the filter's totals."""

    dataset_id: int
    steps: int = 0
    uncovered: int = 0
    loss: int = 0

    def __iadd__(self, other: "AttributedPart") -> "AttributedPart":
        self.steps += other.steps
        self.uncovered += other.uncovered
        self.loss += other.loss
        return self

    @property
    def rank(self) -> tuple[int, int, int]:
        """Larger for what spent more."""
        return self.uncovered, self.loss, self.steps

    def share(self, whole: int) -> float | None:
        """Of a whole; none where there is none."""
        return None if self.uncovered or not whole else float(Fraction(self.loss, whole))


def explain(connection: Connection, name: str, *, delta: float | None) -> Explanation:
    """Who spent what of a dataset.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidRequestError: no delta is known.
        TooExpensiveError: it has too many different events, or its runs have.
    """
    dataset = find_dataset(connection, name)
    at = resolve_query(Question(delta=delta), dataset).delta or 0.0
    return explain_spending(connection, grounds_of(connection, dataset), delta=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionInputs:
    """What is read once of a dataset, and told in several ways."""

    dataset: Row[Any]
    priced: Mapping[int, PricedDataset]
    accumulator: BudgetAccumulator
    prices: EventCosts
    lost: BudgetDelta  # what expired
    parts: Mapping[int, AttributedPart]  # what each run adds to the filter's totals

    def largest(self, most: int) -> list[int]:
        """The runs that spent most, first."""
        parts = self.parts
        return sorted(parts, key=lambda run: (*parts[run].rank, -run), reverse=True)[:most]


def grounds_of(connection: Connection, dataset: Row[Any]) -> AttributionInputs:
    """What a dataset's explanation rests on.

    Raises:
        TooExpensiveError: it has too many different events, or its runs have.
    """
    priced, accumulator = priced_datasets(connection, dataset), tally_of(connection, dataset)
    prices = EventCosts(connection, priced, accumulator)
    return AttributionInputs(
        dataset=dataset,
        priced=priced,
        accumulator=accumulator,
        prices=prices,
        lost=expired_reservations(connection, dataset, now()),
        parts=_parts(connection, priced, prices),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCharge:
    """What the steps of one run use of its dataset's budget."""

    share: float | None  # of capacity, at the component that binds; upper, None if infinite
    epsilon: float  # nats, the limit
    delta: float
    # Of an envelope: name or number of an item, and steps of this run that are the item's own.
    items: tuple[tuple[str, int], ...]


def charge_of_run(connection: Connection, run: Row[Any], dataset: Row[Any]) -> RunCharge | None:
    """Return what a run uses of its dataset's budget, as it was recorded; None without a limit.

    Raises:
        TooExpensiveError: its events take too much work.
    """
    if dataset.budget_epsilon is None:
        return None
    accumulator = tally_of(connection, dataset)
    counts = run_counts(connection, run.id, dataset.dataset_size)
    with bounded("The charge"):
        known = {event: accumulator.cost(event) for event in {*counts.steps, *counts.passes}}
        total = accumulator.filter.total(
            counts, relation=accumulator.relation, accept=accumulator.accept, known=known
        )
    held_by = accumulator.filter
    (share,) = held_by.parts([total], whole=accumulator.sums().spent)
    items: tuple[tuple[str, int], ...] = ()
    if isinstance(held_by, EnvelopeFilter):
        used = zip(held_by.items, held_by.own_units(total), strict=True)
        items = tuple(
            (item.name or str(number), units * item.unit)
            for number, (item, units) in enumerate(used, start=1)
            if units
        )
    return RunCharge(
        share=share if share < float("inf") else None,
        epsilon=dataset.budget_epsilon,
        delta=dataset.budget_delta,
        items=items,
    )


def names_of(connection: Connection, run_ids: Sequence[int]) -> dict[int, str]:
    """The names of some runs."""
    return {row.id: row.name for row in connection.execute(_NAMES, {"runs": run_ids})}


def explain_spending(
    connection: Connection, found: AttributionInputs, *, delta: float, most: int | None = None
) -> Explanation:
    """Who spent what, at a delta; so many runs are told one by one, else RUNS_MAX."""
    dataset, priced = found.dataset, found.priced
    accumulator, prices = found.accumulator, found.prices
    at, lost, parts = delta, found.lost, found.parts
    sums = accumulator.sums(lost)
    _, whole = prices.spent_of(sums.held)
    largest = found.largest(ATTRIBUTED_RUNS_MAX if most is None else most)
    units = _units_of(connection, prices, largest)
    told = {
        run: prices.with_and_without(own, prices.corrected_of(run), at)
        for run, own in units.items()
    }
    names = names_of(connection, largest)
    scope = dataset_scope(dataset, accumulator)
    epsilon, order = prices.epsilon(prices.everything, prices.corrected, at)
    lost_steps = sum(counts.steps for counts in lost.recorded.values())
    before = accumulator.sums()
    corrected = _build_corrected_part(connection, found, before.spent, whole)
    return Explanation(
        dataset=dataset.name,
        neighboring_relation=dataset.neighboring_relation,
        sequence=dataset.head_sequence,
        delta=at,
        epsilon=epsilon,
        order=order,
        accountant=AccountantName.RDP,
        valid_for=ValidFor.FIXED_SCHEDULE,
        budget=BudgetAnswer(**scope.answer(sums)) if scope else None,
        order_advice=None if corrected.steps else _order_advice(scope, prices),
        runs=[
            RunSpent(
                run=names[run],
                dataset=priced[parts[run].dataset_id].name,
                **_build_spent_part(parts[run], whole, told[run]),
            )
            for run in largest
        ],
        others=_others(parts, units, prices, whole, at),
        datasets=_by_dataset(priced, parts, whole),
        corrected=corrected,
        pending=_build_reserved_part(prices.reserved_steps - lost_steps, sums, prices, whole),
        forfeited=_build_reserved_part(lost_steps, Totals(before.spent, sums.spent), prices, whole),
    )


def _order_advice(scope: EnforcedBudget | None, prices: EventCosts) -> str | None:
    """In words, whether another order would hold noticeably more of everything recorded."""
    held_by = scope.accumulator.filter if scope else None
    if scope is None or not isinstance(held_by, RenyiFilter) or not prices.everything.any():
        return None
    losses = prices.losses(prices.everything)
    return recorded_advice(scope.name, held_by, prices.orders.tolist(), losses.tolist())


def _parts(
    connection: Connection, priced: Mapping[int, PricedDataset], prices: EventCosts
) -> dict[int, AttributedPart]:
    """What each run adds to the filter's totals."""
    found: dict[int, AttributedPart] = {}
    rows = connection.execute(
        _COUNTS, {"datasets": list(priced)}, execution_options={"yield_per": _FETCHED}
    )
    with rows:
        for number, (run, event, steps, passes, dataset_id) in enumerate(rows):
            if number == _ROWS_MAX:
                raise TooExpensiveError(f"Its runs have more than {_ROWS_MAX} different events.")
            part = found.get(run)
            if part is None:
                part = found[run] = AttributedPart(dataset_id)
            place = prices.place[event]
            units, (uncovered, loss) = prices.count(place, steps, passes), prices.costs[place]
            part.steps += steps
            part.uncovered += units * uncovered
            part.loss += units * loss
    return found


def _units_of(connection: Connection, prices: EventCosts, largest: list[int]) -> dict[int, Units]:
    """How often each event counts in some runs."""
    rows: dict[int, list[tuple[int, int, int]]] = {run: [] for run in largest}
    for run, event, steps, passes in connection.execute(_COUNTS_OF_RUNS, {"runs": largest}):
        rows[run].append((event, steps, passes))
    return {run: prices.units(own) for run, own in rows.items()}


def _build_spent_part(
    part: AttributedPart, whole: int, epsilons: Mapping[str, float | None]
) -> dict[str, Any]:
    return {"steps": part.steps, "share": part.share(whole), **epsilons}


def _others(
    parts: Mapping[int, AttributedPart],
    told: Mapping[int, Units],
    prices: EventCosts,
    whole: int,
    delta: float,
) -> RestSpent | None:
    """All runs that are not told one by one, together."""
    rest = [part for run, part in parts.items() if run not in told]
    if not rest:
        return None
    units, corrected = prices.everything.copy(), prices.corrected.copy()
    for run, own in told.items():
        units -= own
        corrected -= prices.corrected_of(run)
    epsilons = prices.with_and_without(units, corrected, delta)
    return RestSpent(runs=len(rest), **_build_spent_part(_sum(rest, 0), whole, epsilons))


def _sum(parts: Iterable[AttributedPart], dataset_id: int) -> AttributedPart:
    total = AttributedPart(dataset_id)
    for part in parts:
        total += part
    return total


def _by_dataset(
    priced: Mapping[int, PricedDataset], parts: Mapping[int, AttributedPart], whole: int
) -> list[DatasetSpent]:
    found = []
    for number, one in priced.items():
        own = [part for part in parts.values() if part.dataset_id == number]
        total = _sum(own, number)
        found.append(
            DatasetSpent(
                dataset=one.name, runs=len(own), steps=total.steps, share=total.share(whole)
            )
        )
    return found


def _build_corrected_part(
    connection: Connection, found: AttributionInputs, spent: Total, whole: int
) -> CorrectedPart:
    """What is spent beyond the recorded steps of all runs."""
    steps = connection.scalar(_CORRECTED_STEPS, {"datasets": list(found.priced)}) or 0
    part = AttributedPart(0)
    if steps:
        recorded, told = _sum(found.parts.values(), 0), found.prices.spent_of(spent)
        part.uncovered = max(0, told[0] - recorded.uncovered)
        part.loss = max(0, told[1] - recorded.loss)
    return CorrectedPart(steps=int(steps), share=part.share(whole))


def _build_reserved_part(steps: int, sums: Totals, prices: EventCosts, whole: int) -> ReservedPart:
    """What lies between two totals."""
    part = AttributedPart(0)
    held, spent = prices.spent_of(sums.held), prices.spent_of(sums.spent)
    part.uncovered, part.loss = held[0] - spent[0], held[1] - spent[1]
    return ReservedPart(steps=steps, share=part.share(whole))
