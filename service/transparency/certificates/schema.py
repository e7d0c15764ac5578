"""What a certificate says, and how strictly it is read: a file may come from anybody."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from accounting.guarantees import Assumption, Status, ValidFor
from service.ledger.incidents import Kind
from service.schemas.correlated.strategies import Strategies, require_known_strategies
from service.schemas.ledger_document import LedgerDocument
from service.schemas.message import Delta, Sha256, Wire
from service.schemas.requests import (
    Acceptable,
    ActedBy,
    AtMostRows,
    Name,
    Relation,
    RowsMost,
    SamplingStatus,
    StepMessage,
)
from service.schemas.run_states import RunStateName
from service.schemas.samplings import Count
from service.transparency.checkpoints import Part

CERTIFICATE_FORMAT: Final = "dpledger-certificate/1"
DELTAS_MAX: Final = 8
DISTINCT_MAX: Final = 400  # events of one certificate that differ
RUNS_MAX: Final = 1000
VERSIONED: Final = frozenset({"dpledger", "numpy", "python", "scipy"})  # what computed it

_Whole = Annotated[int, Field(ge=0, lt=2**63)]
_Line = Annotated[str, Field(max_length=200)]


def _one_of(words: Iterable[str]) -> Any:
    """A line that is one of these in what this version writes; a later one may know more."""
    return Field(max_length=200, json_schema_extra={"enum": list(words)})


StatusLine = Annotated[str, _one_of(Status)]
AssumptionLine = Annotated[str, _one_of(Assumption)]
Prose = Annotated[str, Field(max_length=20_000)]
Nats = Annotated[float, Field(ge=0)]
Base64 = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_-]*$")]
ROWS_OF_ONE: Final = ("at_most_one", "exactly_one")
RELEASES: Final = ("every_step", "every_pass", "last_iterate")
_Accountant = Literal["best", "pld", "rdp"]
ACCOUNTANTS: Final[tuple[_Accountant, ...]] = ("best", "pld", "rdp")


def _complete(versions: dict[str, str]) -> dict[str, str]:
    if set(versions) != VERSIONED:
        raise ValueError(f"must name {', '.join(sorted(VERSIONED))}, and no more")
    return versions


Versions = Annotated[dict[_Line, _Line], AfterValidator(_complete)]


class Subject(Wire):
    """Whose privacy loss is stated."""

    kind: Literal["run", "dataset"]
    name: Name


class Reserved(StepMessage):
    """Steps that were admitted ahead and have not run."""

    steps: _Whole
    # Less noise within a pass that has begun moves it to another event: one less here, one more.
    passes: Annotated[int, Field(gt=-(2**63), lt=2**63)]
    begun: _Whole  # passes that begin among them
    passes_anew: _Whole  # upper, whatever the passes before them turn out to have been


class Incidents(Wire):
    """The number of incidents of a kind, and their entries."""

    kind: Annotated[str, _one_of(Kind)]
    count: _Whole
    first_sequence: _Whole
    last_sequence: _Whole


class ApprovedChange(Wire):
    """A correction of a run, or a void of its reservation, that a second person approved."""

    kind: Literal["correction", "void"]
    reservation: Name | None  # that was voided
    branch: Name | None  # of the steps that were corrected
    first_step: _Whole | None
    steps: _Whole | None
    reason: Prose  # of the person who asked
    requested_by: ActedBy  # the key that asked for it
    approved_by: ActedBy  # the key that approved it, of another person
    approved_at: _Line


class RunFacts(Wire):
    """All that is recorded of a run."""

    ledger: LedgerDocument
    on_plan: bool | None  # of a run whose plan holds its budget: whether it has kept to it
    incidents: list[Incidents] = Field(max_length=100)
    # Those that one person made alone are not among them; an older certificate has none.
    approved_changes: list[ApprovedChange] = Field(default_factory=list)


class Home(Wire):
    """A dataset whose steps count: the certified one's, or one that was made from it."""

    dataset: Name
    dataset_size: Count
    exactly_one: bool  # row for each of its records, on the whole path
    most_rows: RowsMost = 1  # of each of them; an older certificate has no other
    reserved: list[Reserved] = Field(max_length=2 * DISTINCT_MAX)
    runs: list[RunFacts] = Field(max_length=RUNS_MAX)
    strategies: Strategies = Field(default_factory=dict)  # that reserved steps name

    @model_validator(mode="after")
    def _of_its_strategies(self) -> "Home":
        require_known_strategies(self.reserved, self.strategies)
        return self


class BudgetLimit(Wire):
    """A limit that was in force."""

    revision: _Whole
    epsilon: Nats | None
    delta: Delta | None
    accept: list[Acceptable]
    reason: Prose
    sequence: _Whole
    changed_at: _Line
    changed_by: ActedBy | None = None  # the key that set it; an older certificate does not say
    requested_by: ActedBy | None = None  # the key that asked for it, where another one approved it


class Protected(Wire):
    """The dataset, and every limit it had."""

    name: Name
    dataset_size: Count
    neighboring_relation: Relation
    privacy_unit: Prose
    rows_per_parent_record: Annotated[str, _one_of(ROWS_OF_ONE)] | AtMostRows | None
    parents: list[Name]
    accept: list[Acceptable]
    limits: list[BudgetLimit]


class Facts(Wire):
    """Everything that the numbers of a certificate follow from."""

    subject: Subject
    sequence: _Whole  # of the dataset's latest entry
    dataset: Protected
    homes: list[Home] = Field(min_length=1, max_length=100)


class Statement(Wire):
    """What follows from the facts at one delta, by one accountant, by accepted theorems."""

    delta: Delta
    accountant: _Accountant
    reservations: bool  # whether what is reserved counts as spent
    epsilon: Nats | None  # upper; null where no accepted bound is finite, for the reason
    epsilon_lower: Nats | None
    reason: Prose | None
    bound: _Line | None
    theorems: list[_Line]
    status: StatusLine | None
    assumptions: list[AssumptionLine]
    valid_for: Annotated[str, _one_of(ValidFor)]
    release: Annotated[str, _one_of(RELEASES)]
    release_reason: Prose | None
    unamplified_epsilon: Nats | None
    corrected_epsilon: Nats | None
    so_far_epsilon: Nats | None  # of a run that keeps to its plan; epsilon is the whole plan's
    planned_steps: _Whole | None
    steps: _Whole


class TheoremStated(Wire):
    """A theorem that a statement rests on."""

    id: _Line
    statement: Prose
    source: Prose
    status: StatusLine
    assumptions: list[AssumptionLine]


class AuditStated(Wire):
    """What an audit says of a run's epsilon from below."""

    number: _Whole
    canaries: _Whole
    guesses: _Whole
    correct: _Whole
    delta: float
    registered: bool
    synthetic: bool
    level: float
    epsilon_at_least: float  # nats, lower
    sharper_epsilon_at_least: float  # nats, lower
    contradicts: bool


class RunSummary(Wire):
    """How far a run's samplings are borne out, and what no epsilon covers."""

    run: Name
    state: Annotated[str, _one_of(get_args(RunStateName))] | None
    sampling_status: Annotated[str, _one_of(get_args(SamplingStatus))]
    outside_guarantee: list[dict[str, str]]
    audits: list[AuditStated]
    steps_beyond_a_limit: _Whole
    steps_reserved_beyond_a_limit: _Whole  # admitted before the limit was lowered
    by: ActedBy | None  # the key that registered it
    appended_by: list[ActedBy]  # the keys that appended last
    corrections: _Whole
    branches: _Whole
    releases: _Whole


class AdvisoryStated(Wire):
    """A known defect of a library that a run says it used."""

    run: Name
    id: _Line
    library: _Line
    library_version: _Line | None
    affected: _Line
    defect: Prose
    consequence: Prose
    source: Prose


class Place(Wire):
    """Where the dataset's log tells of something, and the proof that it does."""

    acted_at: _Line
    after_sequence: _Whole
    by: ActedBy | None
    position: _Whole
    path: list[Sha256] = Field(max_length=64)  # from the act's leaf to the root of the head


class Log(Place):
    """Where the dataset's log tells that this was certified."""

    part: Part  # a signed checkpoint with the head in it that all paths lead to


class Ends(Wire):
    """A bracket."""

    epsilon: Nats | None
    epsilon_lower: Nats | None


class Change(Wire):
    """A statement of which a later version of the accounting says otherwise."""

    delta: Delta
    accountant: _Accountant
    reservations: bool
    direction: Literal["too_low", "too_high"]
    old: Ends
    new: Ends


class Restated(Wire):
    """What was restated about the subject."""

    about: Subject
    sequence: _Whole
    facts_sha256: Sha256
    position: _Whole  # of the certificate in the log
    old_core_version: _Line
    core_version: _Line
    changes: list[Change]
    log: Place

    @property
    def too_low(self) -> bool:
        """Whether something was certified too low."""
        return any(one.direction == "too_low" for one in self.changes)


class Certificate(Wire):
    """All that is signed."""

    format: Literal["dpledger-certificate/1"]
    facts: Facts
    facts_sha256: Sha256
    model_sha256: Sha256 | None
    statements: list[Statement] = Field(min_length=1, max_length=2 * 3 * DELTAS_MAX)
    theorems: list[TheoremStated]
    standing: list[RunSummary]
    advisories: list[AdvisoryStated]
    restatements: list[Restated]
    versions: Versions
    log: Log
    issued_at: _Line


class Envelope(Wire):
    """A certificate with its signature."""

    certificate: Certificate
    key_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    public_key: Base64
    signature: Base64
