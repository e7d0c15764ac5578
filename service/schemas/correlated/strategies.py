"""Strategies: how noise is correlated over the steps of a pass; named by their content."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, assert_never

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from accounting import correlated_noise as core
from accounting.correlated_noise.strategies import BUFFERS_MAX, ROWS_MAX, SIZE_MAX, SIZE_MIN
from accounting.events import CyclicPoisson, MinSeparation
from accounting.work_limit import TooMuchWorkError, limit_work
from service.errors import InvalidRequestError, TooExpensiveError
from service.schemas.correlated.steps import (
    PASS_MAX,
    CorrelatedSampling,
    MatrixGaussianMechanism,
    StrategyDigest,
    to_correlated_sampling,
)
from service.schemas.event_codec import long_canonical
from service.schemas.message import Body, Wire, Within

SENSITIVITY_POINTS: Final = 175_000_000  # of the work of one sensitivity: some two seconds
STRATEGIES_MAX: Final = 400  # of a document
# The place of what holds a part of a text, and the part's name or number there.
TextPlace = tuple[Any, int | str]
_RANGE: Final = "must be 0 or of a size from 2^-200 to 2^200"


def _require_size(value: float) -> float:
    if value and not SIZE_MIN <= abs(value) <= SIZE_MAX:
        raise PydanticCustomError("out_of_range", _RANGE)
    return value + 0.0  # -0.0 and 0.0 are one value


def _above_zero(values: list[float]) -> list[float]:
    if values[0] <= 0:
        raise PydanticCustomError("out_of_range", "must begin with a number above 0")
    return values


def _decay(value: float) -> float:
    if not 0 <= value <= 1:
        raise PydanticCustomError("out_of_range", "must lie in [0, 1]")
    return value


Entry = Annotated[float, AfterValidator(_require_size)]
_Two = Annotated[int, Within(2, 2)]
_Decay = Annotated[float, AfterValidator(_require_size), AfterValidator(_decay)]


class ToeplitzStrategy(Wire):
    """Entry (i, j) of the strategy is coefficients[i - j]; further coefficients are 0."""

    kind: Literal["toeplitz"]
    coefficients: Annotated[
        list[Entry], Field(min_length=1, max_length=PASS_MAX), AfterValidator(_above_zero)
    ]
    column_normalized: bool = False


class BltStrategy(Wire):
    """A buffered linear Toeplitz strategy: 1, then the sum of scale_j decay_j^(i-1)."""

    kind: Literal["blt"]
    buffer_decay: Annotated[list[_Decay], Field(min_length=1, max_length=BUFFERS_MAX)]
    output_scale: Annotated[list[Entry], Field(min_length=1, max_length=BUFFERS_MAX)]
    column_normalized: bool = False

    @model_validator(mode="after")
    def _a_scale_for_each(self) -> "BltStrategy":
        if len(self.output_scale) != len(self.buffer_decay):
            raise PydanticCustomError(
                "lengths_differ", "output_scale and buffer_decay must be of the same length"
            )
        return self


class BandedStrategy(Wire):
    """The strategy row by row: row i has the entries up to (i, i), which comes last."""

    kind: Literal["banded"]
    rows: Annotated[
        list[Annotated[list[Entry], Field(min_length=1, max_length=ROWS_MAX)]],
        Field(min_length=1, max_length=ROWS_MAX),
    ]

    @model_validator(mode="after")
    def _lower_triangular(self) -> "BandedStrategy":
        for index, row in enumerate(self.rows):
            if len(row) > index + 1 or row[-1] <= 0:
                raise PydanticCustomError(
                    "not_triangular",
                    "row i, from 0, must have from 1 to i + 1 entries, the last above 0",
                )
        return self


class TreeStrategy(Wire):
    """The binary tree of sums over aligned intervals."""

    kind: Literal["tree"]
    arity: _Two = 2


class IdentityStrategy(Wire):
    """Noise that is independent in each step."""

    kind: Literal["identity"]


StrategyMessage = Annotated[
    ToeplitzStrategy | BltStrategy | BandedStrategy | TreeStrategy | IdentityStrategy,
    Field(discriminator="kind"),
]
_STRATEGY: Final[TypeAdapter[StrategyMessage]] = TypeAdapter(StrategyMessage)
_SAMPLING: Final[TypeAdapter[CorrelatedSampling]] = TypeAdapter(
    Annotated[CorrelatedSampling, Field(discriminator="kind")]
)
Strategies = Annotated[dict[StrategyDigest, StrategyMessage], Field(max_length=STRATEGIES_MAX)]


class NewStrategy(Body):
    """A strategy to keep."""

    strategy: StrategyMessage


def strategy_content(message: StrategyMessage) -> str:
    """The stored form: canonical JSON."""
    return long_canonical(message.model_dump(mode="json"))


def strategy_digest(content: str) -> str:
    """What names a stored form."""
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


@lru_cache(maxsize=32)
def read_strategy(content: str) -> core.Strategy:
    """The strategy whose stored form this is."""
    return to_strategy(_STRATEGY.validate_json(content))


def to_strategy(message: StrategyMessage) -> core.Strategy:
    """The accounting strategy of a message."""
    match message:
        case ToeplitzStrategy():
            return core.Toeplitz(
                coefficients=tuple(message.coefficients),
                column_normalized=message.column_normalized,
            )
        case BltStrategy():
            return core.BufferedToeplitz(
                buffer_decay=tuple(message.buffer_decay),
                output_scale=tuple(message.output_scale),
                column_normalized=message.column_normalized,
            )
        case BandedStrategy():
            return core.BandedRows(rows=tuple(tuple(row) for row in message.rows))
        case TreeStrategy():
            return core.Tree()
        case IdentityStrategy():
            return core.Identity()
        case _:
            assert_never(message)


def found_sensitivity(
    strategy: core.Strategy, sampling: MinSeparation, *, location: str
) -> core.Sensitivity:
    """The squared sensitivity of a strategy, and by which rule. Upper.

    Raises:
        InvalidRequestError: no rule serves the strategy under the sampling.
        TooExpensiveError: it takes too much work.
    """
    schema = core.Participation(
        steps=sampling.steps_per_pass,
        min_separation=sampling.min_separation,
        participations=sampling.participations,
    )
    try:
        with limit_work(SENSITIVITY_POINTS):
            return core.sensitivity_of(strategy, schema)
    except ValueError as error:
        raise InvalidRequestError(location, _in_words(error)) from None
    except TooMuchWorkError:
        raise TooExpensiveError(
            f"{location}: the sensitivity of this strategy would take more than 2 s of processor "
            "time. Strategies whose coefficients are not negative and do not increase, and those "
            "with at most min_separation bands, take least."
        ) from None


def compute_squared_sensitivity(
    strategy: core.Strategy, sampling: MinSeparation | CyclicPoisson, *, location: str
) -> float:
    """The squared sensitivity that an event of the strategy has. Upper.

    Raises:
        InvalidRequestError: no rule serves the strategy under the sampling.
        TooExpensiveError: it takes too much work.
    """
    if isinstance(sampling, MinSeparation):
        return found_sensitivity(strategy, sampling, location=location).squared
    steps, groups = sampling.steps_per_pass, sampling.cycle_length
    try:
        with limit_work(SENSITIVITY_POINTS):
            return core.column_norm_of(strategy, steps=steps, cycle_length=groups)
    except ValueError as error:
        raise InvalidRequestError(location, _in_words(error)) from None
    except TooMuchWorkError:
        raise TooExpensiveError(f"{location}: the norms of so many columns.") from None


def _in_words(error: ValueError) -> str:
    return f"does not serve this sampling: {str(error).rstrip('.').lower()}"


def sampling_in(value: object) -> MinSeparation | CyclicPoisson | None:
    """The accounting sampling that a parsed text means; None unless it is one of correlated noise.

    Raises:
        InvalidRequestError: a number is beyond the steps of the pass.
    """
    try:
        message = _SAMPLING.validate_python(value)
    except ValidationError:
        return None
    return to_correlated_sampling(message, location="sampling")


def steps_in(value: Any, place: str = "") -> Iterator[tuple[TextPlace, dict[str, Any]]]:
    """Each object of a parsed text that has a mechanism of correlated noise, and its place."""
    left: list[tuple[TextPlace, Any]] = [((None, place), value)]
    while left:
        here, one = left.pop()
        if isinstance(one, dict):
            inside = one.get("mechanism")
            if isinstance(inside, dict) and inside.get("kind") == "matrix_gaussian":
                yield here, one
            parts: Iterable[tuple[int | str, Any]] = one.items()
        else:
            parts = enumerate(one) if isinstance(one, list) else ()
        left += [((here, name), part) for name, part in parts if isinstance(part, dict | list)]


def place_parts(place: TextPlace) -> tuple[int | str, ...]:
    """The parts of a place, from the whole text inwards."""
    parts = []
    left: TextPlace | None = place
    while left is not None:
        left, name = left
        parts.append(name)
    return tuple(reversed(parts))


def find_strategy_names(document: Any) -> set[str]:
    """The digests of the strategies that the steps of a parsed document name."""
    return {str(one["mechanism"]["strategy"]) for _, one in steps_in(document)}


@lru_cache(maxsize=1024)
def _price(content: str, sampling: MinSeparation | CyclicPoisson) -> float:
    return compute_squared_sensitivity(read_strategy(content), sampling, location="strategy")


def require_known_strategies(
    steps: Iterable[Any], strategies: Mapping[str, StrategyMessage]
) -> None:
    """Refuse a document whose steps have a smaller sensitivity than their strategies.

    Args:
        steps: all of the document.
        strategies: of the document, by their digests.

    Raises:
        ValueError: one is missing, is another one than its digest says, or moves a record further.
    """
    contents = {digest: strategy_content(one) for digest, one in strategies.items()}
    for digest, content in contents.items():
        if strategy_digest(content) != digest:
            raise ValueError(f"The strategy {digest} is another one than its digest says.")
    seen = set()
    for one in steps:
        if not isinstance(one.mechanism, MatrixGaussianMechanism):
            continue
        if (key := (id(one.mechanism), id(one.sampling))) not in seen:
            seen.add(key)
            fault = strategy_fault(one.mechanism, one.sampling, contents)
            if fault is not None:
                raise ValueError(fault)


def strategy_fault(mechanism: object, sampling: object, contents: Mapping[str, str]) -> str | None:
    """Why a step is not what its strategy says; None where it is.

    Args:
        mechanism: of the step.
        sampling: of the step.
        contents: the stored forms of strategies, by their digests.
    """
    if not isinstance(mechanism, MatrixGaussianMechanism):
        return None
    content = contents.get(mechanism.strategy)
    if content is None:
        return f"The strategy {mechanism.strategy} is missing."
    if not isinstance(sampling, CorrelatedSampling) or mechanism.sensitivity_squared is None:
        return f"A step of the strategy {mechanism.strategy} has no sensitivity."
    try:
        least = _price(content, to_correlated_sampling(sampling, location="sampling"))
    except (InvalidRequestError, TooExpensiveError) as error:
        return error.detail
    if mechanism.sensitivity_squared < least:
        return f"A step has a smaller sensitivity than its strategy {mechanism.strategy}."
    return None
