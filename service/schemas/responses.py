"""What goes out: the shapes of every answer."""

import math
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

import accounting
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Bound, Guarantee, Status, ValidFor
from accounting.hidden_state import HIDDEN
from service.schemas.descriptions import describe
from service.schemas.message import Wire
from service.schemas.requests import (
    Acceptable,
    BatchSizesVerdict,
    FilterKind,
    Release,
    RowsPerRecord,
    SamplingStatus,
)
from service.schemas.run_states import RunStateName

EVERY_STEP: Final[Release] = "every_step"


class AccountantName(StrEnum):
    """A way to account steps."""

    PLD = "pld"  # privacy loss distributions
    RDP = "rdp"  # Renyi differential privacy
    GDP = "gdp"  # Gaussian differential privacy
    ODOMETER = "odometer"  # for steps that depend on earlier answers
    FILTER = "filter"  # what the filter of a budget has added up
    LAST_ITERATE = "last_iterate"  # of runs that show their last iterate alone


class Answer(BaseModel):
    """Base of every answer."""

    model_config = ConfigDict(frozen=True, json_schema_extra=describe, defer_build=True)


def build_messages() -> None:
    """Build every message now, and not when it is first used: a service answers in threads."""
    messages: list[type[BaseModel]] = [Wire, Answer]
    for message in messages:  # bases first: those that it holds are built, or it would build anew
        message.model_rebuild()
        messages += message.__subclasses__()


class Alternative(Answer):
    """A bound that is not the headline."""

    epsilon: float
    epsilon_lower: float | None
    delta: float
    accountant: AccountantName
    bound: str
    theorems: list[str]
    status: Status
    assumptions: list[Assumption]
    valid_for: ValidFor


class SmallerBound(Answer):
    """A bound that is proved and is less than half of the headline, but is not accepted."""

    epsilon: float  # nats, upper
    delta: float
    bound: str  # the theorem's id
    status: Status  # add it to the dataset's accept to make such bounds count


class PoissonWouldSay(Answer):
    """What Poisson accounting at the same batch size would claim of batches in an order."""

    epsilon: float  # nats; no bound on anything
    applicable: Literal[False]  # its theorem assumes other batches than these


class AsOf(Answer):
    """What is known now beside an answer as of a sequence; null where nothing finite is proved."""

    sequence: int
    as_known_now: float | None  # nats, upper, at delta; the same facts, as they are corrected now
    present_epsilon: float | None  # nats, upper, at delta; all facts now, corrected or not


class GuaranteeAnswer(Answer):
    """An upper bound on what was spent, with everything it rests on."""

    epsilon: float | None  # nats, upper; null when no accepted bound is finite
    epsilon_lower: float | None  # nats, lower; null where none is proved
    delta: float | None
    neighboring_relation: NeighboringRelation
    accountant: AccountantName | None
    bound: str | None
    theorems: list[str]
    status: Status | None
    assumptions: list[Assumption]
    valid_for: ValidFor
    steps: int
    sequence: int
    core_version: str
    unamplified_epsilon: float | None  # nats, upper; the same events with sampling full
    poisson_would_say: PoissonWouldSay | None  # for shuffled and cyclic batches
    release: Release  # which iterates count as shown in epsilon
    release_reason: str | None  # why every iterate does, where a run declared that it hides some
    reason: str | None  # why epsilon is null
    alternatives: list[Alternative]
    smaller_bound: SmallerBound | None = None  # an alternative of less than half, if there is one
    # The branch whose path to the root alone is meant, and the whole run's epsilon beside it.
    branch: str | None = None
    whole_run_epsilon: float | None = None  # nats, upper, at delta
    # Of the facts that are meant; epsilon holds whether they were right or the records were.
    corrections: int = 0
    corrected_epsilon: float | None = None  # nats, upper, at delta; of the corrected facts alone
    as_of: AsOf | None = None
    # Of a run that keeps to the plan which holds its budget: epsilon is that of the whole plan.
    so_far_epsilon: float | None = None  # nats, upper, at delta; had the plan ended at this step
    planned_steps: int | None = None


class OutsideGuarantee(Answer):
    """What left the trainer beside the steps, and no epsilon covers."""

    kind: Literal["batch_sizes", "audit"]
    branch: str
    verdict: BatchSizesVerdict | Literal["published"]  # the latter of an audit with real records


class RunGuarantee(GuaranteeAnswer):
    """What a run has spent."""

    outside_guarantee: list[OutsideGuarantee]


def guarantee_answer(
    guarantee: Guarantee,
    *,
    counts: EventCounts,
    sequence: int,
    release: Release = EVERY_STEP,
) -> GuaranteeAnswer:
    """The wire form of a guarantee, for a run that declared which iterates it shows."""
    headline = guarantee.headline
    hides = headline is not None and headline.accountant == HIDDEN
    return GuaranteeAnswer(
        epsilon=guarantee.epsilon,
        epsilon_lower=guarantee.epsilon_lower,
        delta=guarantee.delta,
        neighboring_relation=guarantee.neighboring_relation,
        accountant=AccountantName(headline.accountant) if headline else None,
        bound=headline.bound if headline else None,
        theorems=list(headline.theorems) if headline else [],
        status=headline.status if headline else None,
        assumptions=list(headline.assumptions) if headline else [],
        valid_for=headline.valid_for if headline else ValidFor.FIXED_SCHEDULE,
        steps=sum(counts.steps.values()),
        sequence=sequence,
        core_version=accounting.__version__,
        unamplified_epsilon=guarantee.unamplified_epsilon,
        poisson_would_say=_poisson_would_say(guarantee.poisson_would_say),
        release=release if hides else EVERY_STEP,
        release_reason=guarantee.hidden_reason,
        reason=guarantee.reason,
        alternatives=[_alternative(bound) for bound in guarantee.alternatives],
        smaller_bound=_smaller_bound(guarantee.smaller_bound),
    )


def without_lower(answer: GuaranteeAnswer) -> GuaranteeAnswer:
    """The answer without its lower ends: some run may have shown less than they count."""
    others = [one.model_copy(update={"epsilon_lower": None}) for one in answer.alternatives]
    return answer.model_copy(update={"epsilon_lower": None, "alternatives": others})


def with_ahead(whole: GuaranteeAnswer, ran: GuaranteeAnswer) -> GuaranteeAnswer:
    """An answer of more than what has run: what has not is no step, and attains nothing.

    Where an epsilon was asked for, what ran has a smaller delta, at which it attains more.
    """
    lower = ran.epsilon_lower if ran.delta == whole.delta else None
    return without_lower(whole).model_copy(update={"steps": ran.steps, "epsilon_lower": lower})


def assuming(answer: GuaranteeAnswer, assumption: Assumption) -> GuaranteeAnswer:
    """The answer where every bound needs one assumption more."""

    def more(assumptions: list[Assumption]) -> list[Assumption]:
        return sorted({*assumptions, assumption})

    others = [
        one.model_copy(update={"assumptions": more(one.assumptions)}) for one in answer.alternatives
    ]
    own = [] if answer.epsilon is None else more(answer.assumptions)
    return answer.model_copy(update={"assumptions": own, "alternatives": others})


def _poisson_would_say(epsilon: float | None) -> PoissonWouldSay | None:
    if epsilon is None or not math.isfinite(epsilon):  # JSON has no infinity
        return None
    return PoissonWouldSay(epsilon=epsilon, applicable=False)


def _smaller_bound(bound: Bound | None) -> SmallerBound | None:
    if bound is None:
        return None
    return SmallerBound(
        epsilon=bound.epsilon, delta=bound.delta, bound=bound.bound, status=bound.status
    )


def _alternative(bound: Bound) -> Alternative:
    return Alternative(
        epsilon=bound.epsilon,
        epsilon_lower=bound.epsilon_lower,
        delta=bound.delta,
        accountant=AccountantName(bound.accountant),
        bound=bound.bound,
        theorems=list(bound.theorems),
        status=bound.status,
        assumptions=list(bound.assumptions),
        valid_for=bound.valid_for,
    )


class EnvelopeItemAnswer(Answer):
    """An item of an envelope, in steps; what another item holds for it counts there."""

    name: str | None
    mechanism: dict[str, Any]
    sampling: dict[str, Any]
    allowed: int
    used: int
    reserved: int
    remaining: int


class FilterAnswer(Answer):
    """Which filter holds a budget; it never changes."""

    kind: FilterKind
    orders: list[float]
    weights: list[float]
    theorem: str
    status: Status


class BudgetAnswer(Answer):
    """A budget and how much of it is gone, as its filter counts."""

    epsilon: float
    delta: float
    order: float | None  # that binds now; of a fixed-order filter the only one
    spent: float | None  # nats, upper; null when infinite; forfeited reservations included
    reserved: float | None  # nats that pending reservations add; null when infinite
    share: float | None  # of capacity, upper: what is charged; null when infinite
    share_reserved: float | None  # of capacity, upper: what reservations add; null when infinite
    remaining: float  # nats, lower
    overdrawn: bool  # recorded facts are beyond the limit: nothing more is admitted
    valid_for: ValidFor  # adaptive: steps may be chosen after seeing the answers to earlier ones
    revision: int  # how often the limit was set after answers were seen
    delta_share: float  # of delta, which this revision's figures use
    filter: FilterAnswer
    # Of an envelope; null of other filters.
    remaining_steps: int | None = None  # that all items hold beside what is used and reserved
    items: list[EnvelopeItemAnswer] | None = None  # null in the answer to an append


class DatasetAnswer(Answer):
    """A dataset and what was spent on it."""

    name: str
    dataset_size: int
    neighboring_relation: NeighboringRelation
    privacy_unit: str
    accept: list[Acceptable]
    parents: list[str]
    rows_per_parent_record: RowsPerRecord | None
    frozen: bool  # nothing is admitted, here and in all that was made from it
    revision: int  # of the settings; If-Match compares it
    budget: BudgetAnswer | None
    spent: float | None
    reserved: float | None
    remaining: float | None
    runs: int
    sequence: int
    created_at: str


class BranchAnswer(Answer):
    """A branch of a run."""

    run: str
    name: str
    from_branch: str | None  # whose steps before from_step it shares; null for main
    from_step: int
    order: (
        Literal["fresh", "continued"] | None
    )  # of the records, as it was said; null if it was not
    noise: Literal["fresh"] | None  # of correlated noise, as it was said; null if it was not
    takes_pass: bool  # whether it goes on in the pass that was open where it began
    next_step: int
    by: str | None  # the key that opened it
    appended_by: str | None  # the key that appended last; null before the first step
    created_at: str


class AdvisoryAnswer(Answer):
    """A known defect of a library that a run says was loaded."""

    id: str
    library: str
    library_version: str | None  # null where the run does not say
    affected: str  # versions
    defect: str
    consequence: str  # for what the ledger holds
    source: str


class RunAnswer(Answer):
    """A run as it stands."""

    name: str
    dataset: str
    state: RunStateName
    delta: float | None
    release: Release
    assumptions: dict[str, Any]
    plan: list[dict[str, Any]] | None
    on_plan: bool | None  # of a run whose own budget its plan holds: whether it has kept to it
    budget: BudgetAnswer | None
    labels: dict[str, str]
    steps: int
    next_step: int  # of branch main
    branches: list[BranchAnswer]
    releases: int  # iterates that were shown; the ledger document names them
    sampling_status: SamplingStatus  # as the run's findings have it
    outside_guarantee: list[OutsideGuarantee]
    advisories: list[AdvisoryAnswer]  # known defects that may have made its record wrong
    by: str | None  # the key that registered it
    created_at: str


class FinishedRun(RunAnswer):
    """A run at its end."""

    guarantee: RunGuarantee | None  # of a run that declared which iterates it shows


class ReleaseAnswer(Answer):
    """An iterate that was shown."""

    run: str
    branch: str
    step: int  # the iterate after this step
    recorded_at: str


class AppendAnswer(Answer):
    """What became of a batch of events; counts are steps."""

    accepted: int
    duplicates: int
    next_step: int
    sequence: int
    verdict: Literal["within", "reserved", "overdraft"]
    guarantee: GuaranteeAnswer | None
    budget: BudgetAnswer | None


class DatasetGuarantee(GuaranteeAnswer):
    """All runs of a dataset composed, reservations counted as spent."""

    dataset: str
    without_reservations: GuaranteeAnswer
    budget: BudgetAnswer | None


class Page(Answer):
    """Part of a list."""

    next_page_token: str | None


class DatasetPage(Page):
    """Datasets in creation order."""

    datasets: list[DatasetAnswer]


class RunPage(Page):
    """Runs in creation order."""

    runs: list[RunAnswer]
