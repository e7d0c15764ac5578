"""What happened: mechanisms, how records were sampled into a step, and the two together."""

from dataclasses import dataclass, field
from enum import StrEnum

from accounting.events.mechanisms import (
    CATEGORIES_MAX,
    EPSILON_MAX,
    HALTING_MIN,
    RHO_MAX,
    SHAPE_MAX,
    TRIALS_MAX,
    ApproximateDp,
    Gaussian,
    Laplace,
    MatrixGaussian,
    NegativeBinomialTrials,
    NoNoise,
    PoissonTrials,
    RandomizedResponse,
    Trials,
    Zcdp,
)
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
