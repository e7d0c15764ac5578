"""What happened: mechanisms, how records were sampled into a step, and the two together."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

CATEGORIES_MAX: Final = 10**6  # of a randomized response
EPSILON_MAX: Final = 1e4  # nats, declared; e^epsilon is far beyond any use
SHAPE_MAX: Final = 100.0  # of a truncated negative binomial law
HALTING_MIN: Final = 1e-12
TRIALS_MAX: Final = 1e6  # the mean of a Poisson law
UNIT_ROWS_MAX: Final = 10_000  # rows of one record
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


class Reshuffle(StrEnum):
    """When a shuffling loader draws a new order."""

    EACH_PASS = "each_pass"  # noqa: S105 (a pass over the data, not a password)
    ONCE = "once"


def _require(condition: bool, /, **values: object) -> None:
    if not condition:
        names = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise ValueError(f"Out of range: {names}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """Gaussian noise on a sum of clipped contributions."""

    noise_multiplier: float  # noise std / max_grad_norm, in [1e-100, 1e100]

    def __post_init__(self) -> None:
        """Refuse what is not a noise multiplier."""
        _require(1e-100 <= self.noise_multiplier <= 1e100, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise:
    """A step that released its sum exactly; it has no finite epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace:
    """Independent Laplace noise on each coordinate of a sum of contributions clipped in L1."""

    noise_multiplier: float  # noise scale / L1 norm bound, in [1e-100, 1e100]

    def __post_init__(self) -> None:
        """Refuse what is not a noise multiplier."""
        _require(1e-100 <= self.noise_multiplier <= 1e100, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse:
    """Each record reports one of `categories`: its own, or any other with equal chances."""

    probability_of_truth: float  # of reporting its own, in [1e-100, 1); may be below chance
    categories: int  # in [2, 10**6]

    def __post_init__(self) -> None:
        """Refuse a certain answer, and a question with a single answer."""
        _require(
            1e-100 <= self.probability_of_truth < 1,
            probability_of_truth=self.probability_of_truth,
        )
        _require(2 <= self.categories <= CATEGORIES_MAX, categories=self.categories)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDp:
    """A black box that somebody else proved to be (epsilon, delta)-DP."""

    epsilon: float  # nats, in [0, 1e4]
    delta: float  # in [0, 1)

    def __post_init__(self) -> None:
        """Refuse what is not an epsilon or a delta."""
        _require(0 <= self.epsilon <= EPSILON_MAX, epsilon=self.epsilon)
        _require(0 <= self.delta < 1, delta=self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zcdp:
    """A black box that somebody else proved to be rho-zCDP."""

    rho: float  # in [1e-100, 1e4]

    def __post_init__(self) -> None:
        """Refuse what is not a rho."""
        _require(1e-100 <= self.rho <= RHO_MAX, rho=self.rho)


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
        _require(1e-100 <= self.noise_multiplier <= 1e100, noise_multiplier=self.noise_multiplier)
        _require(
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
        _require(-1 < self.shape <= SHAPE_MAX, shape=self.shape)
        _require(
            HALTING_MIN <= self.halting_probability < 1,
            halting_probability=self.halting_probability,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonTrials:
    """The number of trials is Poisson; with none, a fixed output is released."""

    mean: float  # in [1, 10**6]

    def __post_init__(self) -> None:
        """Refuse a mean below 1, where the bound of the literature is false."""
        _require(1 <= self.mean <= TRIALS_MAX, mean=self.mean)


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
        _require(self.steps >= 1, steps=self.steps)


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
class Full:
    """Every record takes part in every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The trainer does not know how records were sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Each record joins each step independently."""

    sampling_probability: float  # in [1e-100, 1]

    def __post_init__(self) -> None:
        """Refuse what is not a probability."""
        _require(
            1e-100 <= self.sampling_probability <= 1,
            sampling_probability=self.sampling_probability,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonUnit:
    """Poisson sampling of rows of which one record has several; no request states it."""

    sampling_probability: float  # of each row, in [1e-100, 1)
    rows: int  # of one record at most, in [2, UNIT_ROWS_MAX]

    def __post_init__(self) -> None:
        """Refuse what is not a probability, and a record that has no more than one row."""
        _require(
            1e-100 <= self.sampling_probability < 1,
            sampling_probability=self.sampling_probability,
        )
        _require(2 <= self.rows <= UNIT_ROWS_MAX, rows=self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize:
    """A uniform subset of exactly `batch_size` records, drawn afresh each step."""

    batch_size: int  # in [1, dataset_size]
    dataset_size: int  # a public constant

    def __post_init__(self) -> None:
        """Refuse a batch that does not fit in the dataset."""
        _require(
            1 <= self.batch_size <= self.dataset_size,
            batch_size=self.batch_size,
            dataset_size=self.dataset_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson:
    """Poisson sampling whose surplus is dropped: a uniform subset of those that joined is kept."""

    sampling_probability: float  # in [1e-100, 1]
    max_batch_size: int  # >= 1
    dataset_size: int  # a public constant

    def __post_init__(self) -> None:
        """Refuse what is not a probability, an empty batch and an empty dataset."""
        _require(
            1e-100 <= self.sampling_probability <= 1,
            sampling_probability=self.sampling_probability,
        )
        _require(self.max_batch_size >= 1, max_batch_size=self.max_batch_size)
        _require(self.dataset_size >= 1, dataset_size=self.dataset_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithReplacement:
    """`batch_size` independent uniform draws, afresh each step; a record may come up repeatedly."""

    batch_size: int  # >= 1
    dataset_size: int  # a public constant

    def __post_init__(self) -> None:
        """Refuse an empty batch or dataset."""
        _require(self.batch_size >= 1, batch_size=self.batch_size)
        _require(self.dataset_size >= 1, dataset_size=self.dataset_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic:
    """A fixed order that does not depend on the data, pass after pass."""

    batch_size: int  # >= 1
    steps_per_pass: int  # >= 1

    def __post_init__(self) -> None:
        """Refuse an empty batch or pass."""
        _require(self.batch_size >= 1, batch_size=self.batch_size)
        _require(self.steps_per_pass >= 1, steps_per_pass=self.steps_per_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """A uniformly random order, drawn each pass or once; a pass may stop before its end."""

    batch_size: int  # >= 1
    steps_per_pass: int  # >= 1
    reshuffle: Reshuffle
    dataset_size: int | None = None  # a public constant; None where it is not known

    def __post_init__(self) -> None:
        """Refuse an empty batch or pass, and more steps than there are batches."""
        _require(self.batch_size >= 1, batch_size=self.batch_size)
        _require(self.steps_per_pass >= 1, steps_per_pass=self.steps_per_pass)
        if self.dataset_size is not None:
            _require(
                self.steps_per_pass <= -(-self.dataset_size // self.batch_size),
                steps_per_pass=self.steps_per_pass,
                batch_size=self.batch_size,
                dataset_size=self.dataset_size,
            )

    @property
    def stops_early(self) -> bool:
        """Whether it is known that each pass, in an order of its own, leaves records out."""
        size, fresh = self.dataset_size, self.reshuffle is Reshuffle.EACH_PASS
        return fresh and size is not None and self.steps_per_pass * self.batch_size < size

    @property
    def is_whole(self) -> bool:
        """Whether it is known that batches of full size take up all records in each pass."""
        return self.steps_per_pass * self.batch_size == self.dataset_size


@dataclass(frozen=True, slots=True, kw_only=True)
class BallsAndBins:
    """Each record lands in one step of each pass, uniformly and independently of the others."""

    steps_per_pass: int  # >= 1

    def __post_init__(self) -> None:
        """Refuse an empty pass."""
        _require(self.steps_per_pass >= 1, steps_per_pass=self.steps_per_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomAllocation:
    """Each record joins exactly `participations` steps of each pass, a uniform set of its own."""

    steps_per_pass: int  # >= 1
    participations: int  # in [1, steps_per_pass]

    def __post_init__(self) -> None:
        """Refuse an empty pass, and more participations than steps."""
        _require(self.steps_per_pass >= 1, steps_per_pass=self.steps_per_pass)
        _require(
            1 <= self.participations <= self.steps_per_pass,
            participations=self.participations,
            steps_per_pass=self.steps_per_pass,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NonUniform:
    """One record a step, drawn with weights that do not depend on the data."""

    max_weight: float  # no record's weight is above it; in [1e-100, 1]

    def __post_init__(self) -> None:
        """Refuse what is not a probability."""
        _require(1e-100 <= self.max_weight <= 1, max_weight=self.max_weight)


class Placement(StrEnum):
    """What decides in which steps of a pass a record takes part."""

    BY_SLOT = "by_slot"  # its place among the records: a missing one may move all later ones
    BY_RECORD = "by_record"  # the record itself and coins of its own, never another record


@dataclass(frozen=True, slots=True, kw_only=True)
class MinSeparation:
    """Any steps of a pass, as far apart as declared and as few; for correlated noise."""

    steps_per_pass: int  # >= 1
    min_separation: int  # two steps of a record are at least so many apart; in [1, steps_per_pass]
    participations: int  # steps of a record, at most; in [1, ceil(steps_per_pass/min_separation)]
    placement: Placement
    noise_restarts_each_pass: bool  # attested; else what follows the first pass has no bound

    def __post_init__(self) -> None:
        """Refuse what no record can do."""
        n, b, k = self.steps_per_pass, self.min_separation, self.participations
        _require(1 <= b <= n, min_separation=b, steps_per_pass=n)
        _require(1 <= k <= -(-n // b), participations=k, min_separation=b, steps_per_pass=n)


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicPoisson:
    """Records are in groups; at step t each of group t mod cycle_length joins by a coin."""

    sampling_probability: float  # of a record of the group, in [1e-100, 1]
    cycle_length: int  # groups; in [1, steps_per_pass]
    steps_per_pass: int  # >= 1
    placement: Placement  # of a record into a group, before the pass
    noise_restarts_each_pass: bool  # as of MinSeparation

    def __post_init__(self) -> None:
        """Refuse what is not a probability, and groups that have no step."""
        q, b, n = self.sampling_probability, self.cycle_length, self.steps_per_pass
        _require(1e-100 <= q <= 1, sampling_probability=q)
        _require(1 <= b <= n, cycle_length=b, steps_per_pass=n)


Sampling = (
    Full
    | Unknown
    | Poisson
    | PoissonUnit
    | TruncatedPoisson
    | FixedSize
    | WithReplacement
    | Cyclic
    | Shuffle
    | BallsAndBins
    | RandomAllocation
    | NonUniform
    | MinSeparation
    | CyclicPoisson
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
        _require(self.steps >= 1, steps=self.steps)
