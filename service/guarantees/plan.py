"""Plans: events that have not happened, with every value given or with one left open."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from accounting import calibration
from accounting.accountants import best_bound
from accounting.accountants.unit_bound import unit_bound
from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.event_bounds import NoBoundError, filter_accepted
from accounting.calibration import Parameter, UnreachableError
from accounting.event_counts import EventCounts, count_events
from accounting.events import Event, NeighboringRelation, Span
from accounting.guarantees import Status
from service.errors import InvalidRequestError, UnsupportedEventError
from service.ledger.append.admission import reason_unbounded
from service.ledger.budgets.plan_orders import plan_orders
from service.ledger.budgets.planned_envelopes import plan_envelope
from service.ledger.hidden_iterates import Hidden, planned_run, with_hidden_state_bound
from service.schemas.correlated.steps import OpenMatrixGaussian
from service.schemas.event_codec import spans_of
from service.schemas.field_errors import CLOSED_TAG, OPEN_TAG
from service.schemas.mechanisms import (
    ApproximateDpMechanism,
    NoMechanism,
    RandomizedResponseMechanism,
    SelectionMechanism,
    ZcdpMechanism,
)
from service.schemas.message import Delta, NoiseMultiplier, Probability, Wire
from service.schemas.plan_response import (
    PlanAnswer,
    PlanEnvelope,
    PlanOrders,
    PlanUnit,
    plan_answer,
    plan_unit,
    trials_apart,
)
from service.schemas.requests import (
    EVENTS_MAX,
    Acceptable,
    Assumptions,
    BudgetEpsilon,
    PlannedEvent,
    Relation,
    Release,
    Step,
    StepCount,
    accepted_statuses,
)
from service.schemas.responses import EVERY_STEP
from service.schemas.samplings import Count, ExpectedBatchSize, RatelessSampling, RowsPerUnit
from service.work_limit import bounded

_PLACEHOLDERS: Final[dict[Parameter, float]] = {
    Parameter.NOISE_MULTIPLIER: 1.0,
    Parameter.STEPS: 1,
    Parameter.SAMPLING_PROBABILITY: 0.5,
}
_Accountant = Literal["best", "pld", "rdp", "gdp"]


class _Plan(Wire):
    neighboring_relation: Relation
    dataset_size: Count | None = None
    delta: Delta
    accept: list[Acceptable] | None = Field(default=None, min_length=1, max_length=len(Status))
    accountant: _Accountant = "best"
    as_envelope: bool = False  # answer the budget that the plan makes, too
    rows_per_unit: RowsPerUnit | None = None  # answer for a person with so many records, too


class Plan(_Plan):
    """Events that have not happened, to be accounted."""

    events: list[PlannedEvent] = Field(min_length=1, max_length=EVENTS_MAX)
    release: Release = EVERY_STEP
    assumptions: Assumptions = Field(default_factory=dict)


class OpenGaussian(Wire):
    """Gaussian noise; without `noise_multiplier` it is to be found."""

    kind: Literal["gaussian"]
    noise_multiplier: NoiseMultiplier | None = None


class OpenLaplace(Wire):
    """Laplace noise; without `noise_multiplier` it is to be found."""

    kind: Literal["laplace"]
    noise_multiplier: NoiseMultiplier | None = None


class OpenPoisson(Wire):
    """Poisson sampling; with neither of its fields, its probability is to be found."""

    kind: Literal["poisson"]
    sampling_probability: Probability | None = None
    expected_batch_size: ExpectedBatchSize | None = None

    @model_validator(mode="after")
    def _not_both(self) -> "OpenPoisson":
        if None not in (self.sampling_probability, self.expected_batch_size):
            raise PydanticCustomError(
                "not_both", "give sampling_probability or expected_batch_size, not both"
            )
        return self


class OpenTruncatedPoisson(Wire):
    """Poisson sampling with its surplus dropped; the probability may be left to be found."""

    kind: Literal["truncated_poisson"]
    sampling_probability: Probability | None = None
    max_batch_size: Count


OpenMechanism = Annotated[
    OpenGaussian
    | OpenLaplace
    | RandomizedResponseMechanism
    | ApproximateDpMechanism
    | ZcdpMechanism
    | OpenMatrixGaussian
    | SelectionMechanism
    | NoMechanism,
    Field(discriminator="kind"),
]
OpenSampling = Annotated[
    OpenPoisson | OpenTruncatedPoisson | RatelessSampling, Field(discriminator="kind")
]


class OpenEvent(Wire):
    """Equal steps in a row; what is left out is to be found."""

    first_step: Step | None = None
    steps: StepCount | None = None
    mechanism: OpenMechanism
    sampling: OpenSampling

    def open(self) -> dict[Parameter, str]:
        """What is left out, and where."""
        found = {}
        if self.steps is None:
            found[Parameter.STEPS] = "steps"
        match self.mechanism:
            case (
                OpenGaussian(noise_multiplier=None)
                | OpenLaplace(noise_multiplier=None)
                | OpenMatrixGaussian(noise_multiplier=None)
            ):
                found[Parameter.NOISE_MULTIPLIER] = "mechanism.noise_multiplier"
        match self.sampling:
            case OpenPoisson(sampling_probability=None, expected_batch_size=None) | (
                OpenTruncatedPoisson(sampling_probability=None)
            ):
                found[Parameter.SAMPLING_PROBABILITY] = "sampling.sampling_probability"
        return found

    def closed(self, values: dict[Parameter, float]) -> PlannedEvent:
        """The event with values where it is open."""
        message = self.model_dump(exclude_none=True)
        for parameter in self.open():
            place = {"noise_multiplier": "mechanism", "sampling_probability": "sampling"}
            inside = message.get(place.get(parameter, ""), message)
            inside[parameter.value] = values[parameter]
        return PlannedEvent.model_validate(message)


class Target(_Plan):
    """Events of which one value is left open, to be found for an epsilon."""

    events: list[OpenEvent] = Field(min_length=1, max_length=EVENTS_MAX)
    epsilon: BudgetEpsilon
    solve_for: Literal["noise_multiplier", "steps", "sampling_probability"]


def _tag(value: Any) -> str:
    given = value if isinstance(value, dict) else {}
    return OPEN_TAG if "solve_for" in given or "epsilon" in given else CLOSED_TAG


PlanQuery = Annotated[
    Annotated[Plan, Tag(CLOSED_TAG)] | Annotated[Target, Tag(OPEN_TAG)], Discriminator(_tag)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What any plan is accounted under."""

    relation: NeighboringRelation
    accept: frozenset[Status]
    delta: float
    accountant: str
    as_envelope: bool
    rows_per_unit: int | None

    @classmethod
    def of(cls, asked: _Plan) -> "_Terms":
        return cls(
            relation=NeighboringRelation(asked.neighboring_relation),
            accept=accepted_statuses(asked.accept),
            delta=asked.delta,
            accountant=asked.accountant,
            as_envelope=asked.as_envelope,
            rows_per_unit=asked.rows_per_unit,
        )

    def envelope(self, counts: EventCounts, epsilon: float | None) -> PlanEnvelope | None:
        """The plan as a budget of this epsilon, in nats, or of what is certified of it."""
        if not self.as_envelope:
            return None
        return plan_envelope(
            counts, relation=self.relation, accept=self.accept, delta=self.delta, epsilon=epsilon
        )

    def unit(self, counts: EventCounts) -> PlanUnit | None:
        """What the plan costs a person with several records."""
        if self.rows_per_unit is None:
            return None
        found = unit_bound(
            counts,
            rows=self.rows_per_unit,
            relation=self.relation,
            delta=self.delta,
            accept=self.accept,
        )
        return plan_unit(found)

    def orders(self, counts: EventCounts, epsilon: float | None) -> PlanOrders | None:
        """What a budget of this epsilon, in nats, would hold of the plan."""
        return plan_orders(
            counts,
            relation=self.relation,
            epsilon=epsilon,
            delta=self.delta,
            accept=self.accept,
        )


def account_plan(asked: Plan) -> PlanAnswer:
    """What planned events would cost.

    Raises:
        InvalidRequestError: the events do not follow one another, or do not fit the dataset.
        UnsupportedEventError: one has no accepted bound.
        TooExpensiveError: it would take too much work.
    """
    with bounded("The plan"):
        return _account(asked)


def _account(asked: Plan) -> PlanAnswer:
    terms = _Terms.of(asked)
    spans = spans_of(asked.events, dataset_size=asked.dataset_size, first_step=0)
    _require_bounds(spans, terms)
    counts = count_events([spans])
    found = best_bound.guarantee(
        counts,
        relation=terms.relation,
        delta=terms.delta,
        accept=terms.accept,
        accountant=terms.accountant,
    )
    if asked.release != EVERY_STEP:
        hidden = planned_run(
            asked.assumptions, asked.release, spans=spans, relation=terms.relation,
            dataset_size=asked.dataset_size,
        )  # fmt: skip
        found = with_hidden_state_bound(
            found,
            Hidden(release=asked.release, run=hidden),
            accept=terms.accept,
            accountant=terms.accountant,
        )
        return plan_answer(
            found,
            counts=counts,
            release=asked.release,
            envelope=terms.envelope(counts, None),
            unit=terms.unit(counts),
            composed=trials_apart(counts, terms.relation, terms.delta, terms.accept),
        )
    return plan_answer(
        found,
        counts=counts,
        orders=terms.orders(counts, found.epsilon),
        envelope=terms.envelope(counts, None),
        unit=terms.unit(counts),
        composed=trials_apart(counts, terms.relation, terms.delta, terms.accept),
    )


def solve(asked: Target) -> PlanAnswer:
    """The value that planned events leave open, for a target.

    Raises:
        InvalidRequestError: nothing or too much is open, the target cannot be reached, or an event
            does not fit.
        UnsupportedEventError: an event has no accepted bound.
        TooExpensiveError: it would take too much work.
    """
    with bounded("The plan"):
        return _solve(asked)


def _solve(asked: Target) -> PlanAnswer:
    terms = _Terms.of(asked)
    parameter = Parameter(asked.solve_for)
    places = _places(asked.events, parameter)
    closed = [event.closed(_PLACEHOLDERS) for event in asked.events]
    spans = spans_of(closed, dataset_size=asked.dataset_size, first_step=0)
    _require_bounds(spans, terms)

    def counts_at(value: float) -> EventCounts:
        given = calibration.fill_spans(spans, places=places, parameter=parameter, value=value)
        return count_events([given])

    try:
        found = calibration.calibrate(
            counts_at,
            parameter=parameter,
            epsilon=asked.epsilon,
            delta=terms.delta,
            relation=terms.relation,
            accept=terms.accept,
            accountant=terms.accountant,
        )
    except UnreachableError as reason:
        raise InvalidRequestError("body.epsilon", f"cannot be kept to. {reason}") from None
    counts = counts_at(found.value)
    orders = terms.orders(counts, found.guarantee.epsilon)
    envelope = terms.envelope(counts, asked.epsilon)
    return plan_answer(
        found.guarantee,
        counts=counts,
        solved=found,
        orders=orders,
        envelope=envelope,
        unit=terms.unit(counts),
        composed=trials_apart(counts, terms.relation, terms.delta, terms.accept),
    )


def _places(events: Sequence[OpenEvent], parameter: Parameter) -> frozenset[int]:
    """Which events leave the parameter open.

    Raises:
        InvalidRequestError: none does, two do but share no value, or something else is open.
    """
    places: list[int] = []
    for index, event in enumerate(events):
        here = f"body.events[{index}]"
        for left_out, where in event.open().items():
            if left_out is not parameter:
                raise InvalidRequestError(
                    f"{here}.{where}", f"must be given to solve for {parameter}"
                )
            if places and parameter is Parameter.STEPS:
                raise InvalidRequestError(f"{here}.{where}", "may be left out of one event only")
            places.append(index)
        beyond = parameter is Parameter.STEPS and places and index > places[0]
        if beyond and event.first_step is not None:
            raise InvalidRequestError(
                f"{here}.first_step", "cannot be given after an event whose steps are open"
            )
    if not places:
        raise InvalidRequestError("body.solve_for", f"no event leaves its {parameter} open")
    return frozenset(places)


def _require_bounds(spans: Sequence[Span], terms: _Terms) -> None:
    for index, span in enumerate(spans):
        if not _is_dominated(span.event, terms):
            reason = reason_unbounded(span.event, relation=terms.relation, accept=terms.accept)
            if reason is not None:
                raise UnsupportedEventError(index, reason)


def _is_dominated(event: Event, terms: _Terms) -> bool:
    # A pair costs nothing to name, where a Renyi curve is worked out on the spot.
    try:
        return bool(filter_accepted(pld_bounds(event, terms.relation), accept=terms.accept))
    except NoBoundError:
        return False
