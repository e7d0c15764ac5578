"""How records were sampled into a step: messages, and how they become accounting samplings."""

from typing import Annotated, Any, Final, Literal, assert_never

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from accounting import events as core
from accounting.events import Reshuffle
from service.errors import InvalidRequestError
from service.schemas.correlated.steps import (
    CyclicPoissonSampling,
    MinSeparationSampling,
    to_correlated_sampling,
)
from service.schemas.descriptions import describe
from service.schemas.message import PROBABILITY_MIN, Probability, Wire, Within

RECORDS_MAX: Final = 10**12
UNIT_ROWS_MAX: Final = 10_000  # records of one person

Count = Annotated[int, Within(1, RECORDS_MAX)]


RowsPerUnit = Annotated[int, Within(1, UNIT_ROWS_MAX)]


def _required_count(schema: dict[str, Any]) -> None:
    """A count like any other in the schema: null is never valid."""
    schema.pop("anyOf", None)
    schema.pop("default", None)
    schema |= {"type": "integer", **Within(1, RECORDS_MAX).bounds}


def _required_length(schema: dict[str, Any], model: type) -> None:
    """A message without steps_per_pass is refused, though after its size was looked at."""
    describe(schema, model)
    schema["required"].append("steps_per_pass")


_WITH_LENGTH: Final = ConfigDict(json_schema_extra=_required_length)
# The sender's word: no default is on the safe side. A message without it is refused where the
# dataset's size is known, so that the refusal can say which number fits which loader.
PassLength = Annotated[
    Count | None,
    Field(
        json_schema_extra=_required_count,
        description="Steps of a pass: ceil(dataset_size / batch_size) where the loader uses a "
        "last, smaller batch, floor(dataset_size / batch_size) where it drops it (drop_last); "
        "fewer where each pass stops early.",
    ),
]
# What the length of a pass tells already: it is compared, and stored as that length alone, so that
# steps have one form.
LeftOut = Annotated[
    Annotated[int, Within(0, RECORDS_MAX)] | None,
    Field(
        exclude_if=lambda value: value is None,
        description="Records that each pass leaves out, for a comparison with the other fields: "
        "max(0, dataset_size - steps_per_pass * batch_size). Not needed.",
    ),
]
ExpectedBatchSize = Annotated[float, Within(1e-6, 1e12)]


def _describe_one_rate(schema: dict[str, Any], model: type) -> None:
    """Describe a message that gives exactly one of two rates."""
    describe(schema, model)
    # Generators make two types of a `oneOf`; this they leave to the service.
    schema |= {
        "if": _has(schema, "sampling_probability"),
        "then": {"properties": {"expected_batch_size": _NOT_GIVEN}},
        "else": _has(schema, "expected_batch_size"),
    }


_NOT_GIVEN: Final = {"type": "null", "description": "The other rate is given."}


def _has(schema: dict[str, Any], name: str) -> dict[str, Any]:
    number, _null = schema["properties"][name]["anyOf"]
    given = number | {"description": "The one rate that is given."}
    return {"required": [name], "properties": {name: given}}


class FullSampling(Wire):
    """Every record, every step."""

    kind: Literal["full"]


class UnknownSampling(Wire):
    """The trainer does not know; accounted as full."""

    kind: Literal["unknown"]


class PoissonSampling(Wire):
    """Each record joins each step independently."""

    model_config = ConfigDict(json_schema_extra=_describe_one_rate)

    kind: Literal["poisson"]
    sampling_probability: Probability | None = None
    expected_batch_size: ExpectedBatchSize | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "PoissonSampling":
        if (self.sampling_probability is None) == (self.expected_batch_size is None):
            raise PydanticCustomError(
                "one_of_two", "give exactly one of sampling_probability and expected_batch_size"
            )
        return self


class TruncatedPoissonSampling(Wire):
    """Each record joins each step independently; of a surplus, a uniform subset is kept."""

    kind: Literal["truncated_poisson"]
    sampling_probability: Probability
    max_batch_size: Count


class FixedSizeSampling(Wire):
    """A uniform subset of constant size, fresh each step."""

    kind: Literal["fixed_size"]
    batch_size: Count


class WithReplacementSampling(Wire):
    """Independent uniform draws, fresh each step; a record may come up repeatedly."""

    kind: Literal["with_replacement"]
    batch_size: Count


class CyclicSampling(Wire):
    """A fixed order, pass after pass."""

    model_config = _WITH_LENGTH

    kind: Literal["cyclic"]
    batch_size: Count
    steps_per_pass: PassLength = None


class ShuffleSampling(Wire):
    """A random order, drawn each pass or once."""

    model_config = _WITH_LENGTH

    kind: Literal["shuffle"]
    batch_size: Count
    reshuffle: Literal["each_pass", "once"]
    steps_per_pass: PassLength = None
    left_out: LeftOut = None


class BallsAndBinsSampling(Wire):
    """Each record lands in one uniform step of each pass."""

    kind: Literal["balls_and_bins"]
    steps_per_pass: Count


class RandomAllocationSampling(Wire):
    """Each record joins a uniform set of `participations` steps of each pass."""

    kind: Literal["random_allocation"]
    steps_per_pass: Count
    participations: Count  # in [1, steps_per_pass]

    @field_validator("participations")
    @classmethod
    def _within_a_pass(cls, participations: int, info: ValidationInfo) -> int:
        # A faulty steps_per_pass is a fault of its own.
        if participations > info.data.get("steps_per_pass", RECORDS_MAX):
            raise PydanticCustomError("out_of_range", "must lie in [1, steps_per_pass]")
        return participations


class NonUniformSampling(Wire):
    """One record a step, drawn with weights that do not depend on the data."""

    kind: Literal["non_uniform"]
    max_weight: Probability  # of any record; at least 1 / dataset_size


# Samplings without a probability that a plan could leave open.
RatelessSampling = (
    FullSampling
    | UnknownSampling
    | FixedSizeSampling
    | WithReplacementSampling
    | CyclicSampling
    | ShuffleSampling
    | BallsAndBinsSampling
    | RandomAllocationSampling
    | NonUniformSampling
    | MinSeparationSampling
    | CyclicPoissonSampling
)
SamplingMessage = Annotated[
    PoissonSampling | TruncatedPoissonSampling | RatelessSampling, Field(discriminator="kind")
]


def _complete(message: SamplingMessage) -> SamplingMessage:
    if isinstance(message, CyclicSampling | ShuffleSampling) and message.steps_per_pass is None:
        fitting = fitting_lengths(None, message.batch_size)
        raise PydanticCustomError("no_length", f"steps_per_pass must be given: {fitting}")
    return message


# Where a message is kept as it came, and never turned into an accounting sampling.
CompleteSampling = Annotated[SamplingMessage, AfterValidator(_complete)]


def to_sampling(
    message: SamplingMessage, *, dataset_size: int | None, location: str
) -> core.Sampling:
    """The accounting sampling of a message.

    Raises:
        InvalidRequestError: a size does not fit the dataset, the length of a pass is missing, or
            the dataset's size is needed and not known.
    """
    match message:
        case FullSampling():
            return core.Full()
        case UnknownSampling():
            return core.Unknown()
        case PoissonSampling():
            return _poisson(message, dataset_size, location)
        case TruncatedPoissonSampling() | FixedSizeSampling() | WithReplacementSampling():
            return _of_known_size(message, _require_dataset_size(dataset_size, location), location)
        case CyclicSampling() | ShuffleSampling():
            return _in_order(message, dataset_size, location)
        case BallsAndBinsSampling() | RandomAllocationSampling() | NonUniformSampling():
            return _each_by_itself(message, dataset_size, location)
        case MinSeparationSampling() | CyclicPoissonSampling():
            return to_correlated_sampling(message, location=location)
        case _:
            assert_never(message)


def _poisson(message: PoissonSampling, dataset_size: int | None, location: str) -> core.Sampling:
    if message.expected_batch_size is not None:
        n = _require_dataset_size(dataset_size, location)
        _fits(message.expected_batch_size, n, f"{location}.expected_batch_size")
        rate = max(PROBABILITY_MIN, message.expected_batch_size / n)
        return core.Poisson(sampling_probability=rate)
    assert message.sampling_probability is not None  # noqa: S101 (the message has one of the two)
    return core.Poisson(sampling_probability=message.sampling_probability)


def _of_known_size(
    message: TruncatedPoissonSampling | FixedSizeSampling | WithReplacementSampling,
    dataset_size: int,
    location: str,
) -> core.Sampling:
    match message:
        case TruncatedPoissonSampling():
            return core.TruncatedPoisson(
                sampling_probability=message.sampling_probability,
                max_batch_size=message.max_batch_size,
                dataset_size=dataset_size,
            )
        case FixedSizeSampling(batch_size=size):
            _fits(size, dataset_size, f"{location}.batch_size")
            return core.FixedSize(batch_size=size, dataset_size=dataset_size)
        case WithReplacementSampling(batch_size=size):
            return core.WithReplacement(batch_size=size, dataset_size=dataset_size)
        case _:
            assert_never(message)


def _in_order(
    message: CyclicSampling | ShuffleSampling, dataset_size: int | None, location: str
) -> core.Sampling:
    length = message.steps_per_pass
    if dataset_size is not None:
        _fits(message.batch_size, dataset_size, f"{location}.batch_size")
    if length is None:
        fitting = fitting_lengths(dataset_size, message.batch_size)
        raise InvalidRequestError(f"{location}.steps_per_pass", f"must be given: {fitting}")
    if dataset_size is not None:
        _fits(length, -(-dataset_size // message.batch_size), f"{location}.steps_per_pass")
    if isinstance(message, CyclicSampling):
        return core.Cyclic(batch_size=message.batch_size, steps_per_pass=length)
    if message.left_out is not None and dataset_size is not None:
        _require_left_out(message.left_out, dataset_size, length, message.batch_size, location)
    return core.Shuffle(
        batch_size=message.batch_size,
        steps_per_pass=length,
        reshuffle=Reshuffle(message.reshuffle),
        dataset_size=dataset_size,
    )


def _require_left_out(
    said: int, dataset_size: int, steps_per_pass: int, batch_size: int, location: str
) -> None:
    left = max(0, dataset_size - steps_per_pass * batch_size)
    if said != left:
        raise InvalidRequestError(
            f"{location}.left_out",
            f"must be {left} for this dataset: of {dataset_size} records, {steps_per_pass} steps "
            f"of {batch_size} leave {left} out",
        )


def fitting_lengths(dataset_size: int | None, batch_size: int) -> str:
    """Say which steps_per_pass fits which loader, with the numbers where the size is known."""
    if dataset_size is None:
        used, dropped = "ceil(dataset_size / batch_size)", "floor(dataset_size / batch_size)"
    else:
        used, dropped = str(-(-dataset_size // batch_size)), str(dataset_size // batch_size)
        if used == dropped:
            return f"{used} for a loader that uses all records in each pass"
    return (
        f"{used} for a loader that uses the last, smaller batch, {dropped} for one that drops it "
        "(drop_last)"
    )


def _each_by_itself(
    message: BallsAndBinsSampling | RandomAllocationSampling | NonUniformSampling,
    dataset_size: int | None,
    location: str,
) -> core.Sampling:
    match message:
        case BallsAndBinsSampling():
            return core.BallsAndBins(steps_per_pass=message.steps_per_pass)
        case RandomAllocationSampling():
            return core.RandomAllocation(
                steps_per_pass=message.steps_per_pass, participations=message.participations
            )
        case NonUniformSampling(max_weight=weight):
            if dataset_size is not None and weight < 1 / dataset_size:  # weights add up to one
                raise InvalidRequestError(
                    f"{location}.max_weight", f"must lie in [1/{dataset_size}, 1] for this dataset"
                )
            return core.NonUniform(max_weight=weight)
        case _:
            assert_never(message)


def _require_dataset_size(dataset_size: int | None, location: str) -> int:
    if dataset_size is None:
        raise InvalidRequestError(location, "this sampling needs a dataset_size")
    return dataset_size


def _fits(size: float, limit: int, location: str) -> None:
    if size > limit:
        raise InvalidRequestError(location, f"must lie in [1, {limit}] for this dataset")
