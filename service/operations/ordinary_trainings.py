"""What a new budget would admit of ordinary trainings, so that a zero is seen at creation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from accounting.events import Event, Gaussian, NeighboringRelation, Poisson
from accounting.filters import EnvelopeFilter, filter_of
from accounting.guarantees import Status
from service.schemas.responses import Answer, DatasetAnswer


class AdmittedTraining(Answer):
    """How much of an ordinary training a budget admits."""

    name: str
    sampling_probability: float
    noise_multiplier: float
    steps: int  # lower; of this budget alone, with nothing spent


class CreatedDataset(DatasetAnswer):
    """A new dataset, and what its budget would admit."""

    would_admit: list[AdmittedTraining]  # empty without a budget
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryTraining:
    """Equal Poisson-sampled Gaussian steps that are often asked for."""

    name: str
    rate: float
    noise: float

    @property
    def event(self) -> Event:
        """One step."""
        return Event(
            mechanism=Gaussian(noise_multiplier=self.noise),
            sampling=Poisson(sampling_probability=self.rate),
        )


ORDINARY_TRAININGS: Final = (
    OrdinaryTraining(name="small batches", rate=0.001, noise=0.8),
    OrdinaryTraining(name="batches of usual size", rate=0.004, noise=1.1),
    OrdinaryTraining(name="large batches", rate=0.05, noise=2.0),
)


def creation_answer(created: DatasetAnswer) -> CreatedDataset:
    """Return a dataset with the steps that its budget, with nothing spent, admits of each training.

    It prices events: call it after the transaction, so that no lock waits for it.
    """
    found = _list_admitted(created)
    warnings = [
        f"The budget admits no step of {one.name} (Poisson sampling, q {one.sampling_probability:g}"
        f", noise multiplier {one.noise_multiplier:g}){_cause(created)}. If the dataset is for "
        "such steps, create one whose `for` names them, or whose budget is an `envelope` of them."
        for one in found
        if one.steps == 0
    ]
    return CreatedDataset(**dict(created), would_admit=found, warnings=warnings)


def admitted_steps(created: DatasetAnswer, events: Sequence[Event]) -> list[int] | None:
    """How many steps of each event a budget admits alone, with nothing spent. Lower.

    It prices events: call it after the transaction.

    Args:
        created: the dataset.
        events: each counted by itself, not by pass.

    Returns:
        None without a budget, and of an envelope, which says itself what it admits.
    """
    budget = created.budget
    if budget is None or budget.filter.kind == EnvelopeFilter.kind:
        return None
    held = filter_of(
        budget.filter.model_dump(), epsilon=budget.epsilon, delta=budget.delta * budget.delta_share
    )
    relation = NeighboringRelation(created.neighboring_relation)
    accept = frozenset(Status(status) for status in created.accept)
    costs = [held.cost(event, relation=relation, accept=accept) for event in events]
    return [0 if cost[0] else held.admissible(held.zero(), cost) for cost in costs]


def _list_admitted(created: DatasetAnswer) -> list[AdmittedTraining]:
    steps = admitted_steps(created, [one.event for one in ORDINARY_TRAININGS])
    return [
        AdmittedTraining(
            name=one.name, sampling_probability=one.rate, noise_multiplier=one.noise, steps=count
        )
        for one, count in zip(ORDINARY_TRAININGS, steps or (), strict=steps is not None)
    ]


def _cause(created: DatasetAnswer) -> str:
    orders = created.budget.filter.orders if created.budget else []
    return f": it counts at order {orders[0]:g}" if len(orders) == 1 else ""
