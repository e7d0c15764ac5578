"""The event counts of a ledger: how often each distinct event counts, in whole numbers.

Most samplings are counted by step. Loaders that go through the data pass by pass are counted by
pass: within a pass each record takes part in a fixed number of steps, so a pass costs what it costs
at its least noise, and a pass that was begun costs as a whole one.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from typing import Final, assert_never

from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    CyclicPoisson,
    Event,
    Gaussian,
    Laplace,
    MatrixGaussian,
    Mechanism,
    MinSeparation,
    NoNoise,
    PrivateSelection,
    RandomAllocation,
    RandomizedResponse,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    Zcdp,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCounts:
    """Integers for each distinct event; whatever the order of arrival, the same integers."""

    steps: Mapping[Event, int] = field(default_factory=dict)  # every step taken
    passes: Mapping[Event, int] = field(default_factory=dict)  # by the least noise of each pass
    # By the noise of each pass's first step. A pass whose first noise is unknown began at the
    # greatest noise of its sampling: that costs most.
    begun: Mapping[Event, int] = field(default_factory=dict)
    # How often a loader began anew, which leaves a pass unfinished and may draw another order.
    # Only lower bounds need it; where it is missing they assume the worst.
    starts: Mapping[Event, int] = field(default_factory=dict)

    def counted(self) -> list[tuple[Event, int]]:
        """What is accounted: passes where passes count, steps elsewhere."""
        by_step = [(event, n) for event, n in self.steps.items() if pass_length(event) is None]
        return [*by_step, *self.passes.items()]

    @property
    def used_again(self) -> frozenset[Shuffle]:
        """Shuffles whose secret order may be used again by passes of an order that is not secret.

        Those are passes that `reveal_order` counts, and passes of a loader of the same sizes that
        draws its order once: a training that goes on may repeat the first order in each pass.
        What a secret order hides is then proved of no schedule that was chosen after a look.
        """
        again = self._readings_without_secrets()
        return frozenset(one for one in again if isinstance(one, Shuffle))

    def with_known_orders(self) -> "EventCounts":
        """The same, with orders that may have been used again as known ones. For fixed schedules.

        No lower end follows from what it exchanges: no steps are counted there, and no starts.
        """
        again = self._readings_without_secrets()
        if not again:
            return self
        passes: Counter[Event] = Counter()
        for event, count in self.passes.items():
            passes[replace(event, sampling=again.get(event.sampling, event.sampling))] += count
        begun = {event: n for event, n in self.begun.items() if event.sampling not in again}
        starts = {one: n for one, n in self.starts.items() if one.sampling not in again.values()}
        return replace(self, passes=dict(passes), begun=begun, starts=starts)

    def _readings_without_secrets(self) -> Mapping[Sampling, Sampling]:
        """What shuffles that may be used again are read as: drawn once, else in a known order."""
        samplings = {event.sampling for event in self.passes}
        found: dict[Sampling, Sampling] = {}
        for event in self.passes:
            if not isinstance(event.sampling, Shuffle) or (known := reveal_order(event)) == event:
                continue
            once = replace(event.sampling, reshuffle=Reshuffle.ONCE)
            if once in samplings:
                found[event.sampling] = once
            elif known.sampling != event.sampling and known.sampling in samplings:
                found[event.sampling] = known.sampling
        return found

    def units(self) -> list[tuple[Event, int]]:
        """What is accounted, in an order that depends on the events' values alone.

        So sums repeat to the last bit.
        """
        return sorted(self.counted(), key=lambda unit: _to_text(unit[0]))


def read_together(sampling: Sampling) -> Hashable:
    """What samplings share whose passes are read together, by every filter.

    `used_again` looks for another sampling of the same sizes beside a shuffle, and no filter looks
    further: the total of event counts is the sum of those of their parts of different keys.
    """
    if isinstance(sampling, Cyclic | Shuffle):
        return sampling.batch_size, sampling.steps_per_pass
    return sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCounts:
    """Passes of one sampling at one noise."""

    event: Event
    begun: int  # that had it in their first step
    passes: int  # that had it as their least
    known: bool  # whether each pass of the sampling is known to have begun where it is counted


def passes_by_sampling(counts: EventCounts) -> dict[Sampling, list[PassCounts]]:
    """Where the passes of each sampling began, and where they are counted; the most noise first."""
    events: dict[Sampling, set[Event]] = {}
    for event in (*counts.steps, *counts.passes, *counts.begun):
        if pass_length(event) is not None:
            events.setdefault(event.sampling, set()).add(event)
    return {sampling: _pass_counts(counts, found) for sampling, found in events.items()}


def _pass_counts(counts: EventCounts, events: Iterable[Event]) -> list[PassCounts]:
    found = sorted(events, key=noise_rank)
    ladder = [(counts.begun.get(one, 0), counts.passes.get(one, 0)) for one in found]
    missing = sum(passes - begun for begun, passes in ladder)
    ladder[0] = (ladder[0][0] + missing, ladder[0][1])
    falling = 0
    for begun, passes in ladder:
        falling += begun - passes
        if begun < 0 or falling < 0:  # no passes have such counts: then nothing is known of them
            every = sum(passes for _, passes in ladder)
            ladder = [(0 if i else every, passes) for i, (_, passes) in enumerate(ladder)]
            missing = every
            break
    return [
        PassCounts(event=one, begun=begun, passes=passes, known=not missing)
        for one, (begun, passes) in zip(found, ladder, strict=True)
    ]


def noise_rank(event: Event) -> tuple[float, str]:
    """By what the events of a sampling are sorted: the most noise first, then what is written."""
    return -noise_in_pass(event.mechanism), _to_text(event)


@lru_cache(maxsize=2**14)
def _to_text(event: Event) -> str:
    return repr(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPass:
    """The latest pass of a branch: what it was counted as, and how far it has come."""

    event: Event  # its mechanism is the least noisy one seen in this pass
    position: int  # steps of the pass taken so far, from 1 to steps_per_pass
    # Whether passes begin where they are counted from, in orders that nothing else uses.
    placed: bool = True
    # Where they do, whether correlated noise is used nowhere else, and in no pass left unfinished.
    fresh_noise: bool = True


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A line without steps, whose passes may have begun before it, in orders used elsewhere."""


@dataclass(frozen=True, slots=True)
class UsedNoise:
    """A line without steps, in an order of its own; correlated noise may be used elsewhere."""


UNPLACED: Final = Unplaced()
USED_NOISE: Final = UsedNoise()
# None: a loader that counts passes begins with a new one, and correlated noise is drawn anew.
Place = OpenPass | Unplaced | UsedNoise | None


def is_placed(place: Place) -> bool:
    """Whether passes begin where they are counted from, in orders that nothing else uses."""
    return place.placed if isinstance(place, OpenPass) else not isinstance(place, Unplaced)


def has_fresh_noise(place: Place) -> bool:
    """Whether correlated noise that begins here, or goes on, is used nowhere else."""
    return place.placed and place.fresh_noise if isinstance(place, OpenPass) else place is None


def after_steps(place: Place) -> Place:
    """Where a line stands after steps that are not counted by pass.

    A pass of correlated noise goes on after them: its next row is the same.
    """
    if isinstance(place, OpenPass) and place.event.is_correlated:
        return place
    if not is_placed(place):
        return UNPLACED
    return None if has_fresh_noise(place) else USED_NOISE


def goes_on(place: Place, event: Event) -> bool:
    """Whether a step of the event goes on in the pass that is open, rather than begin another."""
    return isinstance(place, OpenPass) and place.event.stream == event.stream


def _is_known(place: Place, event: Event) -> bool:
    """Whether the passes of an event are bounded as they are counted from this place on."""
    return is_placed(place) and (not event.is_correlated or _noise_after(place, event))


def _leaves_noise(place: Place) -> bool:
    """Whether noise of a pass that is open may be used again once another pass has begun."""
    if not isinstance(place, OpenPass) or not place.event.is_correlated:
        return False
    return not (_restarts(place.event) and place.position == pass_length(place.event))


def _restarts(event: Event) -> bool:
    """Whether another pass may follow: of correlated noise only where it is drawn anew."""
    return bool(getattr(event.sampling, "noise_restarts_each_pass", True))


def pass_length(event: Event) -> int | None:
    """Steps in a pass for samplings that are counted by pass, else None."""
    sampling: Sampling = event.sampling
    if isinstance(sampling, Cyclic | Shuffle | BallsAndBins | RandomAllocation):
        return sampling.steps_per_pass
    return sampling.steps_per_pass if isinstance(sampling, MinSeparation | CyclicPoisson) else None


def starts_anew(open_pass: Place, span: Span) -> int:
    """How many passes are counted and perhaps not gone through as a span makes a loader begin anew.

    One, which may be left unfinished; two more where the first may have begun before: its rest is
    counted as a whole one, and where later ones begin is not known. Zero where none begins anew.
    """
    if pass_length(span.event) is None or goes_on(open_pass, span.event):
        return 0
    return 1 if is_placed(open_pass) else 3


def count_passes_begun(open_pass: Place, span: Span) -> int:
    """How many passes begin with a span that follows on a branch, each at the span's noise.

    None where passes may begin elsewhere than they are counted from: their noise is not known.
    """
    length = pass_length(span.event)
    if length is None:
        return 0
    inside, follows = 0, goes_on(open_pass, span.event)
    if isinstance(open_pass, OpenPass) and follows:
        inside = min(span.steps, length - open_pass.position)
    begun = -(-(span.steps - inside) // length)
    known = _is_known(open_pass, span.event)
    return _count_covered(span.event, begun, known=known, follows=follows)


def noise_in_pass(mechanism: Mechanism) -> float:
    """What the steps of a pass are compared by: the least takes the whole pass with it.

    Passes are proved for Gaussian noise alone, so whatever has no bound comes before all that has.
    """
    match mechanism:
        case Gaussian():
            return mechanism.noise_multiplier
        case MatrixGaussian():
            return mechanism.noise_multiplier / math.sqrt(mechanism.sensitivity_squared)
        case Laplace() | RandomizedResponse() | ApproximateDp() | Zcdp() | PrivateSelection():
            return 0.0
        case NoNoise():
            return -1.0
        case _:
            assert_never(mechanism)


def reveal_order(event: Event) -> Event:
    """What is counted of a pass in an order that was used before: nothing secret is left of it.

    A release for each step of the pass that a record joins. Of a shuffle whose secret order could
    count, an order that is known; of single records, where that is published, a pass of no bound.
    So is one of correlated noise: noise that is used again cancels in a difference.
    """
    match event.sampling:
        case BallsAndBins():
            return replace(event, sampling=BallsAndBins(steps_per_pass=1))
        case RandomAllocation(participations=joined):
            told = RandomAllocation(steps_per_pass=joined, participations=joined)
            return replace(event, sampling=told)
        case Shuffle(reshuffle=Reshuffle.EACH_PASS, batch_size=1) as order if order.is_whole:
            return Event(mechanism=NoNoise(), sampling=order)
        case Shuffle(reshuffle=Reshuffle.EACH_PASS) as order if order.stops_early:
            known = Cyclic(batch_size=order.batch_size, steps_per_pass=order.steps_per_pass)
            return replace(event, sampling=known)
        case MinSeparation() | CyclicPoisson():
            return Event(mechanism=NoNoise(), sampling=event.sampling)
        case _:
            return event


def advance(open_pass: Place, span: Span) -> tuple[dict[Event, int], Place]:
    """Count the passes of a span that follows on a branch, and say which pass is then open.

    A change of sampling opens a new pass. Less noise inside a counted pass moves that pass to the
    less noisy event: one down, one up. Splitting a span anywhere gives the same sum of changes.

    Where passes may begin elsewhere than they are counted from, in orders that others may use, one
    more is counted, and another one at each fall of the noise; of none is anything secret then.
    docs/theory/branches.md proves that they cover every beginning.

    Of correlated noise, a pass has no bound that begins where noise may be used again: after the
    first one where nothing says that noise restarts, or where another pass was left unfinished.
    """
    event, steps = span.event, span.steps
    length = pass_length(event)
    passes: Counter[Event] = Counter()
    if length is None:
        return passes, after_steps(open_pass)
    known = _is_known(open_pass, event)
    before = open_pass if isinstance(open_pass, OpenPass) and goes_on(open_pass, event) else None
    falls = before is None or noise_in_pass(event.mechanism) < noise_in_pass(before.event.mechanism)
    if not known and falls:
        passes[reveal_order(event)] += 1
    if before is not None:
        inside = min(steps, length - before.position)
        if inside and falls:
            passes[before.event if known else reveal_order(before.event)] -= 1
            known = known and not isinstance(event.sampling, CyclicPoisson)  # as it is proved
            passes[event if known else reveal_order(event)] += 1
            noise = before.fresh_noise and (known or not before.placed)
            before = replace(before, event=event, fresh_noise=noise)
        steps -= inside
        if steps == 0:
            return passes, replace(before, position=before.position + inside)
    begun = -(-steps // length)
    covered = _count_covered(event, begun, known=known, follows=before is not None)
    if covered:
        passes[event] += covered
    if covered < begun:
        passes[reveal_order(event)] += begun - covered
    noise = covered == begun and _noise_after(open_pass, event)
    return passes, OpenPass(
        event=event,
        position=steps - (begun - 1) * length,
        placed=is_placed(open_pass),
        fresh_noise=noise or not is_placed(open_pass),
    )


def _count_covered(event: Event, begun: int, *, known: bool, follows: bool) -> int:
    """How many of the passes that begin are bounded as they are counted."""
    if not known:
        return 0
    return begun if _restarts(event) else min(begun, 0 if follows else 1)


def _noise_after(place: Place, event: Event) -> bool:
    """Whether correlated noise is still used nowhere else once passes of an event have begun."""
    return has_fresh_noise(place) and (goes_on(place, event) or not _leaves_noise(place))


def count_events(
    branches: Iterable[Iterable[Span]], *, places: Iterable[Place] = repeat(None)
) -> EventCounts:
    """Fold the spans of every branch, each from its beginning, into one ledger.

    Args:
        branches: their spans.
        places: where each of them begins; by default with a new pass.
    """
    steps: Counter[Event] = Counter()
    passes: Counter[Event] = Counter()
    begun: Counter[Event] = Counter()
    starts: Counter[Event] = Counter()
    for spans, place in zip(branches, places, strict=False):
        open_pass = place
        for span in spans:
            steps[span.event] += span.steps
            starts[span.event] += starts_anew(open_pass, span)
            begun[span.event] += count_passes_begun(open_pass, span)
            changes, open_pass = advance(open_pass, span)
            passes.update(changes)
    return EventCounts(
        steps=dict(steps),
        passes={event: n for event, n in passes.items() if n},
        begun={event: n for event, n in begun.items() if n},
        starts={event: n for event, n in starts.items() if n},
    )
