"""Offline calculations of the command line: a ledger's calibration, and any theorem's value."""

import dataclasses
import enum
import inspect
import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import accounting
from accounting import calibration
from accounting.accountants import best_bound
from accounting.accountants.best_bound import BEST
from accounting.calibration import Calibrated, Parameter
from accounting.event_counts import EventCounts, count_events
from accounting.events import Gaussian, Laplace, MatrixGaussian, NeighboringRelation, Span
from accounting.guarantees import Guarantee, Theorem, covering
from service.errors import InvalidRequestError, NotFoundError
from service.ledger.hidden_iterates import read_hidden, with_hidden_state_bound
from service.schemas.event_codec import spans_of
from service.schemas.ledger_document import LedgerDocument, outside_of
from service.schemas.requests import accepted_statuses
from service.schemas.responses import RunGuarantee, guarantee_answer

TARGET_MAX: Final = 1e6  # nats


def account_document(document: LedgerDocument, *, delta: float, accountant: str) -> RunGuarantee:
    """What a document guarantees, as recorded and as corrected.

    Raises:
        InvalidRequestError: the document contradicts itself or does not fit its dataset.
        ValueError: there is no such accountant.
    """
    counts, corrected = document.counts(), document.corrected_counts()
    accept, hidden = accepted_statuses(document.accept), read_hidden(document)
    relation = NeighboringRelation(document.neighboring_relation)

    given: dict[str, Any] = {"delta": delta, "accountant": accountant}
    given["share"] = 1.0 if corrected is None else 0.5  # as GET guarantee of a run takes it

    def found_of(one: EventCounts) -> Guarantee:
        found = best_bound.guarantee(one, relation=relation, accept=accept, **given)
        found = best_bound.with_odometer(found, one, **given)
        return with_hidden_state_bound(found, hidden, accept=accept, accountant=accountant)

    found = found_of(counts)
    beside: dict[str, Any] = {"outside_guarantee": outside_of(document)}
    if corrected is not None:
        really = found_of(corrected)
        found = covering(found, really)
        beside |= {"corrections": len(document.corrections), "corrected_epsilon": really.epsilon}
    answer = guarantee_answer(found, counts=counts, sequence=0, release=hidden.release)
    return RunGuarantee(**dict(answer) | beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A value, the events at it, and their counts."""

    calibrated: Calibrated
    spans: Sequence[Span]
    counts: EventCounts

    def noises(self) -> list[tuple[int, float]]:
        """Each event's noise multiplier, where scaling has left them different."""
        found = [
            (index, span.event.mechanism.noise_multiplier)
            for index, span in enumerate(self.spans)
            if isinstance(span.event.mechanism, Gaussian | Laplace | MatrixGaussian)
        ]
        return found if len({noise for _, noise in found}) > 1 else []


def calibrate_document(
    document: LedgerDocument,
    *,
    parameter: Parameter,
    epsilon: float,
    delta: float,
    accountant: str = BEST,
) -> Solution:
    """What a document's events may be at most, for a target.

    For noise_multiplier all noise is scaled by one factor, and the value is the least of it; for
    sampling_probability every Poisson sampling gets the value, truncated or not; for steps the
    last event does.

    Raises:
        InvalidRequestError: the document has branches or nothing of the parameter, or the target is
            out of range or cannot be kept to.
    """
    if not 0 < epsilon <= TARGET_MAX:
        raise InvalidRequestError("--epsilon", f"must lie in (0, {TARGET_MAX:g}]")
    if document.branches:
        raise InvalidRequestError("branches", "a plan has none: calibrate a document of main alone")
    spans = spans_of(document.events, dataset_size=document.dataset_size, first_step=0)
    places = _places(spans, parameter)

    def spans_at(value: float) -> list[Span]:
        if parameter is Parameter.NOISE_MULTIPLIER:
            return calibration.louder(spans, value=value)
        return calibration.fill_spans(spans, places=places, parameter=parameter, value=value)

    try:
        found = calibration.calibrate(
            lambda value: count_events([spans_at(value)]),
            parameter=parameter,
            epsilon=epsilon,
            delta=delta,
            relation=NeighboringRelation(document.neighboring_relation),
            accept=accepted_statuses(document.accept),
            accountant=accountant,
        )
    except calibration.UnreachableError as reason:
        raise InvalidRequestError("--epsilon", f"cannot be kept to. {reason}") from None
    at_value = spans_at(found.value)
    return Solution(calibrated=found, spans=at_value, counts=count_events([at_value]))


def _places(spans: Sequence[Span], parameter: Parameter) -> list[int]:
    """Which events take the value.

    Raises:
        InvalidRequestError: none has the parameter.
    """
    match parameter:
        case Parameter.STEPS:
            found = list(range(len(spans)))[-1:]
        case Parameter.NOISE_MULTIPLIER:
            found = [
                i for i, span in enumerate(spans)
                if isinstance(span.event.mechanism, Gaussian | Laplace | MatrixGaussian)
            ]  # fmt: skip
        case Parameter.SAMPLING_PROBABILITY:
            found = [
                i for i, span in enumerate(spans)
                if hasattr(span.event.sampling, "sampling_probability")
            ]  # fmt: skip
    if not found:
        raise InvalidRequestError("events", f"none has {parameter}")
    return found


def evaluate_theorem(bound: str, parameters: Any) -> Any:
    """The value of a theorem of the registry, as JSON would have it.

    Args:
        bound: the theorem's id.
        parameters: by name; arrays as lists, words by value, records as objects.

    Raises:
        NotFoundError: there is no such theorem.
        InvalidRequestError: a parameter is missing, unknown, of another kind or out of range.
    """
    theorem = next((one for one in accounting.THEOREMS if one.id == bound), None)
    if theorem is None:
        raise NotFoundError("There is no such bound; `dpledger bounds` lists them.")
    given = _arguments(theorem, parameters)
    try:
        return _plain(theorem.function(**given))
    except (ValueError, ArithmeticError, TypeError, IndexError) as error:
        raise InvalidRequestError("--params", f"the bound refuses them: {error}") from None


def _arguments(theorem: Theorem[..., Any], parameters: Any) -> dict[str, Any]:
    if not isinstance(parameters, dict):
        raise InvalidRequestError("--params", "must be a JSON object")
    hints = typing.get_type_hints(theorem.function)
    wanted = inspect.signature(theorem.function).parameters
    if unknown := sorted(set(parameters) - set(wanted)):
        raise InvalidRequestError(f"--params.{unknown[0]}", "the bound has no such parameter")
    for name, one in wanted.items():
        if name not in parameters and one.default is inspect.Parameter.empty:
            raise InvalidRequestError(f"--params.{name}", "must be given")
    return {
        name: _convert_value(value, hints[name], f"--params.{name}")
        for name, value in parameters.items()
    }


def _convert_value(value: Any, hint: Any, where: str) -> Any:
    """A JSON value as what a parameter takes."""
    origin = typing.get_origin(hint)
    if origin is np.ndarray:
        return np.array(_numbers(value, where), dtype=np.float64)
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        if value not in list(hint):
            raise InvalidRequestError(where, f"must be one of {', '.join(hint)}")
        return hint(value)
    if hint is float:
        return _number(value, where)
    if hint is int:
        if type(value) is not int:
            raise InvalidRequestError(where, "must be a whole number")
        return value
    inner = typing.get_args(hint)
    if isinstance(value, list) and inner and isinstance(origin, type):
        return [_convert_value(one, inner[0], f"{where}[{i}]") for i, one in enumerate(value)]
    raise InvalidRequestError(where, "cannot be given on the command line")


def _numbers(value: Any, where: str) -> list[float]:
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(where, "must be a list of numbers")
    return [_number(one, f"{where}[{i}]") for i, one in enumerate(value)]


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise InvalidRequestError(where, "must be a number")
    return float(value)


def _plain(value: Any) -> Any:
    """A theorem's value in what JSON has; infinities as words, as JSON has none."""
    if isinstance(value, np.ndarray):
        return [_plain(one) for one in value.tolist()]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else repr(float(value))
    return value
