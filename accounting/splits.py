"""A ledger of several kinds of steps, answered kind by kind: basic composition of the best of each.

One accountant serves all steps together, which is nearly always best. But what says most of one
kind may say little of another: a record that is replaced is best seen through a null record under
Poisson sampling, and directly under cyclic. Then the sum of what the kinds cost alone may be less.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from accounting.answers import Question, may_go_through_null
from accounting.balances import Balance, pass_length
from accounting.coarsening import dominating, rounded_outward
from accounting.composition import basic_composition
from accounting.events import Event
from accounting.guarantees import Bound, weakest
from accounting.work import attempted, by_itself, left

KINDS_MAX: Final = 8  # of a ledger; each takes an answer of its own
SPLIT_POINTS: Final = 90_000_000  # what they may take together
SPLIT_SHARE: Final = 0.6  # of what any answer may take, for each kind
ROUGH_WIDTH: Final = 5e-3  # relative, of what each costs alone
ROUNDS: Final = 3  # splits of delta that are looked at
_HOPELESS: Final = 2.0  # times what is known: finer events and another split of delta gain less
_APART: Final = 0.1  # of the logarithm of delta: two answers so far apart tell a slope
_MARGIN: Final = 1e-12  # of delta, for the rounding of its parts


def parts_of(balance: Balance) -> list[Balance]:
    """The steps of each kind of sampling and mechanism, in an order of their names.

    Steps that may belong to one pass, and so share its order, are of one kind whatever mechanism
    they have: no two kinds share coins. Kinds without units, which cost nothing, are left out.
    """

    def kind(event: Event) -> tuple[str, str]:
        by_pass = pass_length(event) is not None
        return type(event.sampling).__name__, "" if by_pass else type(event.mechanism).__name__

    kinds = sorted({kind(event) for event in (*balance.steps, *balance.passes)})
    parts = [
        Balance(
            steps={event: n for event, n in balance.steps.items() if kind(event) == one},
            passes={event: n for event, n in balance.passes.items() if kind(event) == one},
            begun={event: n for event, n in balance.begun.items() if kind(event) == one},
            starts={event: n for event, n in balance.starts.items() if kind(event) == one},
        )
        for one in kinds
    ]
    return [part for part in parts if part.units()]


def split_bound(
    balance: Balance,
    question: Question,
    found: list[Bound],
    ask: Callable[[Balance, Question], list[Bound]],
) -> Bound | None:
    """What the kinds of steps cost one by one, where that is less than the best of what is found.

    It is looked at where the pairs of all events were too much work as they are, and where those of
    some kinds may say more against a null record: then all kinds must be seen the same way, which
    one by one they need not. No more is spent than what is left outside, and than SPLIT_POINTS.

    Args:
        balance: units of each distinct event.
        question: what is asked.
        found: bounds of all kinds together, best first.
        ask: the bounds of a part, best first.

    Returns:
        The bound, or None where no split says more, some part has no bound, or delta is asked for.
    """
    balance = balance.told()  # whose orders were used again is seen from all kinds together
    parts = parts_of(balance)
    if question.delta is None or not 2 <= len(parts) <= KINDS_MAX:
        return None
    settled = found and found[0].accountant == "pld" and rounded_outward.id not in found[0].theorems
    if settled and not may_go_through_null(balance, question):
        return None
    points = min(question.share * SPLIT_POINTS, left())
    less = replace(
        question,
        share=SPLIT_SHARE * question.share,
        floor=False,
        width=ROUGH_WIDTH,
        rounded=None,
        gathered=question.gathered or question.rounded is not None,
    )
    with by_itself() as meter:

        def answer(part: Balance, asked: Question, portion: float) -> tuple[Bound | None, float]:
            before = meter.spent
            bounds = attempted(portion * (points - before), lambda: ask(part, asked))
            return bounds[0] if bounds else None, max(meter.spent - before, 1.0)

        return _best_split(parts, less, answer, found[0].epsilon if found else math.inf)


def _best_split(
    parts: list[Balance],
    question: Question,
    answer: Callable[[Balance, Question, float], tuple[Bound | None, float]],
    known: float,
) -> Bound | None:
    """The sum of what each kind costs at a part of delta, at the best split that was found.

    The first time each kind is gathered in one class: what it costs then decides how delta is
    split, and the work it takes how the rest of the work is.

    Args:
        parts: from `parts_of`; at most KINDS_MAX.
        question: which asks for epsilon at a delta.
        answer: (the best bound of a part, the work it took), for a portion of the work left.
        known: epsilon of all kinds together; what is not below it is of no use.

    Returns:
        The bound, or None where no split says more, or some part has no bound.
    """
    assert question.delta is not None  # noqa: S101 (a delta has no parts to split)
    weights = [1.0] * len(parts)
    works = [1.0] * len(parts)
    best: list[Bound] = []
    before: list[Bound] = []
    least = math.inf
    for turn in range(ROUNDS):
        scale = question.delta * (1 - _MARGIN) / math.fsum(weights)
        bounds: list[Bound] = []
        for place, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            asked = replace(question, delta=weight * scale)
            if turn:
                portion = works[place] / math.fsum(works[place:])
                bound, _ = answer(part, asked, portion)
            else:
                one = dominating(part, 1)
                bound, works[place] = answer(one, replace(asked, gathered=True), 1.0)
            if bound is None:
                return _told(best, question) if least < known else None
            bounds.append(bound)
        total, _ = _sum(bounds)
        if total > _HOPELESS * known:
            break
        weights = _weights(bounds, before)
        before = bounds
        if total < least:
            best, least = bounds, total
    return _told(best, question) if least < known else None


def _weights(bounds: list[Bound], before: list[Bound]) -> list[float]:
    """Parts of delta in proportion to how fast each epsilon falls in its logarithm, about.

    The sum is least where these slopes stand in proportion to the deltas. A slope is told by two
    answers; an epsilon that is like that of a Gaussian release falls by about epsilon over twice
    the logarithm.
    """
    slopes = [bound.epsilon / (-2 * math.log(bound.delta)) for bound in bounds]
    for place, (now, last) in enumerate(zip(bounds, before, strict=False)):
        apart = math.log(now.delta / last.delta)
        if abs(apart) > _APART:
            slopes[place] = (last.epsilon - now.epsilon) / apart
    floor = 1e-3 * max(slopes)
    return [max(slope, floor, 1e-300) for slope in slopes]


def _sum(bounds: list[Bound]) -> tuple[float, float]:
    return basic_composition(
        epsilons=[bound.epsilon for bound in bounds], deltas=[bound.delta for bound in bounds]
    )


def _told(bounds: list[Bound], question: Question) -> Bound | None:
    epsilon, delta = _sum(bounds)
    assert question.delta is not None  # noqa: S101 (see above)
    if not delta <= question.delta:
        return None
    dearest = max(bounds, key=lambda bound: bound.epsilon)
    return Bound(
        epsilon=epsilon,
        delta=question.delta,
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
