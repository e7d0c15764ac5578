"""What would make a refused request fit: fewer steps, more noise, or a lower rate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import Field
from sqlalchemy import Connection, Row

from accounting import calibration
from accounting.events import (
    FixedSize,
    Gaussian,
    Laplace,
    MatrixGaussian,
    Poisson,
    Span,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.work_limit import attempt, remaining_points
from service.errors import BudgetExhaustedError, NotFoundError
from service.ledger.append.admission import (
    PositionedSpan,
    admissible_steps,
    first_steps,
    is_finite_everywhere,
)
from service.ledger.append.branch_end import BranchEnd
from service.ledger.append.state import Branch
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.lookups import find_dataset
from service.schemas.event_codec import MAIN, spans_of
from service.schemas.message import PROBABILITY_MIN, Body
from service.schemas.refusals import FailingScope
from service.schemas.requests import EVENTS_MAX, Name, PlannedEvent
from service.schemas.responses import Answer
from service.work_limit import bounded

TOLERANCE: Final = 1e-6  # relative, of a value from one that does not fit
SUGGESTION_POINTS_MAX: Final = 150_000_000  # of work for an answer; beside it, many events are read
SEARCH_POINTS: Final = 50_000_000  # of it, that looking for one remedy may take
_FACTOR_MAX: Final = 1e6  # by which noise is ever raised, or a rate lowered
REASON_FITS: Final = "It fits as it is."
REASON_NO_STEP: Final = "Not even its first step fits."
REASON_NO_NOISE: Final = "None of its steps has a noise multiplier."
REASON_NO_RATE: Final = "None of its steps has a sampling probability or a batch drawn afresh."
REASON_FAR: Final = "No change of this kind makes it fit."
REASON_LONG: Final = "It would take too much work to find."
REASON_UNASKED: Final = "The request did not ask for it."


class Wanted(Body):
    """Steps that may be asked for: the next of a run's branch, or the first of a new run."""

    events: list[PlannedEvent] = Field(min_length=1, max_length=EVENTS_MAX)
    run: Name | None = None  # of the dataset; its own budget has to hold them, too
    branch: Name = MAIN  # of the run
    remedies: bool = True  # whether more noise and a lower rate are looked for


class Steps(Answer):
    """How many of the steps fit."""

    value: int | None
    reason: str | None  # why there is no value


class Noise(Answer):
    """The least noise with which all steps fit: all is raised by one factor."""

    noise_multiplier: float | None  # the least of the events'
    reason: str | None


class Rate(Answer):
    """The highest rate at which all steps fit: all are lowered by one factor."""

    sampling_probability: float | None  # the highest of the events'
    batch_size: int | None  # the largest of the events'
    reason: str | None


class Remedies(Answer):
    """Whether steps fit in every budget, and what would make them fit."""

    dataset: str
    sequence: int
    fits: bool
    failing_scopes: list[FailingScope]
    fewer_steps: Steps
    more_noise: Noise
    lower_rate: Rate


def remedies(connection: Connection, name: str, wanted: Wanted) -> Remedies:
    """What would make steps fit in a dataset's budget, and in those of all it was made from.

    Of a run that is named, they are what would be charged next: its own budget is looked at, too,
    what its branch holds in reserve is used up, and what corrections have shifted counts.

    Raises:
        NotFoundError: there is no such dataset, or no such run of it, or no such branch of the run.
        InvalidRequestError: the events do not follow one another, or do not fit the dataset.
        UnsupportedEventError: the steps fit in every budget, and no theorem accounts for them.
        TooExpensiveError: to tell whether they fit would take too much work.
    """
    dataset = find_dataset(connection, name)
    spans = spans_of(wanted.events, dataset_size=dataset.dataset_size, first_step=0)
    end = _end(connection, dataset, wanted.run, wanted.branch)
    failing: list[dict[str, Any]] = []
    steps = 0
    with bounded("Whether the steps fit", points=SUGGESTION_POINTS_MAX):
        try:
            _require(end, parts := _position_spans(end, spans))
        except BudgetExhaustedError as refusal:
            failing = refusal.failing_scopes
            steps = refusal.admissible_steps
            if steps:  # they are within every budget; see that they can be accounted
                _require(end, first_steps(parts, steps))
        known = REASON_FITS if not failing else None if wanted.remedies else REASON_UNASKED
        noise, rate = _noise(end, spans, known), _rate(end, spans, known)
    return Remedies(
        dataset=dataset.name,
        sequence=dataset.head_sequence,
        fits=not failing,
        failing_scopes=[FailingScope(**one) for one in failing],
        fewer_steps=_fewer(steps, fits=not failing),
        more_noise=noise,
        lower_rate=rate,
    )


def _fewer(steps: int, *, fits: bool) -> Steps:
    if fits:
        return Steps(value=None, reason=REASON_FITS)
    return Steps(value=steps or None, reason=None if steps else REASON_NO_STEP)


def admissible(
    connection: Connection, dataset: Row[Any], trainings: Sequence[Span]
) -> list[int] | None:
    """How many steps of each training every budget would admit; None where there is no budget.

    Each alone, after all that is recorded and reserved by now; of no more steps than it has.

    Raises:
        TooExpensiveError: to tell would take too much work.
    """
    end = _end(connection, dataset)
    scopes = end.scopes([])
    if not scopes:
        return None
    with bounded("What would fit"):
        return [
            admissible_steps(scopes, parts, end.change_of(parts), end.change_of)
            for parts in (_position_spans(end, [one]) for one in trainings)
        ]


def _position_spans(end: BranchEnd, spans: Sequence[Span]) -> list[PositionedSpan]:
    placed, first_step = [], end.branch.next_step
    for index, span in enumerate(spans):
        placed.append(
            PositionedSpan(first_step=first_step, event=span.event, steps=span.steps, index=index)
        )
        first_step += span.steps
    return placed


def _require(end: BranchEnd, parts: Sequence[PositionedSpan]) -> None:
    """Refuse what a charge would; of steps beyond a budget it is said how many fit.

    Raises:
        BudgetExhaustedError: the steps are beyond a budget.
        UnsupportedEventError: they are not, and cannot be accounted.
    """
    end.require_room(parts, end.change_of(parts))
    end.require_accounted(parts)


def _end(
    connection: Connection, dataset: Row[Any], run: str | None = None, branch: str = MAIN
) -> BranchEnd:
    """Where steps would be charged, as the writer reads it.

    Raises:
        NotFoundError: the dataset has no such run, or the run has no such branch.
    """
    cache = DatasetCache(locks=False)
    if run is None:
        cache.lock(connection, {dataset.id})
        return BranchEnd(cache.state(dataset.id), None, _new_branch())
    work = cache.open(connection, [(run, branch)])
    state, found = work.run(run)
    if state.id != dataset.id:
        raise NotFoundError("There is no such run.")
    return BranchEnd(state, found, work.branch(found, branch))


def _new_branch() -> Branch:
    return Branch(id=0, name=MAIN, from_step=0, next_step=0, open_pass=None, reservations=[])


def _noise(end: BranchEnd, spans: Sequence[Span], known: str | None) -> Noise:
    if known is None and not any(
        isinstance(s.event.mechanism, Gaussian | Laplace | MatrixGaussian) for s in spans
    ):
        known = REASON_NO_NOISE
    if known is not None:
        return Noise(noise_multiplier=None, reason=known)
    least = calibration.least_noise(spans)

    def louder(factor: float) -> list[Span]:
        return calibration.louder(spans, value=least * factor)

    factor, reason = _least_factor(end, louder)
    value = None if factor is None else calibration.least_noise(louder(factor))
    return Noise(noise_multiplier=value, reason=reason)


def _rate(end: BranchEnd, spans: Sequence[Span], known: str | None) -> Rate:
    none = Rate(sampling_probability=None, batch_size=None, reason=known)
    if known is None and all(_rarer(span, 2.0) == span for span in spans):
        known = REASON_NO_RATE
    if known is not None:
        return none.model_copy(update={"reason": known})
    factor, reason = _least_factor(end, lambda f: [_rarer(span, f) for span in spans])
    if factor is None:
        return none.model_copy(update={"reason": reason})
    samplings = [_rarer(span, factor).event.sampling for span in spans]
    rates = [s.sampling_probability for s in samplings if isinstance(s, Poisson | TruncatedPoisson)]
    sizes = [s.batch_size for s in samplings if isinstance(s, FixedSize | WithReplacement)]
    return Rate(
        sampling_probability=max(rates, default=None),
        batch_size=max(sizes, default=None),
        reason=None,
    )


def _rarer(span: Span, factor: float) -> Span:
    """The span at a rate that is lower by a factor, as far as a rate may be lowered."""
    sampling = span.event.sampling
    if isinstance(sampling, Poisson | TruncatedPoisson):
        rate = max(PROBABILITY_MIN, sampling.sampling_probability / factor)
        sampling = replace(sampling, sampling_probability=rate)
    elif isinstance(sampling, FixedSize | WithReplacement):
        sampling = replace(sampling, batch_size=max(1, math.floor(sampling.batch_size / factor)))
    return replace(span, event=replace(span.event, sampling=sampling))


def _least_factor(
    end: BranchEnd, spans_at: Callable[[float], list[Span]]
) -> tuple[float | None, str | None]:
    """(the least factor that was seen to fit, why there is none)."""

    def fits(factor: float) -> bool:
        parts = _position_spans(end, spans_at(factor))
        scopes = end.scopes(parts)
        return end.admits(parts) and all(
            is_finite_everywhere(one.event, end.state, scopes) for one in parts
        )

    try:
        factor = attempt(min(SEARCH_POINTS, remaining_points()), lambda: _bisect_factor(fits))
    except calibration.UnreachableError:
        return None, REASON_FAR
    return factor, REASON_LONG if factor is None else None


def _bisect_factor(fits: Callable[[float], bool]) -> float:
    """The least factor that fits, to TOLERANCE; one does not.

    Raises:
        UnreachableError: not even the largest fits.
    """
    low, high = 1.0, 2.0
    while not fits(high):
        if high >= _FACTOR_MAX:
            raise calibration.UnreachableError
        low, high = high, min(high * high, _FACTOR_MAX)
    while high / low > 1 + TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high  # evaluated, and it fits
