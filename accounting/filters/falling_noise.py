"""What passes cost whose noise may fall after a look at answers of the same pass.

A pass that is one Gaussian release costs what its least noise does. An amplified curve is that of a
pass which keeps the noise that it began with: what a fall adds is proved in docs/theory/filters.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from accounting.bounds.event_bounds import NoBoundError, filter_accepted
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import PassCounts
from accounting.events import BallsAndBins, Event, NeighboringRelation, RandomAllocation, Sampling
from accounting.filters.event_costs import loss_at
from accounting.filters.integer_totals import Total, limit_units, loss_units, plus, times
from accounting.guarantees import Status, theorem
from accounting.rounding import rounded_down, rounded_up
from accounting.shuffling.partial import partial_shuffle_rdp

_MARGIN: Final = 1e-12  # far more than what the rounding of a release's loss adds
_CURVE: Final = 1  # the curve of a pass was chosen at its start
_RELEASE: Final = 2  # a release was
RELEASES_MAX: Final = 10_240  # events whose releases are cached, about 1 kB each


@theorem(
    id="falling-noise",
    source="docs/theory/filters.md, Theorem 6",
    status=Status.DERIVED,
    relations=(NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL),
)
def falling_noise_units(
    *,
    begun: Sequence[int],
    passes: Sequence[int],
    first: Sequence[int],
    release_upper: Sequence[int],
    release_lower: Sequence[int],
) -> int:
    """RDP of passes of balls and bins, or random allocation, whose noise follows their answers.

    A pass that began at noise s_1 and had s at the least costs rdp(s_1) + release(s) - release(s_1)
    at each order: the curve of a pass that keeps its first noise, and what a Gaussian release costs
    more at the least noise than at the first. Summed over the passes that is the sum, over noises,
    of begun * rdp + (passes - begun) * release. A fall is charged before the step that uses it.

    Args:
        begun: how many passes had each noise in their first step.
        passes: how many had it as their least.
        first: RDP of a pass that keeps the noise, in units of 2^-80 nats. Upper.
        release_upper: RDP of one Gaussian release with it, alpha k / (2 s^2) for the k steps that
            a record takes part in, in the same units. Upper.
        release_lower: the same. Lower.

    Returns:
        RDP of all passes at the order of the curves, in units of 2^-80 nats. Upper.
    """
    total = 0
    for count, least, unit, upper, lower in zip(
        begun, passes, first, release_upper, release_lower, strict=True
    ):
        total += count * unit + (least - count) * (upper if least > count else lower)
    return total


def passes_total(
    each: Sequence[PassCounts],
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
    unit: Callable[[Event], Total],
) -> Total:
    """(uncovered, failures, RDP at each order) of the passes of one sampling. Upper.

    Args:
        each: how many passes began at each noise, and had it as their least; the greatest first.
        relation: the neighbouring relation.
        accept: statuses of theorems that may be used.
        orders: of the filter.
        unit: what a pass costs that keeps its noise.
    """
    if all(one.begun == one.passes for one in each):
        return _add_constant_passes(each, unit, len(orders))
    rule = renyi_pass_rule(each[0].event.sampling, relation, accept, orders, unit)
    total, falling, seen = rule.none, 0, rule.start
    try:
        for one in each:
            more, seen = rule.add(one, falling, seen)
            total = plus(total, more)
            falling += one.begun - one.passes
    except NoBoundError:  # a pass that has no bound makes all of it infinite
        return _add_constant_passes(each, unit, len(orders))
    return rule.total(total)


def _add_constant_passes(
    each: Sequence[PassCounts], unit: Callable[[Event], Total], orders: int
) -> Total:
    """Passes that each kept one noise."""
    total: Total = (0,) * (2 + orders)
    for one in each:
        if one.passes:
            total = plus(total, times(unit(one.event), one.passes))
    return total


Seen = tuple[int, ...]  # what was chosen at each order at more noise, as a sum of bits


class PassRule(Protocol):
    """What the passes of one sampling cost, added up from the greatest noise to the least."""

    @property
    def none(self) -> Total:
        """The sum of nothing."""
        ...

    @property
    def start(self) -> Seen:
        """What is seen before the greatest noise."""
        ...

    def add(self, one: PassCounts, falling: int, seen: Seen) -> tuple[Total, Seen]:
        """What passes at one noise add to the sum, and what was seen at it and at more noise.

        Args:
            one: how many began at it, and had it as their least.
            falling: how many began at more noise, and had less than that as their least.
            seen: at more noise.

        Raises:
            NoBoundError: a pass at this noise has no bound.
        """
        ...

    def total(self, total: Total) -> Total:
        """What a filter adds up to whose passes have this sum. Upper."""
        ...


def renyi_pass_rule(
    sampling: Sampling,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
    unit: Callable[[Event], Total],
) -> PassRule:
    """How a Renyi filter adds up passes of a sampling; arguments as in `passes_total`."""
    if isinstance(sampling, BallsAndBins | RandomAllocation):
        return _Allocated(relation, accept, orders, unit)
    return _InTurn(relation, accept, orders, unit)


class LeastNoise:
    """Each pass costs what its least noise does, whatever it began with."""

    start: Seen = ()

    def __init__(self, none: Total, unit: Callable[[Event], Total]) -> None:
        self.none, self._unit = none, unit

    def add(self, one: PassCounts, falling: int, seen: Seen) -> tuple[Total, Seen]:
        """The costs of the passes whose least noise it is."""
        return times(self._unit(one.event), one.passes) if one.passes else self.none, seen

    def total(self, total: Total) -> Total:
        """The sum."""
        return total


@lru_cache(maxsize=RELEASES_MAX)
def _releases(
    event: Event, relation: NeighboringRelation, orders: tuple[float, ...]
) -> tuple[Total, Total]:
    """The RDP of a pass as one Gaussian release, at each order in units: upper, and lower.

    Raises:
        NoBoundError: it has no bound.
    """
    (release,) = gdp_bounds(event, relation)
    losses = [0.5 * order * release.loss * release.loss for order in orders]
    upper = tuple([loss_units(rounded_up(loss, ulps=4)) for loss in losses])
    return upper, tuple([limit_units(rounded_down(loss * (1 - _MARGIN))) for loss in losses])


@dataclass(frozen=True, slots=True)
class _RenyiRule:
    relation: NeighboringRelation
    accept: frozenset[Status]
    orders: tuple[float, ...]
    unit: Callable[[Event], Total]


class _Allocated(_RenyiRule):
    """Passes of balls and bins, or random allocation.

    Where what was only proved here is not accepted, what is left of a pass when its noise falls is
    one release more; before it fell, the pass cost no more than one of its least noise.

    Sums are (uncovered, failures), and at each order (noises that passes began at and that hide
    more than a release, releases, what passes cost where any noise does).
    """

    @property
    def none(self) -> Total:
        """The sum of nothing."""
        return (0,) * (2 + 3 * len(self.orders))

    @property
    def start(self) -> Seen:
        """Nothing is seen."""
        return ()

    def add(self, one: PassCounts, falling: int, seen: Seen) -> tuple[Total, Seen]:
        """What passes at one noise add to the sum; nothing is seen."""
        upper, lower = _releases(one.event, self.relation, self.orders)
        derived = Status.DERIVED in self.accept
        needed = one.begun or (one.passes and not derived)
        own = self.unit(one.event) if needed else (0,) * (2 + len(self.orders))
        found = [one.begun * own[0], one.begun * own[1]]
        for first, most, least in zip(own[2:], upper, lower, strict=True):
            found.append(1 if one.begun and first < least else 0)
            found.append(one.passes * most)
            if derived:
                found.append(
                    falling_noise_units(
                        begun=[one.begun],
                        passes=[one.passes],
                        first=[first],
                        release_upper=[most],
                        release_lower=[least],
                    )
                )
            else:
                found.append(one.passes * first + min(one.passes, falling) * most)
        return tuple(found), seen

    def total(self, total: Total) -> Total:
        """Releases from their start, where no noise hides more: what holds a record is told then.

        It is told when a pass begins, which steps those are.
        """
        each = zip(total[2::3], total[3::3], total[4::3], strict=True)
        return (*total[:2], *[cost if hiding else release for hiding, release, cost in each])


class _InTurn(_RenyiRule):
    """Passes of a loader in turn: the curve of its steps, or a release, as chosen at their start.

    What is chosen by the first noise is kept: at each order the curve if it is the lesser, and then
    the curve at the least noise. Where it is not known what was chosen, the larger counts. What was
    seen is whether curves, and whether releases, were chosen at more noise.
    """

    @property
    def none(self) -> Total:
        """The sum of nothing."""
        return (0,) * (2 + len(self.orders))

    @property
    def start(self) -> Seen:
        """Neither was chosen at any order."""
        return (0,) * len(self.orders)

    def add(self, one: PassCounts, falling: int, seen: Seen) -> tuple[Total, Seen]:
        """What passes at one noise add to the sum, and what was chosen down to it."""
        upper, lower = _releases(one.event, self.relation, self.orders)
        if not (one.begun or one.passes):
            return self.none, seen
        own = self.unit(one.event)
        found = times(own, one.passes)
        fallen = min(one.passes, falling)  # at most so many of them began at more noise
        if fallen and not own[0]:
            curves = _curves(one.event, self.relation, self.accept, self.orders)
            either = seen if one.known else (_CURVE | _RELEASE,) * len(seen)
            worst = map(_worst, curves, upper, own[2:], either)
            more = [fallen * (most - u) for most, u in zip(worst, own[2:], strict=True)]
            found = plus(found, (0, 0, *more))
        if one.begun:
            chosen = [
                _CURVE if u < least else _RELEASE for u, least in zip(own[2:], lower, strict=True)
            ]
            seen = tuple([told | new for told, new in zip(seen, chosen, strict=True)])
        return found, seen

    def total(self, total: Total) -> Total:
        """The sum."""
        return total


def _worst(curve: int, release: int, kept: int, chosen: int) -> int:
    """What a pass costs that began at more noise, where curves or releases were chosen then."""
    return max(kept, curve if chosen & _CURVE else 0, release if chosen & _RELEASE else 0)


def _curves(
    event: Event,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
) -> list[int]:
    """The curve of the steps of a pass at each order, even where it exceeds a release; or none."""
    bounds = filter_accepted(renyi_bounds(event, relation), accept=accept)
    stepwise = [one.loss for one in bounds if one.theorem.id == partial_shuffle_rdp.id]
    return [
        max((loss_units(loss_at(curve, order)) for curve in stepwise), default=0)
        for order in orders
    ]


THEOREMS = (falling_noise_units,)
