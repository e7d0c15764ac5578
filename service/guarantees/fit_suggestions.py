"""What would make a refused request fit: fewer steps, more noise, or a lower rate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from pydantic import Field
from sqlalchemy import Connection, Row, bindparam, select

from accounting import calibration
from accounting.events import (
    FixedSize,
    Gaussian,
    Laplace,
    MatrixGaussian,
    NeighboringRelation,
    Poisson,
    Span,
    TruncatedPoisson,
    WithReplacement,
)
from accounting.work_limit import attempt, remaining_points
from service.errors import BudgetExhaustedError, NotFoundError
from service.ledger.append.admission import (
    BudgetCheck,
    PositionedSpan,
    admissible_steps,
    count_reserved,
    require_budget,
)
from service.ledger.append.state_rows import run_tally, tally_of
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.budget import dataset_scope, run_scope
from service.ledger.budgets.lineage import as_seen_by_ancestor, rows_of
from service.ledger.lookups import find_dataset, find_run
from service.schemas.event_codec import spans_of
from service.schemas.message import PROBABILITY_MIN, Body
from service.schemas.refusals import FailingScope
from service.schemas.requests import EVENTS_MAX, Name, PlannedEvent
from service.schemas.responses import Answer
from service.storage.tables import datasets, lineage
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

_ANCESTORS: Final = (
    select(datasets, lineage.c.exactly_one, lineage.c.most_rows)
    .join(lineage, lineage.c.ancestor_id == datasets.c.id)
    .where(lineage.c.dataset_id == bindparam("dataset"))
    .order_by(datasets.c.id)
)


class Wanted(Body):
    """Steps that may be asked for, beginning a pass of their own."""

    events: list[PlannedEvent] = Field(min_length=1, max_length=EVENTS_MAX)
    run: Name | None = None  # of the dataset; its own budget has to hold them, too
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

    A run that is named has its own budget looked at, too, unless its plan holds that.

    Raises:
        NotFoundError: there is no such dataset, or it has no such run.
        InvalidRequestError: the events do not follow one another, or do not fit the dataset.
        TooExpensiveError: to tell whether they fit would take too much work.
    """
    dataset = find_dataset(connection, name)
    spans = spans_of(wanted.events, dataset_size=dataset.dataset_size, first_step=0)
    scopes = _scopes(connection, dataset) + _own_scope(connection, dataset, wanted.run)
    failing: list[dict[str, Any]] = []
    steps = 0
    with bounded("Whether the steps fit", points=SUGGESTION_POINTS_MAX):
        try:
            parts = _position_spans(spans)
            require_budget(scopes, parts, _change_of(parts), _change_of)
        except BudgetExhaustedError as refusal:
            failing = refusal.failing_scopes
            steps = cast(int, refusal.extra["admissible_steps"])
        known = REASON_FITS if not failing else None if wanted.remedies else REASON_UNASKED
        noise, rate = _noise(scopes, spans, known), _rate(scopes, spans, known)
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
    scopes = _scopes(connection, dataset)
    if not scopes:
        return None
    with bounded("What would fit"):
        each = [_position_spans([one]) for one in trainings]
        return [admissible_steps(scopes, parts, _change_of(parts), _change_of) for parts in each]


def _scopes(connection: Connection, dataset: Row[Any]) -> list[BudgetCheck]:
    """The budgets that steps on a dataset are held against."""
    relation = NeighboringRelation(dataset.neighboring_relation)
    above = connection.execute(_ANCESTORS, {"dataset": dataset.id}).all()
    found = [(dataset, None)] + [
        (row, partial(as_seen_by_ancestor, relation=relation, rows=rows_of(row))) for row in above
    ]
    scopes = [(dataset_scope(row, tally_of(connection, row)), view) for row, view in found]
    return [BudgetCheck(scope=scope, view=view) for scope, view in scopes if scope is not None]


def _own_scope(connection: Connection, dataset: Row[Any], name: str | None) -> list[BudgetCheck]:
    """A run's own budget, as its filter holds it; none without one, or while its plan holds it."""
    if name is None:
        return []
    run = find_run(connection, name)
    if run.dataset_id != dataset.id:
        raise NotFoundError("There is no such run.")
    scope = None if run.on_plan else run_scope(run, run_tally(connection, dataset, run))
    return [] if scope is None else [BudgetCheck(scope=scope, view=None)]


def _position_spans(spans: Sequence[Span]) -> list[PositionedSpan]:
    placed, first_step = [], 0
    for index, span in enumerate(spans):
        placed.append(
            PositionedSpan(first_step=first_step, event=span.event, steps=span.steps, index=index)
        )
        first_step += span.steps
    return placed


def _change_of(parts: Sequence[PositionedSpan]) -> BudgetDelta:
    return BudgetDelta(recorded=count_reserved(None, [part.span() for part in parts]))


def _noise(scopes: Sequence[BudgetCheck], spans: Sequence[Span], known: str | None) -> Noise:
    if known is None and not any(
        isinstance(s.event.mechanism, Gaussian | Laplace | MatrixGaussian) for s in spans
    ):
        known = REASON_NO_NOISE
    if known is not None:
        return Noise(noise_multiplier=None, reason=known)
    least = calibration.least_noise(spans)

    def louder(factor: float) -> list[Span]:
        return calibration.louder(spans, value=least * factor)

    factor, reason = _least_factor(scopes, louder)
    value = None if factor is None else calibration.least_noise(louder(factor))
    return Noise(noise_multiplier=value, reason=reason)


def _rate(scopes: Sequence[BudgetCheck], spans: Sequence[Span], known: str | None) -> Rate:
    none = Rate(sampling_probability=None, batch_size=None, reason=known)
    if known is None and all(_rarer(span, 2.0) == span for span in spans):
        known = REASON_NO_RATE
    if known is not None:
        return none.model_copy(update={"reason": known})
    factor, reason = _least_factor(scopes, lambda f: [_rarer(span, f) for span in spans])
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
    scopes: Sequence[BudgetCheck], spans_at: Callable[[float], list[Span]]
) -> tuple[float | None, str | None]:
    """(the least factor that was seen to fit, why there is none)."""

    def fits(factor: float) -> bool:
        move = BudgetDelta(recorded=count_reserved(None, spans_at(factor)))
        return all(held.scope.admits(held.sums(move)) for held in scopes)

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
