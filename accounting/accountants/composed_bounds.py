"""Each accountant's answer: from a ledger and a question to one bound.

An accountant takes the losses of the ledger's events, composes them and reads off epsilon or
delta. All but the odometer serve schedules that are fixed in advance.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from accounting.accountants.many_noises import interpolated_bound, rounded_epsilon
from accounting.accountants.queries import DELTA_MIN, Query, attained_epsilon, pairs_above
from accounting.accountants.shuffled_passes import (
    bounds_with_passes,
    delta_of_passes,
    epsilon_of_passes,
    set_aside,
)
from accounting.bounds.dominating_pairs import Offered, units_of
from accounting.bounds.event_bounds import (
    EventBound,
    NoBoundError,
    Pairs,
    filter_accepted,
    least_curve,
    total_failure,
)
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.lower_bounds import lower_bound_units
from accounting.bounds.pair_choice import choose_bounds, close_rival
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import EventCounts, passes_by_sampling
from accounting.events import (
    BallsAndBins,
    Event,
    Full,
    Gaussian,
    NeighboringRelation,
    Poisson,
    RandomAllocation,
    Shuffle,
    TruncatedPoisson,
)
from accounting.filters import odometer_epsilon
from accounting.filters.falling_noise import falling_noise_units
from accounting.filters.odometers import renyi_odometer_epsilon
from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.guarantees import Assumption, Bound, Status, Theorem, ValidFor, theorem, weakest
from accounting.pld.certified_composition import (
    WIDTH,
    delta_bracket,
    epsilon_bracket,
)
from accounting.pld.lattice.lattice_bounds import End
from accounting.pld.pairs import Units
from accounting.pld.replace_one import replaced_delta, replaced_epsilon
from accounting.renyi.conversion import rdp_delta, rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_down, rounded_up, sum_up
from accounting.work_limit import attempt, remaining_points

_NO_DELTA: Final = "An odometer is read at a delta: it has no delta of an epsilon."
_FAILURES: Final = "What may fail takes more of delta than an odometer keeps for it."


@theorem(
    id="renyi-composition",
    source="Mironov 2017, CSF, arXiv:1702.07476v3, Proposition 1",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.PARAMETERS_FIXED_IN_ADVANCE,),
)
def compose_rdp(*, curves: Sequence[Array], counts: Sequence[int]) -> Array:
    """RDP of a sequence of steps: curves add, order by order.

    Each step may depend on the answers of earlier ones; its parameters may not.

    Args:
        curves: RDP of one unit of each distinct event, nats, each of shape (k,).
        counts: how many units of each.

    Returns:
        RDP in nats, shape (k,). Upper.
    """
    total = np.zeros_like(ORDERS)
    for count, curve in zip(counts, curves, strict=True):
        total = total + count * curve
    # Each product is off by one rounding and each of len(counts) additions by another.
    return np.asarray(total * (1 + 2 * (len(counts) + 1) * UNIT_ROUNDOFF), dtype=np.float64)


@theorem(
    id="gdp-composition",
    source="Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Corollary 3.3",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.PARAMETERS_FIXED_IN_ADVANCE,),
)
def compose_gdp(*, mus: Sequence[float], counts: Sequence[int]) -> float:
    """Gaussian DP of a sequence of steps: mu^2 adds.

    Args:
        mus: mu of one unit of each distinct event.
        counts: how many units of each.

    Returns:
        mu of the whole. Upper; exact for Gaussian releases, to rounding.
    """
    squares = [rounded_up(count * mu * mu, ulps=2) for count, mu in zip(counts, mus, strict=True)]
    return rounded_up(math.sqrt(sum_up(squares)))


_REASON_DELTA: Final = f"A delta below {DELTA_MIN:g} is left to the other accountants."
# Of what is left, what the direct pairs of gathered events may take that have an answer by now.
_ROUNDED_FIRST: Final = 960  # different noises
_INTERPOLATED_SHARE: Final = 0.75  # of what is left
_ROUGH_REST: Final = 0.5


def rdp_bound(counts: EventCounts, question: Query) -> Bound:
    """The Renyi accountant: curves on ORDERS, added, converted at the best order.

    Raises:
        NoBoundError: some event has no accepted bound; the text says why.
    """
    units = counts.units()
    proved = [
        filter_accepted(renyi_bounds(event, question.relation), accept=question.accept)
        for event, _ in units
    ]
    curves = [least_curve(bounds) for bounds in proved]
    rdp = compose_rdp(curves=curves, counts=[count for _, count in units])
    failed = total_failure(zip(proved, [count for _, count in units], strict=True))
    if question.delta is not None:
        conversion: Theorem[..., Any] = rdp_epsilon
        remaining_points = rounded_down(question.delta - failed) if failed else question.delta
        if remaining_points <= 0:  # the failures alone take all of delta
            rdp, remaining_points = np.full_like(rdp, math.inf), question.delta
        value, order = rdp_epsilon(rdp=rdp, orders=ORDERS, delta=remaining_points)
    else:
        conversion = rdp_delta
        value, order = rdp_delta(rdp=rdp, orders=ORDERS, epsilon=question.epsilon or 0.0)
        value = min(1.0, rounded_up(value + failed)) if failed else value
    index = int(np.flatnonzero(order == ORDERS)[0])
    used = [
        bound
        for bounds, curve in zip(proved, curves, strict=True)
        for bound in bounds
        if bound.loss[index] == curve[index]
    ]
    return question.answer(
        value, accountant="rdp", used=used, composed=(compose_rdp, conversion), order=order
    )


def gdp_bound(counts: EventCounts, question: Query) -> Bound:
    """The Gaussian DP accountant: exact where every unit is a Gaussian release of all records.

    Raises:
        NoBoundError: some event is no Gaussian release, or its bound is not accepted.
    """
    units = counts.units()
    used = [
        bound
        for event, _ in units
        for bound in filter_accepted(gdp_bounds(event, question.relation), accept=question.accept)
    ]
    mu = compose_gdp(mus=[bound.loss for bound in used], counts=[count for _, count in units])
    if question.delta is not None:
        profile: Theorem[..., Any] = gaussian_epsilon
        value = gaussian_epsilon(question.delta, mu=mu)
    else:
        profile = gaussian_delta
        value = gaussian_delta(question.epsilon or 0.0, mu=mu)
    return question.answer(value, accountant="gdp", used=used, composed=(compose_gdp, profile))


def pld_bound(counts: EventCounts, question: Query) -> Bound:
    """The PLD accountant: dominating pairs, composed and inverted with certified error.

    Raises:
        NoBoundError: some event is dominated by no accepted pair; the text says why.
    """
    if question.delta is not None and question.delta < DELTA_MIN:
        raise NoBoundError(_REASON_DELTA)
    through = _through_null(counts, question)
    if through is None:
        return _direct(counts, question)
    try:
        rest = remaining_points() if question.width == WIDTH else _ROUGH_REST * remaining_points()
        direct = attempt(rest, lambda: _direct(counts, question))
    except NoBoundError:
        return through
    if direct is None:
        return through
    if (through.epsilon, through.delta) < (direct.epsilon, direct.delta):
        return replace(through, epsilon_lower=direct.epsilon_lower)
    return direct


def _direct(counts: EventCounts, question: Query) -> Bound:
    rounded = question.rounded
    if rounded is None:
        return _compose(counts, question)
    # Few noises lie so near to those they are rounded to that this is tried first.
    if len(rounded.whole.steps) <= _ROUNDED_FIRST:
        found = _compose(counts, question)
        other = attempt(remaining_points(), lambda: interpolated_bound(rounded, question))
        return min(found, other or found, key=lambda one: (one.epsilon, one.delta))
    points = _INTERPOLATED_SHARE * remaining_points()
    other = attempt(points, lambda: interpolated_bound(rounded, question))
    return other or _compose(counts, question)


def _compose(counts: EventCounts, question: Query) -> Bound:
    relation, accept = question.relation, question.accept
    asked = {"delta": question.delta, "epsilon": question.epsilon}
    if not question.rounded and any(isinstance(one.sampling, Shuffle) for one in counts.passes):
        aside = set_aside(counts, relation, accept, **asked)
        if aside:
            offered = bounds_with_passes(counts, relation, accept, aside=aside)
            return least_of_choices(offered, _below(counts, question), question)
    used, above = pairs_above(counts, relation, accept, **asked, aside=0.0)
    return _read(used, above, _below(counts, question), question)


def least_of_choices(offered: Sequence[Offered], below: Units, question: Query) -> Bound:
    """The answer of the bounds that cost least by moments, and of others that cost little more.

    Args:
        offered: accepted bounds of each event and how often it counts; some may fail.
        below: pairs that are attained together.
        question: what is asked.
    """
    asked = {"delta": question.delta, "epsilon": question.epsilon}
    used = choose_bounds(offered, **asked)
    found = _read(used, units_of(offered, used), below, question)
    rival = close_rival(offered, used, **asked)
    if rival is None:
        return found
    other = attempt(
        remaining_points(), lambda: _read(rival, units_of(offered, rival), below, question)
    )
    return min(found, other or found, key=lambda one: (one.epsilon, one.delta))


def _below(counts: EventCounts, question: Query) -> Units:
    """Pairs that are attained together, where a lower end is wanted."""
    if not question.with_lower:
        return []
    return lower_bound_units(
        question.rounded.lower if question.rounded else counts, question.relation
    )


def _read(used: list[EventBound[Pairs]], above: Units, below: Units, question: Query) -> Bound:
    """The answer of the pairs that are used, with what is attained from below."""
    rounded = question.rounded
    failed = sum_up([bound.delta for bound in used if bound.delta])
    read: Theorem[..., Any] = epsilon_bracket
    if question.delta is None:
        read = delta_bracket
        epsilon, width = question.epsilon or 0.0, question.width
        if failed:
            value = delta_of_passes(above, epsilon=epsilon, failed=failed)
        else:
            value = (
                delta_bracket(above, epsilon=epsilon, width=width, only=End.UPPER).upper
                if above
                else 0.0
            )
        known = DELTA_MIN < value < 1 and below
        lower = attained_epsilon(below, delta=value) if known else None
    elif failed:
        value = epsilon_of_passes(above, delta=question.delta, failed=failed)
        lower = attained_epsilon(below, delta=question.delta) if below else None
    elif rounded is None:
        value, lower = _epsilon(above, below, question.delta, question.width)
    else:
        value, lower = rounded_epsilon(rounded, question, question.delta)
    return question.answer(value, accountant="pld", used=used, composed=(read,), lower=lower)


# Samplings whose pairs say much more against a null record than against any other.
_THROUGH_NULL: Final = (Poisson, TruncatedPoisson, BallsAndBins, RandomAllocation)


def may_go_through_null(counts: EventCounts, question: Query) -> bool:
    """Whether all pairs together may say more against a null record than as they are."""
    return question.relation is NeighboringRelation.REPLACE_ONE and any(
        isinstance(event.sampling, _THROUGH_NULL) for event in counts.steps
    )


def _is_attained(event: Event) -> bool:
    """Whether a dataset attains the pair under replace_one, beside those of all such events."""
    return isinstance(event.mechanism, Gaussian) and isinstance(event.sampling, Full | Poisson)


def _through_null(counts: EventCounts, question: Query) -> Bound | None:
    """The answer through a null record, where a record is replaced and that may say more."""
    if question.rounded is not None or not may_go_through_null(counts, question):
        return None
    if Status.DERIVED in question.accept and all(_is_attained(event) for event in counts.steps):
        return None  # no bound of the ledger is below what its own pairs say
    try:
        used, units = pairs_above(counts, NeighboringRelation.REPLACE_SPECIAL, question.accept)
    except NoBoundError:
        return None
    if question.delta is None:
        value = replaced_delta(units, epsilon=question.epsilon or 0.0, width=question.width)
    else:
        value = replaced_epsilon(units, delta=question.delta, width=question.width)
    return question.answer(value, accountant="pld", used=used, composed=(replaced_epsilon,))


def _epsilon(above: Units, below: Units, delta: float, width: float) -> tuple[float, float | None]:
    """(upper, lower) epsilon; the lower one None where nothing is known."""
    if not above:
        return 0.0, 0.0
    if dict(below) == dict(above):
        bracket = epsilon_bracket(above, delta=delta, width=width)
        return bracket.upper, bracket.lower
    bracket = epsilon_bracket(above, delta=delta, width=width, only=End.UPPER)
    return bracket.upper, attained_epsilon(below, delta=delta) if below else None


THEOREMS = (compose_rdp, compose_gdp)


def odometer_bound(counts: EventCounts, question: Query) -> Bound:
    """The odometer: valid when each step was chosen, and the reading taken, after earlier answers.

    Raises:
        NoBoundError: it is asked for a delta, or some event has no accepted bound.
    """
    if question.delta is None:
        raise NoBoundError(_NO_DELTA)
    # Its own status counts as that of any theorem.
    filter_accepted(
        (EventBound(theorem=renyi_odometer_epsilon, assumptions=(), loss=None),),
        accept=question.accept,
    )
    used = [
        bound
        for event, _ in counts.units()
        for bound in filter_accepted(renyi_bounds(event, question.relation), accept=question.accept)
    ]
    value = odometer_epsilon(
        counts, relation=question.relation, delta=question.delta, accept=question.accept
    )
    if not value < math.inf:
        raise NoBoundError(_FAILURES)
    fallen = (falling_noise_units,) if _fell(counts, question.relation) else ()
    found = question.answer(
        value, accountant="odometer", used=used, composed=(*fallen, renyi_odometer_epsilon)
    )
    return replace(
        found,
        bound=renyi_odometer_epsilon.id,
        status=weakest([found.status, renyi_odometer_epsilon.status]),
        valid_for=ValidFor.ADAPTIVE,
    )


def _fell(counts: EventCounts, relation: NeighboringRelation) -> bool:
    """Whether noise may have fallen inside passes whose sampling hides who was where."""
    return relation in falling_noise_units.relations and any(
        isinstance(sampling, BallsAndBins | RandomAllocation)
        and any(one.begun != one.passes for one in each)
        for sampling, each in passes_by_sampling(counts).items()
    )
