"""Which Renyi curves bound a private selection, and what its trials cost had each been released."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np

from accounting import work_budgets
from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.event_bounds import EventBound, NoBoundError, Pairs
from accounting.event_counts import EventCounts, count_events, pass_length
from accounting.events import (
    ApproximateDp,
    CyclicPoisson,
    Event,
    Full,
    MinSeparation,
    NeighboringRelation,
    NoNoise,
    PoissonTrials,
    PrivateSelection,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    WithReplacement,
)
from accounting.guarantees import Theorem
from accounting.pld.certified_composition import delta_bracket
from accounting.pld.pairs import Units
from accounting.renyi.conversion import rdp_delta
from accounting.renyi.orders import ORDERS
from accounting.renyi.selection import (
    POISSON_ORDERS,
    SELECTION,
    expected_trials,
    negative_binomial_selection_rdp,
    poisson_selection_rdp,
    threshold,
)
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.work_limit import as_many, spend

REASON_WHOLE: Final = "A selection is of all records: its sampling is full, that of a trial inside."
REASON_MAY_FAIL: Final = (
    "A trial that may fail with some probability, such as approximate_dp or with_replacement, is "
    "no base of a selection: no bound is proved."
)
REASON_CORRELATED: Final = "Passes of correlated noise are no base of a selection."
REASON_ONE_ORDER: Final = (
    "Trials draw their orders independently: an order that is drawn once is no base of a selection."
)
REASON_SILENT: Final = "A trial without noise has no finite epsilon, nor has a selection of such."
_WIDTH: Final = 1e-3  # relative, of each delta that is read


def require_base(base: Event, sampling: Sampling) -> None:
    """Refuse what is proved of no selection.

    Raises:
        NoBoundError: the text is the reason.
    """
    if not isinstance(sampling, Full):
        raise NoBoundError(REASON_WHOLE)
    if isinstance(base.mechanism, ApproximateDp) or isinstance(base.sampling, WithReplacement):
        raise NoBoundError(REASON_MAY_FAIL)
    if isinstance(base.sampling, MinSeparation | CyclicPoisson):
        raise NoBoundError(REASON_CORRELATED)
    if isinstance(base.mechanism, NoNoise):
        raise NoBoundError(REASON_SILENT)
    if isinstance(base.sampling, Shuffle) and base.sampling.reshuffle is Reshuffle.ONCE:
        raise NoBoundError(REASON_ONE_ORDER)


def trial_counts(selection: PrivateSelection) -> EventCounts:
    """Return what one trial counts as: its steps, or the passes that it begins."""
    return count_events([[Span(event=selection.base, steps=selection.steps)]])


def as_recorded_trials(counts: EventCounts) -> tuple[int, EventCounts] | None:
    """The ledger had every trial of its selections been recorded by itself.

    Args:
        counts: units of each distinct event.

    Returns:
        (trials, the mean of each selection rounded to whole ones; the ledger), or None where there
        is no selection.
    """
    trials = 0
    steps, passes, begun = Counter(counts.steps), Counter(counts.passes), Counter(counts.begun)
    for event, count in counts.steps.items():
        if isinstance(event.mechanism, PrivateSelection):
            runs = count * max(1, round(expected_trials(event.mechanism.repetitions)))
            trials += runs
            del steps[event]
            one = trial_counts(event.mechanism)
            for total, each in ((steps, one.steps), (passes, one.passes), (begun, one.begun)):
                _add(total, each, runs)
    if not trials:
        return None
    return trials, EventCounts(steps=dict(steps), passes=dict(passes), begun=dict(begun))


def _add(total: "Counter[Event]", each: Mapping[Event, int], runs: int) -> None:
    for event, count in each.items():
        total[event] += count * runs


def selection_bounds(
    selection: PrivateSelection,
    step: tuple[EventBound[Array], ...],
    relation: NeighboringRelation,
) -> tuple[EventBound[Array], ...]:
    """Every Renyi curve that is proved for one selection under the relation.

    Args:
        selection: whose base may be one.
        step: what bounds one unit of a trial; none of it may fail.
        relation: the neighbouring relation.
    """
    ((_, units),) = trial_counts(selection).units()
    found: list[EventBound[Array]] = []
    for bound in step:
        rdp = bound.loss * (units * (1 + 4 * UNIT_ROUNDOFF))
        if isinstance(selection.repetitions, PoissonTrials):
            found += _poisson(selection, units, bound, rdp, relation)
        else:
            law = selection.repetitions
            spend(ORDERS.size)
            curve = negative_binomial_selection_rdp(
                rdp=rdp,
                shape=law.shape,
                halting_probability=law.halting_probability,
                orders=ORDERS,
            )
            found.append(_bound(negative_binomial_selection_rdp, curve, bound))
    return tuple(found)


def _bound(
    theorem: Theorem[..., Any],
    curve: Array,
    trial: EventBound[Array],
    pair: EventBound[Pairs] | None = None,
) -> EventBound[Array]:
    curve.flags.writeable = False
    further = () if pair is None else pair.theorems
    assumed = () if pair is None else pair.assumptions
    return EventBound(
        theorem=theorem,
        assumptions=tuple(dict.fromkeys((*SELECTION, *trial.assumptions, *assumed))),
        loss=curve,
        premises=tuple(dict.fromkeys((*trial.theorems, *further))),
    )


def _poisson(
    selection: PrivateSelection,
    units: int,
    trial: EventBound[Array],
    rdp: Array,
    relation: NeighboringRelation,
) -> list[EventBound[Array]]:
    """With delta from the curve itself, and from each pair that dominates a trial."""
    mean = selection.repetitions.mean  # type: ignore[union-attr]
    spend(2 * ORDERS.size * POISSON_ORDERS.size)
    plain = np.array(
        [
            rdp_delta(rdp=rdp, orders=ORDERS, epsilon=threshold(order))[0]
            for order in POISSON_ORDERS.tolist()
        ]
    )
    found = []
    for pair, deltas in [(None, plain), *_from_pairs(selection.base, units, plain, relation)]:
        above = deltas[np.searchsorted(POISSON_ORDERS, ORDERS)]
        curve = poisson_selection_rdp(rdp=rdp, deltas=above, mean=mean, orders=ORDERS)
        found.append(_bound(poisson_selection_rdp, curve, trial, pair))
    return found


def _from_pairs(
    base: Event, units: int, plain: Array, relation: NeighboringRelation
) -> list[tuple[EventBound[Pairs], Array]]:
    """Each pair that dominates a step of a trial, with the deltas of a whole trial. Upper."""
    found: list[tuple[EventBound[Pairs], Array]] = []
    if pass_length(base) is not None:
        return found
    with suppress(NoBoundError):
        for pair in pld_bounds(base, relation):
            composed = [(one, count * units) for one, count in pair.loss]
            read = as_many(
                work_budgets.SELECTION_DELTAS,
                [partial(_delta, composed, one) for one in POISSON_ORDERS],
            )
            deltas = plain.copy()
            deltas[: len(read)] = np.minimum(plain[: len(read)], read)
            found.append((pair, deltas))
    return found


def _delta(composed: Units, order: float) -> float:
    return delta_bracket(composed, epsilon=threshold(order), width=_WIDTH).upper
