"""The ground of every message: strict, closed, and bounded at both ends."""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from service.schemas.descriptions import describe

PROBABILITY_MIN: Final = 1e-12

N = TypeVar("N", int, float)


def within(low: N, high: N, *, ends: str = "[]") -> Callable[[N], N]:
    """Refuse what is outside an interval, by naming the interval; a zero loses its sign."""
    left, right = ends[0], ends[1]
    text = f"must lie in {left}{low:g}, {high:g}{right}"

    def check(value: N) -> N:
        above = low < value or (left == "[" and low == value)
        below = value < high or (right == "]" and value == high)
        if not (above and below):
            raise PydanticCustomError("out_of_range", text)
        return value + 0  # -0.0 and 0.0 are one value, and have one stored form

    return check


def bounds(low: float, high: float, *, ends: str = "[]") -> dict[str, Any]:
    """The same interval for the JSON schema."""
    left, right = ends[0], ends[1]
    return {
        "minimum" if left == "[" else "exclusiveMinimum": low,
        "maximum" if right == "]" else "exclusiveMaximum": high,
    }


Probability = Annotated[
    float,
    AfterValidator(within(PROBABILITY_MIN, 1.0)),
    Field(json_schema_extra=bounds(PROBABILITY_MIN, 1)),
]
Delta = Annotated[
    float,
    AfterValidator(within(0.0, 1.0, ends="()")),
    Field(json_schema_extra=bounds(0, 1, ends="()")),
]


class Wire(BaseModel):
    """Base of every message: no coercion, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        json_schema_extra=describe,
        defer_build=True,  # until it is used: a command uses few
    )


class Body(Wire):
    """Base of every message that a route takes as its body: built at once, as FastAPI needs it."""

    model_config = ConfigDict(defer_build=False)
