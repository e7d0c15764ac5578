"""The balance of a ledger: how often each distinct event counts, in whole numbers.

Most samplings are counted by step. Loaders that go through the data pass by pass are counted by
pass: within a pass each record takes part in a fixed number of steps, so a pass costs what it costs
at its least noise, and a pass that was begun costs as a whole one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import assert_never

from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    Gaussian,
    Laplace,
    Mechanism,
    NoNoise,
    RandomAllocation,
    RandomizedResponse,
    Sampling,
    Shuffle,
    Span,
    Zcdp,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Integers for each distinct event; whatever the order of arrival, the same integers."""

    steps: Mapping[Event, int] = field(default_factory=dict)  # every step taken
    passes: Mapping[Event, int] = field(default_factory=dict)  # by the least noise of each pass
    # By the noise of each pass's first step. Passes of which it is not known began at the greatest
    # noise of their sampling: that costs most.
    begun: Mapping[Event, int] = field(default_factory=dict)
    # How often a loader began anew, which leaves a pass unfinished and may draw another order.
    # Only lower bounds need it; where it is missing they assume the worst.
    starts: Mapping[Event, int] = field(default_factory=dict)

    def counted(self) -> list[tuple[Event, int]]:
        """What is accounted: passes where passes count, steps elsewhere."""
        by_step = [(event, n) for event, n in self.steps.items() if pass_length(event) is None]
        return [*by_step, *self.passes.items()]

    def units(self) -> list[tuple[Event, int]]:
        """What is accounted, in an order that depends on the events' values alone.

        So sums repeat to the last bit.
        """
        return sorted(self.counted(), key=lambda unit: _written(unit[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCounts:
    """Passes of one sampling at one noise."""

    event: Event
    begun: int  # that had it in their first step
    passes: int  # that had it as their least
    known: bool  # whether each pass of the sampling is known to have begun where it is counted


def passes_by_sampling(balance: Balance) -> dict[Sampling, list[PassCounts]]:
    """Where the passes of each sampling began, and where they are counted; the most noise first."""
    events: dict[Sampling, set[Event]] = {}
    for event in (*balance.steps, *balance.passes, *balance.begun):
        if pass_length(event) is not None:
            events.setdefault(event.sampling, set()).add(event)
    return {sampling: _pass_counts(balance, found) for sampling, found in events.items()}


def _pass_counts(balance: Balance, events: Iterable[Event]) -> list[PassCounts]:
    if len(found := list(events)) > 1:
        found.sort(key=lambda one: (-noise_in_pass(one.mechanism), _written(one)))
    counts = [(balance.begun.get(one, 0), balance.passes.get(one, 0)) for one in found]
    missing = sum(passes - begun for begun, passes in counts)
    counts[0] = (counts[0][0] + missing, counts[0][1])
    falling = 0
    for begun, passes in counts:
        falling += begun - passes
        if begun < 0 or falling < 0:  # no passes have such counts: then nothing is known of them
            every = sum(passes for _, passes in counts)
            counts = [(0 if i else every, passes) for i, (_, passes) in enumerate(counts)]
            missing = every
            break
    return [
        PassCounts(event=one, begun=begun, passes=passes, known=not missing)
        for one, (begun, passes) in zip(found, counts, strict=True)
    ]


@lru_cache(maxsize=2**14)
def _written(event: Event) -> str:
    return repr(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPass:
    """The latest pass of a branch: what it was counted as, and how far it has come."""

    event: Event  # its mechanism is the least noisy one seen in this pass
    position: int  # steps of the pass taken so far, from 1 to steps_per_pass


def pass_length(event: Event) -> int | None:
    """Steps in a pass for samplings that are counted by pass, else None."""
    sampling: Sampling = event.sampling
    if isinstance(sampling, Cyclic | Shuffle | BallsAndBins | RandomAllocation):
        return sampling.steps_per_pass
    return None


def starts_anew(open_pass: OpenPass | None, span: Span) -> bool:
    """Whether a span that follows on a branch makes a loader that counts passes begin anew."""
    if pass_length(span.event) is None:
        return False
    return open_pass is None or open_pass.event.sampling != span.event.sampling


def passes_begun(open_pass: OpenPass | None, span: Span) -> int:
    """How many passes begin with a span that follows on a branch, each at the span's noise."""
    length = pass_length(span.event)
    if length is None:
        return 0
    inside = 0
    if open_pass is not None and not starts_anew(open_pass, span):
        inside = min(span.steps, length - open_pass.position)
    return -(-(span.steps - inside) // length)


def noise_in_pass(mechanism: Mechanism) -> float:
    """What the steps of a pass are compared by: the least takes the whole pass with it.

    Passes are proved for Gaussian noise alone, so whatever has no bound comes before all that has.
    """
    match mechanism:
        case Gaussian():
            return mechanism.noise_multiplier
        case Laplace() | RandomizedResponse() | ApproximateDp() | Zcdp():
            return 0.0
        case NoNoise():
            return -1.0
        case _:
            assert_never(mechanism)


def advance(open_pass: OpenPass | None, span: Span) -> tuple[dict[Event, int], OpenPass | None]:
    """Count the passes of a span that follows on a branch, and say which pass is then open.

    A change of sampling opens a new pass. Less noise inside a counted pass moves that pass to the
    less noisy event: one down, one up. Splitting a span anywhere gives the same sum of changes.
    """
    event, steps = span.event, span.steps
    length = pass_length(event)
    passes: dict[Event, int] = {}
    if length is None:
        return passes, None
    if open_pass is not None and open_pass.event.sampling == event.sampling:
        inside = min(steps, length - open_pass.position)
        if inside and noise_in_pass(event.mechanism) < noise_in_pass(open_pass.event.mechanism):
            passes = {open_pass.event: -1, event: 1}
            open_pass = OpenPass(event=event, position=open_pass.position)
        steps -= inside
        if steps == 0:
            return passes, OpenPass(event=open_pass.event, position=open_pass.position + inside)
    begun = -(-steps // length)
    passes[event] = passes.get(event, 0) + begun
    return passes, OpenPass(event=event, position=steps - (begun - 1) * length)


def balance_of(branches: Iterable[Iterable[Span]]) -> Balance:
    """Fold the spans of every branch, each from its beginning, into one balance."""
    steps: Counter[Event] = Counter()
    passes: Counter[Event] = Counter()
    begun: Counter[Event] = Counter()
    starts: Counter[Event] = Counter()
    for spans in branches:
        open_pass: OpenPass | None = None
        for span in spans:
            steps[span.event] += span.steps
            starts[span.event] += starts_anew(open_pass, span)
            begun[span.event] += passes_begun(open_pass, span)
            changes, open_pass = advance(open_pass, span)
            passes.update(changes)
    return Balance(
        steps=dict(steps),
        passes={event: n for event, n in passes.items() if n},
        begun={event: n for event, n in begun.items() if n},
        starts={event: n for event, n in starts.items() if n},
    )
