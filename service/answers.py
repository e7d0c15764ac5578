"""What goes out: the shapes of every answer."""

import math
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

import accounting
from accounting.balances import Balance
from accounting.calibration import Calibrated
from accounting.curves import Profile, rate_grid
from accounting.events import NeighboringRelation
from accounting.guarantees import Bound, Guarantee
from accounting.hidden import HIDDEN

EVERY_STEP: Final = "every_step"


class Answer(BaseModel):
    """Base of every answer."""

    model_config = ConfigDict(frozen=True)


class Alternative(Answer):
    """A bound that is not the headline."""

    epsilon: float
    epsilon_lower: float | None
    delta: float
    accountant: str
    bound: str
    theorems: list[str]
    status: str
    assumptions: list[str]
    valid_for: str


class PoissonWouldSay(Answer):
    """What Poisson accounting at the same batch size would claim of batches in an order."""

    epsilon: float  # nats; no bound on anything
    applicable: Literal[False]  # its theorem assumes other batches than these


class GuaranteeAnswer(Answer):
    """An upper bound on what was spent, with everything it rests on."""

    epsilon: float | None  # nats, upper; null when no accepted bound is finite
    epsilon_lower: float | None  # nats, lower; null where none is proved
    delta: float | None
    neighboring_relation: str
    accountant: str | None
    bound: str | None
    theorems: list[str]
    status: str | None
    assumptions: list[str]
    valid_for: str
    steps: int
    sequence: int
    core_version: str
    unamplified_epsilon: float | None  # nats, upper; the same events with sampling full
    poisson_would_say: PoissonWouldSay | None  # for shuffled and cyclic batches
    release: str  # which iterates count as shown in epsilon
    release_reason: str | None  # why every iterate does, where a run declared that it hides some
    reason: str | None  # why epsilon is null
    alternatives: list[Alternative]


def guarantee_answer(
    guarantee: Guarantee,
    *,
    balance: Balance,
    sequence: int,
    release: str = EVERY_STEP,
) -> GuaranteeAnswer:
    """The wire form of a guarantee, for a run that declared which iterates it shows."""
    headline = guarantee.headline
    hides = headline is not None and headline.accountant == HIDDEN
    return GuaranteeAnswer(
        epsilon=guarantee.epsilon,
        epsilon_lower=guarantee.epsilon_lower,
        delta=guarantee.delta,
        neighboring_relation=guarantee.neighboring_relation,
        accountant=headline.accountant if headline else None,
        bound=headline.bound if headline else None,
        theorems=list(headline.theorems) if headline else [],
        status=headline.status if headline else None,
        assumptions=list(headline.assumptions) if headline else [],
        valid_for=headline.valid_for if headline else "fixed_schedule",
        steps=sum(balance.steps.values()),
        sequence=sequence,
        core_version=accounting.__version__,
        unamplified_epsilon=guarantee.unamplified_epsilon,
        poisson_would_say=_poisson_would_say(guarantee.poisson_would_say),
        release=release if hides else EVERY_STEP,
        release_reason=guarantee.hidden_reason,
        reason=guarantee.reason,
        alternatives=[_alternative(bound) for bound in guarantee.alternatives],
    )


def without_lower(answer: GuaranteeAnswer) -> GuaranteeAnswer:
    """The answer without its lower ends: some run may have shown less than they count."""
    others = [one.model_copy(update={"epsilon_lower": None}) for one in answer.alternatives]
    return answer.model_copy(update={"epsilon_lower": None, "alternatives": others})


def _poisson_would_say(epsilon: float | None) -> PoissonWouldSay | None:
    if epsilon is None or not math.isfinite(epsilon):  # JSON has no infinity
        return None
    return PoissonWouldSay(epsilon=epsilon, applicable=False)


def _alternative(bound: Bound) -> Alternative:
    return Alternative(
        epsilon=bound.epsilon,
        epsilon_lower=bound.epsilon_lower,
        delta=bound.delta,
        accountant=bound.accountant,
        bound=bound.bound,
        theorems=list(bound.theorems),
        status=bound.status,
        assumptions=list(bound.assumptions),
        valid_for=bound.valid_for,
    )


class Solved(Answer):
    """A value that was left open, and found."""

    parameter: str
    value: int | float  # a count for steps


class PlanAnswer(GuaranteeAnswer):
    """The guarantee of a plan; with the value that was solved for, at that value."""

    solved: Solved | None


def plan_answer(
    guarantee: Guarantee,
    *,
    balance: Balance,
    solved: Calibrated | None = None,
    release: str = EVERY_STEP,
) -> PlanAnswer:
    """The wire form of a plan's guarantee, and of the value that was solved for."""
    value = Solved(parameter=solved.parameter, value=solved.value) if solved else None
    answer = guarantee_answer(guarantee, balance=balance, sequence=0, release=release)
    return PlanAnswer(**dict(answer), solved=value)


class BudgetAnswer(Answer):
    """A budget and how much of it is gone, as its filter counts; valid for adaptive steps."""

    epsilon: float
    delta: float
    order: float  # of the Renyi filter, fixed with the budget
    spent: float | None  # nats at delta, upper; null when infinite
    reserved: float
    remaining: float  # nats at delta, lower


class DatasetAnswer(Answer):
    """A dataset and what was spent on it."""

    name: str
    dataset_size: int
    neighboring_relation: str
    privacy_unit: str
    accept: list[str]
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
    from_step: int
    next_step: int
    created_at: str


class RunAnswer(Answer):
    """A run as it stands."""

    name: str
    dataset: str
    state: str
    delta: float | None
    release: str
    assumptions: dict[str, Any]
    plan: list[dict[str, Any]] | None
    budget: BudgetAnswer | None
    labels: dict[str, str]
    steps: int
    next_step: int  # of branch main
    branches: list[BranchAnswer]
    releases: int  # iterates that were shown; the ledger document names them
    created_at: str


class FinishedRun(RunAnswer):
    """A run at its end."""

    guarantee: GuaranteeAnswer | None  # of a run that declared which iterates it shows


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
    verdict: str  # within or overdraft
    guarantee: GuaranteeAnswer | None
    budget: BudgetAnswer | None


class DatasetGuarantee(GuaranteeAnswer):
    """All runs of a dataset composed, reservations counted as spent."""

    dataset: str
    without_reservations: GuaranteeAnswer
    budget: BudgetAnswer | None


class HistoryPoint(Answer):
    """The run's epsilon after so many steps."""

    steps: int
    sequence: int
    epsilon: float | None


class History(Answer):
    """Epsilon by step, over all branches in the order of recording."""

    run: str
    delta: float
    points: list[HistoryPoint]


class ProfilePoint(Answer):
    """Delta at an epsilon."""

    epsilon: float  # nats
    delta: float  # upper
    delta_lower: float  # zero where nothing is proved


class TradeOffPoint(Answer):
    """What every membership test must miss at a rate of false alarms."""

    false_positive_rate: float
    false_negative_rate: float  # lower


class RatePoint(Answer):
    """What no membership test finds more of at a rate of false alarms."""

    false_positive_rate: float
    true_positive_rate: float  # upper


class Curve(Answer):
    """A run's privacy profile, and what it says about any membership test."""

    run: str
    neighboring_relation: str
    steps: int
    sequence: int
    core_version: str
    status: str | None
    assumptions: list[str]
    reason: str | None  # why there is no profile
    profile: list[ProfilePoint]
    trade_off: list[TradeOffPoint]
    membership_advantage: float  # upper; 1 where nothing is proved
    true_positive_rates: list[RatePoint]


RATES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of false positives at which a curve says what is found
REASON_NO_PROFILE = "No accepted bound is finite; GET the guarantee for the reason."


def curve_answer(
    profile: Profile,
    *,
    run: str,
    relation: NeighboringRelation,
    steps: int,
    sequence: int,
    points: int,
) -> Curve:
    """The wire form of a profile and of what it says about membership tests."""
    alarms, few = rate_grid(points), np.array(RATES)
    missed, found = profile.trade_off(alarms), profile.true_positive_rates(few)
    known = len(profile.epsilons) > 0
    return Curve(
        run=run,
        neighboring_relation=relation,
        steps=steps,
        sequence=sequence,
        core_version=accounting.__version__,
        status=profile.status if known else None,
        assumptions=list(profile.assumptions) if known else [],
        reason=None if known else REASON_NO_PROFILE,
        profile=[
            ProfilePoint(epsilon=epsilon, delta=upper, delta_lower=lower)
            for epsilon, upper, lower in zip(
                profile.epsilons.tolist(),
                profile.upper.tolist(),
                profile.lower.tolist(),
                strict=True,
            )
        ],
        trade_off=[
            TradeOffPoint(false_positive_rate=rate, false_negative_rate=least)
            for rate, least in zip(alarms.tolist(), missed.tolist(), strict=True)
        ],
        membership_advantage=profile.advantage(),
        true_positive_rates=[
            RatePoint(false_positive_rate=rate, true_positive_rate=most)
            for rate, most in zip(few.tolist(), found.tolist(), strict=True)
        ],
    )


class Page(Answer):
    """Part of a list."""

    next_page_token: str | None


class DatasetPage(Page):
    """Datasets in creation order."""

    datasets: list[DatasetAnswer]


class RunPage(Page):
    """Runs in creation order."""

    runs: list[RunAnswer]


class Health(Answer):
    """Whether the service can answer."""

    status: str
    open_mode: bool
