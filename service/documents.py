"""The ledger document: what was recorded, in a form a stranger can recompute from."""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter

from accounting.balances import UNPLACED, Balance, Line, Lines, Place, Taken, balance_of
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NoNoise,
    NonUniform,
    Poisson,
    RandomAllocation,
    RandomizedResponse,
    Sampling,
    Shuffle,
    Span,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)
from service.errors import InvalidRequestError
from service.finding_messages import NewFinding
from service.mechanisms import MechanismMessage, to_mechanism
from service.run_states import RunState
from service.samplings import Count, SamplingMessage, to_sampling
from service.schemas import (
    Acceptable,
    Assumptions,
    Labels,
    MergedSteps,
    Name,
    Order,
    PlannedEvent,
    Relation,
    Release,
    Step,
    StepMessage,
    Text,
    to_event,
)
from service.wire import Delta, Wire

FORMAT: Final = "dpledger/1"
MAIN: Final = "main"  # the branch every run begins with
FRESH: Final = "fresh"  # the order of a branch that begins with a new pass
CONTINUED: Final = "continued"  # of one that goes on in an order that was used before
T = TypeVar("T")


class RecordedEvent(PlannedEvent):
    """Equal steps in a row, merged from any number of events."""

    steps: MergedSteps


class BranchDocument(Wire):
    """A branch beside main: where it began and what it recorded."""

    name: Name
    from_branch: Name | None = None  # whose steps before from_step it shares
    from_step: Step
    order: Order | None = None  # of the records
    takes_pass: bool = False  # whether it goes on in the pass that was open where it began
    events: list[RecordedEvent]


class Overdraft(Wire):
    """Steps that were recorded beyond a limit."""

    branch: Name
    first_step: Step
    steps: MergedSteps


class CorrectedSteps(StepMessage):
    """What some recorded steps really were, and why the record was mistaken."""

    branch: Name
    first_step: Step
    steps: MergedSteps
    reason: Text

    @property
    def end(self) -> int:
        """The step after the last."""
        return self.first_step + self.steps


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
    state: RunState | None = None
    reopened: bool = False  # whether steps were ever recorded after the run's end
    releases: list[ReleasedIterate] = Field(default_factory=list)
    overdrafts: list[Overdraft] | None = None
    reserved: list[Overdraft] | None = None  # admitted before the limit was lowered
    by: Name | None = None  # the key that registered the run
    appended_by: list[Name] | None = None  # the keys that appended last, each once
    corrections: list[CorrectedSteps] = Field(default_factory=list)
    findings: list[NewFinding] = Field(default_factory=list)  # no epsilon depends on them
    labels: Labels | None = None

    def balance(self) -> Balance:
        """What the document's events add up to.

        Raises:
            InvalidRequestError: events are not contiguous, or do not fit the dataset.
        """
        return self._together(self._sequences())

    def corrected_balance(self) -> Balance | None:
        """The same with every correction laid over it; None where there is none.

        Raises:
            InvalidRequestError: a correction is not one of recorded steps, or overlaps another.
        """
        if not self.corrections:
            return None
        over: dict[str, list[tuple[int, int, Event]]] = {}
        for index, one in enumerate(self.corrections):
            here = f"corrections[{index}]"
            event = to_event(one, dataset_size=self.dataset_size, location=here)
            over.setdefault(one.branch, []).append((one.first_step, one.end, event))
        sequences = []
        for name, first_step, spans in self._sequences():
            found = sorted(over.pop(name, []), key=lambda one: one[0])
            _require_recorded(found, first_step, first_step + sum(span.steps for span in spans))
            corrected = list(_corrected(spans, found, first_step))
            sequences.append((name, first_step, corrected))
        if over:
            raise InvalidRequestError("corrections", "name a branch that is not here")
        return self._together(sequences)

    def _together(self, sequences: Iterable[tuple[str, int, list[Span]]]) -> Balance:
        """What (branch, its first step, its spans) add up to, line by line."""
        lines = Lines(self._taken())
        known = {one.name for one in self.branches if one.order == FRESH or one.takes_pass} | {MAIN}
        parts: dict[Line, list[tuple[int, list[Span]]]] = {}
        places: dict[Line, Place] = {}
        for name, first_step, spans in sequences:
            for here, piece in _cut(spans, first_step, lines.cuts(name)):
                line = lines.at(name, here)
                parts.setdefault(line, []).append((here, piece))
                if line == (name, 0) and name in known:
                    places[line] = None
        ordered = [
            chain.from_iterable(piece for _, piece in sorted(found, key=itemgetter(0)))
            for found in parts.values()
        ]
        return balance_of(ordered, places=[places.get(line, UNPLACED) for line in parts])

    def _taken(self) -> list[Taken]:
        """By whom open passes were taken.

        Raises:
            InvalidRequestError: a branch takes one that is not there, or was taken already.
        """
        taken: list[Taken] = []
        ends = {MAIN: (0, sum(one.steps for one in self.events))}
        for index, one in enumerate(self.branches):
            begin, end = ends.get(one.from_branch or "", (1, 0))
            if one.takes_pass:
                before = any((other.of, other.step) == (one.from_branch, one.from_step)
                             for other in taken)  # fmt: skip
                if one.order != CONTINUED or not begin <= one.from_step <= end or before:
                    raise InvalidRequestError(
                        f"branches[{index}].takes_pass",
                        "must be of a branch whose order is continued, and which alone goes on at "
                        "from_step of from_branch, an earlier one of this document",
                    )
                taken.append(Taken(by=one.name, of=one.from_branch, step=one.from_step))
            steps = sum(event.steps for event in one.events)
            ends.setdefault(one.name, (one.from_step, one.from_step + steps))
        return taken

    def _sequences(self) -> Iterator[tuple[str, int, list[Span]]]:
        """(branch, its first step, what it recorded), main first."""
        yield MAIN, 0, spans_of(self.events, dataset_size=self.dataset_size, first_step=0)
        for index, branch in enumerate(self.branches):
            spans = spans_of(
                branch.events,
                dataset_size=self.dataset_size,
                first_step=branch.from_step,
                location=f"branches[{index}].events",
            )
            yield branch.name, branch.from_step, spans


def _cut(
    spans: Iterable[Span], first_step: int, cuts: Iterable[int]
) -> Iterator[tuple[int, list[Span]]]:
    """(first step, spans) of the parts of spans that follow one another, cut before some steps."""
    left, here = list(spans), first_step
    for cut in (*cuts, None):
        part: list[Span] = []
        begin = here
        while left and (cut is None or here < cut):
            span = left.pop(0)
            steps = span.steps if cut is None else min(span.steps, cut - here)
            part.append(replace(span, steps=steps))
            if steps < span.steps:
                left.insert(0, replace(span, steps=span.steps - steps))
            here += steps
        yield begin, part


def _require_recorded(found: Sequence[tuple[int, int, Event]], first_step: int, end: int) -> None:
    """Refuse corrections of steps that were not recorded, and two of the same step."""
    for low, high, _ in found:
        if not first_step <= low < high <= end:
            raise InvalidRequestError(
                "corrections", "must each be of recorded steps, and no two of the same"
            )
        first_step = high


def _corrected(
    spans: Iterable[Span], over: Sequence[tuple[int, int, Event]], first_step: int
) -> Iterator[Span]:
    for span in spans:
        for _, steps, event in laid_over((first_step, span.steps, span.event), over):
            yield Span(event=event, steps=steps)
        first_step += span.steps


def laid_over(
    part: tuple[int, int, T], over: Sequence[tuple[int, int, T]]
) -> Iterator[tuple[int, int, T]]:
    """Steps with corrections laid over them, in order.

    Args:
        part: (first step, steps, what they were recorded as).
        over: (first step, the step after the last, what they really were), in order, apart.

    Yields:
        (first step, steps, what they were).
    """
    here, steps, what = part
    end = here + steps
    for index in range(bisect_right(over, here, key=lambda one: one[1]), len(over)):
        low, high, really = over[index]
        if low >= end:
            break
        if here < low:
            yield here, low - here, what
        here, low = min(high, end), max(low, here)
        yield low, here - low, really
    if here < end:
        yield here, end - here, what


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


def plan_of(text: str | None, dataset_size: int) -> tuple[Span, ...]:
    """The spans of a stored plan."""
    events = [PlannedEvent.model_validate(one) for one in json.loads(text or "[]")]
    return tuple(spans_of(events, dataset_size=dataset_size, first_step=0, location="plan"))


_ENCODER: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: the same text for the same value."""
    return _ENCODER.encode(value)


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

_START: Final = '{"mechanism":'
_BETWEEN: Final = ',"sampling":'
_LATER: Final = ConfigDict(defer_build=True)
_MECHANISM: Final[TypeAdapter[MechanismMessage]] = TypeAdapter(MechanismMessage, config=_LATER)
_SAMPLING: Final[TypeAdapter[SamplingMessage]] = TypeAdapter(SamplingMessage, config=_LATER)


def content_of(event: Event) -> str:
    """The stored form of an event: canonical JSON of its normalised fields."""
    return f"{_START}{part_content(event.mechanism)}{_BETWEEN}{part_content(event.sampling)}}}"


@lru_cache(maxsize=16384)
def part_content(part: Mechanism | Sampling) -> str:
    """The stored form of a mechanism or a sampling."""
    fields = {name: getattr(part, name) for name in type(part).__slots__}
    fields.pop("dataset_size", None)  # a constant of the dataset, not of the event
    return canonical({"kind": _KINDS[type(part)], **fields})


@lru_cache(maxsize=16384)
def event_of(content: str, dataset_size: int) -> Event:
    """The event whose stored form this is."""
    mechanism, sampling = content.removeprefix(_START)[:-1].split(_BETWEEN)
    message = _MECHANISM.validate_python(json.loads(mechanism))
    return Event(mechanism=to_mechanism(message), sampling=_sampling_of(sampling, dataset_size))


@lru_cache(maxsize=1024)
def _sampling_of(content: str, dataset_size: int) -> Sampling:
    message = _SAMPLING.validate_python(json.loads(content))
    return to_sampling(message, dataset_size=dataset_size, location="event.sampling")


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
