"""From a balance to a guarantee: each accountant's answer, and the best accepted one.

An accountant takes the losses of the balance's events, adds them and reads off epsilon or delta.
Both here serve schedules that are fixed in advance; filters.py serves others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from accounting.balances import Balance
from accounting.bounds import (
    EventBound,
    NoBoundError,
    accepted,
    gdp_bounds,
    least_curve,
    renyi_bounds,
    total_failure,
)
from accounting.events import Event, Full, NeighboringRelation
from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.guarantees import (
    ACCEPTABLE,
    DEFAULT_ACCEPT,
    Assumption,
    Bound,
    Guarantee,
    Status,
    weakest,
)
from accounting.numerics import UNIT_ROUNDOFF, Array, rounded_down, rounded_up, sum_up
from accounting.renyi.conversion import rdp_delta, rdp_epsilon
from accounting.renyi.orders import ORDERS
from accounting.theorem import Theorem, theorem

BEST: Final = "best"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a balance: epsilon at a delta, or delta at an epsilon."""

    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float | None  # in (0, 1); None asks for it
    epsilon: float | None  # nats, >= 0; None asks for it

    def answer(
        self,
        value: float,
        *,
        accountant: str,
        used: Sequence[EventBound[Any]],
        composed: tuple[Theorem[..., Any], ...],
        order: float | None = None,
    ) -> Bound:
        """The bound whose unknown half is `value`."""
        names = {bound.theorem.id for bound in used}
        ids = sorted({theorem.id for bound in used for theorem in bound.theorems})
        assumptions = {assumption for bound in used for assumption in bound.assumptions}
        return Bound(
            epsilon=value if self.epsilon is None else self.epsilon,
            delta=value if self.delta is None else self.delta,
            accountant=accountant,
            bound=names.pop() if len(names) == 1 else "composition",
            theorems=(*ids, *(theorem.id for theorem in composed)),
            status=weakest([theorem.status for bound in used for theorem in bound.theorems]),
            assumptions=tuple(sorted(assumptions)),
            order=order,
        )


def rdp_bound(balance: Balance, question: Question) -> Bound:
    """The Renyi accountant: curves on ORDERS, added, converted at the best order.

    Raises:
        NoBoundError: some event has no accepted bound; the text says why.
    """
    units = balance.units()
    proved = [
        accepted(renyi_bounds(event, question.relation), accept=question.accept)
        for event, _ in units
    ]
    curves = [least_curve(bounds) for bounds in proved]
    rdp = compose_rdp(curves=curves, counts=[count for _, count in units])
    failed = total_failure(zip(proved, [count for _, count in units], strict=True))
    if question.delta is not None:
        conversion: Theorem[..., Any] = rdp_epsilon
        left = rounded_down(question.delta - failed) if failed else question.delta
        if left <= 0:  # the failures alone take all of delta
            rdp, left = np.full_like(rdp, math.inf), question.delta
        value, order = rdp_epsilon(rdp=rdp, orders=ORDERS, delta=left)
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


def gdp_bound(balance: Balance, question: Question) -> Bound:
    """The Gaussian DP accountant: exact where every unit is a Gaussian release of all records.

    Raises:
        NoBoundError: some event is no Gaussian release, or its bound is not accepted.
    """
    units = balance.units()
    used = [
        bound
        for event, _ in units
        for bound in accepted(gdp_bounds(event, question.relation), accept=question.accept)
    ]
    mu = compose_gdp(mus=[bound.loss for bound in used], counts=[count for _, count in units])
    if question.delta is not None:
        profile: Theorem[..., Any] = gaussian_epsilon
        value = gaussian_epsilon(question.delta, mu=mu)
    else:
        profile = gaussian_delta
        value = gaussian_delta(question.epsilon or 0.0, mu=mu)
    return question.answer(value, accountant="gdp", used=used, composed=(compose_gdp, profile))


ACCOUNTANTS: Final[dict[str, Callable[[Balance, Question], Bound]]] = {
    "gdp": gdp_bound,
    "rdp": rdp_bound,
}


def guarantee(
    balance: Balance,
    *,
    relation: NeighboringRelation,
    delta: float | None = None,
    epsilon: float | None = None,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    accountant: str = BEST,
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
        accountant: "best", or a key of ACCOUNTANTS.

    Raises:
        ValueError: not exactly one of delta and epsilon, one that is out of range, an unknown
            accountant, or a status that may never be accepted.
    """
    if (delta is None) == (epsilon is None):
        raise ValueError("Give delta or epsilon, not both.")
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise ValueError("epsilon is finite and not negative.")
    if not accept <= ACCEPTABLE:
        raise ValueError("Conjectures and estimates are never accepted.")
    if accountant != BEST and accountant not in ACCOUNTANTS:
        raise ValueError(f"The accountants are {', '.join([BEST, *ACCOUNTANTS])}.")
    names = tuple(ACCOUNTANTS) if accountant == BEST else (accountant,)
    question = Question(relation=relation, accept=accept, delta=delta, epsilon=epsilon)
    found, reason = _bounds(balance, question, names)
    headline = found[0] if found else None
    others, _ = _bounds(balance, replace(question, accept=ACCEPTABLE), names)
    reached = headline.delta if headline else delta
    return Guarantee(
        epsilon=headline.epsilon if headline else None,
        epsilon_lower=None,
        delta=reached,
        neighboring_relation=relation,
        headline=headline,
        reason=None if headline else reason,
        unamplified_epsilon=_unamplified_epsilon(balance, relation, reached),
        alternatives=tuple(
            bound for bound in dict.fromkeys([*found, *others]) if bound != headline
        ),
    )


def _bounds(
    balance: Balance, question: Question, names: tuple[str, ...]
) -> tuple[list[Bound], str | None]:
    """The finite bounds, best first, and why the last accountant that found none did so."""
    found: list[Bound] = []
    reason: str | None = None
    for name in names:
        try:
            bound = ACCOUNTANTS[name](balance, question)
        except NoBoundError as failure:
            reason = str(failure)
            continue
        if math.isfinite(bound.epsilon) and bound.delta < 1:
            found.append(bound)
        else:
            reason = "The bound says nothing: epsilon is infinite or delta is one."
    return sorted(found, key=lambda bound: (bound.epsilon, bound.delta)), reason


def _unamplified_epsilon(
    balance: Balance, relation: NeighboringRelation, delta: float | None
) -> float | None:
    """Epsilon of the same steps had every record taken part in each. Upper; None if infinite."""
    if delta is None or not 0 < delta < 1:
        return None
    steps: dict[Event, int] = {}
    for event, count in balance.steps.items():
        full = replace(event, sampling=Full())
        steps[full] = steps.get(full, 0) + count
    question = Question(relation=relation, accept=DEFAULT_ACCEPT, delta=delta, epsilon=None)
    found, _ = _bounds(Balance(steps=steps), question, ("gdp",))  # exact for full batches
    return found[0].epsilon if found else None


THEOREMS = (compose_rdp, compose_gdp)
