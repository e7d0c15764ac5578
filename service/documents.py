"""The ledger document: what was recorded, in a form a stranger can recompute from."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final, Literal

from pydantic import Field

from accounting.balances import Balance, balance_of
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NoNoise,
    NonUniform,
    Poisson,
    RandomAllocation,
    RandomizedResponse,
    Shuffle,
    Span,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)
from service.errors import InvalidRequestError
from service.samplings import Count
from service.schemas import (
    Acceptable,
    Assumptions,
    Labels,
    MergedSteps,
    Name,
    PlannedEvent,
    Relation,
    Release,
    Step,
    StepMessage,
    to_event,
)
from service.wire import Delta, Wire

FORMAT: Final = "dpledger/1"
State = Literal["active", "finished", "aborted", "reopened"]


class RecordedEvent(PlannedEvent):
    """Equal steps in a row, merged from any number of events."""

    steps: MergedSteps


class BranchDocument(Wire):
    """A branch beside main: where it began and what it recorded."""

    name: Name
    from_step: Step
    events: list[RecordedEvent]


class Overdraft(Wire):
    """Steps that were recorded beyond a limit."""

    branch: Name
    first_step: Step
    steps: MergedSteps


class ReleasedIterate(Wire):
    """An iterate that was shown to somebody: the one after a step."""

    branch: Name
    step: Step


class LedgerDocument(Wire):
    """Everything that was recorded of a run."""

    format: Literal["dpledger/1"]
    neighboring_relation: Relation
    dataset_size: Count | None = None
    release: Release = "every_step"
    assumptions: Assumptions = Field(default_factory=dict)
    events: list[RecordedEvent]
    branches: list[BranchDocument] = Field(default_factory=list)
    run: Name | None = None
    dataset: Name | None = None
    delta: Delta | None = None
    accept: list[Acceptable] | None = None
    plan: list[PlannedEvent] | None = None
    state: State | None = None
    reopened: bool = False  # whether steps were ever recorded after the run's end
    releases: list[ReleasedIterate] = Field(default_factory=list)
    overdrafts: list[Overdraft] | None = None
    labels: Labels | None = None

    def balance(self) -> Balance:
        """What the document's events add up to.

        Raises:
            InvalidRequestError: events are not contiguous, or do not fit the dataset.
        """
        sequences = [spans_of(self.events, dataset_size=self.dataset_size, first_step=0)]
        for index, branch in enumerate(self.branches):
            sequences.append(
                spans_of(
                    branch.events,
                    dataset_size=self.dataset_size,
                    first_step=branch.from_step,
                    location=f"branches[{index}].events",
                )
            )
        return balance_of(sequences)


def spans_of(
    events: Sequence[PlannedEvent],
    *,
    dataset_size: int | None,
    first_step: int,
    location: str = "events",
) -> list[Span]:
    """The spans of events that follow one another from `first_step`.

    Raises:
        InvalidRequestError: an event does not begin where the one before it ended, or does not
            fit the dataset.
    """
    spans = []
    for index, message in enumerate(events):
        here = f"{location}[{index}]"
        if message.first_step not in (None, first_step):
            raise InvalidRequestError(f"{here}.first_step", f"must be {first_step}")
        event = to_event(message, dataset_size=dataset_size, location=here)
        spans.append(Span(event=event, steps=message.steps))
        first_step += message.steps
    return spans


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: the same text for the same value."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


_KINDS: Final[dict[type, str]] = {
    Gaussian: "gaussian",
    Laplace: "laplace",
    RandomizedResponse: "randomized_response",
    ApproximateDp: "approximate_dp",
    Zcdp: "zcdp",
    NoNoise: "none",
    Full: "full",
    Unknown: "unknown",
    Poisson: "poisson",
    TruncatedPoisson: "truncated_poisson",
    FixedSize: "fixed_size",
    WithReplacement: "with_replacement",
    Cyclic: "cyclic",
    Shuffle: "shuffle",
    BallsAndBins: "balls_and_bins",
    RandomAllocation: "random_allocation",
    NonUniform: "non_uniform",
}


def content_of(event: Event) -> str:
    """The stored form of an event: canonical JSON of its normalised fields."""
    sampling = {"kind": _KINDS[type(event.sampling)]} | asdict(event.sampling)
    sampling.pop("dataset_size", None)  # a constant of the dataset, not of the event
    mechanism = {"kind": _KINDS[type(event.mechanism)]} | asdict(event.mechanism)
    return canonical({"mechanism": mechanism, "sampling": sampling})


@lru_cache(maxsize=65536)
def event_of(content: str, dataset_size: int) -> Event:
    """The event whose stored form this is."""
    message = StepMessage.model_validate(json.loads(content))
    return to_event(message, dataset_size=dataset_size, location="event")


def merged(spans: Iterable[tuple[int, int, str]]) -> list[dict[str, Any]]:
    """Events of a document from (first_step, steps, content), adjacent equal ones as one."""
    runs: list[tuple[int, int, str]] = []
    for first_step, steps, content in spans:
        if runs and runs[-1][2] == content and runs[-1][0] + runs[-1][1] == first_step:
            runs[-1] = (runs[-1][0], runs[-1][1] + steps, content)
        else:
            runs.append((first_step, steps, content))
    return [
        {"first_step": first_step, "steps": steps, **json.loads(content)}
        for first_step, steps, content in runs
    ]
