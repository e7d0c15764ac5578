"""What passes cost whose noise may fall after a look at answers of the same pass.

A pass that is one Gaussian release costs what its least noise does. An amplified curve is that of a
pass which keeps the noise that it began with: what a fall adds is proved in docs/theory/filters.md.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from accounting.bounds.event_bounds import NoBoundError, accepted
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import PassCounts
from accounting.events import BallsAndBins, Event, NeighboringRelation, RandomAllocation
from accounting.filters.event_costs import loss_at
from accounting.filters.integer_totals import Total, limit_units, loss_units, plus, times
from accounting.guarantees import Status
from accounting.rounding import rounded_down, rounded_up
from accounting.shuffling.partial import partial_shuffle_rdp
from accounting.theorem import theorem

_MARGIN: Final = 1e-12  # far more than what the rounding of a release's loss adds


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
        return _kept(each, unit, len(orders))
    try:
        releases = [_Release(one, relation, orders) for one in each]
    except NoBoundError:  # a pass that has no bound makes all of it infinite
        return _kept(each, unit, len(orders))
    if isinstance(each[0].event.sampling, BallsAndBins | RandomAllocation):
        return _allocated(releases, Status.DERIVED in accept, unit, len(orders))
    return _stopped(releases, relation, accept, orders, unit)


def _kept(each: Sequence[PassCounts], unit: Callable[[Event], Total], orders: int) -> Total:
    """Passes that each kept one noise."""
    total: Total = (0,) * (2 + orders)
    for one in each:
        if one.passes:
            total = plus(total, times(unit(one.event), one.passes))
    return total


class _Release:
    """Passes at one noise, and what each costs as a Gaussian release."""

    def __init__(
        self, one: PassCounts, relation: NeighboringRelation, orders: tuple[float, ...]
    ) -> None:
        (release,) = gdp_bounds(one.event, relation)
        losses = [0.5 * order * release.loss * release.loss for order in orders]
        self.event, self.begun, self.passes = one.event, one.begun, one.passes
        self.known = one.known
        self.upper = [loss_units(rounded_up(loss, ulps=4)) for loss in losses]
        self.lower = [limit_units(rounded_down(loss * (1 - _MARGIN))) for loss in losses]

    def hides(self, order: int, unit: int) -> bool:
        """Whether a pass costs less than a release, by more than rounding."""
        return unit < self.lower[order]


def _fallen(each: Sequence[_Release]) -> Iterator[int]:
    """For each noise at most how many of the passes that had it at the least began at more."""
    falling = 0
    for one in each:
        yield min(one.passes, falling)
        falling += one.begun - one.passes


def _allocated(
    each: Sequence[_Release], derived: bool, unit: Callable[[Event], Total], orders: int
) -> Total:
    """Passes of balls and bins, or random allocation.

    Where what was only proved here is not accepted, what is left of a pass when its noise falls is
    one release more; before it fell, the pass cost no more than one of its least noise.
    """
    none: Total = (0,) * (2 + orders)
    needed = [one.begun or (one.passes and not derived) for one in each]
    units = [unit(one.event) if own else none for one, own in zip(each, needed, strict=True)]
    uncovered = sum(one.begun * own[0] for one, own in zip(each, units, strict=True))
    failures = sum(one.begun * own[1] for one, own in zip(each, units, strict=True))
    found = []
    for order in range(orders):
        first = [own[2 + order] for own in units]
        upper = [one.upper[order] for one in each]
        if not any(one.begun and one.hides(order, f) for one, f in zip(each, first, strict=True)):
            # A release from its start: which steps hold the record is told when it begins.
            found.append(sum(one.passes * u for one, u in zip(each, upper, strict=True)))
        elif derived:
            found.append(
                falling_noise_units(
                    begun=[one.begun for one in each],
                    passes=[one.passes for one in each],
                    first=first,
                    release_upper=upper,
                    release_lower=[one.lower[order] for one in each],
                )
            )
        else:
            kept = sum(one.passes * f for one, f in zip(each, first, strict=True))
            more = sum(n * u for n, u in zip(_fallen(each), upper, strict=True))
            found.append(kept + more)
    return (uncovered, failures, *found)


def _stopped(
    each: Sequence[_Release],
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
    unit: Callable[[Event], Total],
) -> Total:
    """Passes of a loader in turn: the curve of its steps, or a release, as chosen at their start.

    What is chosen by the first noise is kept: at each order the curve if it is the lesser, and then
    the curve at the least noise. Where it is not known what was chosen, the larger counts.
    """
    total: Total = (0,) * (2 + len(orders))
    chosen: list[set[bool]] = [set() for _ in orders]  # whether curves were, at more noise
    for one, fallen in zip(each, _fallen(each), strict=True):
        if not (one.begun or one.passes):
            continue
        own = unit(one.event)
        total = plus(total, times(own, one.passes))
        if fallen and not own[0]:
            curves = _curves(one.event, relation, accept, orders)
            either = [told if one.known else {True, False} for told in chosen]
            worst = map(_worst, curves, one.upper, own[2:], either)
            more = [fallen * (most - u) for most, u in zip(worst, own[2:], strict=True)]
            total = plus(total, (0, 0, *more))
        if one.begun:
            for order, told in enumerate(chosen):
                told.add(one.hides(order, own[2 + order]))
    return total


def _worst(curve: int, release: int, kept: int, chosen: set[bool]) -> int:
    """What a pass costs that began at more noise, where curves or releases were chosen then."""
    return max(kept, curve if True in chosen else 0, release if False in chosen else 0)


def _curves(
    event: Event,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    orders: tuple[float, ...],
) -> list[int]:
    """The curve of the steps of a pass at each order, even where it exceeds a release; or none."""
    bounds = accepted(renyi_bounds(event, relation), accept=accept)
    stepwise = [one.loss for one in bounds if one.theorem.id == partial_shuffle_rdp.id]
    return [
        max((loss_units(loss_at(curve, order)) for curve in stepwise), default=0)
        for order in orders
    ]


THEOREMS = (falling_noise_units,)
