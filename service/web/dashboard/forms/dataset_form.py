"""The form by which an admin creates a dataset, and the request that it makes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl

from service.schemas.requests import PARENTS_MAX, NewDataset
from service.web.dashboard.forms.budget_form import NOT_A_NUMBER
from service.web.dashboard.forms.planner_form import (
    EPSILON,
    PlannerForm,
    field_text,
    planner_form,
)
from service.web.dashboard.forms.shown_form import ShownForm, message_of

ENVELOPE: Final = "envelope"  # the budget holds the planned training and nothing else
ANY: Final = "any"  # it holds whatever fits in the limit
_BLANK: Final = {"relation": "add_or_remove_one", "delta": "1e-5", "holds": ANY}
_ROWS: Final = ("at_most_one", "exactly_one")
_TRAINING: Final = ("noise", "batch", "steps")
_TOGETHER: Final = "is needed with the other two; clear all three for no training"
_NEEDS_TRAINING: Final = "needs the noise, the batch size and the steps of a training"
_NEEDS_ROWS: Final = "is needed with parents: how many rows come from one of their records"
_NEEDS_LIMIT: Final = "is needed: a training chooses the filter of a limit"
_NOT_WHOLE: Final = "must be a whole number, such as 60000"
_PLANNED: Final = ("noise_multiplier", "batch_size", "length")
NEW_DATASET_FIELDS: Final = {
    "body.name": "name", "body.dataset_size": "size", "body.privacy_unit": "unit",
    "body.neighboring_relation": "relation", "body.budget.epsilon": "epsilon",
    "body.budget.delta": "delta", "body.budget": "epsilon", "budget.filter": "holds",
    "body.parents": "parents", **{f"body.parents[{i}]": "parents" for i in range(PARENTS_MAX)},
    "body.rows_per_parent_record": "rows", "body.rows_per_parent_record.at_most": "most",
    "body.for": "noise", "query.noise_multiplier": "noise", "query.batch_size": "batch",
    "query.sampling_probability": "batch", "query.length": "steps", "query.delta": "delta",
    "query.dataset_size": "size", "query.neighboring_relation": "relation",
    "body.for.events[0].mechanism.noise_multiplier": "noise",
    "body.for.events[0].sampling.expected_batch_size": "batch",
    "body.for.events[0].steps": "steps",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AskedDataset:
    """What the form asks for."""

    new: NewDataset  # without the envelope, which is computed from the training
    training: PlannerForm | None
    envelope: bool
    epsilon: float | None


def blank_dataset(query: Mapping[str, str]) -> ShownForm:
    """The form as a page first shows it; filled in with the planner's settings in `plan`."""
    form = training_of(query)
    if form is None:
        return ShownForm(_BLANK)
    filled = {
        "plan": query["plan"],
        "size": str(form.dataset_size),
        "relation": form.neighboring_relation,
        "delta": field_text(form.delta),
        "epsilon": "" if form.find == EPSILON else field_text(form.epsilon),
        "holds": ENVELOPE,
    }
    return ShownForm(_BLANK | filled)


def read_dataset_form(sent: Mapping[str, str]) -> AskedDataset:
    """What the form asks for.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    faults: dict[str, str] = {}
    size = _number(sent, "size", "body.dataset_size", faults, whole=True)
    epsilon = None
    if sent.get("epsilon", "").strip():
        epsilon = _number(sent, "epsilon", "body.budget.epsilon", faults)
    delta = _number(sent, "delta", "body.budget.delta", faults) if _has_limit(sent) else None
    given: dict[str, Any] = {
        "name": sent.get("name", "").strip(),
        "dataset_size": 1 if size is None else int(size),
        "privacy_unit": sent.get("unit", "").strip(),
        "neighboring_relation": sent.get("relation", ""),
        "parents": re.findall(r"[^\s,]+", sent.get("parents", "")),
        "rows_per_parent_record": _rows(sent, faults),
    }
    if epsilon is not None and delta is not None:
        given["budget"] = {"epsilon": epsilon, "delta": delta}
    training = _training(sent, given, delta, faults)
    envelope = sent.get("holds") == ENVELOPE
    if envelope and training is None:
        faults.setdefault("body.for", _NEEDS_TRAINING)
    if training is not None and not envelope:
        if epsilon is None:
            faults.setdefault("body.budget.epsilon", _NEEDS_LIMIT)
        given |= {"for": {"events": [training.event()]}} if training.faults == {} else {}
    if training is not None and training.derived:
        given["accept"] = training.accept()
    if training is not None and not faults:
        training.asked()  # a fault of the training is told as such
    new = message_of(NewDataset, given, faults)
    return AskedDataset(new, training, envelope, epsilon)


def _has_limit(sent: Mapping[str, str]) -> bool:
    """Whether the form asks for a limit, so that delta is needed."""
    return bool(sent.get("epsilon", "").strip()) or sent.get("holds") == ENVELOPE


def _rows(sent: Mapping[str, str], faults: dict[str, str]) -> Any:
    """What is attested of the rows of a parent's record; None where nothing is."""
    rows = sent.get("rows", "")
    if rows not in ("", "several", *_ROWS):
        faults["body.rows_per_parent_record"] = "must be one of those that are offered"
        return None
    if not rows and sent.get("parents", "").strip(" ,"):
        faults["body.rows_per_parent_record"] = _NEEDS_ROWS
    if rows != "several":
        return rows or None
    most = _number(sent, "most", "body.rows_per_parent_record.at_most", faults, whole=True)
    return {"at_most": 2 if most is None else int(most)}


def _training(
    sent: Mapping[str, str], given: Mapping[str, Any], delta: float | None, faults: dict[str, str]
) -> PlannerForm | None:
    """The training that the dataset is for: from the planner, or of three numbers; or none."""
    found = training_of(sent)
    if found is not None:
        form = found
    elif any(sent.get(name, "").strip() for name in _TRAINING):
        texts = {field: sent.get(name, "") for field, name in zip(_PLANNED, _TRAINING, strict=True)}
        missing = [field for field, text in texts.items() if not text.strip()]
        faults |= {f"query.{field}": _TOGETHER for field in missing}
        form = planner_form(
            {name: text for name, text in texts.items() if text} | {"unit": "steps"}
        )
    else:
        return None
    faults |= {f"query.{name}": text for name, text in form.faults.items()}
    return replace(
        form,
        unit="steps",
        length=float(form.steps),
        dataset_size=max(1, given["dataset_size"]),  # a fault is told as that of the dataset
        neighboring_relation=given["neighboring_relation"],
        delta=form.delta if delta is None else delta,
        find=EPSILON,
    )


def _number(
    sent: Mapping[str, str], name: str, place: str, faults: dict[str, str], *, whole: bool = False
) -> float | None:
    """A number that a field holds; None, and a fault, where it holds none."""
    text = sent.get(name, "").strip()
    try:
        if whole:
            if not (text.isascii() and text.isdigit()):
                raise ValueError
            return int(text[:20])
        return float(text)
    except ValueError:
        faults[place] = _NOT_WHOLE if whole else NOT_A_NUMBER
        return None


def training_of(sent: Mapping[str, str]) -> PlannerForm | None:
    """The training of the planner's settings; None without them. Empty ones are the planner's own.

    Args:
        sent: the fields of a form or of an address; `plan` has the settings.
    """
    return planner_form(dict(parse_qsl(sent["plan"]))) if "plan" in sent else None


def training_words(form: PlannerForm) -> str:
    """A training in words."""
    kind = "" if form.sampling == "poisson" else f", sampling {form.sampling.replace('_', ' ')}"
    return (
        f"{form.steps:,} steps of noise multiplier {field_text(form.noise_multiplier)}, "
        f"batches of {form.per_step:,} records{kind}"
    )
