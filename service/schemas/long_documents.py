"""Documents that may be long, as canonical JSON."""

from typing import Any, Final

from service.schemas.event_codec import canonical

PART: Final = 200  # members of a list that are encoded at once


def long_canonical(value: Any) -> str:
    """The same text as `canonical`, made in parts.

    Python encodes JSON without letting another thread in: a document of a megabyte would hold up
    every append for tens of milliseconds.
    """
    if isinstance(value, dict):
        members = (f"{canonical(name)}:{long_canonical(value[name])}" for name in sorted(value))
        return f"{{{','.join(members)}}}"
    if not isinstance(value, list) or len(value) <= PART:
        return canonical(value)
    parts = (value[first : first + PART] for first in range(0, len(value), PART))
    return f"[{','.join(canonical(part)[1:-1] for part in parts)}]"
