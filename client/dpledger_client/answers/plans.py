"""The guarantee of steps that are planned, and the parameter that meets a target."""

from collections.abc import Sequence

from dpledger_client.answers.answer import Answer
from dpledger_client.answers.guarantees import Guarantee


class SolvedParameter(Answer):
    """The value that meets a target epsilon.

    Attributes:
        parameter: noise_multiplier, steps or sampling_probability.
        value: such that the planned steps have at most the target epsilon.
    """

    __slots__ = ()
    parameter: str
    value: float


class PlanEnvelope(Answer):
    """A budget that holds exactly the planned steps: `create_dataset(budget=plan.envelope)`.

    Attributes:
        epsilon: nats, upper.
        delta: as planned.
        filter: envelope.
        envelope: the items.
    """

    __slots__ = ()
    epsilon: float
    delta: float
    filter: str
    envelope: Sequence[Answer]


class PlanUnit(Answer):
    """What a person with several rows loses.

    Attributes:
        rows: of the person, at most.
        epsilon: nats, upper.
        epsilon_lower: nats, lower; None if none is proved.
        group_epsilon: nats, upper, by group privacy alone.
        bound: its theorem.
        status: of the theorem.
    """

    __slots__ = ()
    rows: int
    epsilon: float | None
    epsilon_lower: float | None
    group_epsilon: float | None
    bound: str | None
    status: str | None


class OrderAdvice(Answer):
    """At which Renyi order a budget would hold the planned steps best.

    Attributes:
        epsilon: of the budget, nats.
        best_order: that charges least.
        best_share: of the budget, at that order.
        default_order: of a dataset without `orders` or `for`.
        default_share: of the budget, at that order.
        remedy: what to do, in words.
    """

    __slots__ = ()
    epsilon: float
    best_order: float
    best_share: float
    default_order: float
    default_share: float
    remedy: str | None


class TrialsPlan(Answer):
    """What recording each trial of a selection would cost instead.

    Attributes:
        trials: how many.
        epsilon: nats, upper.
    """

    __slots__ = ()
    trials: int
    epsilon: float | None


class Plan(Guarantee):
    """A proved bound on steps that have not happened.

    Attributes:
        solved: the parameter that `calibrate` asked for; else None.
        envelope: the budget that holds exactly these steps, if it was asked for.
        unit: what a person with several rows loses, if it was asked for.
        orders: at which Renyi order a budget would hold them best.
        composed: of a private selection, what recording each trial costs.
    """

    __slots__ = ()
    solved: SolvedParameter | None
    envelope: PlanEnvelope | None
    unit: PlanUnit | None
    orders: OrderAdvice | None
    composed: TrialsPlan | None
