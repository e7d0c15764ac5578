"""Runs on batches drawn afresh, and the pairs that dominate their last iterate.

The noise is split: one part hides, step by step, which records were in the batch, and the other
moves one run's iterate onto the other's during the last steps. docs/theory/sampled_last_iterate.md
has the proof, and says what the two constants are.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from accounting.last_iterate.declared import DataOrder
from accounting.pld.pairs import GaussianPair, Pair, SampledGaussianPair, SymmetricPair, Units
from accounting.rounding import require, rounded_up

STEPS_MAX: Final = 10**9
NOISE_RATIO_MAX: Final = 1e100  # of noise and sensitivity, either way: their squares stay doubles
_UP: Final = 1 + 2e-12  # covers logarithms, exponentials and what is done with them


class Constant(StrEnum):
    """By how much a step's sensitivity counts where it is set against part of the noise."""

    CONSERVATIVE = "conservative"  # twice
    SHARP = "sharp"  # once, as proved


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRun:
    """A run of equal steps on batches drawn afresh; lengths in units of the iterate.

    A step takes x to a map of x that depends on the batch, adds noise and may project. Where steps
    differ, the largest sensitivity, rate and constant and the least noise stand for all.
    """

    steps: int  # T, in [1, STEPS_MAX]
    step_lipschitz: float  # c in [0, 1e100]: of the map, for every batch of either dataset
    sensitivity: float  # s > 0: how far one record moves a step that uses it
    noise: float  # sigma > 0: standard deviation of the noise added to the iterate
    sampling: DataOrder  # FIXED_SIZE: a record is replaced; POISSON: by a null record
    rate: float  # q in (0, 1]: batch_size / dataset_size, or the sampling probability
    diameter: float = math.inf  # D >= 0 of the set every step projects on, and begins in
    constant: Constant = Constant.CONSERVATIVE

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        require(1 <= self.steps <= STEPS_MAX, f"steps lies in [1, {STEPS_MAX}]")
        require(0 <= self.step_lipschitz <= 1e100, "step_lipschitz lies in [0, 1e100]")
        require(0 < self.rate <= 1, "rate lies in (0, 1]")
        require(self.diameter >= 0, "diameter is not negative")
        require(
            0 < self.sensitivity < math.inf
            and 0 < self.noise < math.inf
            and 1 / NOISE_RATIO_MAX <= self.noise / self.sensitivity <= NOISE_RATIO_MAX,
            "sensitivity and noise are positive, within a factor 1e100 of each other",
        )
        known = (DataOrder.FIXED_SIZE, DataOrder.POISSON)
        require(self.sampling in known, "sampling is fixed_size or poisson")

    def distance(self, last_steps: int) -> float:
        """How far apart the iterates may be where the last steps begin, over the noise. Upper."""
        before = self.steps - last_steps
        if before == 0:
            return 0.0
        moved = self.sensitivity * _powers(self.step_lipschitz, before)
        return min(self.diameter, moved) / self.noise * _UP

    def sampled_noise(self, last_steps: int, share: float) -> float:
        """What hides a step's batch: noise over the sensitivity that is set against it. Lower."""
        doubled = self.constant is Constant.CONSERVATIVE and last_steps < self.steps
        ratio = self.noise / self.sensitivity / (2.0 if doubled else 1.0)
        return ratio * math.sqrt(share) / _UP


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledChoice:
    """Where the last steps begin, and how the noise is split there; any choice is a bound."""

    last_steps: int  # R, in [1, T]
    noise_share: float  # of the variance, for hiding the batches; 1 where R = T


def _log(c: float) -> float:
    return math.log1p(c - 1) if 0.5 <= c <= 2 else math.log(c)


def _powers(c: float, count: int) -> float:
    """1 + c + ... + c^(count-1), to a relative 1e-12; may be infinite."""
    if c == 1:
        return float(count)
    if c == 0:
        return 1.0
    exponent = count * _log(c)
    return math.expm1(exponent) / (c - 1) if exponent < 700 else math.inf


def carried_share(c: float, last_steps: int) -> float:
    """A_R = c^(2R) / (1 + c^2 + ... + c^(2R-2)): what is left of a squared distance. Upper.

    Args:
        c: >= 0.
        last_steps: R >= 1.
    """
    if c == 0:
        return 0.0
    if c == 1:
        return rounded_up(1 / last_steps)
    log_square, exponent = 2 * _log(c), -2 * last_steps * _log(c)
    if exponent >= 700:
        return 1e-300
    return math.expm1(log_square) / -math.expm1(exponent) * _UP


def units_of(run: SampledRun, choice: SampledChoice) -> Units:
    """The pairs that dominate the last iterate, in both orders: the theorem itself.

    Args:
        run: the run.
        choice: any.

    Returns:
        Pairs and how often each counts. Upper.

    Raises:
        ValueError: the choice is out of range.
    """
    count, share = choice.last_steps, choice.noise_share
    require(1 <= count <= run.steps, "last_steps lies in [1, steps]")
    require(0 < share <= 1, "noise_share lies in (0, 1]")
    alone = GaussianPair(noise_multiplier=run.sampled_noise(count, share))
    pair: Pair = alone
    if run.rate < 1 and run.sampling is DataOrder.POISSON:
        pair = SampledGaussianPair(
            noise_multiplier=alone.noise_multiplier, sampling_probability=run.rate
        )
    elif run.rate < 1:
        pair = SymmetricPair(near=alone, far=alone, sampling_probability=run.rate)
    shift = shift_of(run, choice)
    if shift == 0:
        return ((pair, count),)
    require(shift < math.inf, "the iterates may be any distance apart where last_steps begin")
    return ((pair, count), (GaussianPair(noise_multiplier=1 / shift), 1))


def shift_of(run: SampledRun, choice: SampledChoice) -> float:
    """The Gaussian part: the distance carried to the end, over its part of the noise. Upper."""
    mu = run.distance(choice.last_steps) * math.sqrt(
        carried_share(run.step_lipschitz, choice.last_steps)
    )
    if mu == 0:
        return 0.0
    left = 1 - choice.noise_share
    return mu / math.sqrt(left) if left > 0 else math.inf
