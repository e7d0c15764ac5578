"""Hold a run's own budget by a fixed plan: what is certified of it, and what it reserves.

docs/theory/plans.md proves what such a budget holds while its run keeps to the plan, and after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

from accounting.accountants import best_bound
from accounting.accountants.best_bound import BEST
from accounting.event_counts import EventCounts, count_events
from accounting.events import NeighboringRelation, Span
from accounting.guarantees import Status
from service.errors import UnsupportedEventError
from service.ledger.append.admission import (
    PositionedSpan,
    compute_held_change,
    count_reserved,
    holds,
    reason_infinite,
    require_budget,
    require_unfrozen,
    scopes_of,
)
from service.ledger.append.state import DatasetState
from service.ledger.append.unit_of_work import UnitOfWork
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.budget import accept_of, dataset_filter
from service.ledger.budgets.correction_costs import with_shifts
from service.ledger.log.row_records import build_log_records
from service.ledger.lookups import find_dataset
from service.ledger.reservations import OPEN, RELEASED
from service.schemas.event_codec import MAIN, plan_of, spans_of
from service.schemas.requests import Budget, NewRun
from service.storage import bulk
from service.storage.tables import reservations, runs
from service.work_limit import bounded

BISECTIONS_MAX: Final = 30  # of a refused plan: finds its last step among 1e9
_DISTINCT_MAX: Final = 32  # beyond so many different events each look takes too long but at orders
_TAKEN: Final = select(runs.c.id).where(runs.c.name == bindparam("named"))
_COLUMNS: Final = (
    "dataset_id", "run_id", "branch_id", "event_id", "first_step", "steps", "end_step", "state",
    "request", "created_at", "by",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCertificate:
    """What is certified of a whole plan."""

    epsilon: float  # nats at its budget's delta, upper; infinite where no bound is accepted
    delta: float  # at its budget's epsilon, upper
    accept: frozenset[Status]  # what its bounds may rest on
    admissible_steps: int  # so many leading steps are within the budget

    def taken(self) -> dict[str, float]:
        """What is stored beside the filter that holds the budget once the plan is left."""
        return {"epsilon": self.epsilon, "delta": self.delta}


def holds_budget(new: NewRun) -> bool:
    """Whether the run's plan is to hold the run's own budget."""
    return new.plan is not None and new.budget is not None


def certify_plan(connection: Connection, new: NewRun) -> PlanCertificate | None:
    """What is certified of the plan that is to hold a run's own budget; this may take seconds.

    Returns:
        The certificate; None without such a plan, or where the name is taken already.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidRequestError: the plan does not fit the dataset.
        TooExpensiveError: it would take too much work.
    """
    if new.plan is None or new.budget is None:
        return None
    dataset = find_dataset(connection, new.dataset)
    spans = spans_of(new.plan, dataset_size=dataset.dataset_size, first_step=0, location="plan")
    if connection.execute(_TAKEN, {"named": new.name}).first() is not None:
        return None
    relation, accept = NeighboringRelation(dataset.neighboring_relation), accept_of(dataset)
    held_by = dataset_filter(dataset)
    with bounded("The plan that is to hold the budget"):
        for span in spans:  # cached, so that no lock waits for it
            held_by.cost(span.event, relation=relation, accept=accept)
        return _certify_spans(spans, new.budget, relation=relation, accept=accept)


def _certify_spans(
    spans: Sequence[Span],
    budget: Budget,
    *,
    relation: NeighboringRelation,
    accept: frozenset[Status],
) -> PlanCertificate:
    given: dict[str, Any] = {"relation": relation, "accept": accept, "with_lower": False}
    limit, delta = budget.epsilon, budget.delta
    whole = best_bound.best_bound(count_events([spans]), delta=delta, **given)
    epsilon = whole.epsilon if whole else float("inf")
    if not epsilon <= limit:
        admissible = _leading(spans, limit=limit, delta=delta, **given)
        return PlanCertificate(
            epsilon=epsilon, delta=1.0, accept=accept, admissible_steps=admissible
        )
    # Far above the plan's own epsilon its delta is nothing, and a limit there takes more work.
    asked = min(limit, 4 * epsilon + 40)
    found = best_bound.best_bound(count_events([spans]), epsilon=asked, **given)
    return PlanCertificate(
        epsilon=epsilon,
        delta=min(delta, found.delta) if found else delta,  # epsilon at delta certifies delta, too
        accept=accept,
        admissible_steps=sum(span.steps for span in spans),
    )


def _leading(spans: Sequence[Span], *, limit: float, delta: float, **given: Any) -> int:
    """How many leading steps were evaluated to be within the limit; hardly more would be."""
    accountant = BEST if len({span.event for span in spans}) <= _DISTINCT_MAX else "rdp"
    low, high = 0, sum(span.steps for span in spans)
    for _ in range(BISECTIONS_MAX):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        part = count_events([leading(spans, middle)])
        bound = best_bound.best_bound(part, delta=delta, accountant=accountant, **given)
        low, high = (middle, high) if bound and bound.epsilon <= limit else (low, middle)
    return low


def leading(spans: Sequence[Span], steps: int) -> list[Span]:
    """The first steps of a plan."""
    found = []
    for span in spans:
        count = min(span.steps, steps)
        if count == 0:
            break
        found.append(Span(event=span.event, steps=count))
        steps -= count
    return found


def declared_end(run: Row[Any], dataset_size: int) -> EventCounts:
    """The whole plan's counts of a run that keeps to the plan that holds its budget.

    The plan's end is what the run's guarantee is of, however early it stopped: stopping there may
    have been a choice that the answers led to.
    """
    return count_events([plan_of(run.plan, dataset_size)])


def reserve_plan(
    work: UnitOfWork,
    run_name: str,
    spans: Sequence[Span],
    moment: datetime,
    *,
    by: str | None = None,
) -> None:
    """Reserve a whole plan in every budget but its run's own, by a key's name.

    Raises:
        DatasetFrozenError: the dataset is frozen, or one that it was made from.
        UnsupportedEventError: some budget's filter cannot count an event of it.
        BudgetExhaustedError: it does not fit; the transaction is to be undone.
    """
    state, run = work.run(run_name)
    branch = work.branch(run, MAIN)
    require_unfrozen(state)
    scopes = scopes_of(state, run, with_run=False)
    parts = _parts(spans)

    def held(some: Sequence[PositionedSpan]) -> BudgetDelta:
        ahead = count_reserved(branch.open_pass, [part.span() for part in some])
        return BudgetDelta(reserved=ahead, own={})

    move = held(parts)
    state.require_prices(run, move)  # all at once, not one event after another
    for part in parts:
        if reason := reason_infinite(part.event, state, scopes):
            raise UnsupportedEventError(part.index, reason, where="plan")

    require_budget(scopes, parts, move, held)
    _insert(work, state, run.id, branch.id, parts, moment, by)
    state.take(run, move, {})
    work.write()


def _parts(spans: Sequence[Span]) -> list[PositionedSpan]:
    parts: list[PositionedSpan] = []
    first_step = 0
    for index, span in enumerate(spans):
        parts.append(
            PositionedSpan(first_step=first_step, event=span.event, steps=span.steps, index=index)
        )
        first_step += span.steps
    return parts


def _insert(
    work: UnitOfWork, state: DatasetState, run_id: int, branch_id: int,
    parts: Sequence[PositionedSpan], moment: datetime,
    by: str | None,
) -> None:  # fmt: skip
    ids = work.event_ids(state, [part.event for part in parts])
    common = (OPEN, "{}", bulk.to_driver_time(work.connection, moment), by)
    rows = [
        (state.id, run_id, branch_id, ids[one.event], one.first_step, one.steps, one.end, *common)
        for one in parts
    ]
    bulk.insert(work.connection, reservations, _COLUMNS, rows)
    state.note(
        build_log_records(work.connection, "reservation", dataset_id=state.id, run_id=run_id, by=by)
    )


def return_plan(work: UnitOfWork, run_name: str, *, by: str | None = None) -> None:
    """Hold no step of a run's plan any longer; by is the key's name."""
    state, run = work.run(run_name)
    branch = work.branch(run, MAIN)
    before = holds(branch, branch.next_step, branch.open_pass)
    held = [one for one in branch.reservations if one.name is None and one.state == OPEN]
    for reservation in held:
        reservation.end_step = max(reservation.first_step, branch.next_step)
        reservation.state = RELEASED
    after = holds(branch, branch.next_step, branch.open_pass)
    rows = [(reservation.end_step, reservation.state, reservation.id) for reservation in held]
    bulk.update(work.connection, reservations, "id", ("end_step", "state"), rows)
    ended = build_log_records(
        work.connection, "reservation_end", dataset_id=state.id, run_id=run.id, by=by
    )
    returned = {(None, reservation.first_step) for reservation in held}
    state.note(act for act in ended if (act.content["name"], act.content["first_step"]) in returned)
    state.take(run, with_shifts(compute_held_change(before, after), run.shifts), {})
    work.write()
