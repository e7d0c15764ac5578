"""What happened: mechanisms, how records were sampled into a step, and the two together."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from accounting.events.samplings import (
    UNIT_ROWS_MAX,
    BallsAndBins,
    Cyclic,
    CyclicPoisson,
    FixedSize,
    Full,
    MinSeparation,
    NonUniform,
    Placement,
    Poisson,
    PoissonUnit,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
)
from accounting.rounding import require_range

__all__ = [
    "CATEGORIES_MAX",
    "EPSILON_MAX",
    "HALTING_MIN",
    "RHO_MAX",
    "SHAPE_MAX",
    "TRIALS_MAX",
    "UNIT_ROWS_MAX",
    "ApproximateDp",
    "BallsAndBins",
    "Cyclic",
    "CyclicPoisson",
    "Direction",
    "Event",
    "FixedSize",
    "Full",
    "Gaussian",
    "Laplace",
    "MatrixGaussian",
    "Mechanism",
    "MinSeparation",
    "NegativeBinomialTrials",
    "NeighboringRelation",
    "NoNoise",
    "NonUniform",
    "Placement",
    "Poisson",
    "PoissonTrials",
    "PoissonUnit",
    "PrivateSelection",
    "RandomAllocation",
    "RandomizedResponse",
    "Reshuffle",
    "Sampling",
    "Shuffle",
    "Span",
    "Trials",
    "TruncatedPoisson",
    "Unknown",
    "WithReplacement",
    "Zcdp",
]

CATEGORIES_MAX: Final = 10**6  # of a randomized response
EPSILON_MAX: Final = 1e4  # nats, declared; e^epsilon is far beyond any use
SHAPE_MAX: Final = 100.0  # of a truncated negative binomial law
HALTING_MIN: Final = 1e-12
TRIALS_MAX: Final = 1e6  # the mean of a Poisson law
RHO_MAX: Final = 1e4  # declared; as much noise as a Gaussian of noise_multiplier 0.007


class NeighboringRelation(StrEnum):
    """Which pairs of datasets a guarantee tells apart."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    REPLACE_SPECIAL = "replace_special"  # a record against a null record that contributes nothing


class Direction(StrEnum):
    """Which of two neighbouring datasets is the first argument of a divergence."""

    REMOVE = "remove"  # the one with the record, from the one without
    ADD = "add"  # the reverse


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """Gaussian noise on a sum of clipped contributions."""

    noise_multiplier: float  # noise std / max_grad_norm, in [1e-100, 1e100]

    def __post_init__(self) -> None:
        """Refuse what is not a noise multiplier."""
        require_range(
            1e-100 <= self.noise_multiplier <= 1e100, noise_multiplier=self.noise_multiplier
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise:
    """A step that released its sum exactly; it has no finite epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace:
    """Independent Laplace noise on each coordinate of a sum of contributions clipped in L1."""

    noise_multiplier: float  # noise scale / L1 norm bound, in [1e-100, 1e100]

    def __post_init__(self) -> None:
        """Refuse what is not a noise multiplier."""
        require_range(
            1e-100 <= self.noise_multiplier <= 1e100, noise_multiplier=self.noise_multiplier
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse:
    """Each record reports one of `categories`: its own, or any other with equal chances."""

    probability_of_truth: float  # of reporting its own, in [1e-100, 1); may be below chance
    categories: int  # in [2, 10**6]

    def __post_init__(self) -> None:
        """Refuse a certain answer, and a question with a single answer."""
        require_range(
            1e-100 <= self.probability_of_truth < 1,
            probability_of_truth=self.probability_of_truth,
        )
        require_range(2 <= self.categories <= CATEGORIES_MAX, categories=self.categories)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDp:
    """A black box that the trainer declares to be (epsilon, delta)-DP."""

    epsilon: float  # nats, in [0, 1e4]
    delta: float  # in [0, 1)

    def __post_init__(self) -> None:
        """Refuse what is not an epsilon or a delta."""
        require_range(0 <= self.epsilon <= EPSILON_MAX, epsilon=self.epsilon)
        require_range(0 <= self.delta < 1, delta=self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zcdp:
    """A black box that the trainer declares to be rho-zCDP."""

    rho: float  # in [1e-100, 1e4]

    def __post_init__(self) -> None:
        """Refuse what is not a rho."""
        require_range(1e-100 <= self.rho <= RHO_MAX, rho=self.rho)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixGaussian:
    """Gaussian noise that a strategy correlates over the steps of a pass."""

    noise_multiplier: float  # std of the noise before it is correlated / norm bound
    strategy: str  # the digest that names the strategy
    # Of the strategy under the event's sampling, upper: the most that one record moves the rows of
    # a pass; under CyclicPoisson the largest squared norm of a column.
    sensitivity_squared: float  # in [1e-120, 1e250]

    def __post_init__(self) -> None:
        """Refuse what is neither a noise multiplier nor a sensitivity."""
        require_range(
            1e-100 <= self.noise_multiplier <= 1e100, noise_multiplier=self.noise_multiplier
        )
        require_range(
            1e-120 <= self.sensitivity_squared <= 1e250,
            sensitivity_squared=self.sensitivity_squared,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeBinomialTrials:
    """At least one trial: their number is truncated negative binomial."""

    shape: float  # in (-1, 100]; 0 is the logarithmic law, 1 the geometric one
    halting_probability: float  # in [1e-12, 1)

    def __post_init__(self) -> None:
        """Refuse what gives no law."""
        require_range(-1 < self.shape <= SHAPE_MAX, shape=self.shape)
        require_range(
            HALTING_MIN <= self.halting_probability < 1,
            halting_probability=self.halting_probability,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonTrials:
    """The number of trials is Poisson; with none, a fixed output is released."""

    mean: float  # in [1, 10**6]

    def __post_init__(self) -> None:
        """Refuse a mean below 1, where the bound of the literature is false."""
        require_range(1 <= self.mean <= TRIALS_MAX, mean=self.mean)


Trials = NegativeBinomialTrials | PoissonTrials


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSelection:
    """The best of a random number of independent trials; of the others nothing is told."""

    repetitions: Trials
    base: "Event"  # a step of a trial; itself no selection
    steps: int  # of a trial, at most; >= 1

    def __post_init__(self) -> None:
        """Refuse a selection of selections, and trials without a step."""
        if isinstance(self.base.mechanism, PrivateSelection):
            raise ValueError("A selection is no trial of another selection.")
        require_range(self.steps >= 1, steps=self.steps)


Mechanism = (
    Gaussian
    | Laplace
    | RandomizedResponse
    | ApproximateDp
    | Zcdp
    | MatrixGaussian
    | NoNoise
    | PrivateSelection
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One step: a mechanism applied to records that a sampling scheme chose."""

    mechanism: Mechanism
    sampling: Sampling
    # Events are looked up at every step of every run: their hash is worked out once.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out the hash."""
        object.__setattr__(self, "_hash", hash((self.mechanism, self.sampling)))

    def __hash__(self) -> int:
        """Of the mechanism and the sampling."""
        return self._hash

    @property
    def is_correlated(self) -> bool:
        """Whether the noise of a pass is correlated over its steps."""
        return isinstance(self.sampling, MinSeparation | CyclicPoisson)

    @property
    def stream(self) -> tuple[Sampling, object]:
        """What the steps of one pass share: their sampling, and the strategy of their noise."""
        noise = self.mechanism
        return self.sampling, noise.strategy if isinstance(noise, MatrixGaussian) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Equal steps in a row."""

    event: Event
    steps: int  # >= 1

    def __post_init__(self) -> None:
        """Refuse an empty span."""
        require_range(self.steps >= 1, steps=self.steps)
