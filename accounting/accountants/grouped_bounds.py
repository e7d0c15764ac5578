"""What a ledger costs whose events are too many to compose each: of fewer that stand for them.

A limit of work must not decide whether an answer is of any use. Events are gathered in classes,
first in the fewest, which tells what an event takes; then in as many as the rest is likely to pay.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Final, TypeVar

from accounting import work_budgets
from accounting.accountants.event_grouping import dominate_from_below, dominating
from accounting.accountants.mixed_kinds import parts_of
from accounting.accountants.queries import Query, lower_end
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import Bound
from accounting.pld.certified_composition import WIDTH
from accounting.work_limit import TooMuchWorkError, attempt, by_itself, remaining_points

R = TypeVar("R")

CLASSES: Final = (32, 16, 8, 4, 2)  # of each sampling and mechanism, finest first
ROUGH_WIDTH: Final = 1e-2  # relative, of gathered events, which move an answer by more
# A finer answer has at least so many times the events of the last. And no more than so many: from
# afar its work is badly guessed, and what is begun in vain is spent.
_MORE: Final = 1.4
_MOST: Final = 4.0
# How an answer's work is taken to grow with its events: a few cost the same each, of many whose
# groups are shorter each costs more. And a margin.
_FEW: Final = 12
_POWER_OF_FEW: Final = 1.0
_POWER_OF_MANY: Final = 3.0
_MARGIN: Final = 1.0
# What takes so many times what it may is not tried; and how many events are counted to tell so.
_HOPELESS: Final = 1.1
_COUNTED: Final = 40


def answers_of_fewer(
    counts: EventCounts,
    compute: Callable[[EventCounts], R],
    *,
    points: float,
    gather: Callable[[EventCounts, int], EventCounts] = dominating,
) -> list[R]:
    """What is found of ledgers of fewer events that dominate one, the finest last.

    It depends on the ledger and the points alone.

    Args:
        counts: units of each distinct event. It is asked about, too, where that is likely to take
            little enough: answers may be rougher here.
        compute: the answer of a ledger, by its work limited.
        points: that all of them may take together.
        gather: a ledger of so many classes that stands for one, on its upper or lower side.

    Returns:
        Answers; empty where none takes little enough work.

    Raises:
        TooMuchWorkError: it takes more than what is allowed outside.
    """

    @cache
    def fewer(classes: int) -> EventCounts:
        gathered = gather(counts, classes)
        return gathered if len(gathered.steps) < len(counts.steps) else counts

    found: list[R] = []
    with by_itself() as meter:
        events: EventCounts | None = fewer(1)
        while events is not None:
            before = meter.spent
            answer = attempt(points - before, partial(compute, events))
            if answer is None:
                break
            found.append(answer)
            count = len(events.steps)
            power = _POWER_OF_FEW if count <= _FEW else _POWER_OF_MANY
            more = (points - meter.spent) / max(meter.spent - before, 1) / _MARGIN
            payable = count * max(more, 0) ** (1 / power)
            most = min(payable, _MOST * count)
            events = next(
                (
                    one
                    for one in (counts, *map(fewer, CLASSES))
                    if _MORE * count <= len(one.steps) <= most
                ),
                None,
            )
    return found


def bound_of_fewer(
    accountant: Callable[[EventCounts, Query], Bound],
    counts: EventCounts,
    question: Query,
    *,
    spared: float = 0.0,
) -> tuple[Bound, bool] | None:
    """An accountant's answer of fewer events that dominate a ledger, which is too much work.

    Args:
        accountant: gives the bound of a ledger.
        counts: units of each distinct event.
        question: what is asked.
        spared: points that were not spent on the ledger as it is, for it was hopeless.

    Returns:
        (bound, whether it is of so few events that another accountant may say more); None where
        none takes little enough work.

    Raises:
        NoBoundError: the accountant has none.
        TooMuchWorkError: it takes more than what is allowed outside.
    """

    def compute(events: EventCounts) -> tuple[Bound, bool]:
        fewer = events is not counts
        few = question.width == WIDTH and fewer and len(events.steps) <= _FEW
        return accountant(events, _roughly(question, fewer=fewer)), few

    one_kind = len(parts_of(counts)) == 1  # or more is better spent kind by kind
    points: float = work_budgets.ONE_GROUP
    if one_kind:
        points = max(question.share * work_budgets.GROUPED_EVENTS, points) + spared
    found = answers_of_fewer(counts, compute, points=min(points, remaining_points()))
    if not found and remaining_points() < points:
        raise TooMuchWorkError
    return min(found, key=lambda one: (one[0].epsilon, one[0].delta), default=None)


def _roughly(question: Query, *, fewer: bool) -> Query:
    """What is asked of a ledger, or of fewer events that dominate it."""
    gathered = question.gathered or question.rounded is not None or fewer
    return replace(question, rounded=None, with_lower=False, gathered=gathered, width=ROUGH_WIDTH)


def is_hopeless(
    accountant: Callable[[EventCounts, Query], Bound],
    counts: EventCounts,
    question: Query,
    points: float,
) -> bool:
    """Whether a ledger is so much more work than a limit that it need not be tried as it is.

    Of each kind only so many events are counted, at what one takes on average where there is one of
    each sampling: of many alike the groups are shorter.
    """
    rest, asked = _HOPELESS * points, _roughly(question, fewer=True)
    for part in parts_of(counts):
        one = dominating(part, 1)
        events = min(len(part.steps), _COUNTED) / max(len(one.steps), 1)
        if events <= 1:
            continue
        with by_itself() as meter:
            if attempt(rest / events, partial(accountant, one, asked)) is None:
                return True
        rest -= events * meter.spent
    return False


def rough_lower_end(
    headline: Bound | None, lower_counts: EventCounts, relation: NeighboringRelation
) -> float | None:
    """A lower bound beside a headline, of fewer events that tell no more; None if none is known.

    It takes no more work than what is left outside.
    """
    if headline is None:
        return None
    bare = replace(headline, epsilon_lower=None)

    def lower(events: EventCounts) -> float:
        found = lower_end([bare], bare, events, relation, width=ROUGH_WIDTH)
        return 0.0 if found is None else found

    found = answers_of_fewer(
        lower_counts, lower, points=remaining_points(), gather=dominate_from_below
    )
    return max(found, default=0.0) or None
