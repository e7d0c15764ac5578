"""Which of the pairs that dominate an event is composed, where more than one is proved to.

Each pair dominates by itself, in both orders of the neighbours and whatever came before, so that
any choice for each event bounds the ledger. Which is best depends on the others: a pair that says
less of one step may say more of many.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from accounting.bounds.dominating_pairs import Offered
from accounting.bounds.event_bounds import EventBound, Pairs
from accounting.events import Direction
from accounting.pld.contour.real_moments import LADDER, LOG_BEST_SHARE, NoMomentsError, log_moments
from accounting.rounding import Array
from accounting.subsampling.replaced_records import poisson_replace_tight_pair

# Of epsilon: a choice that costs so little more by moments may cost less once it is composed.
_CLOSE: Final = 1.12
_USUAL_DELTA: Final = 1e-5  # for which pairs are chosen where a whole profile is asked for


def choose_bounds(
    offered: Sequence[Offered], *, delta: float | None = None, epsilon: float | None = None
) -> list[EventBound[Pairs]]:
    """One bound of each event, such that they cost least together by their moments.

    With M_b the moment of bound b, delta <= c(lam) e^(-lam epsilon) prod M_b(lam) at each order, so
    at the order that is best for the least moments of all events these are the best choice. Where
    moments are not known the bound that is listed first is taken.

    Args:
        offered: accepted bounds of each event and how often it counts.
        delta: at which epsilon is asked for, or
        epsilon: at which delta is.
    """
    offered = [
        (bounds[:1] if bounds[0].theorem is poisson_replace_tight_pair else bounds, count)
        for bounds, count in offered  # what is attained says no more than any other
    ]
    if all(len(bounds) == 1 for bounds, _ in offered):
        return [bounds[0] for bounds, _ in offered]
    moments = [_moments(bounds) for bounds, _ in offered]
    exponents = _exponents(moments, offered)
    if epsilon is None:
        reached = np.maximum(exponents - math.log(delta or _USUAL_DELTA), 0.0) / LADDER
    else:
        reached = exponents - LADDER * epsilon
    best = int(np.argmin(np.where(np.isfinite(reached), reached, math.inf)))
    return [
        bounds[int(np.argmin(each[:, best]))]
        for each, (bounds, _) in zip(moments, offered, strict=True)
    ]


def close_rival(
    offered: Sequence[Offered],
    used: Sequence[EventBound[Pairs]],
    *,
    delta: float | None,
    epsilon: float | None,
) -> list[EventBound[Pairs]] | None:
    """Return the choice of bounds that may fail, where it costs little more by moments, else None.

    Of one Gaussian release moments say nearly all there is to say, of shuffled passes less. So a
    choice that moments favour by little may cost more once both are composed.

    Args:
        offered: accepted bounds of each event and how often it counts.
        used: those that `choose_bounds` chose.
        delta: at which epsilon is asked for, or
        epsilon: at which delta is.
    """
    failing = [
        (tuple(bound for bound in bounds if bound.delta) or bounds, count)
        for bounds, count in offered
    ]
    rival = choose_bounds(failing, delta=delta, epsilon=epsilon)
    if rival == used:
        return None
    exponents, others = (
        _exponents([_moments((bound,)) for bound in bounds], offered) for bounds in (used, rival)
    )
    if epsilon is None:
        log_delta = math.log(delta or _USUAL_DELTA)
        epsilon = _epsilon(exponents, log_delta)
    else:
        log_delta = float(np.min(exponents - LADDER * epsilon))
    return rival if _epsilon(others, log_delta) <= _CLOSE * epsilon else None


def _epsilon(exponents: Array, log_delta: float) -> float:
    """Epsilon at a delta by moments alone."""
    return float(np.min(np.maximum(exponents - log_delta, 0.0) / LADDER))


def log_delta_of_moments(offered: Sequence[Offered], *, epsilon: float) -> float:
    """Return the logarithm of delta at an epsilon, by moments alone: a guess, and no bound.

    Args:
        offered: accepted bounds of each event and how often it counts.
        epsilon: nats, >= 0.
    """
    exponents = _exponents([_moments(bounds) for bounds, _ in offered], offered)
    return float(np.min(exponents - LADDER * epsilon))


def _exponents(moments: Sequence[Array], offered: Sequence[Offered]) -> Array:
    """Logarithms of the least moments of all events together, as they bound delta at epsilon 0."""
    total = np.zeros_like(LADDER)
    for each, (_, count) in zip(moments, offered, strict=True):
        total = total + count * np.min(each, axis=0)
    return np.asarray(total + LOG_BEST_SHARE, dtype=np.float64)


def _moments(bounds: tuple[EventBound[Pairs], ...]) -> Array:
    """Log of each bound's moments on LADDER, of the worse order; zero where they are not known."""
    try:
        return np.array(
            [
                sum(
                    times * np.maximum(*(log_moments(pair, direction) for direction in Direction))
                    for pair, times in bound.loss
                )
                for bound in bounds
            ]
        )
    except NoMomentsError:  # of its kinds the first listed never says less than another
        return np.zeros((len(bounds), len(LADDER)))
