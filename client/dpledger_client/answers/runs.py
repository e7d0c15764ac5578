"""A run as it stands at the service."""

from collections.abc import Sequence
from typing import ClassVar

from dpledger_client.answers.answer import Answer
from dpledger_client.answers.budgets import BudgetState
from dpledger_client.answers.guarantees import Guarantee


class BranchState(Answer):
    """A branch of a run.

    Attributes:
        run: its name.
        name: of the branch.
        from_branch: that it left; None of the first.
        from_step: at which it left.
        next_step: the number of its next step.
        by: the key or person that opened it.
        created_at: an instant, RFC 3339.
    """

    __slots__ = ()
    _first: ClassVar = ("name", "from_branch", "from_step", "next_step")
    run: str
    name: str
    from_branch: str | None
    from_step: int
    next_step: int
    by: str | None
    created_at: str


class RunState(Answer):
    """A run, what it declared, and how far it is.

    Attributes:
        name: global, never reused.
        dataset: that it trains on.
        state: active, interrupted, finished, stopped_at_budget, aborted or reopened.
        steps: recorded, over all branches.
        next_step: the number of the next step of its first branch.
        branches: in the order in which they were opened.
        delta: at which its epsilon is told; None if it has none of its own.
        budget: of this run alone; None without one.
        guarantee: of a run that was just finished; else None.
        release: which iterates are ever shown.
        releases: how many iterates were reported as shown.
        assumptions: that the trainer declared.
        plan: the events that it declared in advance; None without a plan.
        on_plan: whether it followed its plan; None without one.
        sampling_status: declared, detected or contradicted.
        labels: free text by name.
        advisories: defects of libraries that may concern it.
        outside_guarantee: what was revealed beside the steps.
        by: the key or person that registered it.
        created_at: an instant, RFC 3339.
    """

    __slots__ = ()
    _first: ClassVar = ("name", "dataset", "state", "steps", "guarantee")
    name: str
    dataset: str
    state: str
    steps: int
    next_step: int
    branches: Sequence[BranchState]
    delta: float | None
    budget: BudgetState | None
    guarantee: Guarantee | None
    release: str
    releases: int
    assumptions: Answer
    plan: Sequence[Answer] | None
    on_plan: bool | None
    sampling_status: str
    labels: Answer
    advisories: Sequence[Answer]
    outside_guarantee: Sequence[Answer]
    by: str | None
    created_at: str
