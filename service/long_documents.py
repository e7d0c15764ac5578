"""Documents that may be long, as canonical JSON."""

from collections.abc import Mapping
from typing import Any, Final

from service.documents import canonical

PART: Final = 200  # members of a list that are encoded at once


def long_canonical(value: Mapping[str, Any]) -> str:
    """The same text as `canonical`, made in parts.

    Python encodes JSON without letting another thread in: a document of a megabyte would hold up
    every append for tens of milliseconds.
    """
    return f"{{{','.join(f'{canonical(name)}:{_part(value[name])}' for name in sorted(value))}}}"


def _part(value: Any) -> str:
    if isinstance(value, dict) and value:
        return long_canonical(value)
    if not isinstance(value, list) or len(value) <= PART:
        return canonical(value)
    parts = (value[first : first + PART] for first in range(0, len(value), PART))
    return f"[{','.join(canonical(part)[1:-1] for part in parts)}]"
