"""Ledgers with very many distinct steps: rounded outward onto few, on both sides.

More noise tells less and a larger sampling probability tells more, so a step lies between the two
whose parameters are rounded down and up. A ledger whose every step is so replaced bounds the ledger
from above, and the other way round from below.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.balances import Balance
from accounting.events import Event, Gaussian, NeighboringRelation, Poisson
from accounting.guarantees import Status
from accounting.numerics import Array
from accounting.theorem import theorem

DISTINCT_MAX: Final = 400  # events that are composed one by one
GROUPS: Final = 1000  # what more are rounded to, about: a width near 1e-3 where noise decays
ROUGH_GROUPS: Final = 160  # where that many cannot be composed, or need only be shown to be less
ROUNDED_WIDTH: Final = 1e-4  # relative, aimed at for each side: little beside what rounding adds
_PATH_MAX: Final = 30.0  # beyond, parameters that are neighbours in noise are a cloud, not a curve

Groups = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rounded:
    """Balances on each side of what was asked for."""

    upper: Balance
    lower: Balance
    rough_upper: Balance  # with fewer distinct events
    rough_lower: Balance


def distinct(balance: Balance) -> int:
    """How many distinct events a balance has."""
    return len(balance.steps)


@theorem(
    id="outward-rounding",
    source="Dong, Roth and Su 2022, JRSS B, arXiv:1905.02383v3, Theorem 2.10",
    status=Status.PUBLISHED,
    relations=tuple(NeighboringRelation),
)
def rounded_outward(balance: Balance) -> Rounded:
    """Balances of few distinct events that bound one of many from above and from below.

    Adding noise, and replacing an answer by one that knows nothing with some probability, are
    post-processing: a sampled Gaussian step with more noise or a smaller probability never tells
    more. Such steps are gathered in groups of neighbours; each group is replaced by its least noise
    and largest probability above, and by the opposite below. Other events stay as they are.

    Args:
        balance: units of each distinct event.

    Returns:
        Upper and lower balances of as many steps, and both once more but rougher.
    """
    sampled: list[Event] = []
    others: dict[Event, int] = {}
    counts: list[int] = []
    for event, count in balance.steps.items():
        if type(event.mechanism) is Gaussian and type(event.sampling) is Poisson:
            sampled.append(event)
            counts.append(count)
        else:
            others[event] = count
    if not sampled:
        return Rounded(balance, balance, balance, balance)
    points = _Points(
        noise=np.array([event.mechanism.noise_multiplier for event in sampled]),  # type: ignore[union-attr]
        rate=np.array([event.sampling.sampling_probability for event in sampled]),  # type: ignore[union-attr]
        counts=np.array(counts, dtype=object),  # exact: counts may exceed what a double holds
    )
    fine, rough = _corners(points, GROUPS), _corners(points, ROUGH_GROUPS)

    def with_others(groups: dict[Event, int]) -> Balance:
        steps = dict(others)
        for event, count in groups.items():
            steps[event] = steps.get(event, 0) + count
        return Balance(steps=steps, passes=balance.passes, starts=balance.starts)

    return Rounded(*(with_others(groups) for groups in (*fine, *rough)))


@dataclass(frozen=True, slots=True)
class _Points:
    noise: Array
    rate: Array
    counts: npt.NDArray[np.object_]


def _corners(points: _Points, groups: int) -> tuple[dict[Event, int], dict[Event, int]]:
    """Each group's least noise and largest rate, and the opposite, with its count."""
    order, starts = _grouped(points, groups)
    noise, rate = points.noise[order], points.rate[order]
    totals = np.add.reduceat(points.counts[order], starts)
    least, most = np.minimum.reduceat(noise, starts), np.maximum.reduceat(noise, starts)
    likeliest, rarest = np.maximum.reduceat(rate, starts), np.minimum.reduceat(rate, starts)
    # Where the next group's upper corner lies below this group, it serves as its lower one: fewer
    # distinct events, at nearly the same width.
    follows = (least[1:] >= most[:-1]) & (likeliest[1:] <= rarest[:-1])
    most[:-1] = np.where(follows, least[1:], most[:-1])
    rarest[:-1] = np.where(follows, likeliest[1:], rarest[:-1])
    above: dict[Event, int] = {}
    below: dict[Event, int] = {}
    for i, total in enumerate(totals):
        upper, lower = _event(least[i], likeliest[i]), _event(most[i], rarest[i])
        above[upper] = above.get(upper, 0) + int(total)
        below[lower] = below.get(lower, 0) + int(total)
    return above, below


def _event(noise: float, rate: float) -> Event:
    return Event(
        mechanism=Gaussian(noise_multiplier=float(noise)),
        sampling=Poisson(sampling_probability=float(rate)),
    )


def _grouped(points: _Points, groups: int) -> tuple[Groups, Groups]:
    """(order, starts): points by group, and where each group starts in that order.

    A step costs about its standard deviation v, log v = log(rate) + log(e^(1/noise^2) - 1)/2, and
    steps add by v^2. Along a curve of parameters, groups are shortest where steps cost most: what
    rounding adds is the sum of share times length, least for a density of sqrt(share / length).
    """
    inverse = 1 / np.square(points.noise)
    cost = 0.5 * np.where(inverse < 30, np.log(np.expm1(np.minimum(inverse, 30.0))), inverse)
    log_rate = np.log(points.rate)
    order = np.lexsort((-points.rate, points.noise))
    lengths = np.abs(np.diff(cost[order], prepend=cost[order[0]]))
    lengths += np.abs(np.diff(log_rate[order], prepend=log_rate[order[0]]))
    if float(np.sum(lengths)) <= _PATH_MAX:
        logs = 2 * (cost + log_rate)[order]
        shares = np.exp(logs - np.max(logs)) * points.counts[order].astype(np.float64)
        along = np.cumsum(np.sqrt(shares * lengths))
        cells = np.floor(along * (groups / max(float(along[-1]), 1e-300)))
        return order, np.flatnonzero(np.diff(cells, prepend=-1.0))
    return _cloud(cost, log_rate, groups)


def _cloud(cost: Array, log_rate: Array, groups: int) -> tuple[Groups, Groups]:
    """Groups of a cloud of parameters: the occupied cells of a square grid."""
    size = math.sqrt(max(float(np.ptp(cost)), 1e-9) * max(float(np.ptp(log_rate)), 1e-9) / groups)
    while True:
        rows = np.floor((cost - np.min(cost)) / size)
        columns = np.floor((log_rate - np.min(log_rate)) / size)
        cells = rows * (np.max(columns) + 1) + columns
        order = np.argsort(cells, kind="stable")
        starts = np.flatnonzero(np.diff(cells[order], prepend=-1.0))
        if len(starts) <= groups:
            return order, starts
        size *= 1.1


THEOREMS = (rounded_outward,)
