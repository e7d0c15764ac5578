"""Correlated noise whose batches are drawn from groups in turn: docs/theory/correlated_noise.md."""

import math

from accounting.correlated_noise.sensitivity import Participation, sensitivity_of
from accounting.correlated_noise.strategies import Strategy, bands_of
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.rounding import require, rounded_down


@theorem(
    id="cyclic-poisson",
    source="docs/theory/correlated_noise.md, Theorem 5; after Choquette-Choo et al. 2023, "
    "arXiv:2306.08153",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.CYCLIC_POISSON_SAMPLING, Assumption.INDEPENDENT_GAUSSIAN_NOISE),
)
def cyclic_poisson_step(
    *,
    noise_multiplier: float,
    column_norm_squared: float,
    steps_per_pass: int,
    cycle_length: int,
) -> tuple[float, int]:
    """A pass of correlated noise in blocks is as many Poisson-sampled Gaussian steps.

    Records are in groups, and one group takes its turn at each step; each of its records joins with
    the same probability. With a strategy of at most cycle_length bands, what a record does to the
    rows in each of its turns is in rows of that turn alone.

    Args:
        noise_multiplier: standard deviation of the noise before it is correlated / clipping norm.
        column_norm_squared: of the longest column of the strategy. Upper.
        steps_per_pass: of the pass, >= 1.
        cycle_length: groups, >= 1, and at least as many as the strategy has bands.

    Returns:
        (noise multiplier of each Poisson step, how many steps there are). Upper bounds of the pass
        follow: the noise is rounded down, and the number, ceil(n / b), is exact.

    Raises:
        ValueError: an argument is out of range.
    """
    require(0 < column_norm_squared < math.inf, "0 < column_norm_squared < inf")
    require(0 < noise_multiplier < math.inf, "0 < noise_multiplier < inf")
    require(1 <= cycle_length <= steps_per_pass, "1 <= cycle_length <= steps_per_pass")
    noise = rounded_down(noise_multiplier / math.sqrt(column_norm_squared), ulps=2)
    return noise, -(-steps_per_pass // cycle_length)


def column_norm_of(strategy: Strategy, *, steps: int, cycle_length: int) -> float:
    """The largest squared norm of a column of a strategy that cyclic_poisson_step serves. Upper.

    Raises:
        ValueError: the strategy has more bands than there are groups, or has no bands.
    """
    bands = bands_of(strategy, steps)
    require(bands <= cycle_length, f"at least {bands} groups, as many as the strategy has bands")
    once = Participation(steps=steps, min_separation=1, participations=1)
    return sensitivity_of(strategy, once).squared


THEOREMS = (cyclic_poisson_step,)
