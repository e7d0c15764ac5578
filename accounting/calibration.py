"""Inverse questions: the noise, steps or sampling rate that keep a plan within its target.

What is returned was evaluated to be safe by the very accountant that will account the plan, and a
neighbour of it was evaluated not to be.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from accounting.accountants.best_bound import BEST, best_bound, guarantee
from accounting.accountants.shuffled_passes import kept_passes
from accounting.event_counts import EventCounts
from accounting.events import (
    Gaussian,
    Laplace,
    MatrixGaussian,
    NeighboringRelation,
    Poisson,
    Span,
    TruncatedPoisson,
)
from accounting.gaussian import gaussian_mu
from accounting.guarantees import DEFAULT_ACCEPT, Guarantee, Status
from accounting.initial_guesses import estimated_mu, estimated_slope, on_lattice
from accounting.shuffling.shuffled_batches import shuffled_batches_pairs

TOLERANCE: Final = 2.0**-21  # relative distance of the value returned from one that is not safe
COARSE_TOLERANCE: Final = 1e-4  # where epsilon is itself no better known
ROUGH_TOLERANCE: Final = 2e-3  # and where it is known to one in a hundred
ROUGHLY: Final = 0.02  # the same for the estimate that the search starts from
_LAST: Final = 0.98  # of the tolerance, how far from a near end the far one is put at last
_TRUST: Final = 3.0  # times an estimate, how far beyond it a stride goes at most
_PATIENCE: Final = 3  # evaluations in which the interval is to be halved, else it is bisected


class Parameter(StrEnum):
    """What a plan may leave open."""

    NOISE_MULTIPLIER = "noise_multiplier"
    STEPS = "steps"
    SAMPLING_PROBABILITY = "sampling_probability"


@dataclass(frozen=True, slots=True)
class Range:
    """The values that are tried: from the one that spends least to the one that spends most."""

    safest: float
    riskiest: float
    whole: bool  # only whole numbers count


RANGES: Final[dict[Parameter, Range]] = {
    Parameter.NOISE_MULTIPLIER: Range(1e6, 1e-2, False),
    Parameter.STEPS: Range(1, 10**9, True),
    Parameter.SAMPLING_PROBABILITY: Range(1e-12, 1.0, False),
}


class UnreachableError(ValueError):
    """Not even the safest value there is keeps to the target; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A value that keeps to a target, and the guarantee at it."""

    parameter: Parameter
    value: int | float  # steps are whole
    guarantee: Guarantee


def calibrate(
    counts_at: Callable[[float], EventCounts],
    *,
    parameter: Parameter,
    epsilon: float,
    delta: float,
    relation: NeighboringRelation,
    accept: frozenset[Status] = DEFAULT_ACCEPT,
    accountant: str = BEST,
) -> Calibrated:
    """The value that spends most within a target: least noise, most steps or highest rate.

    Epsilon falls in the noise and rises in the steps and in the rate. The search runs on the
    logarithms of both, on which epsilon is nearly a line: it starts where composed Gaussian
    releases would put it, and takes secants, or halves the interval where they do not help.

    Args:
        counts_at: the ledger of the plan at a value of the parameter.
        parameter: what is open; RANGES has the values that are tried.
        epsilon: nats, > 0, not to be passed.
        delta: in (0, 1).
        relation: the neighbouring relation.
        accept: statuses that may be the headline.
        accountant: as for guarantee.

    Returns:
        The value, evaluated to keep to the target. Within TOLERANCE of it (COARSE_TOLERANCE where
        epsilon is found on a lattice, ROUGH_TOLERANCE of shuffled passes that leave a record out),
        or at the next whole number, a value was evaluated not to, unless it is the riskiest of its
        range.

    Raises:
        UnreachableError: the safest value of the range does not keep to the target.
    """

    def excess(value: float) -> float:
        bound = best_bound(
            counts_at(value), relation=relation, delta=delta, accept=accept, accountant=accountant,
            with_lower=False,
        )  # fmt: skip
        reached = math.inf if bound is None else bound.epsilon
        return _log_ratio(reached, epsilon)

    guess = _guess(counts_at, parameter, relation, epsilon, delta)
    lattice = accountant in (BEST, "pld")
    tolerance = _tolerance(counts_at(guess), relation, accept) if lattice else TOLERANCE
    slope = _slope(counts_at, parameter, relation, (epsilon, delta), guess)
    value = frontier(excess, parameter=parameter, guess=guess, tolerance=tolerance, slope=slope)
    found = guarantee(
        counts_at(value), relation=relation, delta=delta, accept=accept, accountant=accountant,
    )  # fmt: skip
    whole = RANGES[parameter].whole
    return Calibrated(parameter=parameter, value=int(value) if whole else value, guarantee=found)


def fill_spans(
    spans: Sequence[Span], *, places: Collection[int], parameter: Parameter, value: float
) -> list[Span]:
    """The spans with a value in the places that leave the parameter open.

    Args:
        spans: with any value in the open places.
        places: indices of spans.
        parameter: what is open.
        value: of every place alike.
    """
    return [
        _with(span, parameter, value) if index in places else span
        for index, span in enumerate(spans)
    ]


def _with(span: Span, parameter: Parameter, value: float) -> Span:
    event = span.event
    mechanism, sampling = event.mechanism, event.sampling
    if parameter is Parameter.STEPS:
        return replace(span, steps=int(value))
    if parameter is Parameter.NOISE_MULTIPLIER and isinstance(
        mechanism, Gaussian | Laplace | MatrixGaussian
    ):
        event = replace(event, mechanism=replace(mechanism, noise_multiplier=value))
    elif parameter is Parameter.SAMPLING_PROBABILITY and isinstance(
        sampling, Poisson | TruncatedPoisson
    ):
        event = replace(event, sampling=replace(sampling, sampling_probability=value))
    else:
        raise ValueError(f"The event has no {parameter}.")
    return replace(span, event=event)


def louder(spans: Sequence[Span], *, value: float) -> list[Span]:
    """The spans with every noise multiplier scaled by one factor, so that the least is `value`."""
    least = least_noise(spans)

    def scaled(noise: float) -> float:
        return value if noise == least else noise * (value / least)  # to the last bit

    return [
        _with(span, Parameter.NOISE_MULTIPLIER, scaled(span.event.mechanism.noise_multiplier))
        if isinstance(span.event.mechanism, Gaussian | Laplace | MatrixGaussian)
        else span
        for span in spans
    ]


def least_noise(spans: Sequence[Span]) -> float:
    """The least noise multiplier of the Gaussian and Laplace steps.

    Raises:
        ValueError: there is none.
    """
    return min(
        span.event.mechanism.noise_multiplier
        for span in spans
        if isinstance(span.event.mechanism, Gaussian | Laplace | MatrixGaussian)
    )


# The search


def frontier(
    excess: Callable[[float], float],
    *,
    parameter: Parameter,
    guess: float,
    tolerance: float = TOLERANCE,
    slope: float = 1.0,
) -> float:
    """The value next to where an excess changes sign, on its safe side.

    Args:
        excess: not positive where a value is safe, positive or infinite where it is not.
        parameter: whose range is searched.
        guess: a value to begin at.
        tolerance: relative.
        slope: about the excess by the logarithm of the value, towards the riskiest; > 0.

    Returns:
        A value that was evaluated to be safe.

    Raises:
        UnreachableError: the safest value of the range is not safe.
    """
    search = _Search(excess, RANGES[parameter], tolerance, slope)
    if not search.bracket(guess):
        return search.riskiest
    if search.low is None:
        safest = RANGES[parameter].safest
        raise UnreachableError(
            f"Even at the safest {parameter} that is tried, {safest:g}, the plan spends more."
        )
    return search.narrow()


def _tolerance(
    counts: EventCounts, relation: NeighboringRelation, accept: frozenset[Status]
) -> float:
    """How well a value may be known, by how well epsilon is."""
    if shuffled_batches_pairs.status in accept and kept_passes(counts, relation):
        return ROUGH_TOLERANCE
    coarse = any(on_lattice(event, relation) for event in counts.steps)
    return COARSE_TOLERANCE if coarse else TOLERANCE


class _Search:
    """An interval on the logarithm of a parameter, from a safe point to one that is not."""

    def __init__(
        self, excess: Callable[[float], float], over: Range, tolerance: float, slope: float
    ) -> None:
        self.excess, self.over, self.tolerance, self.slope = excess, over, tolerance, slope
        self.sign = 1.0 if over.safest < over.riskiest else -1.0
        self.first, self.last = self._place(over.safest), self._place(over.riskiest)
        self.riskiest = over.riskiest
        self.low: float | None = None  # safe
        self.high: float | None = None  # not safe
        self.seen: list[tuple[float, float]] = []  # places and their excess, in turn

    def _place(self, value: float) -> float:
        return self.sign * math.log(value)

    def _value(self, place: float) -> float:
        if place in (self.first, self.last):
            return self.over.safest if place == self.first else self.over.riskiest
        value = math.exp(self.sign * place)
        return float(round(value)) if self.over.whole else value

    def _try(self, place: float) -> None:
        if self.over.whole:
            place = self._place(self._value(place))
        found = self.excess(self._value(place))
        self.seen.append((place, found))
        if found <= 0:
            self.low = place
        else:  # what is no number is not safe
            self.high = place

    def bracket(self, guess: float) -> bool:
        """Walk from a guess until both ends are known; False if nothing is unsafe."""
        place = min(self.last, max(self.first, self._place(guess)))
        stride = 0.02
        while True:  # strides grow by a factor, so that an end is soon reached
            self._try(place)
            if self.low is not None and self.high is not None:
                return True
            safe = self.high is None
            if place == (self.last if safe else self.first):
                return not safe
            step = self._secant()
            # A little beyond the estimate, so that it lands on the other side.
            reach = stride
            if step is not None:
                away = abs(step - place)
                reach = max(1.05 * away + 1e-4, min(stride, _TRUST * away))
            place = min(self.last, place + reach) if safe else max(self.first, place - reach)
            stride *= 4

    def _secant(self) -> float | None:
        """Where the last two points put the root; one alone has the slope that was guessed."""
        known = [point for point in self.seen if math.isfinite(point[1])][-2:]
        if not known or known[-1] != self.seen[-1]:
            return None
        place, found = known[-1]
        slope = self.slope
        if len(known) == 2 and known[0][0] != place:
            slope = (found - known[0][1]) / (place - known[0][0])
        return place - found / slope if slope > 0 else None

    def narrow(self) -> float:
        """The safe end once nothing, or nothing of note, lies between the ends."""
        assert self.low is not None  # noqa: S101 (bracketed)
        assert self.high is not None  # noqa: S101
        waited, width = 0, self.high - self.low
        while not self._finished():  # a quarter of the steps halves the interval at least
            place = self._secant()
            if waited >= _PATIENCE or place is None or not self.low < place < self.high:
                place = 0.5 * (self.low + self.high)
                waited, width = 0, self.high - self.low
            else:
                place = self._nudged(place)
            self._try(self._inside(place))
            waited = 0 if self.high - self.low <= 0.5 * width else waited + 1
            width = min(width, self.high - self.low) if waited == 0 else width
        return self._value(self.low)

    def _nudged(self, place: float) -> float:
        # Past the root as seen from the near end, so that the far end comes close.
        assert self.low is not None  # noqa: S101
        assert self.high is not None  # noqa: S101
        near_low = place - self.low < self.high - place
        near = place - self.low if near_low else self.high - place
        beyond = near + min(0.4 * self.tolerance, 0.1 * (self.high - self.low))
        if near < _LAST * self.tolerance:  # if the far end comes to here, the search is over
            beyond = _LAST * self.tolerance if near_low else min(beyond, _LAST * self.tolerance)
        return self.low + beyond if near_low else self.high - beyond

    def _inside(self, place: float) -> float:
        """A place strictly between the ends."""
        assert self.low is not None  # noqa: S101
        assert self.high is not None  # noqa: S101
        if not self.over.whole:
            return place
        low, high = self._value(self.low), self._value(self.high)
        return self._place(min(high - 1, max(low + 1, self._value(place))))

    def _finished(self) -> bool:
        assert self.low is not None  # noqa: S101
        assert self.high is not None  # noqa: S101
        if self.over.whole:
            return self._value(self.high) - self._value(self.low) <= 1
        return self.high - self.low <= self.tolerance


# Where to begin: composed Gaussian releases. A bad guess costs evaluations, nothing else.


def _guess(
    counts_at: Callable[[float], EventCounts],
    parameter: Parameter,
    relation: NeighboringRelation,
    epsilon: float,
    delta: float,
) -> float:
    target = gaussian_mu(epsilon, delta=delta)

    def excess(value: float) -> float:
        return _log_ratio(estimated_mu(counts_at(value), relation), target)

    end = RANGES[parameter].safest
    try:
        return frontier(excess, parameter=parameter, guess=_START[parameter], tolerance=ROUGHLY)
    except UnreachableError:
        return end


def _slope(
    counts_at: Callable[[float], EventCounts],
    parameter: Parameter,
    relation: NeighboringRelation,
    target: tuple[float, float],
    guess: float,
) -> float:
    """About how fast log epsilon rises at a guess, by the logarithm of the parameter."""
    over = RANGES[parameter]
    safer = guess * _APART if over.safest > over.riskiest else guess / _APART
    value = max(1.0, float(int(safer))) if over.whole else safer
    if value == guess:
        return 1.0
    slope = estimated_slope(counts_at(guess), counts_at(value), relation, *target)
    return slope / abs(math.log(value / guess)) if slope > 0 else 1.0


_APART: Final = 1.1  # a factor between the values that a slope is guessed from
_START: Final[dict[Parameter, float]] = {
    Parameter.NOISE_MULTIPLIER: 1.0,
    Parameter.STEPS: 1000,
    Parameter.SAMPLING_PROBABILITY: 0.01,
}


def _log_ratio(reached: float, target: float) -> float:
    if not reached <= target:  # refuses what is no number
        return math.log(reached / target) if target < reached < math.inf else math.inf
    return math.log(reached / target) if reached > 0 else -math.inf
