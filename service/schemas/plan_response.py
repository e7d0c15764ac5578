"""The answer to a plan: its guarantee, and the value that was solved for."""

from accounting.calibration import Calibrated, Parameter
from accounting.event_counts import EventCounts
from accounting.guarantees import Guarantee
from service.schemas.requests import Release
from service.schemas.responses import EVERY_STEP, Answer, GuaranteeAnswer, guarantee_answer


class Solved(Answer):
    """A value that was left open, and found."""

    parameter: Parameter
    value: int | float  # a count for steps


class PlanAnswer(GuaranteeAnswer):
    """The guarantee of a plan; with the value that was solved for, at that value."""

    solved: Solved | None


def plan_answer(
    guarantee: Guarantee,
    *,
    counts: EventCounts,
    solved: Calibrated | None = None,
    release: Release = EVERY_STEP,
) -> PlanAnswer:
    """The wire form of a plan's guarantee, and of the value that was solved for."""
    value = Solved(parameter=solved.parameter, value=solved.value) if solved else None
    answer = guarantee_answer(guarantee, counts=counts, sequence=0, release=release)
    return PlanAnswer(**dict(answer), solved=value)
