"""Events as they are stored: their canonical JSON, and the event that a stored one means."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter

from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    CyclicPoisson,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    MatrixGaussian,
    Mechanism,
    MinSeparation,
    NegativeBinomialTrials,
    NoNoise,
    NonUniform,
    Poisson,
    PoissonTrials,
    PrivateSelection,
    RandomAllocation,
    RandomizedResponse,
    Sampling,
    Shuffle,
    Span,
    Trials,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
    Zcdp,
)
from service.errors import InvalidRequestError
from service.schemas.correlated.steps import require_pair
from service.schemas.mechanisms import MechanismMessage, to_mechanism
from service.schemas.message import Wire
from service.schemas.requests import PlannedEvent, StepMessage
from service.schemas.samplings import SamplingMessage, to_sampling

LEDGER_FORMAT: Final = "dpledger/1"
PART: Final = 200  # members of a list that are encoded at once
MAIN: Final = "main"  # the branch every run begins with
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A branch that goes on, from a step, in the pass that was open on another."""

    by: Hashable
    of: Hashable
    step: int


Line = tuple[Hashable, int]  # a branch, and how often its open pass was taken before


class Lines:
    """Steps in a row, whose passes are followed together: a branch, unless a pass was taken.

    The steps before the branch that takes an open pass are one line with that branch; what the
    other branch does from there on is a line of its own, whose place is not known.
    """

    def __init__(self, taken: Iterable[Taken] = ()) -> None:
        """Follow branches.

        Args:
            taken: by whom open passes were taken; each branch takes one, and each at most once.
        """
        self._by: dict[Hashable, Taken] = {}
        self._steps: dict[Hashable, list[int]] = {}
        for one in taken:
            self._by[one.by] = one
            self._steps.setdefault(one.of, []).append(one.step)
        for steps in self._steps.values():
            steps.sort()

    def at(self, branch: Hashable, step: int) -> Line:
        """The line that a step of a branch is on."""
        return self._line(branch, bisect_right(self._steps.get(branch, ()), step))

    def _line(self, branch: Hashable, index: int) -> Line:
        while not index and branch in self._by:
            one = self._by[branch]
            branch, index = one.of, bisect_left(self._steps[one.of], one.step)
        return branch, index

    def cuts(self, branch: Hashable) -> list[int]:
        """The steps from which a branch is on another line."""
        return self._steps.get(branch, [])


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


def overlay(
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


def long_canonical(value: Any) -> str:
    """The same text as `canonical`, made in parts.

    Python encodes JSON without letting another thread in: a document of a megabyte would hold up
    every append for tens of milliseconds.
    """
    if isinstance(value, dict):
        members = (f"{canonical(name)}:{long_canonical(value[name])}" for name in sorted(value))
        return f"{{{','.join(members)}}}"
    if not isinstance(value, list) or len(value) <= PART:
        return canonical(value)
    parts = (value[first : first + PART] for first in range(0, len(value), PART))
    return f"[{','.join(canonical(part)[1:-1] for part in parts)}]"


_KINDS: Final[dict[type, str]] = {
    Gaussian: "gaussian",
    Laplace: "laplace",
    RandomizedResponse: "randomized_response",
    ApproximateDp: "approximate_dp",
    Zcdp: "zcdp",
    PrivateSelection: "selection",
    NegativeBinomialTrials: "truncated_negative_binomial",
    PoissonTrials: "poisson",
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
    MatrixGaussian: "matrix_gaussian",
    MinSeparation: "min_separation",
    CyclicPoisson: "cyclic_poisson",
}
_START: Final = '{"mechanism":'
_BETWEEN: Final = ',"sampling":'
_LATER: Final = ConfigDict(defer_build=True)
_MECHANISM: Final[TypeAdapter[MechanismMessage]] = TypeAdapter(MechanismMessage, config=_LATER)
_SAMPLING: Final[TypeAdapter[SamplingMessage]] = TypeAdapter(SamplingMessage, config=_LATER)


@lru_cache(maxsize=4096)
def content_of(event: Event) -> str:
    """The stored form of an event: canonical JSON of its normalised fields."""
    return f"{_START}{part_content(event.mechanism)}{_BETWEEN}{part_content(event.sampling)}}}"


@lru_cache(maxsize=16384)
def part_content(part: Mechanism | Sampling) -> str:
    """The stored form of a mechanism or a sampling."""
    if isinstance(part, PrivateSelection):
        base = {**json.loads(content_of(part.base)), "steps": part.steps}
        return canonical(
            {"kind": _KINDS[type(part)], "repetitions": _fields(part.repetitions), "base": base}
        )
    return canonical(_fields(part))


def _fields(part: Mechanism | Sampling | Trials) -> dict[str, Any]:
    fields = {name: getattr(part, name) for name in type(part).__slots__}
    fields.pop("dataset_size", None)  # a constant of the dataset, not of the event
    return {"kind": _KINDS[type(part)], **fields}


@lru_cache(maxsize=16384)
def event_of(content: str, dataset_size: int) -> Event:
    """The event whose stored form this is."""
    # The base of a selection has a sampling, too: the event's own is the last.
    part, sampling = content.removeprefix(_START)[:-1].rsplit(_BETWEEN, 1)
    message = _MECHANISM.validate_python(json.loads(part))
    mechanism = to_mechanism(message, dataset_size=dataset_size, location="event.mechanism")
    return Event(mechanism=mechanism, sampling=_sampling_of(sampling, dataset_size))


@lru_cache(maxsize=1024)
def _sampling_of(content: str, dataset_size: int) -> Sampling:
    message = _SAMPLING.validate_python(json.loads(content))
    return to_sampling(message, dataset_size=dataset_size, location="event.sampling")


def merge_spans(spans: Iterable[tuple[int, int, str]]) -> list[dict[str, Any]]:
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


# Events of messages that were read before, with the parts whose identities they stand for.
_events: dict[tuple[int, int, int | None], tuple[Wire, Wire, Event]] = {}
_EVENTS_MAX: Final = 4096


def to_event(message: StepMessage, *, dataset_size: int | None, location: str) -> Event:
    """The accounting event of a message.

    Raises:
        InvalidRequestError: a size does not fit the dataset, the length of a pass is missing, or
            the dataset's size is needed and not known.
    """
    key = (id(message.mechanism), id(message.sampling), dataset_size)
    if (known := _events.get(key)) is not None:
        return known[2]
    require_pair(message.mechanism, message.sampling, location=location)
    mechanism = to_mechanism(
        message.mechanism, dataset_size=dataset_size, location=f"{location}.mechanism"
    )
    sampling = to_sampling(
        message.sampling, dataset_size=dataset_size, location=f"{location}.sampling"
    )
    event = Event(mechanism=mechanism, sampling=sampling)
    if len(_events) >= _EVENTS_MAX:
        _events.clear()
    _events[key] = (message.mechanism, message.sampling, event)
    return event
