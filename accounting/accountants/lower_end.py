"""The lower end beside a headline: what its pairs attain, or what the events are known to."""

from dataclasses import replace

from accounting.accountants.event_grouping import dominated
from accounting.accountants.grouped_bounds import ROUGH_WIDTH, answers_of_fewer
from accounting.accountants.queries import epsilon_lower_bound
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import Bound
from accounting.pld.certified_composition import WIDTH
from accounting.work_limit import left


def lower_end(
    bounds: list[Bound],
    headline: Bound | None,
    floor: EventCounts,
    relation: NeighboringRelation,
    width: float = WIDTH,
) -> float | None:
    """The best proved lower bound beside a headline; what is attained does not hang on a status.

    Raises:
        ArithmeticError: it exceeds the headline, so one of them is wrong.
    """
    if headline is None:
        return None
    known = [
        bound.epsilon_lower
        for bound in bounds
        # At a larger delta less is lost, so a lower bound there is one here, too.
        if bound.epsilon_lower is not None and bound.delta >= headline.delta
    ]
    lower = max(known) if known else None
    if not known and 0 < headline.delta < 1:
        lower = epsilon_lower_bound(floor, relation=relation, delta=headline.delta, width=width)
    if lower is not None and not lower <= headline.epsilon:
        raise ArithmeticError("A lower bound exceeds an upper one.")
    return lower


def rough_lower_end(
    headline: Bound | None, floor: EventCounts, relation: NeighboringRelation
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

    found = answers_of_fewer(floor, lower, points=left(), gather=dominated)
    return max(found, default=0.0) or None
