"""A ledger of several kinds of steps, answered kind by kind: basic composition of the best of each.

One accountant serves all steps together, which is nearly always best. But what says most of one
kind may say little of another: a record that is replaced is best seen through a null record under
Poisson sampling, and directly under cyclic. Then the sum of what the kinds cost alone may be less.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from accounting.accountants.composed_bounds import may_go_through_null
from accounting.accountants.event_grouping import dominating, group_events
from accounting.accountants.queries import Query
from accounting.composition import basic_composition
from accounting.event_counts import EventCounts, pass_length
from accounting.events import Event
from accounting.guarantees import Bound, weakest
from accounting.work_limit import attempt, by_itself, remaining_points

KINDS_MAX: Final = 8  # of a ledger; each takes an answer of its own
ROUGH_WIDTH: Final = 5e-3  # relative, of what each costs alone
ROUNDS: Final = 2  # splits that are looked at, of one class of each kind, before the last
_LEAST_PORTION: Final = 0.5  # of an equal part of the work that is left, even of a cheap kind
_HOPELESS: Final = 2.0  # times what is known: finer events and another split gain less
_DEAR: Final = 0.25  # of the work: where one class of each took more, they are asked for once
_APART: Final = 0.1  # of the logarithm of delta: two answers so far apart tell a slope
_MARGIN: Final = 1e-12  # of delta or epsilon, for the rounding of its parts
_USUAL_DELTA: Final = 1e-5  # at which kinds are first compared where delta is asked for


def parts_of(counts: EventCounts) -> list[EventCounts]:
    """The steps of each kind of sampling and mechanism, in an order of their names.

    Steps that may belong to one pass, and so share its order, are of one kind whatever mechanism
    they have: no two kinds share coins. Kinds without units, which cost nothing, are left out.
    """

    def kind(event: Event) -> tuple[str, str]:
        by_pass = pass_length(event) is not None
        return type(event.sampling).__name__, "" if by_pass else type(event.mechanism).__name__

    kinds = sorted({kind(event) for event in (*counts.steps, *counts.passes)})
    parts = [
        EventCounts(
            steps={event: n for event, n in counts.steps.items() if kind(event) == one},
            passes={event: n for event, n in counts.passes.items() if kind(event) == one},
            begun={event: n for event, n in counts.begun.items() if kind(event) == one},
            starts={event: n for event, n in counts.starts.items() if kind(event) == one},
        )
        for one in kinds
    ]
    return [part for part in parts if part.units()]


def split_bound(
    counts: EventCounts,
    question: Query,
    found: list[Bound],
    ask: Callable[[EventCounts, Query], list[Bound]],
    points: float,
) -> Bound | None:
    """What the kinds of steps cost one by one, where that is less than the best of what is found.

    It is looked at where the pairs of all events were too much work as they are, and where those of
    some kinds may say more against a null record: then all kinds must be seen the same way, which
    one by one they need not.

    Args:
        counts: units of each distinct event.
        question: what is asked.
        found: bounds of all kinds together, best first.
        ask: the bounds of a part, best first.
        points: that all of it may take; no more is spent than what is left outside, either.

    Returns:
        The bound, or None where no split says more, or some part has no bound.
    """
    counts = (
        counts.with_known_orders()
    )  # whose orders were used again is seen from all kinds together
    parts = parts_of(counts)
    if not 2 <= len(parts) <= KINDS_MAX:
        return None
    settled = found and found[0].accountant == "pld" and group_events.id not in found[0].theorems
    if settled and not may_go_through_null(counts, question):
        return None
    points = min(points, remaining_points())
    less = replace(
        question,
        with_lower=False,
        width=ROUGH_WIDTH,
        rounded=None,
        gathered=question.gathered or question.rounded is not None,
    )
    with by_itself() as meter:

        def answer(part: EventCounts, asked: Query, portion: float) -> tuple[Bound | None, float]:
            before = meter.spent
            bounds = attempt(portion * (points - before), lambda: ask(part, asked))
            return bounds[0] if bounds else None, max(meter.spent - before, 1.0)

        known = found[0].epsilon if found else math.inf
        split = _best_split(parts, less, answer, known, points)
    least = (found[0].epsilon, found[0].delta) if found else (math.inf, 1.0)
    return split if split is not None and (split.epsilon, split.delta) < least else None


def _best_split(
    parts: list[EventCounts],
    question: Query,
    answer: Callable[[EventCounts, Query, float], tuple[Bound | None, float]],
    known: float,
    points: float,
) -> Bound | None:
    """The sum of what each kind costs at a part of delta or epsilon, whichever is given.

    At first each kind is gathered in one class: what it costs then decides how it is split, and the
    work it takes how the rest of the work is. The cheapest come first, and leave what they spare.

    Args:
        parts: from `parts_of`; at most KINDS_MAX.
        question: which asks for epsilon at a delta, or for delta at an epsilon.
        answer: (the best bound of a part, the work it took), for a portion of the work left.
        known: epsilon of all kinds together.
        points: that all answers may take.

    Returns:
        The bound, or None where some part has no bound, or no split can say more.
    """
    ones = [dominating(part, 1) for part in parts]
    weights, works = [1.0] * len(parts), [1.0] * len(parts)
    before: list[Bound] = []
    for turn in range(ROUNDS):
        asked = _split_question(replace(question, gathered=True), weights, rough=turn == 0)
        found = [answer(one, each, 1.0) for one, each in zip(ones, asked, strict=True)]
        bounds = [bound for bound, _ in found if bound is not None]
        if len(bounds) < len(parts):
            return None
        if question.delta is not None and _sum(bounds)[0] > _HOPELESS * known:
            return None
        works = [max(work, last) for (_, work), last in zip(found, works, strict=True)]
        weights = _weights(bounds, before, question)
        before = bounds
        if math.fsum(works) > _DEAR * points:
            break
    asked = _split_question(question, weights)
    order = sorted(range(len(parts)), key=works.__getitem__)
    best: dict[int, Bound] = {}
    for place in order:
        rest = [works[other] for other in order if other not in best]
        portion = max(works[place] / math.fsum(rest), _LEAST_PORTION / len(rest))
        bound, _ = answer(parts[place], asked[place], portion)
        if bound is None:
            bound, _ = answer(ones[place], replace(asked[place], gathered=True), 1.0)
        if bound is None:
            return None
        best[place] = bound
    return _add_bounds([best[place] for place in range(len(parts))], question)


def _split_question(question: Query, weights: list[float], *, rough: bool = False) -> list[Query]:
    """What is asked of each part; at first, where delta is asked for, what epsilon it needs."""
    shares = [weight * (1 - _MARGIN) / math.fsum(weights) for weight in weights]
    if question.delta is not None:
        return [replace(question, delta=share * question.delta) for share in shares]
    if rough:
        return [replace(question, delta=_USUAL_DELTA, epsilon=None) for _ in shares]
    return [replace(question, epsilon=share * (question.epsilon or 0.0)) for share in shares]


def _weights(bounds: list[Bound], before: list[Bound], question: Query) -> list[float]:
    """In which proportions delta or epsilon is split next, from what each kind costs alone.

    Of delta, parts in proportion to how fast each epsilon falls in its logarithm: the sum is least
    where these slopes stand in proportion to the deltas. A slope is told by two answers; an epsilon
    that is like that of a Gaussian release falls by about epsilon over twice the logarithm. Of
    epsilon, such that all deltas would be alike if each were that of a Gaussian release.
    """
    if question.delta is None:
        logs = [max(-math.log(max(bound.delta, 1e-300)), 1e-3) for bound in bounds]
        needed = [bound.epsilon / math.sqrt(log) for bound, log in zip(bounds, logs, strict=True)]
        return [max(one, 1e-3 * max(needed), 1e-300) for one in needed]
    slopes = [bound.epsilon / (-2 * math.log(bound.delta)) for bound in bounds]
    for place, (now, last) in enumerate(zip(bounds, before, strict=False)):
        apart = math.log(now.delta / last.delta)
        if abs(apart) > _APART:
            slopes[place] = (last.epsilon - now.epsilon) / apart
    least = 1e-3 * max(slopes)
    return [max(slope, least, 1e-300) for slope in slopes]


def _sum(bounds: list[Bound]) -> tuple[float, float]:
    return basic_composition(
        epsilons=[bound.epsilon for bound in bounds], deltas=[bound.delta for bound in bounds]
    )


def _add_bounds(bounds: list[Bound], question: Query) -> Bound | None:
    epsilon, delta = _sum(bounds)
    if question.delta is None:
        holds, epsilon = epsilon <= (question.epsilon or 0.0) and delta < 1, question.epsilon or 0.0
    else:
        holds, delta = delta <= question.delta, question.delta
    if not holds:
        return None
    dearest = max(bounds, key=lambda bound: bound.epsilon)
    return Bound(
        epsilon=epsilon,
        delta=delta,
        accountant=dearest.accountant,
        bound=basic_composition.id,
        theorems=(
            *sorted({name for bound in bounds for name in bound.theorems}),
            basic_composition.id,
        ),
        status=weakest([bound.status for bound in bounds]),
        assumptions=tuple(sorted({one for bound in bounds for one in bound.assumptions})),
        order=dearest.order,
    )
