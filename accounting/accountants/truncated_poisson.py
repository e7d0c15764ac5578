"""Truncated Poisson sampling, read as Poisson sampling that is rarely cut."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from accounting.accountants.queries import Accountant, Query
from accounting.bounds.event_bounds import NoBoundError
from accounting.event_counts import EventCounts
from accounting.events import Event, NeighboringRelation, Poisson, TruncatedPoisson
from accounting.guarantees import Assumption, Bound
from accounting.rounding import rounded_down, rounded_up, sum_up
from accounting.subsampling.truncated import exceeds_cap, truncated_delta
from accounting.work_limit import attempt, remaining_points

# How much of delta is set aside for batches that are cut, in turn, until it is enough.
_SHARES: Final = (1e-6, 0.5, 0.99)
_IMPROVEMENTS: Final = 2  # then what was set aside in vain is given back


@dataclass(frozen=True, slots=True)
class PoissonCounts:
    """A ledger whose truncated batches are left whole."""

    counts: EventCounts
    failure: float  # the chance that any of its batches exceeds its cap; upper
    only: bool  # whether every event was truncated
    has_poisson: bool  # whether some event was Poisson-sampled to begin with

    def assumptions(self, named: tuple[Assumption, ...]) -> tuple[Assumption, ...]:
        """What the ledger itself rests on, from what its whole batches rest on."""
        gone = set() if self.has_poisson else {Assumption.POISSON_SAMPLING}
        return tuple(sorted({*named, Assumption.TRUNCATED_POISSON_SAMPLING} - gone))


def as_poisson(counts: EventCounts, relation: NeighboringRelation) -> PoissonCounts:
    """The ledger with Poisson sampling in place of truncated."""
    events = counts.steps
    cut = {event for event in events if isinstance(event.sampling, TruncatedPoisson)}
    steps: Counter[Event] = Counter()
    failures = []
    for event, count in events.items():
        sampling = event.sampling
        if isinstance(sampling, TruncatedPoisson):
            failures.append(rounded_up(count * exceeds_cap(sampling, relation), ulps=2))
            rate = sampling.sampling_probability
            event = replace(event, sampling=Poisson(sampling_probability=rate))
        steps[event] += count
    return PoissonCounts(
        counts=replace(counts, steps=dict(steps)),
        failure=sum_up(failures),
        only=len(cut) == len(events),
        has_poisson=any(isinstance(event.sampling, Poisson) for event in events),
    )


def through_poisson(accountant: Accountant) -> Accountant:
    """The accountant, which also reads truncated sampling as Poisson where that says less."""

    def best(counts: EventCounts, question: Query) -> Bound:
        found = as_poisson(counts, question.relation)
        # The cheap reading first: what the other pairs take must not keep it from being heard.
        through = attempt(remaining_points(), lambda: _through(accountant, found, question))
        if through is None:
            return accountant(counts, question)
        try:
            direct = attempt(remaining_points(), lambda: accountant(counts, question))
        except NoBoundError:
            return through
        if direct is None:
            return through
        if (direct.epsilon, direct.delta) <= (through.epsilon, through.delta):
            return direct
        at_its_delta = direct.delta >= through.delta
        return replace(through, epsilon_lower=direct.epsilon_lower if at_its_delta else None)

    return best


def _through(accountant: Accountant, found: PoissonCounts, question: Query) -> Bound | None:
    gathered = question.gathered or question.rounded is not None
    plain = replace(question, with_lower=False, rounded=None, gathered=gathered)
    least_delta = truncated_delta(0.0, epsilon=question.epsilon or 0.0, failure=found.failure)
    if least_delta >= (question.delta or 1.0):
        return None
    try:
        if question.delta is None:
            bound = accountant(found.counts, plain)
            delta = truncated_delta(bound.delta, epsilon=bound.epsilon, failure=found.failure)
        else:
            delta = question.delta
            read = _reader(accountant, found, plain, delta)
            least = accountant(found.counts, replace(plain, delta=delta))
            if truncated_delta(0.0, epsilon=least.epsilon, failure=found.failure) >= delta:
                return None
            enough = (one for share in _SHARES if (one := read(share * delta)))
            first = next(enough, None)
            if first is None:
                return None
            bound = first
            for _ in range(_IMPROVEMENTS):
                lost = truncated_delta(0.0, epsilon=bound.epsilon, failure=found.failure)
                bound = min(bound, read(lost) or bound, key=lambda one: one.epsilon)
    except NoBoundError:
        return None
    return replace(
        bound,
        delta=delta,
        bound=truncated_delta.id if found.only else "composition",
        theorems=(*bound.theorems, truncated_delta.id),
        assumptions=found.assumptions(bound.assumptions),
    )


def _reader(
    accountant: Accountant, found: PoissonCounts, question: Query, delta: float
) -> Callable[[float], Bound | None]:
    """Epsilon of the whole batches where part of delta is set aside; None if that is too little."""

    def read(aside: float) -> Bound | None:
        rest = rounded_down(delta - aside)
        if not 0 < rest < 1:
            return None
        bound = accountant(found.counts, replace(question, delta=rest))
        whole = truncated_delta(rest, epsilon=bound.epsilon, failure=found.failure)
        return bound if whole <= delta else None

    return read
