"""Where the faults of a message lie, and what is allowed there; never what was sent."""

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import ErrorDetails

ERRORS_MAX: Final = 20  # named in one answer
LOCATION_MAX: Final = 200  # characters; an unknown field's name is the sender's
# Names of whole messages that no field has, so that no location can be mistaken for them.
CLOSED_TAG: Final = "(closed)"
OPEN_TAG: Final = "(open)"
FINDING_TAGS: Final = ("(sampling)", "(rank)", "(batch_sizes)")
AUDIT_TAGS: Final = ("(audit)", "(audit_result)")
# The fields whose `kind` says which others there are, and the names of whole messages' kinds.
_TAGGED: Final = ("mechanism", "sampling", "repetitions", "declared", "recorded")
_WHOLE: Final = (CLOSED_TAG, OPEN_TAG, *FINDING_TAGS, *AUDIT_TAGS)
# What pydantic's kinds of faults mean to the sender of the message.
_WHOLE_NUMBER: Final = "must be a whole number, in digits"
_OBJECT: Final = "must be an object"
ALLOWED: Final[Mapping[str, str]] = {
    "missing": "must be given",
    "extra_forbidden": "unknown field",
    "string_type": "must be text",
    "string_sub_type": "must be text",
    "string_unicode": "must be text in Unicode, without halves of pairs",
    "int_type": _WHOLE_NUMBER,
    "int_from_float": _WHOLE_NUMBER,
    "int_parsing": _WHOLE_NUMBER,
    "int_parsing_size": "must be a whole number of fewer digits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "invalid_key": "must have texts as its keys",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_invalid": "kind must be one of {expected_tags}",
    "union_tag_not_found": "kind must be given",
    "date_type": "must be a date, such as 2027-01-31",
    "date_parsing": "must be a date, such as 2027-01-31",
    "date_from_datetime_parsing": "must be a date, such as 2027-01-31",
    "date_from_datetime_inexact": "must be a date, such as 2027-01-31",
    "path_type": "must be the path of a file",
}
_LEAST_AND_MOST: Final = {
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
}
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


def allowed(error: ErrorDetails | Mapping[str, Any]) -> str:
    """What is allowed where a fault lies, in plain words; never what was sent."""
    kind, given = error["type"], error.get("ctx", {})
    if kind in _LEAST_AND_MOST:
        return _counted(given, *_LEAST_AND_MOST[kind])
    if kind == "string_pattern_mismatch":
        return f"must match {given['pattern'].removeprefix('^').removesuffix('$')}"
    if kind == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden" and error["loc"][:1] == ("query",):
        return "unknown parameter"
    if kind in ALLOWED:
        return ALLOWED[kind].format(**given)
    return str(error["msg"])  # our own kinds say what is allowed


def _counted(given: Mapping[str, Any], words: str, limit: str, noun: str) -> str:
    number = given[limit]
    if (words, number) == ("at least", 1):
        return "must not be empty"
    return f"must have {words} {number:,} {noun}{'' if number == 1 else 's'}"


def fault_list(errors: list[Any]) -> list[dict[str, str]]:
    """Where each fault lies and what is allowed there; never what was sent."""
    return [
        {"location": location_of(_place(error)), "message": allowed(error)}
        for error in errors[:ERRORS_MAX]
    ]


def _place(error: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Where a fault lies; an unknown parameter's name is what was sent, and is left out."""
    place: tuple[int | str, ...] = error["loc"]
    unknown = error["type"] == "extra_forbidden" and place[:1] == ("query",)
    return place[:1] if unknown else place
