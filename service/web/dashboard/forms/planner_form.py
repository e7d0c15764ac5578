"""What the planner is asked: fields of an address, and the plan that they make."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final
from urllib.parse import urlencode

from pydantic import ValidationError

from accounting.calibration import Parameter
from accounting.event_counts import EventCounts, count_events
from service.errors import InvalidRequestError
from service.guarantees.plan import Plan, Target
from service.schemas.event_codec import spans_of
from service.schemas.field_errors import allowed
from service.schemas.requests import valid_name
from service.schemas.samplings import fitting_lengths
from service.web.dashboard.forms.planner_noise import (
    STRATEGIES,
    TRIALS,
    CorrelatedPass,
    selection_of,
)
from service.web.dashboard.forms.planner_schemes import LAST_BATCH, LEFT_OUT, SCHEMES

FIELD_MAX: Final = 64  # characters
_COUNT_MAX: Final = 10**15
EPSILON: Final = "epsilon"


_UNITS: Final = ("epochs", "steps")
MECHANISMS: Final = {"gaussian": "Gaussian", "laplace": "Laplace, for clipping in L1", **STRATEGIES}
FINDS: Final = {
    EPSILON: "What it costs",
    Parameter.NOISE_MULTIPLIER.value: "The least noise for a target",
    Parameter.STEPS.value: "The most steps for a target",
}
# Where a fault of a plan lies among the form's fields.
_FIELD_OF: Final = {
    "expected_batch_size": "batch_size",
    "sampling_probability": "batch_size",
    "steps_per_pass": "last_batch",
    "steps": "length",
    "solve_for": "find",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerForm:
    """The planner's fields; what is not given has the value of an ordinary training."""

    noise_multiplier: float = 1.1
    batch_size: int = 256
    dataset_size: int = 60_000
    length: float = 20.0
    unit: str = "epochs"
    sampling: str = "poisson"
    mechanism: str = "gaussian"
    neighboring_relation: str = "add_or_remove_one"
    delta: float = 1e-5
    derived: bool = False  # whether our own proofs count
    find: str = EPSILON
    epsilon: float = 3.0  # the target, where something is to be found
    # Used or dropped: a smaller one, where batches are cut from an order. left_out: dropped, or a
    # whole batch left out where none is smaller.
    last_batch: str = ""
    max_batch_size: int | None = None
    participations: int = 1
    max_weight: float | None = None
    bands: int = 8  # of correlated noise
    min_separation: int | None = None  # of a fixed order; None: the steps of a pass over the data
    trials: str = ""  # the law of their number, where the best of several alone is released
    mean_trials: float = 10.0
    dataset: str = ""  # which it is to fit in
    faults: Mapping[str, str] = field(default_factory=dict)  # by field

    @property
    def steps(self) -> int:
        """How many steps: of whole or broken epochs as many as have begun."""
        if self.unit == "steps":
            return max(1, round(self.length))
        per_epoch = self.pass_length or self.dataset_size / self.per_step
        return max(1, math.ceil(self.length * per_epoch * (1 - 1e-12)))

    @property
    def epochs(self) -> float:
        """How often the data is gone through, on average."""
        return self.steps / (self.pass_length or self.dataset_size / self.per_step)

    @property
    def pass_length(self) -> int | None:
        """Steps of a pass of batches that are cut from an order; None of others, or if not said."""
        if SCHEMES[self.sampling].extra != LAST_BATCH:
            return None
        whole, rest = divmod(self.dataset_size, self.per_step)
        if self.last_batch == LEFT_OUT:
            return (self.dataset_size - 1) // self.per_step or None
        if not rest:
            return whole
        return {"used": whole + 1, "dropped": whole}.get(self.last_batch)

    @property
    def correlated(self) -> CorrelatedPass | None:
        """The pass, where noise is correlated over its steps."""
        if self.mechanism not in STRATEGIES:
            return None
        return CorrelatedPass(
            kind=self.mechanism, bands=self.bands, steps=self.steps,
            apart=(self.min_separation or self.pass_length) if self.sampling == "cyclic" else None,
            rate=self.per_step / self.dataset_size,
            by_record=self.neighboring_relation == "add_or_remove_one",
        )  # fmt: skip

    @property
    def plain(self) -> bool:
        """Whether ways to choose batches can stand side by side."""
        return self.mechanism not in STRATEGIES and not self.trials

    @property
    def per_step(self) -> int:
        """Records of a step, on average."""
        if self.sampling == "non_uniform":
            return 1
        whole = self.sampling == "full"
        return self.dataset_size if whole else min(self.batch_size, self.dataset_size)

    @property
    def steps_per_pass(self) -> int:
        """Steps of a pass over the data."""
        return math.ceil(self.dataset_size * self.places / self.per_step)

    @property
    def places(self) -> int:
        """How many steps of a pass a record joins."""
        return self.participations if self.sampling == "random_allocation" else 1

    @property
    def cap(self) -> int:
        """The most records of a batch with a cap: what is given, else rarely passed."""
        if self.max_batch_size is not None:
            return self.max_batch_size
        return math.ceil(self.batch_size + 5 * math.sqrt(self.batch_size))

    @property
    def weight(self) -> float:
        """The greatest weight of a record: what is given, else that of all."""
        return 1 / self.dataset_size if self.max_weight is None else self.max_weight

    def sampling_message(self) -> dict[str, Any]:
        """Who joins a step, as the API has it."""
        size, kind = self.batch_size, self.sampling
        length = {"steps_per_pass": self.pass_length}
        made: Mapping[str, dict[str, Any]] = {
            "poisson": {"expected_batch_size": float(size)},
            "truncated_poisson": {
                "sampling_probability": min(1.0, size / self.dataset_size),
                "max_batch_size": self.cap,
            },
            "fixed_size": {"batch_size": size},
            "with_replacement": {"batch_size": size},
            "shuffle": {"batch_size": size, "reshuffle": "each_pass", **length},
            "shuffle_once": {"kind": "shuffle", "batch_size": size, "reshuffle": "once", **length},
            "cyclic": {"batch_size": size, **length},
            "balls_and_bins": {"steps_per_pass": self.steps_per_pass},
            "random_allocation": {
                "steps_per_pass": self.steps_per_pass,
                "participations": self.participations,
            },
            "non_uniform": {"max_weight": self.weight},
        }
        return {"kind": kind} | made.get(kind, {})

    def event(self) -> dict[str, Any]:
        """The steps as an event, without what is to be found.

        Raises:
            InvalidRequestError: a field is at fault.
        """
        noise, correlated = Parameter.NOISE_MULTIPLIER, self.correlated
        self._require_fitting()
        mechanism: dict[str, Any] = {"kind": self.mechanism}
        sampling = self.sampling_message()
        if correlated:
            mechanism, sampling = correlated.mechanism(), correlated.sampling()
        if self.find != noise:
            mechanism["noise_multiplier"] = self.noise_multiplier
        steps = {} if self.find == Parameter.STEPS else {"steps": self.steps}
        event = {"mechanism": mechanism, "sampling": sampling, **steps}
        return selection_of(event, self.trials, self.mean_trials) if self.trials else event

    def _require_fitting(self) -> None:
        """Refuse fields that no event has together."""
        faults = {}
        if self.trials and self.find != EPSILON:
            faults["find"] = "only what it costs is known of a selection"
        if self.mechanism in STRATEGIES:
            if self.trials:
                faults["trials"] = "correlated noise is no base of a selection"
            if self.sampling not in ("poisson", "cyclic"):
                faults["sampling"] = "must be Poisson or a fixed order where noise is correlated"
            if self.find == Parameter.STEPS:
                faults["find"] = "the steps of a pass of correlated noise cannot be found"
        if faults:
            raise InvalidRequestError.of({f"query.{k}": text for k, text in faults.items()})

    def accept(self) -> list[str]:
        """The statuses that count."""
        return ["published", "declared", *(["derived"] if self.derived else [])]

    def asked(self) -> Plan | Target:
        """The question as the API takes it.

        Raises:
            InvalidRequestError: a field is at fault.
        """
        if self.faults:
            raise InvalidRequestError.of({f"query.{k}": text for k, text in self.faults.items()})
        if SCHEMES[self.sampling].extra == LAST_BATCH and self.pass_length is None:
            fitting = fitting_lengths(self.dataset_size, self.per_step)
            raise InvalidRequestError("query.last_batch", f"say the steps of a pass: {fitting}")
        body: dict[str, Any] = {
            "neighboring_relation": self.neighboring_relation,
            "dataset_size": self.dataset_size,
            "delta": self.delta,
            "accept": self.accept(),
            "events": [self.event()],
        }
        try:
            if self.find == EPSILON:
                return Plan.model_validate(body)
            return Target.model_validate(body | {"epsilon": self.epsilon, "solve_for": self.find})
        except ValidationError as fault:
            told = {_place(error["loc"]): allowed(error) for error in fault.errors()}
            raise InvalidRequestError.of({f"query.{k}": text for k, text in told.items()}) from None

    def counts(self) -> EventCounts:
        """The plan's events, to be accounted.

        Raises:
            InvalidRequestError: a field is at fault.
        """
        asked = replace(self, find=EPSILON).asked()
        assert isinstance(asked, Plan)  # noqa: S101 (nothing is to be found)
        return count_events([spans_of(asked.events, dataset_size=self.dataset_size, first_step=0)])

    def solved(self, parameter: str, value: float) -> "PlannerForm":
        """The form with a value that was found."""
        if parameter == Parameter.NOISE_MULTIPLIER:
            return replace(self, find=EPSILON, noise_multiplier=value)
        return replace(self, find=EPSILON, unit="steps", length=float(value))

    def texts(self) -> dict[str, str]:
        """Each field as it is written."""
        return {one.name: field_text(getattr(self, one.name)) for one in fields(PlannerForm)[:-1]}

    def query(self, **changed: Any) -> str:
        """The address's query: what is not as it is without one."""
        form = replace(self, **changed)
        plain = PlannerForm()
        given = {
            one.name: field_text(getattr(form, one.name))
            for one in fields(PlannerForm)
            if one.name != "faults" and getattr(form, one.name) != getattr(plain, one.name)
        }
        return urlencode(given)


def field_text(value: Any) -> str:
    """A value as a field has it: nothing is lost when it is read again."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else ""
    if isinstance(value, float):
        if value.is_integer() and abs(value) < _COUNT_MAX:
            return str(int(value))
        return repr(value).replace("e-0", "e-").replace("e+", "e")
    return str(value)


def _place(parts: tuple[int | str, ...]) -> str:
    last = next((part for part in reversed(parts) if isinstance(part, str)), "find")
    return _FIELD_OF.get(last, last)


def field_of(location: str) -> str:
    """The form's field that a refusal names."""
    last = location.rpartition(".")[2]
    return _FIELD_OF.get(last, last)


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "unit": _UNITS,
    "sampling": tuple(SCHEMES),
    "mechanism": tuple(MECHANISMS),
    "trials": tuple(TRIALS),
    "neighboring_relation": ("add_or_remove_one", "replace_one", "replace_special"),
    "find": tuple(FINDS),
    "last_batch": ("used", "dropped", LEFT_OUT),
}
# (least, most) of numbers that are needed before a plan can be made of them.
_NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "noise_multiplier": (1e-9, 1e9),
    "length": (1e-6, 1e9),
    "delta": (1e-300, 1 - 1e-12),
    "epsilon": (1e-6, 1e6),
    "max_weight": (1e-12, 1.0),
    "mean_trials": (1.0, 1e6),
}
_COUNTS: Final[Mapping[str, tuple[int, int]]] = {
    "batch_size": (1, 10**12),
    "dataset_size": (1, 10**12),
    "max_batch_size": (1, 10**12),
    "participations": (1, 10**9),
    "bands": (1, 10**5),
    "min_separation": (1, 10**5),
}
_OPTIONAL: Final = frozenset(
    {"last_batch", "max_batch_size", "max_weight", "min_separation", "trials"}
)


def planner_form(query: Mapping[str, str]) -> PlannerForm:
    """The form that an address has; a field that cannot be read keeps its plain value, at fault."""
    given: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, text in query.items():
        text = text.strip()[:FIELD_MAX]
        if name not in _READERS or (not text and name in _OPTIONAL):
            continue
        try:
            given[name] = _READERS[name](name, text)
        except ValueError as fault:
            faults[name] = str(fault)
    return PlannerForm(**given, faults=faults)


def _choice(name: str, text: str) -> str:
    if text not in _CHOICES[name]:
        raise ValueError(f"must be one of {', '.join(_CHOICES[name])}")
    return text


def _number(name: str, text: str) -> float:
    low, high = _NUMBERS[name]
    value = _read(text)
    if not low <= value <= high:
        raise ValueError(f"must lie between {low:g} and {high:g}")
    return value


def _count(name: str, text: str) -> int:
    low, high = _COUNTS[name]
    value = _read(text)
    if not low <= value <= high or value != int(value):
        raise ValueError(f"must be a whole number from {low} to {high:g}")
    return int(value)


def _read(text: str) -> float:
    try:
        value = float(text.replace(" ", "").replace("\u202f", ""))
    except ValueError:
        raise ValueError("must be a number, such as 1.1 or 1e-5") from None
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _flag(_name: str, text: str) -> bool:
    return text in ("1", "on", "true")


def _require_name(_name: str, text: str) -> str:
    if text and not valid_name(text):
        raise ValueError("must be the name of a dataset")
    return text


_READERS: Final = (
    dict.fromkeys(_CHOICES, _choice)
    | dict.fromkeys(_NUMBERS, _number)
    | dict.fromkeys(_COUNTS, _count)
    | {"derived": _flag, "dataset": _require_name}
)
