"""The ground of every message: strict, closed, and bounded at both ends."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from service.schemas.descriptions import describe

PROBABILITY_MIN: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Within:
    """The interval of a number, for its type: what is outside is refused, and the schema tells it.

    A zero loses its sign: -0.0 and 0.0 are one value, and have one stored form.
    """

    low: float
    high: float
    ends: str = "[]"

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Refuse what is outside, by naming the interval."""
        low, high = self.low, self.high
        left, right = self.ends[0], self.ends[1]
        text = f"must lie in {left}{low:g}, {high:g}{right}"

        def check(value: float) -> float:
            above = low < value or (left == "[" and low == value)
            below = value < high or (right == "]" and value == high)
            if not (above and below):
                raise PydanticCustomError("out_of_range", text)
            return value + 0

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Tell the ends."""
        return handler(schema) | self.bounds

    @property
    def bounds(self) -> JsonSchemaValue:
        """Both ends, as a JSON schema has them."""
        left, right = self.ends[0], self.ends[1]
        return {
            "minimum" if left == "[" else "exclusiveMinimum": self.low,
            "maximum" if right == "]" else "exclusiveMaximum": self.high,
        }


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # in hexadecimal
NoiseMultiplier = Annotated[float, Within(1e-9, 1e9)]
Probability = Annotated[float, Within(PROBABILITY_MIN, 1)]
Delta = Annotated[float, Within(0, 1, ends="()")]


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
