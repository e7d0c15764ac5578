"""A form as a page shows it: what was typed, and what is wrong beside each field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors import InvalidRequestError, LedgerError
from service.schemas.field_errors import fault_list

WHOLE_FORM: Final = "form"  # the field of a fault that is of no single field
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
        name = places.get(one["location"])
        message = str(one["message"])
        told = message if name else f"{one['location']}: {message}"
        found.setdefault(name or WHOLE_FORM, told)
    return found


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
