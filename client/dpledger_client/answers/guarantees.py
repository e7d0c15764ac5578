"""Guarantees, and how epsilon grew."""

from collections.abc import Sequence
from typing import ClassVar

from dpledger_client.answers.answer import Answer
from dpledger_client.answers.budgets import BudgetState
from dpledger_client.answers.notebook import band, table


class PoissonWouldSay(Answer):
    """The epsilon that Poisson sampling at the same rate would have.

    Attributes:
        epsilon: nats.
        applicable: whether the steps were sampled so.
    """

    __slots__ = ()
    epsilon: float
    applicable: bool


class SmallerBound(Answer):
    """A smaller bound that the dataset does not accept.

    Attributes:
        bound: its theorem.
        status: of the theorem: published, derived, declared or conditional.
        epsilon: nats, upper.
        delta: at which it holds.
    """

    __slots__ = ()
    bound: str
    status: str
    epsilon: float
    delta: float


class Alternative(Answer):
    """Another bound on the same steps.

    Attributes:
        accountant: that computed it.
        bound: its theorem.
        epsilon: nats, upper.
        epsilon_lower: nats, lower; None if none is proved.
        delta: at which both hold.
        status: of the theorem.
        theorems: that it rests on.
        assumptions: that it rests on.
        valid_for: fixed or adaptively chosen steps.
    """

    __slots__ = ()
    accountant: str
    bound: str
    epsilon: float
    epsilon_lower: float | None
    delta: float
    status: str
    theorems: Sequence[str]
    assumptions: Sequence[str]
    valid_for: str


class Guarantee(Answer):
    """A proved bound on what the steps of a run tell about a record.

    Attributes:
        epsilon: nats, upper; None if no theorem bounds it, and `reason` says why.
        epsilon_lower: nats: some dataset loses as much; None if none is proved.
        delta: at which both hold.
        steps: that are bounded.
        bound: the theorem of epsilon.
        accountant: that computed it.
        theorems: that it rests on.
        assumptions: that it rests on.
        status: of its weakest theorem.
        reason: why there is no bound.
        valid_for: fixed steps, or steps that are chosen as they come.
        neighboring_relation: of the dataset.
        release: which iterates are shown; `release_reason` says why another bound was not used.
        release_reason: the same.
        planned_steps: of a run with a plan.
        so_far_epsilon: nats, upper, of the steps up to now, where the plan counts more.
        whole_run_epsilon: nats, upper, of the whole plan.
        corrected_epsilon: nats, upper, with corrections that came later.
        corrections: how many there are.
        unamplified_epsilon: nats, upper, if sampling is not counted.
        poisson_would_say: for comparison.
        smaller_bound: that the dataset does not accept.
        alternatives: other bounds on the same steps.
        outside_guarantee: what was revealed beside the steps.
        branch: that is bounded; None for all of them.
        as_of: a past state that is bounded.
        sequence: of the last act that it counts.
        core_version: of the accounting.
    """

    __slots__ = ()
    _first: ClassVar = ("epsilon", "epsilon_lower", "delta", "steps", "bound")
    epsilon: float | None
    epsilon_lower: float | None
    delta: float | None
    steps: int
    bound: str | None
    accountant: str | None
    theorems: Sequence[str]
    assumptions: Sequence[str]
    status: str | None
    reason: str | None
    valid_for: str
    neighboring_relation: str
    release: str
    release_reason: str | None
    planned_steps: int | None
    so_far_epsilon: float | None
    whole_run_epsilon: float | None
    corrected_epsilon: float | None
    corrections: int | None
    unamplified_epsilon: float | None
    poisson_would_say: PoissonWouldSay | None
    smaller_bound: SmallerBound | None
    alternatives: Sequence[Alternative]
    outside_guarantee: Sequence[Answer] | None
    branch: str | None
    as_of: Answer | None
    sequence: int
    core_version: str

    def _repr_html_(self) -> str:
        """In a notebook: the two ends, and what they rest on."""
        names = ("epsilon", "epsilon_lower", "delta", "steps", "bound", "status", "reason")
        return table(type(self).__name__, {name: self.get(name) for name in names})


class DatasetGuarantee(Guarantee):
    """A proved bound on what all runs of a dataset tell about a record together.

    Attributes:
        dataset: its name.
        budget: its limit, and what is charged.
        without_reservations: the bound if no step that was admitted ahead is taken.
    """

    __slots__ = ()
    dataset: str
    budget: BudgetState | None
    without_reservations: Guarantee


class HistoryPoint(Answer):
    """Epsilon after some steps.

    Attributes:
        steps: of the run.
        epsilon: nats, upper; None if unbounded.
        epsilon_lower: nats, lower; None if none is proved.
        sequence: of the act that recorded them.
    """

    __slots__ = ()
    steps: int
    epsilon: float | None
    epsilon_lower: float | None
    sequence: int


class History(Answer):
    """Epsilon of a run by step.

    Attributes:
        run: its name.
        delta: at which each point holds.
        points: in the order of steps.
    """

    __slots__ = ()
    run: str
    delta: float
    points: Sequence[HistoryPoint]

    def _repr_html_(self) -> str:
        """In a notebook: the band between the lower and the upper end."""
        return band(self.run, self.points, delta=self.delta, limit=None)
