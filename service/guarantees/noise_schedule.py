"""How much noise a run's steps had and how large a share of the records: few spans, told apart.

Where a run changes either at nearly every step, spans that lie together are told as one, with the
least and the most of each: what is extreme is never smoothed away.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never

from accounting.events import (
    BallsAndBins,
    Cyclic,
    CyclicPoisson,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    MatrixGaussian,
    MinSeparation,
    NonUniform,
    Poisson,
    PoissonUnit,
    PrivateSelection,
    RandomAllocation,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
)
from accounting.renyi.selection import expected_trials
from service.formatting import count, plain, words
from service.schemas.event_codec import content_of, event_of
from service.schemas.responses import Answer

SPANS_MAX: Final = 400
_SPARE: Final = 4  # gathered to a fourth of that, so that it is rarely done anew
SEVERAL: Final = "several"


class Range(Answer):
    """The least and the most of something."""

    least: float
    most: float


class ScheduleSpan(Answer):
    """Steps that follow one another in the order of recording."""

    first_step: int  # counted over all branches in the order of recording, from 0
    steps: int
    mechanism: str  # its kind, or several
    sampling: str
    noise_multiplier: Range | None  # null where some step's noise has no multiplier
    sampling_rate: Range | None  # share of the records that a step takes; most where it varies
    left_out: int | None  # records that each pass leaves out; null if not shuffled, or not the same
    selection: str | None  # the private selection in words; null if not each step is this one


class Schedule(Answer):
    """The noise and the rate of a run by step."""

    run: str
    steps: int  # told here
    steps_recorded: int
    sequence: int
    complete: bool  # whether the two are the same
    spans: list[ScheduleSpan]


@dataclass(slots=True)
class _Span:
    """A span while more may join it."""

    what: frozenset[str]  # contents of events
    first_step: int
    steps: int

    def join(self, other: "_Span") -> None:
        self.what |= other.what
        self.steps += other.steps


class Spans:
    """Spans as they come, never more than SPANS_MAX."""

    def __init__(self, dataset_size: int) -> None:
        self._size = dataset_size
        self._found: list[_Span] = []
        self._steps = 0
        self._grain = 0  # steps that may be told as one though they differ

    def add(self, content: str, steps: int) -> None:
        """Tell of more steps, of an event as it is stored."""
        self._put(_Span(frozenset((content,)), self._steps, steps))
        self._steps += steps
        if len(self._found) > SPANS_MAX:
            self._grain = self._steps * _SPARE // SPANS_MAX
            fine, self._found = self._found, []
            for one in fine:
                self._put(one)

    def _put(self, one: _Span) -> None:
        last = self._found[-1] if self._found else None
        if last is None or (last.what != one.what and last.steps + one.steps > self._grain):
            self._found.append(one)
        else:
            last.join(one)

    def spans(self) -> list[ScheduleSpan]:
        """What was recorded so far."""
        return [self._answer(one) for one in self._found]

    def _answer(self, one: _Span) -> ScheduleSpan:
        kinds = [json.loads(content) for content in one.what]
        events = [event_of(content, self._size) for content in one.what]
        return ScheduleSpan(
            first_step=one.first_step,
            steps=one.steps,
            mechanism=_kind({kind["mechanism"]["kind"] for kind in kinds}),
            sampling=_kind({kind["sampling"]["kind"] for kind in kinds}),
            noise_multiplier=_range([_noise(event) for event in events]),
            sampling_rate=_range([_rate(event) for event in events]),
            left_out=_same([_count_left_out(event.sampling) for event in events]),
            selection=_selection(events, one.steps),
        )


# Kinds as the forms of pages name them; the others by their own name.
_KIND_WORDS: Final = {
    "approximate_dp": "Approximate DP",
    "zcdp": "zCDP",
    "none": "No noise",
    "shuffle": "Shuffled",
    "cyclic": "Fixed order",
    "fixed_size": "Fixed size, drawn anew each step",
    "full": "All records",
    "unknown": "Not known",
}
# Numbers with their units; the others by their name.
_PHRASES: Final = {
    "batch_size": "batches of {} records",
    "expected_batch_size": "batches of {} records on average",
    "max_batch_size": "at most {} records a batch",
    "steps_per_pass": "{} steps a pass",
    "left_out": "{} records left out of each pass",
    "participations": "each record in {} steps a pass",
    "epsilon": "ε {}",
    "delta": "δ {}",
}


def event_words(event: Event) -> str:
    """Return an event in words: its kinds and their numbers."""
    return " · ".join(event_parts(event))


def event_parts(event: Event) -> tuple[str, ...]:
    """Return the mechanism and the sampling of an event in words; a selection has one part."""
    if isinstance(event.mechanism, PrivateSelection):
        return (_selection_words(event.mechanism, 1),)
    content = json.loads(content_of(event))
    return part_words(content["mechanism"]), part_words(content["sampling"])


def event_fields(event: Event) -> dict[str, str]:
    """Return an event's kinds and numbers in words, by what each is."""
    if isinstance(event.mechanism, PrivateSelection):
        return {"mechanism": event_words(event)}
    content = json.loads(content_of(event))
    found: dict[str, str] = {}
    for name in ("mechanism", "sampling"):
        found[name] = _kind_words(content[name])
        found |= {key.replace("_", " "): told for key, told in _numbers(content[name]).items()}
    return found


def part_words(fields: Mapping[str, Any]) -> str:
    """Return a mechanism or a sampling in words, with its numbers and their units."""
    given = [
        _PHRASES.get(name, f"{name.replace('_', ' ')} {{}}").format(value)
        for name, value in _numbers(fields).items()
    ]
    return ", ".join([_kind_words(fields), *given])


def _kind_words(fields: Mapping[str, Any]) -> str:
    drawn = fields.get("reshuffle")  # of a shuffle, if more than its kind is known
    if drawn is not None:
        return "Shuffled once" if drawn == "once" else "Shuffled anew each pass"
    return _KIND_WORDS.get(fields["kind"], words(fields["kind"]))


def _numbers(fields: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: _value(value)
        for name, value in fields.items()
        if name not in ("kind", "reshuffle") and value is not None
    }


def _value(value: Any) -> str:
    if isinstance(value, Mapping):  # of a selection: its repetitions, or its base
        parts = [f"{name.replace('_', ' ')} {_value(part)}" for name, part in value.items()]
        return part_words(value) if "kind" in value else ", ".join(parts)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return plain(value)
    return count(value) if isinstance(value, int) else str(value)


def _selection(events: list[Event], steps: int) -> str | None:
    mechanism = events[0].mechanism
    if len(events) > 1 or not isinstance(mechanism, PrivateSelection):
        return None
    return f"{_selection_words(mechanism, steps)}."


def _selection_words(found: PrivateSelection, times: int) -> str:
    many = "A private selection" if times == 1 else f"{count(times)} private selections, each"
    mean = plain(round(expected_trials(found.repetitions), 3))
    most = f"{count(found.steps)} step{'' if found.steps == 1 else 's'}"
    return (
        f"{many}: the best of a secret number of trials, {mean} on average. "
        f"A trial takes at most {most}: {event_words(found.base)}"
    )


def _kind(kinds: set[str]) -> str:
    return kinds.pop() if len(kinds) == 1 else SEVERAL


def _range(values: list[float | None]) -> Range | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Range(least=min(known), most=max(known))


def _noise(event: Event) -> float | None:
    match event.mechanism:
        case Gaussian() | Laplace() | MatrixGaussian() as noisy:
            return noisy.noise_multiplier
        case _:
            return None


def _rate(event: Event) -> float | None:
    """A selection has none: the rate of its trials is said in words."""
    if isinstance(event.mechanism, PrivateSelection):
        return None
    return sampling_rate(event.sampling)


def _same(values: list[int | None]) -> int | None:
    return values[0] if len(set(values)) == 1 else None


def _count_left_out(sampling: Sampling) -> int | None:
    if not isinstance(sampling, Shuffle) or sampling.dataset_size is None:
        return None
    return max(0, sampling.dataset_size - sampling.steps_per_pass * sampling.batch_size)


def sampling_rate(sampling: Sampling) -> float | None:
    """Return the share of records in a step; None if it is unknown. Only for display."""
    match sampling:
        case Full():
            return 1.0
        case Unknown():
            return None
        case Poisson() | PoissonUnit() | TruncatedPoisson():
            return sampling.sampling_probability
        case FixedSize() | WithReplacement():
            return sampling.batch_size / sampling.dataset_size
        case NonUniform():
            return sampling.max_weight
        case CyclicPoisson():
            return sampling.sampling_probability / sampling.cycle_length
        case Cyclic() | Shuffle() | BallsAndBins() | RandomAllocation() | MinSeparation():
            return _rate_in_passes(sampling)
        case _:
            assert_never(sampling)


def _rate_in_passes(
    sampling: Cyclic | Shuffle | BallsAndBins | RandomAllocation | MinSeparation,
) -> float:
    if isinstance(sampling, Shuffle) and sampling.dataset_size is not None:
        return sampling.batch_size / sampling.dataset_size
    if isinstance(sampling, RandomAllocation | MinSeparation):
        return sampling.participations / sampling.steps_per_pass
    return 1 / sampling.steps_per_pass
