"""The forms by which an admin changes a limit or stops what is admitted, and their faults."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from pydantic import ValidationError

from accounting.guarantees import Status
from service.errors import (
    AnotherPersonError,
    BudgetExhaustedError,
    InvalidRequestError,
    LedgerError,
    PreconditionFailedError,
    PreconditionRequiredError,
)
from service.ledger.dataset_settings import etag
from service.schemas.field_errors import fault_list
from service.schemas.requests import Acceptable, DatasetChange
from service.schemas.responses import DatasetAnswer
from service.web.dashboard.forms.shown_form import WHOLE_FORM, faults_by_field, message_of

_FIELDS: Final = {
    "body.budget": "epsilon",  # also what is wrong with its filter, which no field asks for
    "body.budget.epsilon": "epsilon",
    "body.budget.delta": "delta",
    "body.reason": "reason",
    "body.accept": "accept",
}
ACCEPTED: Final = tuple(map(Status, get_args(Acceptable)))  # the statuses that may be accepted
_NUMBERS: Final = ("epsilon", "delta")
NOT_A_NUMBER: Final = "must be a number, such as 3 or 1e-5"
_WHOLE: Final = "form"  # what is wrong with no single field
FORM_ERRORS: Final = (
    AnotherPersonError, BudgetExhaustedError, InvalidRequestError, PreconditionFailedError,
    PreconditionRequiredError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitForm:
    """A form as it is shown."""

    epsilon: str
    delta: str
    reason: str = ""
    revision: int  # of the settings that the admin has seen
    faults: Mapping[str, str] = field(default_factory=dict)  # by field

    @classmethod
    def of(cls, dataset: DatasetAnswer) -> "LimitForm":
        """The form with the present limit in it."""
        budget = dataset.budget
        return cls(
            epsilon="" if budget is None else _to_input(budget.epsilon),
            delta="1e-5" if budget is None else _to_input(budget.delta),
            revision=dataset.revision,
        )

    @classmethod
    def refused(
        cls, sent: Mapping[str, str], dataset: DatasetAnswer, error: LedgerError
    ) -> "LimitForm":
        """The form as it was sent, with what is wrong; on the settings as they are now."""
        return cls(
            epsilon=sent.get("epsilon", ""),
            delta=sent.get("delta", ""),
            reason=sent.get("reason", ""),
            revision=dataset.revision,
            faults=faults_of(error),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionForm:
    """The form that freezes a dataset and voids its open reservations, as it is shown."""

    frozen: bool
    void: bool = False
    reason: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)  # by field

    @classmethod
    def of(cls, dataset: DatasetAnswer) -> "AdmissionForm":
        """The form as the dataset stands."""
        return cls(frozen=dataset.frozen)

    @classmethod
    def refused(cls, sent: Mapping[str, str], error: LedgerError) -> "AdmissionForm":
        """The form as it was sent, with what is wrong."""
        return cls(
            frozen="frozen" in sent,
            void="void" in sent,
            reason=sent.get("reason", ""),
            faults=faults_of(error),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptForm:
    """The form that says which statuses of theorems count, as it is shown."""

    accept: Collection[str]
    reason: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)  # by field

    @classmethod
    def of(cls, dataset: DatasetAnswer) -> "AcceptForm":
        """The form as the dataset stands."""
        return cls(accept=dataset.accept)

    @classmethod
    def refused(cls, sent: Mapping[str, str], error: LedgerError) -> "AcceptForm":
        """The form as it was sent, with what is wrong."""
        return cls(
            accept=_ticked_boxes(sent), reason=sent.get("reason", ""), faults=faults_of(error)
        )


def _ticked_boxes(sent: Mapping[str, str]) -> list[str]:
    return [status for status in ACCEPTED if f"accept_{status}" in sent]


def _to_input(value: float) -> str:
    """A number as one would type it, which is read back as the same."""
    text = f"{value:.15g}"
    return (text if float(text) == value else f"{value:.17g}").replace("e-0", "e-")


def if_match(sent: Mapping[str, str]) -> str | None:
    """The revision that a form was filled in on, as If-Match has it."""
    revision = sent.get("revision", "")
    return etag(int(revision)) if revision.isascii() and revision.isdigit() else None


def change_of(sent: Mapping[str, str]) -> DatasetChange:
    """What a form asks for.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    numbers: dict[str, float] = {}
    faults: dict[str, str] = {}
    for name in _NUMBERS:
        try:
            numbers[name] = float(sent.get(name, "").strip())
        except ValueError:
            faults[f"body.budget.{name}"] = NOT_A_NUMBER
    reason = sent.get("reason", "").strip()
    # What is not a number is told with what else is wrong, not before it.
    whole: dict[str, Any] = {"reason": reason, "budget": {"epsilon": 1.0, "delta": 0.5} | numbers}
    try:
        change = DatasetChange.model_validate(whole)
    except ValidationError as error:
        told = fault_list(list(error.errors()))
        faults |= {f"body.{one['location']}": one["message"] for one in told}
    if faults:
        raise InvalidRequestError.of(faults)
    return change


def admission_of(sent: Mapping[str, str]) -> DatasetChange:
    """What the other form asks for; a box that is not ticked is not sent.

    Raises:
        InvalidRequestError: the reason is not as it must be.
    """
    asked = {
        "reason": sent.get("reason", "").strip(),
        "frozen": "frozen" in sent,
        "void_reservations": "void" in sent,
    }
    try:
        return DatasetChange.model_validate(asked)
    except ValidationError as error:
        told = fault_list(list(error.errors()))
        faults = {f"body.{one['location']}": one["message"] for one in told}
        raise InvalidRequestError.of(faults) from None


def accept_change_of(sent: Mapping[str, str]) -> DatasetChange:
    """What the form of the accepted statuses asks for; a box that is not ticked is not sent.

    Raises:
        InvalidRequestError: no status is ticked, or the reason is not as it must be.
    """
    faults = {} if _ticked_boxes(sent) else {"body.accept": "needs at least one status"}
    asked = {
        "reason": sent.get("reason", "").strip(),
        "accept": _ticked_boxes(sent) or list(ACCEPTED),
    }
    return message_of(DatasetChange, asked, faults)


def faults_of(error: LedgerError) -> dict[str, str]:
    """What is wrong, by field."""
    if isinstance(error, PreconditionFailedError):
        return {WHOLE_FORM: "The settings changed meanwhile. Check them, then send the form again."}
    if isinstance(error, BudgetExhaustedError):
        return {"epsilon": "is less than what the items of the envelope cost together"}
    return faults_by_field(error, _FIELDS)
