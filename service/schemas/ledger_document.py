"""The ledger document: what was recorded, in a form a stranger can recompute from."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, Literal

from pydantic import Field, model_validator

from accounting.event_counts import UNPLACED, USED_NOISE, EventCounts, Place, count_events
from accounting.events import Event, MinSeparation, NoNoise, Span
from service.errors import InvalidRequestError
from service.schemas.correlated.strategies import Strategies, require_known_strategies
from service.schemas.event_codec import (
    MAIN,
    Line,
    Lines,
    Taken,
    _cut,
    overlay,
    spans_of,
    to_event,
)
from service.schemas.findings import (
    AuditFinding,
    AuditResultFinding,
    BatchSizesFinding,
    RecordedFinding,
)
from service.schemas.message import Delta, Wire
from service.schemas.requests import (
    Acceptable,
    ActedBy,
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
)
from service.schemas.responses import OutsideGuarantee
from service.schemas.run_states import RunStateName
from service.schemas.samplings import Count

FRESH: Final = "fresh"  # the order of a branch that begins with a new pass
CONTINUED: Final = "continued"  # of one that goes on in an order that was used before
# Of a run that was audited with the records of people.
AUDITED: Final = OutsideGuarantee(kind="audit", branch="main", verdict="published")


class RecordedEvent(PlannedEvent):
    """Equal steps in a row, merged from any number of events."""

    steps: MergedSteps


class BranchDocument(Wire):
    """A branch beside main: where it began and what it recorded."""

    name: Name
    from_branch: Name | None = None  # whose steps before from_step it shares
    from_step: Step
    order: Order | None = None  # of the records
    noise: Literal["fresh"] | None = None  # of correlated noise
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
    """A released iterate: the one after a step."""

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
    state: RunStateName | None = None
    reopened: bool = False  # whether steps were ever recorded after the run's end
    releases: list[ReleasedIterate] = Field(default_factory=list)
    overdrafts: list[Overdraft] | None = None
    reserved: list[Overdraft] | None = None  # admitted before the limit was lowered
    by: ActedBy | None = None  # the key that registered the run
    appended_by: list[ActedBy] | None = None  # the keys that appended last, each once
    corrections: list[CorrectedSteps] = Field(default_factory=list)
    findings: list[RecordedFinding] = Field(default_factory=list)  # no epsilon depends on them
    labels: Labels | None = None
    strategies: Strategies = Field(default_factory=dict)  # of correlated noise, that steps name

    @model_validator(mode="after")
    def _of_its_strategies(self) -> "LedgerDocument":
        branches = [event for branch in self.branches for event in branch.events]
        require_known_strategies(
            [*self.events, *branches, *self.corrections, *(self.plan or [])], self.strategies
        )
        return self

    def counts(self) -> EventCounts:
        """What the document's events add up to.

        Raises:
            InvalidRequestError: events are not contiguous, or do not fit the dataset.
        """
        return self._together(self._sequences())

    def corrected_counts(self) -> EventCounts | None:
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
            corrected = list(_overlay_corrections(spans, found, first_step))
            sequences.append((name, first_step, corrected))
        if over:
            raise InvalidRequestError(
                "corrections", "name a branch that the document does not have"
            )
        return self._together(sequences)

    def _together(self, sequences: Iterable[tuple[str, int, list[Span]]]) -> EventCounts:
        """What (branch, its first step, its spans) add up to, line by line."""
        lines = Lines(self._taken())
        opens: dict[str, Place] = {MAIN: None}
        for one in self.branches:
            if one.takes_pass or one.order == FRESH:
                opens[one.name] = None if one.takes_pass or one.noise == FRESH else USED_NOISE
        parts: dict[Line, list[tuple[int, list[Span]]]] = {}
        places: dict[Line, Place] = {}
        for name, first_step, spans in sequences:
            for here, piece in _cut(spans, first_step, lines.cuts(name)):
                line = lines.at(name, here)
                parts.setdefault(line, []).append((here, piece))
                if line == (name, 0):
                    places[line] = opens.get(name, UNPLACED)
        ordered = [
            chain.from_iterable(piece for _, piece in sorted(found, key=itemgetter(0)))
            for found in parts.values()
        ]
        return count_events(ordered, places=[places.get(line, UNPLACED) for line in parts])

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
                        "must be of a branch whose order is continued, and which alone continues "
                        "at from_step of from_branch, an earlier one of this document",
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


CORRECTABLE: Final = (
    "of correlated noise can say another noise_multiplier of the same min_separation pass, or no "
    "noise at all (mechanism none)"
)


def is_correctable(recorded: Event, really: Event) -> bool:
    """Whether a correction says something that passes of correlated noise are counted with.

    Rows that were of another pass, or none, would move those that follow.
    """
    if not (recorded.is_correlated or really.is_correlated):
        return True
    if isinstance(really.mechanism, NoNoise):
        return not really.is_correlated
    same = recorded.stream == really.stream
    return (same and isinstance(really.sampling, MinSeparation)) or recorded == really


def _require_recorded(found: Sequence[tuple[int, int, Event]], first_step: int, end: int) -> None:
    """Refuse corrections of steps that were not recorded, and two of the same step."""
    for low, high, _ in found:
        if not first_step <= low < high <= end:
            raise InvalidRequestError(
                "corrections", "must each be of recorded steps, and no two of the same"
            )
        first_step = high


def _overlay_corrections(
    spans: Iterable[Span], over: Sequence[tuple[int, int, Event]], first_step: int
) -> Iterator[Span]:
    for span in spans:
        for _, steps, event in overlay((first_step, span.steps, span.event), over):
            if not is_correctable(span.event, event):
                raise InvalidRequestError("corrections", CORRECTABLE)
            yield Span(event=event, steps=steps)
        first_step += span.steps


def outside_of(document: LedgerDocument) -> list[OutsideGuarantee]:
    """What left the trainer beside the steps, and no epsilon covers."""
    real = {
        one.number
        for one in document.findings
        if isinstance(one, AuditFinding) and not one.synthetic
    }
    verdicts = [
        OutsideGuarantee(kind=one.kind, branch=one.branch, verdict=one.verdict)
        for one in document.findings
        if isinstance(one, BatchSizesFinding)
    ]
    results = (one for one in document.findings if isinstance(one, AuditResultFinding))
    return verdicts + [AUDITED] * any(one.number in real for one in results)
