"""How records are sampled into a step."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from accounting.rounding import require_range

UNIT_ROWS_MAX: Final = 10_000  # rows of one record


class Reshuffle(StrEnum):
    """When a shuffling loader draws a new order."""

    EACH_PASS = "each_pass"  # noqa: S105 (a pass over the data, not a password)
    ONCE = "once"


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
        require_range(
            1e-100 <= self.sampling_probability <= 1,
            sampling_probability=self.sampling_probability,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonUnit:
    """Poisson sampling where one record has several rows; no request states it."""

    sampling_probability: float  # of each row, in [1e-100, 1)
    rows: int  # of one record at most, in [2, UNIT_ROWS_MAX]

    def __post_init__(self) -> None:
        """Refuse what is not a probability, and a record that has no more than one row."""
        require_range(
            1e-100 <= self.sampling_probability < 1,
            sampling_probability=self.sampling_probability,
        )
        require_range(2 <= self.rows <= UNIT_ROWS_MAX, rows=self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize:
    """A uniform subset of exactly `batch_size` records, drawn afresh each step."""

    batch_size: int  # in [1, dataset_size]
    dataset_size: int  # a public constant

    def __post_init__(self) -> None:
        """Refuse a batch that does not fit in the dataset."""
        require_range(
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
        require_range(
            1e-100 <= self.sampling_probability <= 1,
            sampling_probability=self.sampling_probability,
        )
        require_range(self.max_batch_size >= 1, max_batch_size=self.max_batch_size)
        require_range(self.dataset_size >= 1, dataset_size=self.dataset_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithReplacement:
    """`batch_size` independent uniform draws, afresh each step; a record may come up repeatedly."""

    batch_size: int  # >= 1
    dataset_size: int  # a public constant

    def __post_init__(self) -> None:
        """Refuse an empty batch or dataset."""
        require_range(self.batch_size >= 1, batch_size=self.batch_size)
        require_range(self.dataset_size >= 1, dataset_size=self.dataset_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic:
    """A fixed order that does not depend on the data, pass after pass."""

    batch_size: int  # >= 1
    steps_per_pass: int  # >= 1

    def __post_init__(self) -> None:
        """Refuse an empty batch or pass."""
        require_range(self.batch_size >= 1, batch_size=self.batch_size)
        require_range(self.steps_per_pass >= 1, steps_per_pass=self.steps_per_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """A uniformly random order, drawn each pass or once; a pass may stop before its end."""

    batch_size: int  # >= 1
    steps_per_pass: int  # >= 1
    reshuffle: Reshuffle
    dataset_size: int | None = None  # a public constant; None where it is not known

    def __post_init__(self) -> None:
        """Refuse an empty batch or pass, and more steps than there are batches."""
        require_range(self.batch_size >= 1, batch_size=self.batch_size)
        require_range(self.steps_per_pass >= 1, steps_per_pass=self.steps_per_pass)
        if self.dataset_size is not None:
            require_range(
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
        require_range(self.steps_per_pass >= 1, steps_per_pass=self.steps_per_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomAllocation:
    """Each record joins exactly `participations` steps of each pass, a uniform set of its own."""

    steps_per_pass: int  # >= 1
    participations: int  # in [1, steps_per_pass]

    def __post_init__(self) -> None:
        """Refuse an empty pass, and more participations than steps."""
        require_range(self.steps_per_pass >= 1, steps_per_pass=self.steps_per_pass)
        require_range(
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
        require_range(1e-100 <= self.max_weight <= 1, max_weight=self.max_weight)


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
        require_range(1 <= b <= n, min_separation=b, steps_per_pass=n)
        require_range(1 <= k <= -(-n // b), participations=k, min_separation=b, steps_per_pass=n)


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
        require_range(1e-100 <= q <= 1, sampling_probability=q)
        require_range(1 <= b <= n, cycle_length=b, steps_per_pass=n)


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
