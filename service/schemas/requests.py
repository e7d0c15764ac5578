"""What comes in: messages, strict and bounded, and how they become accounting events."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from accounting.events import UNIT_ROWS_MAX
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Status
from accounting.last_iterate.declared import STAGES_MAX
from service.schemas.assumptions import StageMessage
from service.schemas.mechanisms import MechanismMessage
from service.schemas.message import Body, Delta, Wire, Within
from service.schemas.run_states import End
from service.schemas.samplings import Count, SamplingMessage

STEPS_MAX: Final = 10**9  # of one event
STEP_MAX: Final = 10**12  # of a branch
EVENTS_MAX: Final = 1000  # of a JSON body
LINES_MAX: Final = 10_000  # of an NDJSON body
LABELS_MAX: Final = 64
PARENTS_MAX: Final = 16
ORDERS_MAX: Final = 64  # of a filter
ITEMS_MAX: Final = 256  # of an envelope
RESERVED_EVENTS_MAX: Final = 256  # of a reservation
PARTED_NAME_MAX: Final = 59  # characters; the number of an event follows in its rows
TTL_MAX: Final = 90 * 24 * 3600  # seconds; a reservation that outlives its trainer is forfeited
NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]{0,62}$"


MARKS_MAX: Final = 4  # on one letter; no language needs more
# What Unicode calls ignorable by default and Python printable, and the signs without a picture: the
# blank of Braille, the blanks of hieroglyphs, the Khitan filler and the null notehead.
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00013441\U00013442\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)


def printable(text: str) -> str:
    """The text, unless it has control characters, lone surrogates or what cannot be seen.

    The first two break logs, pages and Postgres; the third makes two texts that look the same.
    """
    if not text.isprintable():
        raise PydanticCustomError("not_printable", "must be printable text")
    if text and (_UNSEEN.search(text) or not text.strip() or _has_stacked_marks(text)):
        message = "must be visible text, with at most {most} combining marks in a row"
        raise PydanticCustomError("not_visible", message, {"most": MARKS_MAX})
    return text


def _has_stacked_marks(text: str) -> bool:
    """Whether a combining mark stands first, or more than MARKS_MAX of them in a row."""
    marks = "".join("m" if unicodedata.category(one) in ("Mn", "Me") else "." for one in text)
    return marks.startswith("m") or "m" * (MARKS_MAX + 1) in marks


def compose_unicode(value: Any) -> Any:
    """A value with every text in Unicode's form C: two texts that look the same are then equal."""
    match value:
        case str():
            return unicodedata.normalize("NFC", value)
        case dict():
            return {compose_unicode(name): compose_unicode(one) for name, one in value.items()}
        case list():
            return [compose_unicode(one) for one in value]
        case _:
            return value


def valid_name(text: str) -> bool:
    """Whether the text may name something."""
    return re.fullmatch(NAME_PATTERN[:-1], text) is not None


def _require_name(text: str) -> str:
    if not valid_name(text):
        raise PydanticCustomError("not_a_name", "must match [a-z0-9][a-z0-9._-]{0,62}")
    return text


Name = Annotated[
    str, AfterValidator(_require_name), Field(json_schema_extra={"pattern": NAME_PATTERN})
]
PERSON_LENGTH_MAX: Final = 511
PersonName = Annotated[str, Field(min_length=1, max_length=PERSON_LENGTH_MAX)]
# Who acted: a key by its name, or a person or pod as an identity provider names it, issuer#subject.
ActedBy = Annotated[
    str, Field(min_length=1, max_length=PERSON_LENGTH_MAX, pattern=r"^[ -~]+$"),
]  # fmt: skip
WriterName = Annotated[
    str, Field(min_length=16, max_length=128, pattern=r"^[A-Za-z0-9_-]+$"),
]  # fmt: skip
Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(printable)]
BudgetEpsilon = Annotated[float, Within(1e-6, 1e6)]
StepCount = Annotated[int, Within(1, STEPS_MAX)]
MergedSteps = Annotated[int, Within(1, STEP_MAX + STEPS_MAX)]
Step = Annotated[int, Within(0, STEP_MAX)]
Relation = Literal["add_or_remove_one", "replace_one", "replace_special"]


def _each_pass(value: Any) -> Any:
    return "every_pass" if value == "every_epoch" else value


# What is ever shown of a run's iterates; every_epoch is read as every_pass.
Release = Annotated[
    Literal["every_step", "every_pass", "last_iterate"], BeforeValidator(_each_pass)
]
Mode = Literal["record", "charge"]
FilterKind = Literal[
    "fixed_order_renyi", "union_of_orders", "gaussian_dp", "approximate_dp", "envelope"
]
RowsMost = Annotated[int, Within(1, UNIT_ROWS_MAX)]
SeveralRows = Annotated[int, Within(2, UNIT_ROWS_MAX)]


class AtMostRows(Wire):
    """A record of a parent has up to so many rows."""

    at_most: SeveralRows


RowsPerRecord = Literal["at_most_one", "exactly_one"] | AtMostRows
SamplingStatus = Literal["declared", "detected", "contradicted"]
BatchSizesVerdict = Literal["refuted", "not_refuted"]
Ttl = Annotated[int, Within(1, TTL_MAX)]
LastStep = Annotated[int, Within(-1, STEP_MAX)]
Acceptable = Literal["published", "derived", "declared", "conditional"]


class StepMessage(Wire):
    """What each of some equal steps was."""

    mechanism: MechanismMessage
    sampling: SamplingMessage


class EventMessage(StepMessage):
    """Equal steps in a row, at their place in a branch."""

    first_step: Step
    steps: StepCount


class PlannedEvent(StepMessage):
    """Equal steps in a row; without `first_step` they follow the event before."""

    first_step: Step | None = None
    steps: StepCount


class EventBatch(Wire):
    """Events of one branch, in order, recorded together or not at all."""

    branch: Name = "main"
    writer: WriterName | None = None
    mode: Mode = "record"
    events: list[EventMessage] = Field(min_length=1, max_length=EVENTS_MAX)


class EnvelopeItemMessage(StepMessage):
    """Steps of one kind that an envelope holds, or any that tell no more."""

    steps: StepCount
    name: Text | None = None


EnvelopeItems = Annotated[list[EnvelopeItemMessage], Field(min_length=1, max_length=ITEMS_MAX)]


class Budget(Wire):
    """What may never be passed, and the filter that holds it."""

    epsilon: BudgetEpsilon
    delta: Delta
    filter: FilterKind = "fixed_order_renyi"
    # Of a Renyi filter: one fixed order, or the set of a union. Chosen from the budget if missing.
    orders: list[float] | None = Field(default=None, min_length=1, max_length=ORDERS_MAX)
    envelope: EnvelopeItems | None = None  # of an envelope: all that may ever be done


class ChangedBudget(Wire):
    """A budget's new limit; its delta and its filter never change once answers were seen."""

    epsilon: BudgetEpsilon
    delta: Delta
    filter: FilterKind | None = None  # another one; only before the first answer
    orders: list[float] | None = Field(default=None, min_length=1, max_length=ORDERS_MAX)
    envelope: EnvelopeItems | None = None


Accept = Annotated[list[Acceptable], Field(min_length=1, max_length=len(Status))]


class BudgetPlan(Wire):
    """The steps that a budget is for."""

    events: list[PlannedEvent] = Field(min_length=1, max_length=EVENTS_MAX)


class NewDataset(Body):
    """A dataset to protect."""

    name: Name
    dataset_size: Count = Field(
        description="Number of records: a public constant. Of a dataset with parents you attest "
        "that it was chosen without counting which of their records were left, or that the count "
        "was released with noise and charged; with exactly_one it is at least the sum of theirs."
    )
    neighboring_relation: Relation
    privacy_unit: Text
    budget: Budget | None = None
    # Chooses the order of the budget's filter; the events are neither recorded nor required.
    for_: BudgetPlan | None = Field(default=None, alias="for")
    parents: list[Name] = Field(default_factory=list, max_length=PARENTS_MAX)
    # Attested, where there are parents: how many rows a record of theirs has in this dataset.
    rows_per_parent_record: RowsPerRecord | None = None
    # What was spent on it before this ledger, as events.
    opening_balance: list[PlannedEvent] | None = Field(
        default=None, min_length=1, max_length=EVENTS_MAX
    )
    accept: Accept | None = None


class DatasetChange(Body):
    """New settings of a dataset; what is not named stays."""

    reason: Text
    budget: ChangedBudget | None = None
    accept: Accept | None = None
    frozen: bool | None = None
    void_reservations: bool = False


def _validate_attestation(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    # One fault in the sender's words, not one for each member of the union.
    try:
        return validate(value)
    except ValidationError:
        raise PydanticCustomError(
            "not_attested",
            "must be true, false, null, a finite number, printable text or stages of a rate",
        ) from None


Stages = Annotated[list[StageMessage], Field(max_length=STAGES_MAX)]
Attested = Annotated[bool | float | Text | Stages | None, WrapValidator(_validate_attestation)]
Assumptions = Annotated[dict[Name, Attested], Field(max_length=LABELS_MAX)]
Labels = Annotated[dict[Name, Text], Field(max_length=LABELS_MAX)]


class NewRun(Body):
    """A training job that is about to start."""

    name: Name
    writer: WriterName
    dataset: Name
    delta: Delta | None = None
    release: Release = "every_step"
    assumptions: Assumptions = Field(default_factory=dict)
    plan: list[PlannedEvent] | None = Field(default=None, min_length=1, max_length=EVENTS_MAX)
    budget: Budget | None = None
    labels: Labels = Field(default_factory=dict)


Order = Literal["fresh", "continued"]


class NewBranch(Body):
    """A resume, rewind or fork of a run."""

    name: Name
    writer: WriterName
    from_step: Step
    from_branch: Name | None = None  # whose steps before from_step it shares
    order: Order | None = None  # of the records
    noise: Literal["fresh"] | None = None  # of correlated noise

    @model_validator(mode="after")
    def _of_a_new_pass(self) -> "NewBranch":
        if self.noise is not None and self.order != "fresh":
            raise PydanticCustomError("noise_without_order", "noise fresh needs order fresh")
        return self


class NewRelease(Body):
    """A released iterate: the one after a step."""

    branch: Name = "main"
    step: Step


class NewReservation(Body):
    """Steps to admit ahead: of one event, or of several that follow one another."""

    name: Name
    branch: Name = "main"
    event: PlannedEvent | None = None
    events: list[PlannedEvent] | None = Field(
        default=None, min_length=1, max_length=RESERVED_EVENTS_MAX
    )
    ttl_seconds: Ttl
    needed_steps: Step | None = None  # the others are asked for early

    @model_validator(mode="after")
    def _one_of_both(self) -> "NewReservation":
        if (self.event is None) == (self.events is None):
            raise PydanticCustomError("one_of_both", "give exactly one of event and events")
        if len(self.parts) > 1 and len(self.name) > PARTED_NAME_MAX:
            raise PydanticCustomError(
                "long_name", f"of several events has a name of at most {PARTED_NAME_MAX} characters"
            )
        return self

    @property
    def parts(self) -> list[PlannedEvent]:
        """The events, in the order of their steps."""
        return [self.event] if self.event is not None else self.events or []

    def asked(self) -> dict[str, Any]:
        """What was asked for, as it is stored: the same request again has the same text."""
        missing = "events" if self.events is None else "event"
        left_out = {missing, "needed_steps"}  # the latter is not about what is reserved
        return self.model_dump(mode="json", exclude=left_out)


class NewCorrection(StepMessage, defer_build=False):
    """What recorded steps really were."""

    branch: Name = "main"
    first_step: Step
    steps: StepCount
    reason: Text


class ReservationRelease(Body):
    """What a trainer attests of a reservation."""

    last_step: LastStep  # no later step ran; one before the reservation's first if none did


class Void(Body):
    """Why an admin returns what a reservation holds."""

    reason: Text


class Finish(Body):
    """How a run ended, or that its process did before it."""

    state: End
    branch: Name | None = None  # that ended; an older one than the latest closes no run
    reason: Text | None = None


def accepted_statuses(accept: Sequence[str] | None) -> frozenset[Status]:
    """The statuses a caller accepts; the default when it does not say."""
    return ACCEPTABLE & {Status(status) for status in accept} if accept else DEFAULT_ACCEPT
