"""Alternatives to a declared sampling, as bets on the next size.

A bet proposes a law g of the next size. What it proposes depends on past sizes only, and g adds up
to 1 or less. If the declared law f is the true one, then E[g / f] is the sum of g over the sizes
that f allows, so at most 1. Each bet stakes 7 parts in 10 on g / f and keeps 3 as they are: the
factor .3 + .7 g / f has an expectation of at most 1 too, and one wrong guess does not end it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

from dpledger_client.sampling_check import binomial
from dpledger_client.sampling_check.batch_size_laws import Law

KEPT: Final = 0.3
STAKED: Final = 0.7
SHIFTS: Final = (-4.0, -1.0, -0.25, 0.25, 1.0, 4.0)  # standard deviations
LOG2_SPREADS: Final = (-6, -4, -2, -1, 1, 2, 4, 6)  # of the factor on the variance
LOG_2: Final = math.log(2.0)
LOG_3: Final = math.log(3.0)
SQRT_2: Final = math.sqrt(2.0)


def hedged(log_ratio: float) -> float:
    """The log of .3 + .7 exp(log_ratio); log_ratio is in nats and may be infinite."""
    if log_ratio > 0:
        return log_ratio + math.log(STAKED + KEPT * math.exp(-log_ratio))
    return math.log(KEPT + STAKED * math.exp(log_ratio))


class Bet(Protocol):
    """A bet on the next size, together with what it remembers. Immutable."""

    @property
    def name(self) -> str:
        """Of the alternative; unique within a scheme."""
        ...

    def play(self, size: int, law: Law, log_mass: float) -> tuple[float, Self]:
        """Settle this bet and place the next.

        Args:
            size: the one that came.
            law: the declared law of it, not certain.
            log_mass: the log of its chance under that law, finite.

        Returns:
            The log of the factor, whose expectation under the law is at most 1; the next bet.
        """
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Repeats:
    """The size of the step before comes again: g is 1 there."""

    last: int  # to begin with, the declared mean
    name: str = "constant"

    def play(self, size: int, law: Law, log_mass: float) -> tuple[float, Self]:
        """See `Bet`."""
        if size == self.last:
            return hedged(-log_mass), self
        return hedged(-math.inf), type(self)(size)


@dataclass(frozen=True, slots=True, repr=False)
class NearlyRepeats:
    """Almost the size of the step before: g is 1/3 there, and half of it at each further record.

    Over all integers 1/3 (1 + 2 (1/2 + 1/4 + ...)) = 1, so over the allowed sizes at most 1.
    """

    last: int  # to begin with, the declared mean
    name: str = "nearly constant"

    def play(self, size: int, law: Law, log_mass: float) -> tuple[float, Self]:
        """See `Bet`."""
        factor = hedged(-LOG_3 - abs(size - self.last) * LOG_2 - log_mass)
        return factor, self if size == self.last else type(self)(size)


@dataclass(frozen=True, slots=True, repr=False)
class Shifted:
    """Another sampling probability, with the same cap.

    g is again a binomial law cut at the cap: it adds up to 1, and g / f below the cap is
    exp(at_mean + (size - mean) * slope).
    """

    name: str
    at_mean: float
    slope: float
    at_cap: float

    @classmethod
    def by(cls, shift: float, law: Law) -> Self | None:
        """The mean moved by some standard deviations; None where no probability does that."""
        p, n = law.probability, law.trials
        step = shift * law.sd / n
        if not 0 < p + step < 1:
            return None
        # Logs of ratios by log1p: their errors are multiplied by the number of records.
        hit, miss = math.log1p(step / p), math.log1p(-step / (1 - p))
        if law.cap == n:
            at_cap = n * hit
        else:  # the lower end, since less than the true tail is still a bet
            at_cap = binomial.log_tail(law.cap, trials=n, probability=p + step)[0] - law.log_at_cap
        at_mean = law.mean * hit + (n - law.mean) * miss
        return cls(f"mean{shift:+g}sd", at_mean, hit - miss, at_cap)

    def play(self, size: int, law: Law, log_mass: float) -> tuple[float, Self]:
        """See `Bet`."""
        if size == law.cap:
            return hedged(self.at_cap), self
        return hedged(self.at_mean + (size - law.mean) * self.slope), self


@dataclass(frozen=True, slots=True, repr=False)
class Spread:
    """The declared mean with another variance.

    g(x) is what a normal law gives to [x - 1/2, x + 1/2), and at the cap to all from cap - 1/2 up.
    These intervals are disjoint, so g adds up to at most 1; what falls below -1/2 is given away.
    """

    name: str
    scale: float  # 1 / (sqrt(2) * the ratio of standard deviations)

    @classmethod
    def by(cls, log2_factor: int) -> Self:
        """The variance times a power of 2."""
        sign = "*" if log2_factor > 0 else "/"
        return cls(f"variance{sign}{2 ** abs(log2_factor)}", 2.0 ** (-log2_factor / 2) / SQRT_2)

    def play(self, size: int, law: Law, log_mass: float) -> tuple[float, Self]:
        """See `Bet`."""
        scale = self.scale / law.sd
        low = (size - law.mean - 0.5) * scale
        high = math.inf if size == law.cap else (size - law.mean + 0.5) * scale
        if high < 0:  # differences of small tails, never of numbers near 1
            low, high = -high, -low
        mass = 0.5 * (math.erfc(low) - math.erfc(high))
        return hedged(math.log(mass) - log_mass if mass > 0 else -math.inf), self


@dataclass(frozen=True, slots=True, repr=False)
class StopsAtMaximum:
    """Sizes are cut at the largest one seen; a bet only once that one came twice.

    g is f below the maximum m, everything that f has from m up at m itself, and 0 above: it adds up
    to 1. To wait for the second time is a choice by past sizes, and spares the loss at each record.
    """

    maximum: int = -1
    times: int = 0
    log_gain: float = 0.0  # log Pr[size >= maximum] - log Pr[size = maximum], a lower bound
    name: str = "cut at the maximum"

    def play(self, size: int, law: Law, log_mass: float) -> tuple[float, Self]:
        """See `Bet`."""
        if size < self.maximum:
            return 0.0, self
        if size > self.maximum:
            lost = 0.0 if self.times < 2 else hedged(-math.inf)
            return lost, type(self)(maximum=size, times=1)
        if self.times >= 2:
            return hedged(self.log_gain), self
        lower, _ = binomial.log_tail(size, trials=law.trials, probability=law.probability)
        return 0.0, replace(self, times=2, log_gain=lower - log_mass)


@dataclass(frozen=True, slots=True, repr=False)
class EachOncePerPass:
    """Each record lands in one step of a pass of `steps`, so that the sizes of a pass add up.

    g is the binomial law of the records that are left over the steps that are left, and adds up to
    1. The stake rides: 7 parts in 10 are put on the product of the ratios of the whole pass, as it
    is the sum that tells. Worth .3 + .7 product after each step, the value is a martingale if the
    product is one, and a factor is the value after the step over that before.
    """

    dataset_size: int
    steps: int
    left: int  # steps
    rest: int  # records
    log_product: float = 0.0
    name: str = "adds up in a pass"

    def play(self, size: int, law: Law, log_mass: float) -> tuple[float, Self]:
        """See `Bet`."""
        log_product = -math.inf
        if size <= self.rest and self.log_product > -math.inf:
            g = binomial.log_mass(size, trials=self.rest, probability=1 / self.left)
            log_product = self.log_product + g - log_mass
        factor = hedged(log_product) - hedged(self.log_product)
        n, steps = self.dataset_size, self.steps
        if self.left == 1:
            return factor, type(self)(n, steps, steps, n)
        return factor, type(self)(n, steps, self.left - 1, max(0, self.rest - size), log_product)


def on_one_size(law: Law) -> Iterator[Bet]:
    """Bets that make sense whatever the law of a step depends on."""
    mean = min(round(law.mean), law.cap)
    yield Repeats(mean)
    yield NearlyRepeats(mean)
    for log2_factor in LOG2_SPREADS:
        yield Spread.by(log2_factor)


def on_independent_sizes(law: Law) -> Iterator[Bet]:
    """Bets against sizes that are independent and follow one law."""
    yield from on_one_size(law)
    for shift in SHIFTS:
        if (shifted := Shifted.by(shift, law)) is not None:
            yield shifted
    yield StopsAtMaximum()
    if (steps := round(1 / law.probability)) >= 2:
        yield EachOncePerPass(law.trials, steps, steps, law.trials)
