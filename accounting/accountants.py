"""From a balance to a guarantee: the best accepted bound, and what stands beside it."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from accounting.answers import (
    Question,
    gdp_bound,
    pld_bound,
    rdp_bound,
)
from accounting.anytime import odometer_bound
from accounting.attained import FLOOR_POINTS
from accounting.balances import Balance
from accounting.bounds import NoBoundError
from accounting.coarsening import DISTINCT_MAX, Rounded, dominating, rounded_outward
from accounting.comparisons import as_if_poisson, as_if_unsampled
from accounting.events import Gaussian, NeighboringRelation
from accounting.gathering import bound_of_fewer
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Bound, Guarantee, Status
from accounting.lower_ends import lower_end, rough_lower_end
from accounting.math_library import require_accurate_library
from accounting.splits import split_bound
from accounting.truncation import through_poisson
from accounting.work import attempted, left, limited

R = TypeVar("R")

BEST: Final = "best"
# What an accountant may take, as work.py counts it; Renyi curves of as many events take less.
POINTS: Final = {"gdp": 40_000_000, "pld": 145_000_000, "rdp": 30_000_000, "odometer": 100_000_000}
# Of events that were gathered the pld accountant may take more: it goes on with fewer by itself.
ROUNDED_POINTS: Final = 176_000_000
GATHERED_MAX: Final = 160  # events that are left of them then
# A single event, and a few, may take more: none of them is replaced by another.
FEW_EVENTS: Final = 12
FEW_POINTS: Final = {1: 185_000_000, FEW_EVENTS: 120_000_000}
FEW_CURVES: Final = 70_000_000  # what the Renyi curves of a few events take at most
WHOLE_POINTS: Final = 190_000_000  # what a guarantee may take with all that stands beside it
# Where that is not enough: how many noises of one sampling are left, and what they may take.
FEWER: Final = ((8, 30_000_000), (1, 20_000_000))
FEWER_ADAPTIVE: Final = ((16, 100_000_000), *FEWER)  # the odometer costs more a noise
LOWER_POINTS: Final = 40_000_000  # that its lower end may take in any case,
ROUGH_POINTS: Final = 25_000_000  # and a rougher one of very many events
BESIDE_POINTS: Final = 15_000_000  # what each number may take that stands beside a headline,
FEW_BESIDE: Final = 30_000_000  # where the events are few
# A headline of a few events that is so many times its lower end: what is looked for once more among
# the bounds of every status that may be accepted, and what that may take.
_WIDE: Final = 2.0
FEW_ACCEPTED: Final = 110_000_000
REASON_WORK: Final = "The events are too many and too different for this accountant."


ACCOUNTANTS: Final[dict[str, Callable[[Balance, Question], Bound]]] = {
    "gdp": gdp_bound,
    "pld": through_poisson(pld_bound),
    "rdp": through_poisson(rdp_bound),
}
# Valid for steps chosen after earlier answers, which costs more: asked for by name alone.
ODOMETER: Final = "odometer"


def guarantee(
    balance: Balance,
    *,
    relation: NeighboringRelation,
    delta: float | None = None,
    epsilon: float | None = None,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    accountant: str = BEST,
    share: float = 1.0,
) -> Guarantee:
    """The best accepted bound on what a balance has spent, and what else can be said of it.

    Valid when the steps' parameters and number were fixed in advance. Exactly one of delta and
    epsilon is given; the guarantee holds the other.

    Args:
        balance: units of each distinct event.
        relation: the neighbouring relation.
        delta: in (0, 1), to ask for epsilon.
        epsilon: nats, >= 0, to ask for delta.
        accept: statuses that may be the headline; conjectures and estimates never are.
        accountant: "best", a key of ACCOUNTANTS, or "odometer", which is valid for any schedule.
        share: of the work that a guarantee may take; less where several make one answer.

    Raises:
        ValueError: not exactly one of delta and epsilon, one that is out of range, an unknown
            accountant, or a status that may never be accepted.
    """
    names = _names(accountant)
    with limited(math.inf) as meter:
        end = meter.spent + share * WHOLE_POINTS
        balance, rounded = _few(balance)
        floor = balance if rounded is None else rounded.lower
        question = replace(_question(relation, delta, epsilon, accept, rounded), share=share)
        found, reason = _bounds(balance, question, names)
        spent = meter.spent
        found = _or_split(balance, question, names, found)
        end += meter.spent - spent  # which takes nothing from what stands beside it
        headline = _first(found)
        reached = headline.delta if headline else delta

        def beside(
            compute: Callable[[], R], points: int = _beside(balance), least: int = 0
        ) -> R | None:
            rest = max(share * least, end - meter.spent)
            return attempted(min(share * points, rest, left()), compute)

        every = replace(question, accept=ACCEPTABLE)
        others = found
        if question != every:
            others = beside(lambda: _best_first(balance, every, names)) or []
        known = [*found, *others]
        lower = beside(
            lambda: lower_end(known, headline, floor, relation),
            FLOOR_POINTS,
            0 if rounded else LOWER_POINTS,
        )
        if lower is None and rounded is not None:
            floor = rounded.rough_lower
            lower = beside(
                lambda: lower_end(known, headline, floor, relation), FLOOR_POINTS, ROUGH_POINTS
            )
        if lower is None and len(balance.steps) > 1:
            lower = beside(
                lambda: rough_lower_end(headline, floor, relation), LOWER_POINTS, LOWER_POINTS
            )
        few = question != every and len(balance.steps) <= FEW_EVENTS
        if few and headline is not None and _is_wide(headline, lower, others):
            others = beside(lambda: _best_first(balance, every, names), FEW_ACCEPTED) or others
        unamplified = beside(lambda: _unamplified_epsilon(balance, relation, reached))
        as_poisson = beside(lambda: _poisson_would_say(balance, relation, reached, names))
    return Guarantee(
        epsilon=headline.epsilon if headline else None,
        epsilon_lower=lower,
        delta=reached,
        neighboring_relation=relation,
        headline=headline,
        reason=None if headline else reason,
        unamplified_epsilon=unamplified,
        poisson_would_say=as_poisson,
        alternatives=tuple(
            bound for bound in dict.fromkeys([*found, *others]) if bound != headline
        ),
    )


def with_odometer(
    found: Guarantee,
    balance: Balance,
    *,
    delta: float | None,
    accountant: str = BEST,
    share: float = 1.0,
) -> Guarantee:
    """A guarantee of a balance with the odometer's reading beside it, where it has one.

    Args:
        found: the guarantee.
        balance: what it is of.
        delta: what it was asked at; None where epsilon was given.
        accountant: that was asked for; only the best has the odometer beside it.
        share: of the work that it may take.
    """
    if delta is None or accountant != BEST:
        return found
    relation = found.neighboring_relation
    read = attempted(
        share * _beside(balance),
        lambda: best_bound(
            balance,
            relation=relation,
            delta=delta,
            accept=ACCEPTABLE,
            accountant=ODOMETER,
            floor=False,
        ),
    )
    return found if read is None else replace(found, alternatives=(*found.alternatives, read))


def best_bound(
    balance: Balance,
    *,
    relation: NeighboringRelation,
    delta: float | None = None,
    epsilon: float | None = None,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    accountant: str = BEST,
    floor: bool = True,
    share: float = 1.0,
) -> Bound | None:
    """The headline of a guarantee, to the same bits, without what would stand beside it.

    Args and errors are those of guarantee, and floor: whether its own lower bound is wanted.

    Returns:
        The bound, or None where no accepted one is finite.
    """
    balance, rounded = _few(balance)
    asked = _question(relation, delta, epsilon, accept, rounded)
    question = replace(asked, floor=floor, share=share)
    return _first(_best_first(balance, question, _names(accountant)))


def with_floor(bound: Bound, balance: Balance, *, relation: NeighboringRelation) -> Bound:
    """A headline of a balance with a lower end beside it alone, where that takes little work."""
    few, rounded = _few(balance)
    floor = few if rounded is None else rounded.rough_lower
    lower = attempted(LOWER_POINTS, lambda: lower_end([bound], bound, floor, relation))
    return replace(bound, epsilon_lower=lower)


def _question(
    relation: NeighboringRelation,
    delta: float | None,
    epsilon: float | None,
    accept: frozenset[Status],
    rounded: Rounded | None,
) -> Question:
    require_accurate_library()
    if (delta is None) == (epsilon is None):
        raise ValueError("Give delta or epsilon, not both.")
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    if not accept <= ACCEPTABLE:
        raise ValueError("Conjectures and estimates are never accepted.")
    return Question(relation=relation, accept=accept, delta=delta, epsilon=epsilon, rounded=rounded)


def _few(balance: Balance) -> tuple[Balance, Rounded | None]:
    """The balance, or its upper side where it has too many distinct events to compose each."""
    if len(balance.steps) <= DISTINCT_MAX:
        return balance, None
    rounded = rounded_outward(balance)
    return rounded.upper, rounded


def _names(accountant: str) -> tuple[str, ...]:
    """Which accountants are asked, in turn."""
    if accountant == BEST:
        return tuple(ACCOUNTANTS)
    if accountant not in (*ACCOUNTANTS, ODOMETER):
        raise ValueError(f"The accountants are {', '.join([BEST, *ACCOUNTANTS, ODOMETER])}.")
    return (accountant,)


def _best_first(balance: Balance, question: Question, names: tuple[str, ...]) -> list[Bound]:
    """The finite bounds, of all steps together and kind by kind."""
    return _or_split(balance, question, names, _bounds(balance, question, names)[0])


def _is_wide(headline: Bound, lower: float | None, others: list[Bound]) -> bool:
    """Whether a headline is so far above its lower end that better bounds are looked for again."""
    known = any(bound.epsilon < headline.epsilon for bound in others)
    return not known and not headline.epsilon <= _WIDE * (lower or 0.0)


def _first(bounds: list[Bound]) -> Bound | None:
    return bounds[0] if bounds else None


def _or_split(
    balance: Balance, question: Question, names: tuple[str, ...], found: list[Bound]
) -> list[Bound]:
    """What was found of all steps together, and before it what their kinds cost one by one if less.

    An accountant that is asked for by name answers of all steps together.
    """
    if names != tuple(ACCOUNTANTS):
        return found

    def ask(part: Balance, asked: Question) -> list[Bound]:
        return _bounds(part, asked, names)[0]

    split = attempted(left(), lambda: split_bound(balance, question, found, ask))
    return found if split is None else [split, *found]


def _bounds(
    balance: Balance, question: Question, names: tuple[str, ...]
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
            bound, rough = _evaluated(name, balance, question)
        except NoBoundError as failure:
            reason = str(failure)
            continue
        if math.isfinite(bound.epsilon) and bound.delta < 1:
            found.append(bound)
            settled = bound.accountant == "pld" and not rough
        else:
            reason = "The bound says nothing: epsilon is infinite or delta is one."
    return sorted(found, key=lambda bound: (bound.epsilon, bound.delta)), reason


def _evaluated(name: str, balance: Balance, question: Question) -> tuple[Bound, bool]:
    """An accountant's answer: of fewer events that dominate the balance where it is too much work.

    And whether these are so few that another accountant may say more.

    Raises:
        NoBoundError: it has none, or none that takes little enough work.
    """
    accountant = _accountant(name)
    if name != ODOMETER:  # which must hold for schedules that are chosen after a look
        balance = balance.told()
    allowed = _allowed(name, balance, question)
    if name == "pld":
        found = bound_of_fewer(accountant, balance, question, whole=allowed)
        if found is None:
            raise NoBoundError(REASON_WORK)
        return found
    bound = attempted(allowed, lambda: accountant(balance, question))
    less = replace(question, rounded=None, gathered=True, floor=False)
    for noises, points in FEWER_ADAPTIVE if name == ODOMETER else FEWER:
        fewer = dominating(balance, noises) if bound is None else balance
        if len(fewer.steps) < len(balance.steps):
            bound = attempted(question.share * points, partial(accountant, fewer, less))
    if bound is None:
        raise NoBoundError(REASON_WORK)
    return bound, False


def _allowed(name: str, balance: Balance, question: Question) -> float:
    """What work an accountant may take to answer about a balance as it is."""
    rounded = question.rounded
    points = POINTS[name]
    if name == "pld" and rounded and len(rounded.rough_upper.steps) <= GATHERED_MAX:
        points = ROUNDED_POINTS
    else:
        few = [more for events, more in FEW_POINTS.items() if len(balance.steps) <= events]
        points = few[0] if few else points
    allowed = question.share * points
    if name == "rdp" and len(balance.steps) <= FEW_EVENTS:  # parts of an answer share them
        allowed = max(allowed, FEW_CURVES)
    return allowed


def _beside(balance: Balance) -> int:
    """What work each number may take that stands beside a headline."""
    return FEW_BESIDE if len(balance.steps) <= FEW_EVENTS else BESIDE_POINTS


def _accountant(name: str) -> Callable[[Balance, Question], Bound]:
    return odometer_bound if name == ODOMETER else ACCOUNTANTS[name]


def _poisson_would_say(
    balance: Balance,
    relation: NeighboringRelation,
    delta: float | None,
    names: tuple[str, ...],
) -> float | None:
    """Epsilon had each batch in turn been a Poisson sample of the same size; bounds nothing."""
    if delta is None or not 0 < delta < 1:
        return None
    claimed = as_if_poisson(balance)
    if claimed is None:
        return None
    question = Question(
        relation=relation, accept=ACCEPTABLE, delta=delta, epsilon=None, floor=False
    )
    asked = ("rdp",) if names == ("rdp",) else ("pld", "rdp")
    found, _ = _bounds(claimed, question, asked)
    return found[0].epsilon if found else None


def _unamplified_epsilon(
    balance: Balance, relation: NeighboringRelation, delta: float | None
) -> float | None:
    """Epsilon of the same steps had every record taken part in each. Upper; None if infinite."""
    if delta is None or not 0 < delta < 1:
        return None
    whole_balance = as_if_unsampled(balance)
    question = Question(relation=relation, accept=DEFAULT_ACCEPT, delta=delta, epsilon=None)
    found, _ = _bounds(whole_balance, question, ("gdp",))  # exact where it applies
    if not all(isinstance(event.mechanism, Gaussian) for event in whole_balance.steps):
        found, _ = _bounds(whole_balance, question, ("pld", "rdp"))
    return found[0].epsilon if found else None
