"""Where the faults of a message lie, and what is allowed there; never what was sent."""

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import ErrorDetails

from service.schemas.findings import RECORDED_TAGS

ERRORS_MAX: Final = 20  # named in one answer
LOCATION_MAX: Final = 200  # characters; an unknown field's name is the sender's
# Names of whole messages that no field has, so that no location can be mistaken for them.
CLOSED_TAG: Final = "(closed)"
OPEN_TAG: Final = "(open)"
# The fields whose `kind` says which others there are, and the names of whole messages' kinds.
_TAGGED: Final = ("mechanism", "sampling", "repetitions", "declared", "recorded")
_WHOLE: Final = (CLOSED_TAG, OPEN_TAG, *RECORDED_TAGS)
_ROOTED: Final = re.compile(r"(body|query|path|header)(?![^.\[])|line \d")
_EVENT: Final = re.compile(r"^events\[(\d+)\]")


def location_of(parts: tuple[int | str, ...]) -> str:
    """`body.events[3].steps` from its parts."""
    text = ""
    for before, part in zip(("", *parts), parts, strict=False):
        if before in _TAGGED and isinstance(part, str):
            continue  # pydantic names the kind it chose, which is no place in the message
        if part in _WHOLE and (before == "body" or isinstance(before, int)):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    safe = "".join(letter if letter.isprintable() else "?" for letter in text)
    return safe[:LOCATION_MAX]


def in_request(location: str) -> str:
    """The place in a request of what a rule beyond the schema refuses.

    Args:
        location: `query.delta` and `path.run` say where they are, and any other is in the body.
    """
    return location if _ROOTED.match(location) else f"body.{location}"


def in_lines(location: str) -> str:
    """The place, in a body of lines, of what was refused of a list of events: lines begin at 1."""
    return _EVENT.sub(lambda found: f"line {int(found[1]) + 1}", location)


def _message(error: ErrorDetails | Mapping[str, Any]) -> str:
    if error["type"] == "union_tag_invalid":  # pydantic's own text repeats what was sent
        return f"kind must be one of {error['ctx']['expected_tags']}"
    if error["type"] == "extra_forbidden":
        return "unknown parameter" if error["loc"][:1] == ("query",) else "unknown field"
    text = str(error["msg"])
    return text.removeprefix("Value error, ")


def fault_list(errors: list[Any]) -> list[dict[str, str]]:
    """Where each fault lies and what is allowed there; never what was sent."""
    return [
        {"location": location_of(_place(error)), "message": _message(error)}
        for error in errors[:ERRORS_MAX]
    ]


def _place(error: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Where a fault lies; an unknown parameter's name is what was sent, and is left out."""
    place: tuple[int | str, ...] = error["loc"]
    unknown = error["type"] == "extra_forbidden" and place[:1] == ("query",)
    return place[:1] if unknown else place
