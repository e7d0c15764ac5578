"""Events of all kinds, for what covers what."""

from itertools import product
from typing import Final

from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NoNoise,
    NonUniform,
    Poisson,
    RandomAllocation,
    RandomizedResponse,
    Reshuffle,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)

EACH_PASS: Final = Reshuffle.EACH_PASS


def gaussian(noise: float, sampling: Sampling) -> Event:
    """A Gaussian step."""
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


MECHANISMS: Final[tuple[Mechanism, ...]] = (
    *(Gaussian(noise_multiplier=noise) for noise in (0.7, 1.0, 3.0)),
    *(Laplace(noise_multiplier=noise) for noise in (0.7, 2.0)),
    RandomizedResponse(probability_of_truth=0.6, categories=3),
    RandomizedResponse(probability_of_truth=0.5, categories=3),
    *(ApproximateDp(epsilon=e, delta=d) for e, d in product((0.4, 1.0), (0.0, 1e-3))),
    Zcdp(rho=0.1),
    NoNoise(),
)
# Of which every mechanism has a bound, or none.
PLAIN: Final[tuple[Sampling, ...]] = (
    Full(),
    Unknown(),
    *(Poisson(sampling_probability=q) for q in (0.01, 0.3, 0.999, 1.0)),
)
# Of which Gaussian noise has one.
DRAWN: Final[tuple[Sampling, ...]] = (
    *(FixedSize(batch_size=b, dataset_size=10) for b in (1, 3, 9, 10)),
    FixedSize(batch_size=6, dataset_size=20),
    FixedSize(batch_size=20, dataset_size=20),
    *(TruncatedPoisson(sampling_probability=q, max_batch_size=3, dataset_size=12)
      for q in (0.1, 0.2)),
    *(WithReplacement(batch_size=b, dataset_size=12) for b in (2, 3)),
    *(NonUniform(max_weight=c) for c in (0.05, 0.5, 0.98, 1.0)),
)  # fmt: skip
PASSES: Final[tuple[Sampling, ...]] = (
    *(Cyclic(batch_size=2, steps_per_pass=length) for length in (3, 4)),
    *(Shuffle(batch_size=2, steps_per_pass=3, reshuffle=EACH_PASS, dataset_size=n) for n in (6, 9)),
    *(BallsAndBins(steps_per_pass=length) for length in (3, 4)),
    *(RandomAllocation(steps_per_pass=4, participations=k) for k in (1, 2)),
)
EVENTS: Final = tuple(
    Event(mechanism=mechanism, sampling=sampling)
    for mechanism, sampling in product(MECHANISMS, (*PLAIN, *DRAWN, *PASSES))
)
