"""What a trainer's client reads from the code that runs: messages."""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.schemas.field_errors import AUDIT_TAGS, FINDING_TAGS
from service.schemas.message import Body, Sha256, Wire, Within
from service.schemas.requests import BatchSizesVerdict, Name, SamplingStatus, Step, printable
from service.schemas.samplings import CompleteSampling

SEEN_MAX: Final = 40  # entries
NUMBER_MAX: Final = 10**15  # of what was seen; every double that is whole up to it is exact
WORLD_SIZE_MAX: Final = 100_000  # processes of one job

WorldSize = Annotated[int, Within(1, WORLD_SIZE_MAX)]
_Rank = Annotated[int, Within(0, WORLD_SIZE_MAX - 1)]
_Level = Annotated[float, Within(0, 1, ends="()")]
_Reason = Annotated[str, Field(max_length=500), AfterValidator(printable)]


def _validate_once(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    # One fault in the sender's words, not one for each member of the union.
    try:
        return validate(value)
    except ValidationError:
        raise PydanticCustomError(
            "not_seen",
            f"must be true, false, printable text up to 200 or a number within {NUMBER_MAX:g}",
        ) from None


_MARGINS: Final = Within(-NUMBER_MAX, NUMBER_MAX)
SeenName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(printable)]
SeenValue = Annotated[
    bool
    | Annotated[int, _MARGINS]
    | Annotated[float, _MARGINS]
    | Annotated[str, Field(max_length=200), AfterValidator(printable)],
    WrapValidator(_validate_once),
]


class SamplingFinding(Wire):
    """How a loader samples, as its classes and settings say."""

    kind: Literal["sampling"]
    branch: Name = "main"
    from_step: Step
    status: SamplingStatus
    declared: CompleteSampling | None = None
    recorded: CompleteSampling  # what steps from there on are recorded as
    # Class names and settings; never a size that was drawn, a seed or a record.
    seen: Annotated[dict[SeenName, SeenValue], Field(max_length=SEEN_MAX)]
    reason: _Reason

    @model_validator(mode="after")
    def _contradicts_something(self) -> "SamplingFinding":
        if self.status == "contradicted" and self.declared is None:
            raise PydanticCustomError(
                "nothing_contradicted", "declared must be given where it is contradicted"
            )
        return self

    @property
    def claim(self) -> str:
        """What findings of this kind are compared by."""
        return self.status


class RankFinding(Wire):
    """One process of a job, and the fingerprint of its configuration."""

    kind: Literal["rank"]
    branch: Name = "main"
    world_size: WorldSize
    rank: _Rank  # in [0, world_size)
    fingerprint: Sha256  # of configuration only: nothing in it depends on the data

    @field_validator("rank")
    @classmethod
    def _within_the_world(cls, rank: int, info: ValidationInfo) -> int:
        # A faulty world_size is a fault of its own.
        if rank >= info.data.get("world_size", WORLD_SIZE_MAX):
            raise PydanticCustomError("out_of_range", "must lie in [0, world_size)")
        return rank

    @property
    def claim(self) -> str:
        """What findings of this kind are compared by."""
        return f"{self.world_size} {self.fingerprint}"


class BatchSizesFinding(Wire):
    """The verdict on realised batch sizes, which are private: a trainer chose to let it out."""

    kind: Literal["batch_sizes"]
    branch: Name = "main"
    verdict: BatchSizesVerdict
    level: _Level  # the chance that a loader which is as declared is refuted all the same

    @property
    def claim(self) -> str:
        """What findings of this kind are compared by."""
        return self.verdict


CANARIES_MAX: Final = 10**6
COMPARED_MAX: Final = 1e300  # nats; a larger certified epsilon is none
# In the claim of an audit's result, behind its number.
CONTRADICTS: Final = "contradicts"
OF_PEOPLE: Final = "of_people"

_Canaries = Annotated[int, Within(1, CANARIES_MAX)]
_Correct = Annotated[int, Within(0, CANARIES_MAX)]
_AuditDelta = Annotated[float, Within(0, 1, ends="[)")]
_Compared = Annotated[float, Within(0, COMPARED_MAX)]
_Chance = Annotated[float, Within(0, 1)]
_Sequence = Annotated[int, Within(0, 2**63 - 1)]


def _within(most: str, value: int, info: ValidationInfo) -> int:
    if value > info.data.get(most, CANARIES_MAX):  # a faulty other count is a fault of its own
        raise PydanticCustomError("out_of_range", "must lie in [0, {most}]", {"most": most})
    return value


class AuditPlan(Wire):
    """An audit of a run: canaries, each included by its own fair coin, and guesses of the coins."""

    method: Literal["one_run"] = "one_run"
    canaries: _Canaries
    guesses: _Canaries  # fixed before a score is seen; abstentions count as wrong
    delta: _AuditDelta
    significance: _Level = 0.05  # of all audits of the run together
    out: Literal["absent", "null", "replaced"]  # a canary whose coin says out
    view: Literal["every_step", "last_iterate"] = "every_step"  # what the guesser sees
    canary_unit: Literal["record", "person"] = "record"
    synthetic: bool  # whether the canaries are invented: otherwise the result tells of people

    @field_validator("guesses")
    @classmethod
    def _of_canaries(cls, guesses: int, info: ValidationInfo) -> int:
        return _within("canaries", guesses, info)


class NewAudit(AuditPlan, defer_build=False):
    """An audit that is registered, or the counts of one that was not."""

    name: Name | None = None  # with it a request may be repeated
    correct: _Correct | None = None  # of an audit whose scores were seen before this request

    @field_validator("correct")
    @classmethod
    def _of_guesses(cls, correct: int | None, info: ValidationInfo) -> int | None:
        return correct if correct is None else _within("guesses", correct, info)


class AuditResult(Body):
    """What came of a registered audit."""

    correct: _Correct


class AuditFinding(AuditPlan):
    """An audit as it is recorded."""

    kind: Literal["audit"]
    branch: Name = "main"
    number: _Canaries  # among the run's audits, from 1
    name: Name | None = None
    registered: bool  # before any score was seen


class AuditComparison(Wire):
    """What a run's certificate said when an audit ended, and whether the audit contradicts it."""

    reason: _Reason | None = None  # why nothing is compared
    epsilon: _Compared | None = None  # nats; the run's certified bound at `sequence`
    delta: _AuditDelta | None = None
    sequence: _Sequence | None = None
    p_value: _Chance | None = None  # of that claim, upper
    contradicts: bool = False


class AuditResultFinding(Wire):
    """The result of an audit as it is recorded."""

    kind: Literal["audit_result"]
    branch: Name = "main"
    number: _Canaries
    correct: _Correct
    compared: AuditComparison


def _tag(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    tag = f"({kind})" if isinstance(kind, str) else ""
    return tag if tag in (*FINDING_TAGS, *AUDIT_TAGS) else None


_Told = (
    Annotated[SamplingFinding, Tag(FINDING_TAGS[0])]
    | Annotated[RankFinding, Tag(FINDING_TAGS[1])]
    | Annotated[BatchSizesFinding, Tag(FINDING_TAGS[2])]
)
NewFinding = Annotated[
    _Told,
    Discriminator(
        _tag,
        custom_error_type="no_such_kind",
        custom_error_message="kind must be one of 'sampling', 'rank', 'batch_sizes'",
    ),
]
# What a ledger document holds: audits come in by requests of their own.
RecordedFinding = Annotated[
    _Told
    | Annotated[AuditFinding, Tag(AUDIT_TAGS[0])]
    | Annotated[AuditResultFinding, Tag(AUDIT_TAGS[1])],
    Discriminator(
        _tag,
        custom_error_type="no_such_kind",
        custom_error_message="kind must be one of 'sampling', 'rank', 'batch_sizes', 'audit', "
        "'audit_result'",
    ),
]
