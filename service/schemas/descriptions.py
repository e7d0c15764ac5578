"""The description and the example of a message, for the OpenAPI document."""

import json
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent
# What is hashed or signed is its text: a client that wrote a time anew would break it.
_EXACT: Final = {
    "ActAnswer", "ApprovedChange", "BudgetLimit", "Certificate", "Checkpoint", "Log", "Place",
}  # fmt: skip
_TIME: Final = "ISO 8601"  # in the description of each time, and of nothing else
_ANY: Final = "any"  # the table of properties that mean the same in every message


@lru_cache(maxsize=1)
def _texts() -> dict[str, dict[str, str]]:
    return tomllib.loads((_FOLDER / "descriptions.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def examples() -> dict[str, Any]:
    """Return an example of each main request, by the name of its message."""
    found: dict[str, Any] = json.loads((_FOLDER / "examples.json").read_text(encoding="utf-8"))
    return found


def describe(schema: dict[str, Any], model: type) -> None:
    """Add to a message's JSON schema what each property means, and an example.

    Pydantic calls it when a schema is asked for, and never to read or write a message. A
    description beside the field wins over `descriptions.toml`. What none describes stays as it
    is; a test names it.
    """
    tables = [_texts().get(owner, {}) for owner in (*_owners(model), _ANY)]
    for name, property_ in schema.get("properties", {}).items():
        property_.pop("title", None)  # it only repeats the name
        text = next((table[name] for table in tables if name in table), None)
        if text is not None:
            property_.setdefault("description", text)
        if _TIME in property_.get("description", "") and model.__name__ not in _EXACT:
            for part in property_.get("anyOf", [property_]):
                if part["type"] == "string":
                    part["format"] = "date-time"
    if model.__name__ in examples():
        schema["examples"] = [examples()[model.__name__]]


def _owners(model: type) -> list[str]:
    return [owner.__name__ for owner in model.__mro__]
