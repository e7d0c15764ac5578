"""Ledgers of very many noises: interpolated between few, or rounded outward onto few."""

import math
from dataclasses import replace
from typing import Any, Final

from accounting.accountants.event_grouping import ROUNDED_WIDTH, GroupedEvents
from accounting.accountants.queries import DELTA_MIN, Query, attained_epsilon, pairs_above
from accounting.bounds.lower_bounds import lower_bound_units
from accounting.guarantees import Bound, Theorem
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket, lower_epsilon
from accounting.pld.interpolated_noises import interpolate_above, interpolate_below
from accounting.work_limit import attempt, remaining_points

_INTERPOLATED_WIDTH: Final = 1e-6  # relative: little beside what interpolating adds
_TOO_WIDE: Final = 0.01  # relative: fewer groups, composed to the end, may then say more


def interpolated_bound(rounded: GroupedEvents, question: Query) -> Bound | None:
    """The answer of a ledger as it is, its many noises interpolated; None where that is of no use.

    Raises:
        NoBoundError: some event is dominated by no accepted pair; the text says why.
    """
    if interpolate_above.status not in question.accept:
        return None
    used, pairs = pairs_above(
        rounded.whole,
        question.relation,
        question.accept,
        delta=question.delta,
        epsilon=question.epsilon,
    )
    above = interpolate_above(pairs)
    if above is None:
        return None
    read: Theorem[..., Any] = epsilon_bracket
    if question.delta is None:
        read = delta_bracket
        found = delta_bracket(above, epsilon=question.epsilon or 0.0, width=_INTERPOLATED_WIDTH)
    else:
        found = epsilon_bracket(above, delta=question.delta, width=_INTERPOLATED_WIDTH)
    if not found.upper - found.lower <= _TOO_WIDE * found.upper < math.inf:
        return None  # the contour did not serve, and no other engine composes them
    value, lower = found.upper, None
    delta = question.delta or value
    if question.with_lower and DELTA_MIN < delta < 1:
        below = interpolate_below(lower_bound_units(rounded.whole, question.relation))
        lower = attained_epsilon(below, delta=delta, width=_INTERPOLATED_WIDTH) if below else None
    return replace(question, rounded=None).answer(
        value, accountant="pld", used=used, composed=(read, interpolate_above), lower=lower
    )


def rounded_epsilon(
    rounded: GroupedEvents, question: Query, delta: float
) -> tuple[float, float | None]:
    """(upper, lower) epsilon of a ledger that was rounded outward; rougher where it must be."""
    _, above = pairs_above(rounded.upper, question.relation, question.accept)
    below = lower_bound_units(rounded.lower, question.relation)
    _, rough_above = pairs_above(rounded.rough_upper, question.relation, question.accept)
    rough_below = lower_bound_units(rounded.rough_lower, question.relation)
    rough = epsilon_bracket(rough_above, delta=delta, width=ROUNDED_WIDTH).upper

    def fine() -> tuple[float, float]:
        upper = epsilon_bracket(above, delta=delta, width=ROUNDED_WIDTH, rough=rough_above).upper
        return upper, lower_epsilon(below, delta=delta, width=ROUNDED_WIDTH) if below else 0.0

    upper, lower = attempt(remaining_points(), fine) or (math.inf, 0.0)
    if not (upper < math.inf and upper - lower <= _TOO_WIDE * upper) and rough_below:
        lower = max(lower, attained_epsilon(rough_below, delta=delta) or 0.0)
    return min(upper, rough), lower or None
