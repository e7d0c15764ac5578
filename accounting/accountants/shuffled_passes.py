"""Shuffled passes that leave records out, bounded together with a part of delta set aside.

The pairs depend on how many passes there are and on the part of delta that they may fail with, so
they belong to a question and not to an event.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from accounting.bounds.dominating_pairs import Offered, bounds_offered, units_of
from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    EventBound,
    Pairs,
)
from accounting.bounds.pair_choice import choose_bounds, log_delta_of_moments
from accounting.event_counts import EventCounts, passes_by_sampling
from accounting.events import Direction, Event, Gaussian, NeighboringRelation, Shuffle
from accounting.guarantees import Status
from accounting.pld.certified_composition import (
    chernoff_delta,
    chernoff_epsilon,
    delta_bracket,
    epsilon_bracket,
)
from accounting.pld.contour.real_moments import NoMomentsError
from accounting.pld.pairs import Pair, Units
from accounting.rounding import rounded_down, rounded_up
from accounting.shuffling.partial import DATASET_SIZE_MAX
from accounting.shuffling.shuffled_batches import PASSES_MAX, shuffled_batches_pairs
from accounting.work_limit import attempt, remaining_points

SHARE: Final = 0.01  # of delta, set aside for all passes; it hardly matters
# Relative, of shuffled passes with a delta set aside, whose rates were rounded by about as much;
# and the part of the work that is left which each may take, before moments alone must do.
_PASSES_WIDTHS: Final = {1e-2: 0.75, 5e-2: 0.9}
_LEAST: Final = 1e-280  # set aside; less is not worked with
# Of delta, where epsilon is given: by moments alone, then by a rough composition.
_FIRST_GUESS: Final = 1e-5
_GUESSES: Final = 3
_GUESS_WIDTH: Final = 5e-2
_GUESS_PART: Final = 0.3  # of the work that is left


def kept_passes(counts: EventCounts, relation: NeighboringRelation) -> dict[Event, int]:
    """Return the passes that the theorem serves, in an order of the events.

    Each leaves a record out, k b < n, in a fresh secret order, and kept at least the noise that it
    began with: of a pass whose noise fell, or whose beginning is not known, the likelihood ratios
    are not bounded.
    """
    if relation is ADD_OR_REMOVE_ONE:
        return {}
    known: set[Event] = set()
    for sampling, each in passes_by_sampling(counts).items():
        if not (isinstance(sampling, Shuffle) and sampling.stops_early):
            continue
        if (sampling.dataset_size or math.inf) > DATASET_SIZE_MAX:
            continue
        if all(one.known and one.begun == one.passes <= PASSES_MAX for one in each):
            known.update(one.event for one in each if isinstance(one.event.mechanism, Gaussian))
    return {event: n for event, n in counts.units() if event in known and n > 0}


def bounds_with_passes(
    counts: EventCounts,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    *,
    aside: float,
) -> list[Offered]:
    """Return what `bounds_offered` does, and of shuffled passes what the theorem says of them too.

    Args:
        counts: units of each distinct event.
        relation: the neighbouring relation.
        accept: statuses of theorems that may be used.
        aside: the part of delta that shuffled passes may fail with, all together.

    Raises:
        NoBoundError: some event is dominated by no accepted pair; the text says why.
    """
    offered = bounds_offered(counts, relation, accept)
    if aside < _LEAST or shuffled_batches_pairs.status not in accept:
        return offered
    passes = kept_passes(counts, relation)
    every = sum(passes.values())
    found: list[Offered] = []
    for (event, count), (bounds, _) in zip(counts.units(), offered, strict=True):
        if event in passes:
            share = rounded_down(aside * (count / every), ulps=4)
            together = (*(_times(bound, count) for bound in bounds), _bound(event, count, share))
            found.append((together, 1))
        else:
            found.append((bounds, count))
    return found


def _times(bound: EventBound[Pairs], count: int) -> EventBound[Pairs]:
    loss = tuple((pair, times * count) for pair, times in bound.loss)
    return EventBound(
        theorem=bound.theorem, assumptions=bound.assumptions, loss=loss, premises=bound.premises
    )


def _bound(event: Event, count: int, delta: float) -> EventBound[Pairs]:
    """What the theorem says of all passes of an event together."""
    mechanism, sampling = event.mechanism, event.sampling
    assert isinstance(mechanism, Gaussian)  # noqa: S101 (kept_passes chose it)
    assert isinstance(sampling, Shuffle)  # noqa: S101
    units: Counter[Pair] = Counter()
    for pair, times in shuffled_batches_pairs(
        noise_multiplier=mechanism.noise_multiplier,
        batch_size=sampling.batch_size,
        dataset_size=sampling.dataset_size or 0,
        steps_per_pass=sampling.steps_per_pass,
        passes=count,
        delta=delta,
    ):
        units[pair] += times
    theorem = shuffled_batches_pairs
    return EventBound(
        theorem=theorem, assumptions=theorem.assumptions, loss=tuple(units.items()), delta=delta
    )


def set_aside(
    counts: EventCounts,
    relation: NeighboringRelation,
    accept: frozenset[Status],
    *,
    delta: float | None,
    epsilon: float | None,
) -> float:
    """Return the part of delta that shuffled passes may fail with: any is valid, this is near best.

    Where epsilon is given, delta is guessed. It depends on nothing that was answered.

    Raises:
        NoBoundError: some event is dominated by no accepted pair; the text says why.
    """
    if shuffled_batches_pairs.status not in accept or not kept_passes(counts, relation):
        return 0.0
    if delta is not None:
        return SHARE * delta
    asked = epsilon or 0.0
    aside = guess_aside(partial(bounds_with_passes, counts, relation, accept), epsilon=asked)
    # Moments are rough: what is set aside by them would be most of delta.
    offered = bounds_with_passes(counts, relation, accept, aside=aside)
    above = units_of(offered, choose_bounds(offered, epsilon=asked))
    read = partial(delta_bracket, above, epsilon=asked, width=_GUESS_WIDTH)
    found = attempt(_GUESS_PART * remaining_points(), read)
    return aside if found is None else SHARE * max(found.upper, _LEAST)


def guess_aside(offered: Callable[..., Sequence[Offered]], *, epsilon: float) -> float:
    """Return what is set aside of a delta at an epsilon, guessed by moments alone.

    Args:
        offered: what bounds the events where so much is set aside: `aside`.
        epsilon: nats, >= 0.
    """
    aside = SHARE * _FIRST_GUESS
    for _ in range(_GUESSES):
        log_delta = log_delta_of_moments(offered(aside=aside), epsilon=epsilon)
        aside = SHARE * max(math.exp(min(0.0, log_delta)), _LEAST)
    return aside


def epsilon_of_passes(above: Units, *, delta: float, failed: float) -> float:
    """Return epsilon at a delta of pairs that hold but for a part of it. Upper, nats.

    Args:
        above: the pairs and how often each counts.
        delta: in (0, 1).
        failed: what the bounds of the pairs may fail with together, below delta.
    """
    rest = rounded_down(delta - failed)
    found = _rougher(lambda width: epsilon_bracket(above, delta=rest, width=width).upper)
    if found is not None:
        return found
    return max(chernoff_epsilon(above, direction, rest) for direction in Direction)


def delta_of_passes(above: Units, *, epsilon: float, failed: float) -> float:
    """Return delta at an epsilon, the part that pairs fail with included. Upper, at most 1."""
    found = _rougher(lambda width: delta_bracket(above, epsilon=epsilon, width=width).upper)
    if found is None:
        with suppress(NoMomentsError):
            found = max(chernoff_delta(above, direction, epsilon) for direction in Direction)
    return 1.0 if found is None else min(1.0, rounded_up(found + failed))


def _rougher(compose: Callable[[float], float]) -> float | None:
    """What shuffled passes cost, by the width that the work allows; None where none does."""
    for width, part in _PASSES_WIDTHS.items():
        found = attempt(part * remaining_points(), partial(compose, width))
        if found is not None:
            return found
    return None
