"""Whether steps may be taken: held against every budget, before anything is changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from accounting.event_counts import Place, advance, after_steps, count_passes_begun, starts_anew
from accounting.events import Event, NeighboringRelation, Span
from accounting.filters import EnvelopeFilter, plus, times
from accounting.guarantees import Status
from service.errors import BudgetExhaustedError, DatasetFrozenError, UnsupportedEventError
from service.ledger.append.order_advice import order_uses
from service.ledger.append.state import Branch, DatasetState, RunState
from service.ledger.budgets import cost_cache
from service.ledger.budgets.accumulator import BudgetDelta, Totals
from service.ledger.budgets.budget import EnforcedBudget
from service.ledger.budgets.correction_costs import NO_SHIFTS, Shifts, with_shifts
from service.ledger.budgets.cost_cache import Reason
from service.ledger.budgets.envelopes import OUTSIDE, nearest_item
from service.ledger.budgets.lineage import RowsPerParent, as_seen_by_ancestor
from service.ledger.budgets.steps_and_passes import (
    NOTHING,
    EventCountDelta,
    StepsAndPasses,
    by_pass,
    merge_changes,
    negative,
)

ChangeOf = Callable[[Sequence["PositionedSpan"]], BudgetDelta]  # what steps would change


@dataclass(slots=True, kw_only=True)
class PositionedSpan:
    """Equal steps at their place in a branch."""

    first_step: int
    event: Event
    steps: int
    index: int  # of the message they came in

    @property
    def end(self) -> int:
        """The step after the last."""
        return self.first_step + self.steps

    def span(self) -> Span:
        """The steps without their place."""
        return Span(event=self.event, steps=self.steps)

    def since(self, step: int) -> "PositionedSpan":
        """What of it runs from a step on, which it ends after."""
        if step <= self.first_step:
            return self
        return replace(self, first_step=step, steps=self.end - step)

    def overlaps(self, other: "PositionedSpan") -> bool:
        """Whether some step is in both."""
        return self.first_step < other.end and other.first_step < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEffect:
    """What steps on a branch change, and the pass that is then open."""

    move: BudgetDelta
    starts: dict[Event, int]
    open_pass: Place


def compute_append_effect(
    branch: Branch,
    parts: Sequence[PositionedSpan],
    shifts: Shifts = NO_SHIFTS,
) -> AppendEffect:
    """What recording the parts changes in a run.

    Steps that were reserved are no longer held ahead once they are recorded, as whatever event.
    """
    open_pass, end = branch.open_pass, branch.next_step
    counted = _Counted()
    starts: dict[Event, int] = {}
    for part in parts:
        end += part.steps
        span = part.span()
        if by_pass(part.event) and (more := starts_anew(open_pass, span)):
            starts[part.event] = starts.get(part.event, 0) + more
        open_pass = counted.add(open_pass, span)
    recorded = counted.change()
    move = BudgetDelta(recorded=recorded)
    if branch.reservations:
        before = holds(branch, branch.next_step, branch.open_pass, until=end)
        after = holds(branch, end, open_pass, until=end)
        move = compute_held_change(before, after, recorded=recorded)
    return AppendEffect(move=with_shifts(move, shifts), starts=starts, open_pass=open_pass)


class _Counted:
    """Steps and passes of spans that follow one another."""

    def __init__(self) -> None:
        self._counts: dict[Event, list[int]] = {}  # steps, passes, passes begun

    def add(self, open_pass: Place, span: Span) -> Place:
        """Count a span after the pass that is open; the pass that is open then."""
        counts = self._of(span.event)
        counts[0] += span.steps
        if not by_pass(span.event):
            return None if open_pass is None else after_steps(open_pass)
        counts[2] += count_passes_begun(open_pass, span)
        passes, open_pass = advance(open_pass, span)
        for event, count in passes.items():
            self._of(event)[1] += count
        return open_pass

    def change(self) -> EventCountDelta:
        """What they come to."""
        return {
            event: StepsAndPasses(steps=steps, passes=passes, begun=begun)
            for event, (steps, passes, begun) in self._counts.items()
            if steps or passes
        }

    def _of(self, event: Event) -> list[int]:
        return self._counts.setdefault(event, [0, 0, 0])


def count_reserved(open_pass: Place, spans: Sequence[Span]) -> EventCountDelta:
    """What steps that may still run will count as, after the pass that is open."""
    counted = _Counted()
    for span in spans:
        open_pass = counted.add(open_pass, span)
    return counted.change()


@dataclass(frozen=True, slots=True)
class ReservedSpans:
    """What a branch holds ahead: in its dataset's budget, and in its run's own."""

    every: EventCountDelta
    own: EventCountDelta | None  # without the run's plan; None where there is none


def holds(
    branch: Branch,
    step: int,
    open_pass: Place,
    more: Sequence[Span] = (),
    *,
    until: int | None = None,
) -> ReservedSpans:
    """What a branch holds from a step on, with what is to be held after it.

    Args:
        branch: the branch.
        step: the first.
        open_pass: that is open there.
        more: what is to be held after it.
        until: leave out what counts the same whatever happens before this step.
    """
    every = count_reserved(open_pass, [*branch.spans_from(step, until=until), *more])
    if all(reservation.name is not None for reservation in branch.reservations):
        return ReservedSpans(every, None)
    own = [*branch.spans_from(step, named=True, until=until), *more]
    return ReservedSpans(every, count_reserved(open_pass, own))


def compute_held_change(
    before: ReservedSpans, after: ReservedSpans, *, recorded: EventCountDelta = NOTHING
) -> BudgetDelta:
    """What recording, and holding other steps ahead than before, changes."""
    reserved = merge_changes([after.every, negative(before.every)])
    if before.own is None or after.own is None:
        return BudgetDelta(recorded=recorded, reserved=reserved)
    own = merge_changes([after.own, negative(before.own)])
    return BudgetDelta(recorded=recorded, reserved=reserved, own=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCheck:
    """A budget that a move is held against, and what the move is in it."""

    scope: EnforcedBudget
    view: Callable[[BudgetDelta], BudgetDelta] | None  # for a dataset that this one was made from

    def sums(self, move: BudgetDelta) -> Totals:
        """The scope's sums after the move."""
        return self.scope.accumulator.sums(self.view(move) if self.view else move)

    def seen(self, event: Event) -> Event:
        """The event that a step is here."""
        if self.view:
            (event,) = self.view(BudgetDelta(recorded={event: StepsAndPasses(steps=1)})).recorded
        return event

    def cost(self, event: Event) -> tuple[int, ...]:
        """What a step of the event adds."""
        return self.scope.accumulator.cost(self.seen(event))


def scopes_of(
    state: DatasetState, run: RunState | None, *, with_run: bool = True
) -> Sequence[BudgetCheck]:
    """The budgets an operation is held against: its dataset's, its own, and its ancestors'.

    A run that does not exist yet has no budget of its own.
    """
    if state.scopes is None:
        state.scopes = tuple(_shared_scopes(state))
    if run is None or run.scope is None or not with_run:
        return state.scopes
    return (*state.scopes, BudgetCheck(scope=run.scope, view=_of_run))


def _shared_scopes(state: DatasetState) -> list[BudgetCheck]:
    found = [BudgetCheck(scope=state.scope, view=None)] if state.scope else []
    for ancestor, rows in state.ancestors:
        if ancestor.scope:
            found.append(BudgetCheck(scope=ancestor.scope, view=_view(state.relation, rows)))
    return found


def _of_run(move: BudgetDelta) -> BudgetDelta:
    """What the run's own budget counts: what its plan reserves is not part of that."""
    return move.of_run


def _view(
    relation: NeighboringRelation, rows: RowsPerParent
) -> Callable[[BudgetDelta], BudgetDelta]:
    return lambda move: as_seen_by_ancestor(move, relation=relation, rows=rows)


def reason_unbounded(
    event: Event, *, relation: NeighboringRelation, accept: frozenset[Status]
) -> str | None:
    """Why no accepted theorem bounds the event, or None where one does."""
    return cost_cache.ask(Reason(relation, accept), event)


def is_finite_everywhere(event: Event, state: DatasetState, scopes: Sequence[BudgetCheck]) -> bool:
    """Whether the event counts as finite everywhere."""
    return not state.accumulator.cost(event)[0] and not any(held.cost(event)[0] for held in scopes)


def reason_infinite(event: Event, state: DatasetState, scopes: Sequence[BudgetCheck]) -> str | None:
    """Why the event counts as infinite somewhere, or None where it does not."""
    if is_finite_everywhere(event, state, scopes):
        return None
    if state.accumulator.cost(event)[0]:
        reason = reason_unbounded(event, relation=state.relation, accept=state.accept)
        return reason or "The filter that holds the dataset has no bound for this event."
    lacking = next(held for held in scopes if held.cost(event)[0])
    return f"The filter that holds {lacking.scope.name} has no bound for this event."


def require_unfrozen(state: DatasetState) -> None:
    """Refuse to admit anything on a frozen dataset.

    Raises:
        DatasetFrozenError: it is, or one that it was made from.
    """
    for one in (state, *(ancestor for ancestor, _ in state.ancestors)):
        if one.frozen:
            raise DatasetFrozenError(one.name)


def require_bounds(
    parts: Sequence[PositionedSpan], state: DatasetState, scopes: Sequence[BudgetCheck]
) -> None:
    """Refuse what cannot be accounted.

    Raises:
        UnsupportedEventError: names the first such event and the reason.
    """
    for part in parts:
        if not is_finite_everywhere(part.event, state, scopes):
            why = cost_cache.missing(Reason(state.relation, state.accept), [part.event])
            cost_cache.require(why, unchanged=True)
            raise UnsupportedEventError(part.index, str(reason_infinite(part.event, state, scopes)))


def first_steps(parts: Sequence[PositionedSpan], steps: int) -> list[PositionedSpan]:
    """The first so many steps of parts that follow one another."""
    found = []
    for part in parts:
        if steps <= 0:
            break
        found.append(part if part.steps <= steps else replace(part, steps=steps))
        steps -= part.steps
    return found


def require_budget(
    scopes: Sequence[BudgetCheck],
    parts: Sequence[PositionedSpan],
    move: BudgetDelta,
    change_of: ChangeOf,
    *,
    kept: int = 0,
) -> None:
    """Refuse what does not fit in every budget.

    Args:
        scopes: the budgets.
        parts: the steps that are asked for.
        move: what they change.
        change_of: what fewer of them would change; asked for a refusal alone.
        kept: leading steps that fit because a plan has them, whatever the budgets say.

    Raises:
        BudgetExhaustedError: names each scope that fails, and how many leading steps would fit.
    """
    failing = [(held, sums) for held in scopes if not held.scope.admits(sums := held.sums(move))]
    if failing:
        details = [_failing(held.scope, sums) | _outside(held, parts) for held, sums in failing]
        uses = order_uses(
            [
                (held.scope.name, own.filter, own.relation, own.accept)
                for held, _ in failing
                if held.view is None and held.scope.planned is None
                for own in [held.scope.accumulator]
            ],
            parts[0].event,
        )
        fits = max(kept, admissible_steps(scopes, parts, move, change_of))
        held, sums = failing[0]
        raise BudgetExhaustedError(details, fits, uses, held.scope.shares_asked(sums))


def _failing(scope: EnforcedBudget, after: Totals) -> dict[str, object]:
    before = scope.answer()
    held = scope.accumulator.reading(scope.accumulator.sums().held).epsilon
    requested = scope.accumulator.reading(after.held).epsilon - held
    return {
        "scope": scope.name,
        "limit": before["epsilon"],
        "delta": before["delta"],
        "spent": before["spent"],
        "reserved": before["reserved"],
        "requested": requested if requested < float("inf") else None,  # NaN is none, too
    }


def _outside(held: BudgetCheck, parts: Sequence[PositionedSpan]) -> dict[str, object]:
    """Of an envelope: the item nearest to the first step that no item covers, if there is one."""
    held_by, now = held.scope.accumulator.filter, held.scope.accumulator.sums().held
    if not isinstance(held_by, EnvelopeFilter):
        return {}
    if held_by.beside is not None and not held_by.holds_items(now):  # no item would help
        return {}
    for part in parts:
        if held_by.is_outside(held.cost(part.event)):
            index, would_fit = nearest_item(held_by, held.seen(part.event))
            return {"reason": OUTSIDE, "nearest_item": index, "would_fit": would_fit}
    return {}


def admissible_steps(
    scopes: Sequence[BudgetCheck],
    parts: Sequence[PositionedSpan],
    move: BudgetDelta,
    change_of: ChangeOf,
) -> int:
    """The most leading steps that every budget admits, in closed form where steps add up."""
    # Recording uses up what was reserved, which then costs nothing more.
    holds_ahead = bool(move.recorded and move.reserved)
    if holds_ahead or any(by_pass(part.event) for part in parts):
        return _bisect_steps(scopes, parts, change_of)
    start = change_of([])
    totals = [held.sums(start).held for held in scopes]
    done = 0
    for part in parts:
        costs = [held.cost(part.event) for held in scopes]
        room = min(
            held.scope.accumulator.filter.admissible(total, cost)
            for held, total, cost in zip(scopes, totals, costs, strict=True)
        )
        steps = min(part.steps, room)
        done += steps
        if steps < part.steps:
            break
        totals = [
            plus(total, times(cost, steps)) for total, cost in zip(totals, costs, strict=True)
        ]
    return done


def _bisect_steps(
    scopes: Sequence[BudgetCheck], parts: Sequence[PositionedSpan], change_of: ChangeOf
) -> int:
    """The same where passes count or reservations stand: spending only grows, so bisect."""
    low, high = 0, sum(part.steps for part in parts)
    while high - low > 1:
        middle = (low + high) // 2
        move = change_of(first_steps(parts, middle))
        if all(held.scope.admits(held.sums(move)) for held in scopes):
            low = middle
        else:
            high = middle
    return low
