"""What a step does to the records that it sees."""

from dataclasses import dataclass
from typing import Final

from accounting.rounding import require_range

CATEGORIES_MAX: Final = 10**6  # of a randomized response
EPSILON_MAX: Final = 1e4  # nats, declared; e^epsilon is far beyond any use
SHAPE_MAX: Final = 100.0  # of a truncated negative binomial law
HALTING_MIN: Final = 1e-12
TRIALS_MAX: Final = 1e6  # the mean of a Poisson law
RHO_MAX: Final = 1e4  # declared; as much noise as a Gaussian of noise_multiplier 0.007


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
