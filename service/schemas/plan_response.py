"""The answer to a plan: its guarantee, and the value that was solved for."""

import math

from accounting import work_budgets
from accounting.accountants.best_bound import best_bound
from accounting.accountants.unit_bound import UnitBound
from accounting.bounds.selection_bounds import as_recorded_trials
from accounting.calibration import Calibrated, Parameter
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import Guarantee, Status
from accounting.work_limit import attempt
from service.schemas.requests import EnvelopeItemMessage, FilterKind, Release
from service.schemas.responses import EVERY_STEP, Answer, GuaranteeAnswer, guarantee_answer


class Solved(Answer):
    """A value that was left open, and found."""

    parameter: Parameter
    value: int | float  # a count for steps


class PlanOrders(Answer):
    """How much of a plan a budget would hold that is enforced step by step."""

    epsilon: float  # nats, of that budget; its delta is the plan's
    default_order: float
    default_share: float  # lower, of the plan's cost
    best_order: float
    best_share: float  # lower
    remedy: str | None  # where the default order holds noticeably less


class PlanEnvelope(Answer):
    """The plan as a budget that its steps fit exactly: the `budget` of a dataset or of a run."""

    epsilon: float  # nats, upper: that of all steps together, or of the target if one was named
    delta: float
    filter: FilterKind
    envelope: list[EnvelopeItemMessage]


class PlanUnit(Answer):
    """What a plan costs a person with several records, at the delta of the plan."""

    rows: int
    epsilon: float | None  # nats, upper; null where no accepted bound is known
    epsilon_lower: float | None  # nats; some such person loses at least this
    bound: str | None
    status: Status | None
    group_epsilon: float | None  # nats, upper; by a chain of neighbours


class PlanTrials(Answer):
    """What a plan costs if each trial of its selections is recorded and may be shown."""

    trials: int  # the mean of each selection, to whole ones
    epsilon: float | None  # nats, upper, at the plan's delta; null where it takes too much work


class PlanAnswer(GuaranteeAnswer):
    """The guarantee of a plan; with the value that was solved for, at that value."""

    solved: Solved | None
    orders: PlanOrders | None  # null where no order holds a step, or it would take too much work
    envelope: PlanEnvelope | None  # null unless `as_envelope` asked for it
    unit: PlanUnit | None  # null unless `rows_per_unit` asked for it
    composed: PlanTrials | None  # null where the plan has no selection


def plan_answer(
    guarantee: Guarantee,
    *,
    counts: EventCounts,
    solved: Calibrated | None = None,
    release: Release = EVERY_STEP,
    orders: PlanOrders | None = None,
    envelope: PlanEnvelope | None = None,
    unit: PlanUnit | None = None,
    composed: PlanTrials | None = None,
) -> PlanAnswer:
    """The wire form of a plan's guarantee, and of the value that was solved for."""
    value = Solved(parameter=solved.parameter, value=solved.value) if solved else None
    answer = guarantee_answer(guarantee, counts=counts, sequence=0, release=release)
    return PlanAnswer(
        **dict(answer),
        solved=value,
        orders=orders,
        envelope=envelope,
        unit=unit,
        composed=composed,
    )


def plan_unit(found: UnitBound) -> PlanUnit:
    """The wire form of what a plan costs a person."""
    given, chain = found.epsilon, found.group_epsilon
    return PlanUnit(
        rows=found.rows,
        epsilon=given if math.isfinite(given) else None,
        epsilon_lower=found.epsilon_lower,
        bound=found.bound,
        status=found.status,
        group_epsilon=chain if math.isfinite(chain) else None,
    )


def trials_apart(
    counts: EventCounts, relation: NeighboringRelation, delta: float, accept: frozenset[Status]
) -> PlanTrials | None:
    """What a plan costs if each trial of its selections is recorded; None without a selection."""
    recorded = as_recorded_trials(counts)
    if recorded is None:
        return None
    trials, apart = recorded
    found = attempt(
        work_budgets.TRIALS_APART,
        lambda: best_bound(apart, relation=relation, delta=delta, accept=accept, with_lower=False),
    )
    return PlanTrials(trials=trials, epsilon=found.epsilon if found else None)
