"""A form as a page shows it: what was typed, and what is wrong beside each field."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors import AnotherPersonError, ConflictError, InvalidRequestError, LedgerError
from service.schemas.field_errors import fault_list

FORM_REFUSALS: Final = (InvalidRequestError, ConflictError, AnotherPersonError)
WHOLE_FORM: Final = "form"  # the field of a fault that is of no single field
_WHOLE: Final = ("", "body", "query")  # locations that name no part of a message
_RANGE: Final = re.compile(
    r"must lie in (?P<opens>[\[(])(?P<low>[^,\s]+), (?P<high>[^,\s]+)(?P<closes>[\])])"
)
# What the schemas say for programs, and the same for a person.
_NAME: Final = "must match [a-z0-9][a-z0-9._-]{0,62}"
_NAME_IN_WORDS: Final = (
    "must have small letters, digits, . _ and - alone, begin with a letter or a digit, "
    "and have at most 63 of them"
)
MessageModel = TypeVar("MessageModel", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ShownForm:
    """Texts and faults, by the names of fields."""

    values: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def refused(
        cls, sent: Mapping[str, str], error: LedgerError, places: Mapping[str, str]
    ) -> "ShownForm":
        """The form as it was sent, with what is wrong.

        Args:
            sent: the fields.
            error: what refused it.
            places: names of fields by locations in the message, such as `body.name`.
        """
        return cls(values=sent, faults=faults_by_field(error, places))

    def value(self, name: str) -> str:
        """What stands in a field."""
        return self.values.get(name, "")

    def fault(self, name: str) -> str:
        """What is wrong with a field; empty if nothing is."""
        return self.faults.get(name, "")

    @property
    def whole(self) -> str:
        """What is wrong with no single field; empty if nothing is."""
        return self.fault(WHOLE_FORM)


def faults_by_field(error: LedgerError, places: Mapping[str, str]) -> dict[str, str]:
    """What is wrong, by field; what belongs to none of the places is a fault of the whole form."""
    listed = error.extra.get("errors")
    if not isinstance(listed, list):
        return {WHOLE_FORM: error.detail}
    found: dict[str, str] = {}
    for one in listed:
        name = _field_at(one["location"], places)
        found.setdefault(name or WHOLE_FORM, _sentence(one, alone=name is not None))
    return found


def fault_text(error: LedgerError) -> str:
    """What is wrong, in words for a form of one field; no name of a place in a message."""
    listed = error.extra.get("errors")
    if not isinstance(listed, list):
        return error.detail
    return "; ".join(_sentence(one, alone=False) for one in listed)


def _field_at(location: str, places: Mapping[str, str]) -> str | None:
    """The field of a location, or of what the location is a part of."""
    while location:
        if location in places:
            return places[location]
        shorter = location.rpartition("[" if location.endswith("]") else ".")[0]
        location = shorter
    return None


def _sentence(fault: Mapping[str, str], *, alone: bool) -> str:
    """A fault in plain words; with the name of what is wrong, where no label stands beside it."""
    message = plain_words(fault["message"])
    name = re.sub(r"\[\d+\]", "", fault["location"]).rpartition(".")[2].replace("_", " ")
    return message if alone or name in _WHOLE else f"{name}: {message}"


def plain_words(message: str) -> str:
    """What is allowed in a field, as a person says it."""
    return _RANGE.sub(_range, message.replace(_NAME, _NAME_IN_WORDS))


def _range(found: re.Match[str]) -> str:
    """An interval in words, such as "more than 0 and at most 1"."""
    low, high = (_number(found[place]) for place in ("low", "high"))
    if found["opens"] == "[" and found["closes"] == "]":
        return f"must lie between {low} and {high}"
    least = "at least" if found["opens"] == "[" else "more than"
    most = "at most" if found["closes"] == "]" else "less than"
    return f"must be {least} {low} and {most} {high}"


def _number(text: str) -> str:
    return re.sub(r"e([+-])0*", lambda sign: f"e{sign[1].strip('+')}", text)


def message_of(
    model: type[MessageModel], given: Mapping[str, Any], faults: Mapping[str, str] | None = None
) -> MessageModel:
    """The message that a form's fields make.

    Args:
        model: of the message.
        given: its fields.
        faults: what is wrong already, by location; told with what else is wrong.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    found = dict(faults or {})
    try:
        message = model.model_validate(given)
    except ValidationError as error:
        told = fault_list(list(error.errors()))
        found = {f"body.{one['location']}": one["message"] for one in told} | found
    if found:
        raise InvalidRequestError.of(found)
    return message


def refusal_status(error: LedgerError | None) -> HTTPStatus:
    """The status of a page that shows a form again."""
    if error is None:
        return HTTPStatus.OK
    wrong = isinstance(error, InvalidRequestError)
    return HTTPStatus.UNPROCESSABLE_ENTITY if wrong else HTTPStatus.CONFLICT
