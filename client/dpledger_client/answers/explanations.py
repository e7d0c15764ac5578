"""Who spent a budget, why steps do not fit, and what would."""

from collections.abc import Sequence
from typing import ClassVar

from dpledger_client.answers.answer import Answer
from dpledger_client.answers.budgets import BudgetState


class FailingScope(Answer):
    """A budget that steps would exceed.

    Attributes:
        scope: such as dataset:letters or run:letters-1.
        limit: nats.
        delta: of the limit.
        spent: charged epsilon, nats, upper; None if unbounded.
        reserved: epsilon that is admitted ahead, upper.
        requested: with the steps that were asked for.
        reason: why no fewer steps would fit, either.
        nearest_item: of an envelope, the item that comes nearest.
        would_fit: what that item needs, in words.
    """

    __slots__ = ()
    _first: ClassVar = ("scope", "limit", "spent", "reserved", "requested")
    scope: str
    limit: float
    delta: float
    spent: float | None
    reserved: float | None
    requested: float | None
    reason: str | None
    nearest_item: int | None
    would_fit: str | None


class StepsShare(Answer):
    """Steps that are admitted ahead or forfeited, or that were corrected.

    Attributes:
        steps: how many.
        share: of the limit; None without one.
    """

    __slots__ = ()
    steps: int
    share: float | None


class DatasetShare(Answer):
    """What the runs of a derived dataset use of a budget.

    Attributes:
        dataset: its name.
        runs: how many.
        steps: of them.
        share: of the limit; None without one.
    """

    __slots__ = ()
    dataset: str
    runs: int
    steps: int
    share: float | None


class RunShare(Answer):
    """What a run uses of a budget.

    Attributes:
        run: its name.
        dataset: that it trains on.
        steps: of the run.
        share: of the limit; None without one.
        epsilon: nats, upper, of the run alone, as recorded and as corrected.
        epsilon_without: nats, upper, of all other runs together.
    """

    __slots__ = ()
    run: str
    dataset: str
    steps: int
    share: float | None
    epsilon: float | None
    epsilon_without: float | None


class RestShare(Answer):
    """What the runs use that are not listed.

    Attributes:
        runs: how many.
        steps: of them.
        share: of the limit; None without one.
        epsilon: nats, upper, of them alone.
        epsilon_without: nats, upper, of all other runs together.
    """

    __slots__ = ()
    runs: int
    steps: int
    share: float | None
    epsilon: float | None
    epsilon_without: float | None


class Explanation(Answer):
    """Who spent what of a dataset.

    Attributes:
        dataset: its name.
        delta: at which epsilons hold.
        epsilon: nats, upper, of all runs together, as recorded and as corrected.
        budget: its limit and what is charged; None without a limit.
        runs: the largest shares first.
        others: runs that are not listed; None if all are.
        datasets: derived datasets, by share.
        corrected: what corrections add to the recorded steps.
        pending: steps that are admitted ahead.
        forfeited: steps that were admitted ahead and never came.
        accountant: that computed the epsilons.
        order: at which Renyi order the budget is counted.
        order_advice: whether another order would have held more, in words.
        neighboring_relation: of the dataset.
        valid_for: fixed steps, or steps that are chosen as they come.
        sequence: of the last act that it counts.
    """

    __slots__ = ()
    _first: ClassVar = ("dataset", "epsilon", "delta", "runs")
    dataset: str
    delta: float
    epsilon: float | None
    budget: BudgetState | None
    runs: Sequence[RunShare]
    others: RestShare | None
    datasets: Sequence[DatasetShare]
    corrected: StepsShare
    pending: StepsShare
    forfeited: StepsShare
    accountant: str
    order: float | None
    order_advice: str | None
    neighboring_relation: str
    valid_for: str
    sequence: int


class FewerSteps(Answer):
    """How many of the steps would fit.

    Attributes:
        value: steps; None if that does not help, and `reason` says why.
        reason: the same.
    """

    __slots__ = ()
    value: int | None
    reason: str | None


class MoreNoise(Answer):
    """The least noise with which all steps would fit.

    Attributes:
        noise_multiplier: None if that does not help, and `reason` says why.
        reason: the same.
    """

    __slots__ = ()
    noise_multiplier: float | None
    reason: str | None


class LowerRate(Answer):
    """The largest sampling rate with which all steps would fit.

    Attributes:
        sampling_probability: None if that does not help, and `reason` says why.
        batch_size: the same, in records.
        reason: the same.
    """

    __slots__ = ()
    sampling_probability: float | None
    batch_size: int | None
    reason: str | None


class Remedies(Answer):
    """Whether steps would fit in a dataset's budget, and what to change if not.

    Attributes:
        dataset: its name.
        fits: whether all of them would.
        failing_scopes: the budgets that they would exceed.
        fewer_steps: one remedy.
        more_noise: another.
        lower_rate: another.
        sequence: of the last act that it counts.
    """

    __slots__ = ()
    _first: ClassVar = ("dataset", "fits", "fewer_steps", "more_noise", "lower_rate")
    dataset: str
    fits: bool
    failing_scopes: Sequence[FailingScope]
    fewer_steps: FewerSteps
    more_noise: MoreNoise
    lower_rate: LowerRate
    sequence: int
