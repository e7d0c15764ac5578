"""What the accountants say: each in turn, within the work that it may take, best first."""

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from accounting import work_budgets
from accounting.accountants.composed_bounds import gdp_bound, odometer_bound, pld_bound, rdp_bound
from accounting.accountants.event_grouping import dominating, group_events
from accounting.accountants.grouped_bounds import ROUGH_WIDTH, bound_of_fewer, is_hopeless
from accounting.accountants.mixed_kinds import split_bound
from accounting.accountants.queries import Accountant, Query
from accounting.accountants.truncated_poisson import through_poisson
from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.event_bounds import NoBoundError
from accounting.composition import basic_composition
from accounting.event_counts import EventCounts
from accounting.events import TruncatedPoisson
from accounting.guarantees import DEFAULT_ACCEPT, Bound, Status
from accounting.pld.certified_composition import WIDTH
from accounting.pld.interpolated_noises import interpolate_above
from accounting.work_limit import attempt, by_itself, remaining_points

GATHERED_MAX: Final = 160  # grouped events; the pld accountant may go on with fewer by itself
ROUGH_SHARE: Final = 1.8  # of what gathered events may take, where little else is known
_NARROW: Final = 5e-5  # relative
REASON_WORK: Final = "The events are too many and too different for this accountant."

ACCOUNTANTS: Final[dict[str, Accountant]] = {
    "gdp": gdp_bound,
    "pld": pld_bound,
    "rdp": rdp_bound,
}
# Valid for steps chosen after earlier answers, which costs more: asked for by name alone.
ODOMETER: Final = "odometer"


def best_first(counts: EventCounts, question: Query, names: tuple[str, ...]) -> list[Bound]:
    """The finite bounds, of all steps together and kind by kind."""
    return ask_accountants(counts, question, names)[0]


def ask_accountants(
    counts: EventCounts, question: Query, names: tuple[str, ...]
) -> tuple[list[Bound], str | None, float]:
    """The finite bounds, best first; why there is none; the work beyond that of all steps together.

    Where they had to be gathered, what is said of fewer statuses is looked at, too: bounds that are
    less work may say more in the end, and an answer with more accepted statuses is never larger; of
    interpolated noises not noticeably.
    """
    with by_itself() as meter:
        found, reason = bounds_of(counts, question, names)
        spent = meter.spent
        if names != tuple(ACCOUNTANTS):  # one that is asked by name answers by itself
            return found, reason, 0.0
        points = max(
            question.share * work_budgets.KINDS_APART,
            question.share * work_budgets.KINDS_TOGETHER - spent,
        )
        found = _or_split(counts, question, found, points)
        fewer = replace(question, accept=question.accept & DEFAULT_ACCEPT)
        interpolated = any(interpolate_above.id in bound.theorems for bound in found)
        if not is_settled(found) and (interpolated or _says_less(counts, fewer, question.accept)):
            less, _, _ = ask_accountants(counts, fewer, names)
            found = sorted([*found, *less], key=_size)
        return found, reason, meter.spent - spent


def is_settled(bounds: list[Bound]) -> bool:
    """Whether dominating pairs of all events as they are have been composed, to the end.

    Or so nearly, where noises were interpolated, that nothing says noticeably less.
    """
    return any(
        bound.accountant == "pld"
        and not {group_events.id, basic_composition.id}.intersection(bound.theorems)
        and (interpolate_above.id not in bound.theorems or _is_narrow(bound))
        for bound in bounds
    )


def _is_narrow(bound: Bound) -> bool:
    return bound.epsilon - (bound.epsilon_lower or 0.0) <= _NARROW * bound.epsilon


def of_any_status(
    counts: EventCounts, question: Query, names: tuple[str, ...], points: float
) -> list[Bound]:
    """What few classes of the events cost, with the cheapest accountant first.

    Args:
        counts: units of each distinct event.
        question: what is asked, of whatever status.
        names: the accountants that are asked.
        points: that all of it may take; no more is spent than what is left outside, either.
    """
    rough = replace(
        question,
        share=ROUGH_SHARE * question.share,
        with_lower=False,
        width=ROUGH_WIDTH,
        rounded=None,
        gathered=question.gathered or question.rounded is not None,
    )
    found: list[Bound] = []
    with by_itself() as meter:
        for name in sorted(names, key=work_budgets.ACCOUNTANT.__getitem__):
            rest = min(points - meter.spent, remaining_points())
            asked = partial(bounds_of, counts, rough, (name,))
            bounds, _ = attempt(rest, asked) or ([], None)
            found += bounds
    return sorted(found, key=_size)


def _size(bound: Bound) -> tuple[float, float]:
    return bound.epsilon, bound.delta


def _says_less(counts: EventCounts, question: Query, more: frozenset[Status]) -> bool:
    """Whether some event has pairs of the further statuses, which are more to choose from."""
    if question.accept == more:
        return False
    for event in counts.steps:
        with suppress(NoBoundError):
            for bound in pld_bounds(event, question.relation):
                if not question.accept.issuperset(one.status for one in bound.theorems):
                    return True
    return False


def _or_split(
    counts: EventCounts, question: Query, found: list[Bound], points: float
) -> list[Bound]:
    """What was found of all steps together, and before it what their kinds cost one by one if less.

    The less was spent on the former, the more may be on the latter. One event is of one kind.
    """
    if len({*counts.steps, *counts.passes}) < 2:
        return found

    def ask(part: EventCounts, asked: Query) -> list[Bound]:
        return bounds_of(part, asked, tuple(ACCOUNTANTS))[0]

    split = attempt(remaining_points(), lambda: split_bound(counts, question, found, ask, points))
    return found if split is None else [split, *found]


def bounds_of(
    counts: EventCounts, question: Query, names: tuple[str, ...]
) -> tuple[list[Bound], str | None]:
    """The finite bounds, best first, and why the last accountant that found none did so."""
    found: list[Bound] = []
    reason: str | None = None
    settled = False
    for name in names:
        # The Renyi curve of a pair never says more than the pair itself, and costs more.
        if name == "rdp" and settled:
            continue
        try:
            bound, rough = _ask_accountant(name, counts, question)
        except NoBoundError as failure:
            reason = str(failure)
            continue
        if math.isfinite(bound.epsilon) and bound.delta < 1:
            found.append(bound)
            settled = bound.accountant == "pld" and not rough
        else:
            reason = "The bound says nothing: epsilon is infinite or delta is one."
    return sorted(found, key=_size), reason


def _ask_accountant(name: str, counts: EventCounts, question: Query) -> tuple[Bound, bool]:
    """An accountant's answer: of fewer events that dominate the ledger where it is too much work.

    And whether these are so few that another accountant may say more.

    Raises:
        NoBoundError: it has none, or none that takes little enough work.
    """
    accountant = _accountant(name, counts)
    if name != ODOMETER:  # which must hold for schedules that are chosen after a look
        counts, question = _with_known_orders(counts, question)
    allowed = _allowed_work(name, counts, question)
    if name == "pld":
        return _compose_pairs(accountant, counts, question, allowed)
    bound = attempt(allowed, lambda: accountant(counts, question))
    less = replace(question, rounded=None, gathered=True, with_lower=False)
    for noises, points in (
        work_budgets.FEWER_NOISES_ODOMETER if name == ODOMETER else work_budgets.FEWER_NOISES
    ):
        fewer = dominating(counts, noises) if bound is None else counts
        if len(fewer.steps) < len(counts.steps):
            bound = attempt(question.share * points, partial(accountant, fewer, less))
    if bound is None:
        raise NoBoundError(REASON_WORK)
    return bound, False


def _with_known_orders(counts: EventCounts, question: Query) -> tuple[EventCounts, Query]:
    """Both with orders that may have been used again as known ones."""
    rounded = question.rounded
    return counts.with_known_orders(), question if rounded is None else replace(
        question, rounded=rounded.with_known_orders()
    )


def _compose_pairs(
    accountant: Accountant, counts: EventCounts, question: Query, allowed: float
) -> tuple[Bound, bool]:
    """What pairs say: those of all events where they are little enough work, or of fewer events.

    Where a rough answer is asked for, fewer events are begun with.
    """
    spared = 0.0
    if question.width == WIDTH:
        if len(counts.steps) > 1 and is_hopeless(accountant, counts, question, allowed):
            spared = allowed
        else:
            bound = attempt(allowed, lambda: accountant(counts, question))
            if bound is not None:
                return bound, False
    found = bound_of_fewer(accountant, counts, question, spared=spared)
    if found is None:
        raise NoBoundError(REASON_WORK)
    return found


def _allowed_work(name: str, counts: EventCounts, question: Query) -> float:
    """What work an accountant may take to answer about a ledger as it is."""
    rounded = question.rounded
    points = work_budgets.ACCOUNTANT[name]
    if name == "pld" and rounded and len(rounded.rough_upper.steps) <= GATHERED_MAX:
        points = work_budgets.PLD_OF_GROUPED_EVENTS
    else:
        few = [
            more
            for events, more in work_budgets.ACCOUNTANT_OF_FEW_EVENTS.items()
            if len(counts.steps) <= events
        ]
        points = few[0] if few else points
    allowed = question.share * points
    if (
        name == "rdp" and len(counts.steps) <= work_budgets.FEW_EVENTS
    ):  # parts of an answer share them
        allowed = max(allowed, work_budgets.RENYI_CURVES_OF_FEW_EVENTS)
    return allowed


def _accountant(name: str, counts: EventCounts) -> Accountant:
    """The accountant of a name; one that composes also reads truncated sampling as Poisson."""
    if name == ODOMETER:
        return odometer_bound
    truncated = any(isinstance(event.sampling, TruncatedPoisson) for event in counts.steps)
    accountant = ACCOUNTANTS[name]
    return through_poisson(accountant) if truncated and name != "gdp" else accountant
