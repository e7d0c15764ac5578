"""Ledgers with very many distinct steps: rounded outward onto few, on both sides.

More noise tells less and a larger sampling probability tells more, so a step lies between the two
whose parameters are rounded down and up. A ledger whose every step is so replaced bounds the ledger
from above, and the other way round from below.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.event_counts import EventCounts, pass_length, passes_by_sampling
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Event,
    Gaussian,
    Laplace,
    NeighboringRelation,
    Poisson,
    RandomAllocation,
    Sampling,
    Zcdp,
)
from accounting.guarantees import Status, theorem
from accounting.rounding import Array
from accounting.work_limit import spend

DISTINCT_MAX: Final = 400  # events that are composed one by one
GROUPS: Final = 800  # what more are rounded to, about
ROUGH_GROUPS: Final = 128  # where that many cannot be composed, or need only be shown to be less
ROUNDED_WIDTH: Final = 1e-4  # relative, aimed at for each side: little beside what rounding adds
CLOUD_GROUPS: Final = 12  # of sampled steps for each noise, where an answer is too much work
_PATH_MAX: Final = 30.0  # beyond, parameters that are neighbours in noise are a cloud, not a curve

Groups = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupedEvents:
    """Ledgers on each side of what was asked for."""

    upper: EventCounts
    lower: EventCounts
    rough_upper: EventCounts  # with fewer distinct events
    rough_lower: EventCounts
    whole: EventCounts  # what was asked for

    def with_known_orders(self) -> "GroupedEvents":
        """The same, with orders that may have been used again as known ones."""
        sides = (self.upper, self.lower, self.rough_upper, self.rough_lower, self.whole)
        return GroupedEvents(*(side.with_known_orders() for side in sides))


def distinct(counts: EventCounts) -> int:
    """How many distinct events a ledger has."""
    return len(counts.steps)


@theorem(
    id="outward-rounding",
    source="Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Theorem 2.10",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def group_events(counts: EventCounts) -> GroupedEvents:
    """Ledgers of few distinct events that bound one of many from above and from below.

    Adding noise, and replacing an answer by one that knows nothing with some probability, are
    post-processing: a sampled Gaussian step with more noise or a smaller probability never tells
    more. Such steps are gathered in groups of neighbours; each group is replaced by its least noise
    and largest probability above, and by the opposite below. Other events stay as they are.

    Args:
        counts: units of each distinct event.

    Returns:
        Upper and lower ledgers of as many steps, and both once more but rougher.
    """
    spend(2000 * len(counts.steps))  # with what it takes to read so many
    points, others = _split_poisson_steps(counts)
    if points is None:
        return GroupedEvents(counts, counts, counts, counts, counts)
    fine, rough = _corners(points, GROUPS), _corners(points, ROUGH_GROUPS)

    def with_others(groups: dict[Event, int]) -> EventCounts:
        steps = dict(others)
        for event, count in groups.items():
            steps[event] = steps.get(event, 0) + count
        return replace(counts, steps=steps)

    upper, lower, rough_upper, rough_lower = (with_others(groups) for groups in (*fine, *rough))
    return GroupedEvents(upper, lower, rough_upper, rough_lower, counts)


def dominating(counts: EventCounts, noises: int) -> EventCounts:
    """A ledger of far fewer distinct events that bounds one of many from above, but less closely.

    It does so for an odometer, too: see `replace_events`.

    Args:
        counts: units of each distinct event.
        noises: how many are left of each sampling and mechanism, at most; of Gaussian steps under
            Poisson sampling, of which any are gathered, twelve times as many.
    """
    return replace_events(counts, stronger(counts, noises))


def stronger(counts: EventCounts, noises: int) -> dict[Event, Event]:
    """Return an event that tells no less for each event of a ledger; these are far fewer.

    As `group_events`, and steps of any one sampling are gathered, too. Whoever is in a batch,
    more Gaussian noise is post-processing; so is more Laplace noise, whose law is that of less and
    an independent rest; and what a declared guarantee promises holds with larger numbers. Within a
    pass as well, which costs what its least noise does. Events that are in no order are left out.

    Args:
        counts: units of each distinct event.
        noises: as for `dominating`.
    """
    spend(800 * len(counts.steps))
    points, others = _split_poisson_steps(counts)
    events = dict.fromkeys((*counts.passes, *counts.begun), 1) | others
    instead = _in_classes(events, noises, _above)
    if points is not None:
        order, starts = _group_points(points, CLOUD_GROUPS * noises)
        noise = np.minimum.reduceat(points.noise[order], starts)
        rate = np.maximum.reduceat(points.rate[order], starts)
        for place, group in enumerate(np.split(order, starts[1:])):
            corner = _event(noise[place], rate[place])
            instead.update((points.events[index], corner) for index in group)
    return instead


def dominate_from_below(counts: EventCounts, noises: int) -> EventCounts:
    """The same from below: a ledger whose steps tell no more than those of another. Lower.

    Each step is replaced by the one of its class with the most noise, under Poisson sampling with
    the least rate. What is counted by pass stays as it is.

    Args:
        counts: units of each distinct event.
        noises: as for `dominating`.
    """
    spend(800 * len(counts.steps))
    points, others = _split_poisson_steps(counts)
    by_step = {event: n for event, n in others.items() if pass_length(event) is None}
    instead = _in_classes(by_step, noises, _below)
    steps: Counter[Event] = Counter()
    for event, count in others.items():
        steps[instead.get(event, event)] += count
    if points is not None:
        steps.update(_corners(points, CLOUD_GROUPS * noises)[1])
    return replace(counts, steps=dict(steps))


def replace_events(counts: EventCounts, instead: Mapping[Event, Event]) -> EventCounts:
    """A ledger in which events stand for others; of its loaders' new starts nothing is known.

    Where noise fell inside passes, an odometer charges by how far it fell, and passes that all had
    the least noise would cost it less. Such passes begin at the greatest noise that their events
    are gathered with, never at less (docs/theory/filters.md, Theorem 6); of a loader in turn it is
    left open where they began, since that decides by which of two bounds they are charged.
    """
    spend(100_000 + 40 * len(counts.steps))
    steps: Counter[Event] = Counter()
    for event, count in counts.steps.items():
        steps[instead.get(event, event)] += count
    passes: Counter[Event] = Counter()
    for event, count in counts.passes.items():
        passes[instead.get(event, event)] += count
    begun: Counter[Event] = Counter()
    for sampling, each in passes_by_sampling(counts).items():
        kept = all(one.begun == one.passes for one in each)
        known = kept or isinstance(sampling, BallsAndBins | RandomAllocation)
        quietest: dict[Event, Event] = {}
        for one in each:  # the most noise first
            event = instead.get(one.event, one.event)
            first = event if kept else quietest.setdefault(event, one.event)
            begun[first] += one.begun if known else 0
    return EventCounts(steps=dict(steps), passes=dict(passes), begun=dict(begun))


def _in_classes(
    counts: Mapping[Event, int], noises: int, chosen: Callable[[list[Event]], Event]
) -> dict[Event, Event]:
    """For each event the one chosen for its class of its sampling and mechanism; few in all."""
    same: dict[tuple[Sampling, type], list[tuple[_Strength, str, Event]]] = {}
    for event in counts:
        strength = _strength(event)
        if strength is not None:
            each = same.setdefault((event.sampling, type(event.mechanism)), [])
            each.append((strength, repr(event), event))
    found = {}
    for each in same.values():
        each.sort(key=lambda one: one[:2])
        events = [event for _, _, event in each]
        costs = np.array([strength.cost for strength, _, _ in each])
        starts = _starts(costs, [counts[event] for event in events], noises).tolist()
        for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
            group = events[start:end]
            found.update(dict.fromkeys(group, chosen(group)))
    return found


def _starts(costs: Array, counts: Sequence[int], classes: int) -> Groups:
    """Where each class of a curve of events begins: shortest where steps cost most, see _along."""
    costs = np.maximum(costs, 1e-300)
    lengths = np.abs(np.diff(np.log(costs), prepend=math.log(float(costs[0]))))
    along = _along(costs / np.max(costs) * np.array(counts, dtype=np.float64), lengths)
    cells = np.minimum(np.floor(along * classes), classes - 1)
    return np.flatnonzero(np.diff(cells, prepend=-1.0))


def _along(shares: Array, lengths: Array) -> Array:
    """How far along a curve each point lies, in [0, 1], where groups are to be of equal length.

    What rounding adds is the sum of share times length, least for a density of
    sqrt(share / length).
    """
    along = np.cumsum(np.sqrt(shares * lengths))
    return along / max(float(along[-1]), 1e-300)


class _Strength(NamedTuple):
    weakness: float  # falls as a mechanism tells more
    cost: float  # of a step beside others of its kind, about


def _strength(event: Event) -> _Strength | None:
    """How a mechanism stands among those of its kind; None where they are not in an order."""
    match event.mechanism:
        case Gaussian(noise_multiplier=noise) | Laplace(noise_multiplier=noise):
            return _Strength(noise, 1 / max(noise, 1e-100) ** 2)
        case Zcdp(rho=rho):
            return _Strength(-rho, rho)
        case ApproximateDp(epsilon=epsilon):
            return _Strength(-epsilon, min(epsilon, 1e100) ** 2)
        case _:
            return None


def _above(group: list[Event]) -> Event:
    """An event that tells no less than any of a group, whose first tells most."""
    first = group[0]
    if not isinstance(first.mechanism, ApproximateDp):
        return first
    boxes = [one.mechanism for one in group if isinstance(one.mechanism, ApproximateDp)]
    return replace(first, mechanism=replace(boxes[0], delta=max(box.delta for box in boxes)))


def _below(group: list[Event]) -> Event:
    """An event that tells no more than any of a group, whose last tells least."""
    last = group[-1]
    if not isinstance(last.mechanism, ApproximateDp):
        return last
    boxes = [one.mechanism for one in group if isinstance(one.mechanism, ApproximateDp)]
    return replace(last, mechanism=replace(boxes[-1], delta=min(box.delta for box in boxes)))


@dataclass(frozen=True, slots=True)
class _Points:
    events: Sequence[Event]
    noise: Array
    rate: Array
    counts: npt.NDArray[np.object_]


def _split_poisson_steps(counts: EventCounts) -> tuple[_Points | None, dict[Event, int]]:
    """The Gaussian steps under Poisson sampling, if there are any; and all others."""
    points: list[tuple[Event, float, float, int]] = []
    others: dict[Event, int] = {}
    for event, count in counts.steps.items():
        mechanism, sampling = event.mechanism, event.sampling
        if isinstance(mechanism, Gaussian) and isinstance(sampling, Poisson):
            rate = sampling.sampling_probability
            points.append((event, mechanism.noise_multiplier, rate, count))
        else:
            others[event] = count
    if not points:
        return None, others
    events, noises, rates, steps = zip(*points, strict=True)
    exact = np.array(steps, dtype=object)  # they may exceed what a double holds
    return _Points(events, np.array(noises), np.array(rates), exact), others


def _corners(points: _Points, groups: int) -> tuple[dict[Event, int], dict[Event, int]]:
    """Each group's least noise and largest rate, and the opposite, with its count."""
    order, starts = _group_points(points, groups)
    noise, rate = points.noise[order], points.rate[order]
    totals = np.add.reduceat(points.counts[order], starts)
    least, most = np.minimum.reduceat(noise, starts), np.maximum.reduceat(noise, starts)
    likeliest, rarest = np.maximum.reduceat(rate, starts), np.minimum.reduceat(rate, starts)
    # Where the next group's upper corner lies below this group, it serves as its lower one: fewer
    # distinct events, at nearly the same width.
    follows = (least[1:] >= most[:-1]) & (likeliest[1:] <= rarest[:-1])
    most[:-1] = np.where(follows, least[1:], most[:-1])
    rarest[:-1] = np.where(follows, likeliest[1:], rarest[:-1])
    above: dict[Event, int] = {}
    below: dict[Event, int] = {}
    for i, total in enumerate(totals):
        upper, lower = _event(least[i], likeliest[i]), _event(most[i], rarest[i])
        above[upper] = above.get(upper, 0) + int(total)
        below[lower] = below.get(lower, 0) + int(total)
    return above, below


def _event(noise: float, rate: float) -> Event:
    return Event(
        mechanism=Gaussian(noise_multiplier=float(noise)),
        sampling=Poisson(sampling_probability=float(rate)),
    )


def _group_points(points: _Points, groups: int) -> tuple[Groups, Groups]:
    """(order, starts): points by group, and where each group starts in that order.

    A step costs about its standard deviation v, log v = log(rate) + log(e^(1/noise^2) - 1)/2, and
    steps add by v^2. Along a curve of parameters, groups are shortest where steps cost most.
    """
    inverse = 1 / np.square(points.noise)
    cost = 0.5 * np.where(inverse < 30, np.log(np.expm1(np.minimum(inverse, 30.0))), inverse)
    log_rate = np.log(points.rate)
    order = np.lexsort((-points.rate, points.noise))
    lengths = np.abs(np.diff(cost[order], prepend=cost[order[0]]))
    lengths += np.abs(np.diff(log_rate[order], prepend=log_rate[order[0]]))
    if float(np.sum(lengths)) <= _PATH_MAX:
        logs = 2 * (cost + log_rate)[order]
        shares = np.exp(logs - np.max(logs)) * points.counts[order].astype(np.float64)
        cells = np.floor(_along(shares, lengths) * groups)
        return order, np.flatnonzero(np.diff(cells, prepend=-1.0))
    return _cloud(cost, log_rate, groups)


def _cloud(cost: Array, log_rate: Array, groups: int) -> tuple[Groups, Groups]:
    """Groups of a cloud of parameters: the occupied cells of a square grid."""
    size = math.sqrt(max(float(np.ptp(cost)), 1e-9) * max(float(np.ptp(log_rate)), 1e-9) / groups)
    while True:
        rows = np.floor((cost - np.min(cost)) / size)
        columns = np.floor((log_rate - np.min(log_rate)) / size)
        cells = rows * (np.max(columns) + 1) + columns
        order = np.argsort(cells, kind="stable")
        starts = np.flatnonzero(np.diff(cells[order], prepend=-1.0))
        if len(starts) <= groups:
            return order, starts
        size *= 1.1


THEOREMS = (group_events,)
