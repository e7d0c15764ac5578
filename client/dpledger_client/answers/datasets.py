"""A dataset as it stands."""

from collections.abc import Sequence
from typing import ClassVar

from dpledger_client.answers.answer import Answer
from dpledger_client.answers.budgets import BudgetState


class AdmittedTraining(Answer):
    """A usual training, and how many of its steps a new dataset would admit.

    Attributes:
        name: of the training.
        noise_multiplier: noise standard deviation / per-record norm bound; unitless.
        sampling_probability: chance that a record joins a step.
        steps: that would be admitted.
    """

    __slots__ = ()
    name: str
    noise_multiplier: float
    sampling_probability: float
    steps: int


class DatasetState(Answer):
    """A dataset, its settings, and what is charged of its budget.

    Attributes:
        name: global, never reused.
        dataset_size: records.
        neighboring_relation: add_or_remove_one, replace_one or replace_special.
        privacy_unit: what one record is, in words.
        budget: its limit and what is charged; None without a limit.
        spent: charged epsilon, nats, upper; None without a limit or if unbounded.
        reserved: epsilon that is admitted ahead, upper.
        remaining: epsilon that is left, lower.
        accept: statuses of theorems that may count.
        parents: datasets that it is drawn from.
        rows_per_parent_record: rows of it that a record of a parent may become.
        frozen: whether nothing is admitted.
        runs: how many train on it.
        sequence: of its last act.
        revision: of its settings.
        created_at: an instant, RFC 3339.
        would_admit: of a dataset that was just created, usual trainings; else None.
        warnings: of a dataset that was just created; else None.
    """

    __slots__ = ()
    _first: ClassVar = ("name", "dataset_size", "privacy_unit", "budget", "runs")
    name: str
    dataset_size: int
    neighboring_relation: str
    privacy_unit: str
    budget: BudgetState | None
    spent: float | None
    reserved: float | None
    remaining: float | None
    accept: Sequence[str]
    parents: Sequence[str]
    rows_per_parent_record: str | Answer | None
    frozen: bool
    runs: int
    sequence: int
    revision: int
    created_at: str
    would_admit: Sequence[AdmittedTraining] | None
    warnings: Sequence[str] | None
