"""Whether steps may be taken: held against every budget, before anything is written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from accounting.balances import OpenPass, advance, starts_anew
from accounting.bounds import NoBoundError, accepted
from accounting.events import Event, NeighboringRelation, Span
from accounting.guarantees import Status
from accounting.renyi_bounds import renyi_bounds
from service.balances import Change, Scope
from service.errors import BudgetExhaustedError, UnsupportedEventError


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Equal steps at their place in a branch."""

    first_step: int
    event: Event
    steps: int
    index: int  # of the message they came in

    @property
    def end(self) -> int:
        """The step after the last."""
        return self.first_step + self.steps

    def overlaps(self, other: "Placed") -> bool:
        """Whether some step is in both."""
        return self.first_step < other.end and other.first_step < self.end


def change_of(
    open_pass: OpenPass | None, parts: Sequence[Placed], *, limit: int | None = None
) -> tuple[Change, OpenPass | None]:
    """What the parts, or their first `limit` steps, add to a balance; and the pass then open."""
    steps: Counter[Event] = Counter()
    passes: Counter[Event] = Counter()
    starts: Counter[Event] = Counter()
    left = sum(part.steps for part in parts) if limit is None else limit
    for part in parts:
        count = min(part.steps, left)
        if count == 0:
            break
        left -= count
        steps[part.event] += count
        span = Span(event=part.event, steps=count)
        starts[part.event] += starts_anew(open_pass, span)
        more, open_pass = advance(open_pass, span)
        passes.update(more)
    return Change(steps=dict(steps), passes=dict(passes), starts=dict(starts)), open_pass


def unbounded(
    event: Event, *, relation: NeighboringRelation, accept: frozenset[Status]
) -> str | None:
    """Why no accepted theorem bounds the event, or None where one does."""
    try:
        accepted(renyi_bounds(event, relation), accept=accept)
    except NoBoundError as reason:
        return str(reason)
    return None


def require_bounds(
    parts: Sequence[Placed], *, relation: NeighboringRelation, accept: frozenset[Status]
) -> None:
    """Refuse what cannot be accounted.

    Raises:
        UnsupportedEventError: names the first such event and the reason.
    """
    for part in parts:
        if reason := unbounded(part.event, relation=relation, accept=accept):
            raise UnsupportedEventError(part.index, reason)


def require_budget(
    scopes: Sequence[Scope], open_pass: OpenPass | None, parts: Sequence[Placed]
) -> None:
    """Refuse what does not fit in every budget.

    Raises:
        BudgetExhaustedError: names each scope that fails, and how many leading steps would fit.
    """
    change, _ = change_of(open_pass, parts)
    failing = [scope for scope in scopes if not scope.admits(change)]
    if failing:
        details = [_failing(scope, change) for scope in failing]
        raise BudgetExhaustedError(details, _admissible_steps(scopes, open_pass, parts))


def _failing(scope: Scope, change: Change) -> dict[str, object]:
    before, after = scope.answer(), scope.answer(change)
    return {
        "scope": scope.name,
        "limit": before.epsilon,
        "delta": before.delta,
        "spent": before.spent,
        "reserved": before.reserved,
        "requested": _difference(after.spent, before.spent),
    }


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _admissible_steps(
    scopes: Sequence[Scope], open_pass: OpenPass | None, parts: Sequence[Placed]
) -> int:
    """The most leading steps that every budget admits; spending only grows, so bisect."""
    low, high = 0, sum(part.steps for part in parts)
    while high - low > 1:
        middle = (low + high) // 2
        change, _ = change_of(open_pass, parts, limit=middle)
        if all(scope.admits(change) for scope in scopes):
            low = middle
        else:
            high = middle
    return low
