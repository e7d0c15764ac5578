"""What a run that hides its iterates must declare: one message, no defaults."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from accounting.last_iterate.declared import (
    SCALE_MAX,
    SCALE_MIN,
    STAGES_MAX,
    DataOrder,
    Declared,
    Stage,
)
from service.errors import InvalidRequestError
from service.schemas.field_errors import allowed
from service.schemas.message import Wire, Within

_STEP_MAX: Final = 10**12
Scale = Annotated[float, Within(SCALE_MIN, SCALE_MAX)]
Curvature = Annotated[float, Within(-SCALE_MAX, SCALE_MAX)]


class StageMessage(Wire):
    """A learning rate, from one step to the next stage."""

    first_step: Annotated[int, Within(0, _STEP_MAX)]
    learning_rate: Scale


class HidingAssumptions(Wire):
    """What no event shows, and a bound on the last iterate alone needs; no fact has a default."""

    data_order: Literal[
        "full", "cyclic", "shuffle_once", "shuffle_each_pass", "fixed_size", "poisson"
    ]
    loss_smoothness: Scale  # the gradient of each record's loss is Lipschitz with this constant
    loss_convexity: Curvature  # each loss's least curvature: > 0 strongly, < 0 weakly convex
    learning_rate: Scale | Annotated[list[StageMessage], Field(max_length=STAGES_MAX)]
    max_grad_norm: Scale
    gradient_divisor: Scale  # what sums of clipped gradients are divided by
    projection_diameter: Scale | None  # null: no projection
    clipping_can_be_active: bool
    generalized_linear_model: bool
    initialization_data_independent: Literal[True]
    # Which constant of the bound for batches drawn afresh; a choice, and so the only default.
    sampled_constant: Literal["conservative", "sharp"] = "conservative"

    def declared(self) -> Declared:
        """The same, as the accounting knows it.

        Raises:
            ValueError: two fields contradict each other; the text names them.
        """
        rate = self.learning_rate
        stages = (
            [StageMessage(first_step=0, learning_rate=rate)] if isinstance(rate, float) else rate
        )
        return Declared(
            data_order=DataOrder(self.data_order),
            loss_smoothness=self.loss_smoothness,
            loss_convexity=self.loss_convexity,
            learning_rate=tuple(Stage(**stage.model_dump()) for stage in stages),
            max_grad_norm=self.max_grad_norm,
            gradient_divisor=self.gradient_divisor,
            projection_diameter=self.projection_diameter,
            clipping_can_be_active=self.clipping_can_be_active,
            generalized_linear_model=self.generalized_linear_model,
            sharp=self.sampled_constant == "sharp",
        )


def read_declared(assumptions: Mapping[str, Any], *, location: str) -> Declared:
    """The facts that assumptions declare.

    Raises:
        InvalidRequestError: names every field that is missing, unknown, out of range, or in
            contradiction to another.
    """
    try:
        return HidingAssumptions.model_validate(dict(assumptions)).declared()
    except ValidationError as error:
        faults = {
            f"{location}.{fault['loc'][0]}": _message(fault) for fault in reversed(error.errors())
        }
        raise InvalidRequestError.of(dict(reversed(faults.items()))) from None
    except ValueError as error:
        raise InvalidRequestError(location, str(error)) from None


def _message(fault: Mapping[str, Any]) -> str:
    match fault["type"]:
        case "missing":
            return "must be given: it has no default"
        case "float_type" | "list_type" if fault["loc"][0] == "learning_rate":
            return "must be a number or a list of stages"
        case _:
            return allowed(fault)
