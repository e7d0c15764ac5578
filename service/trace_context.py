"""The trace that a request belongs to: the header `traceparent` (W3C Trace Context, level 1).

It is kept beside what the request records, so that a reader finds the trace of an entry. It is not
part of a leaf, because it is a pointer and not a fact. Requests that differ only in it are equal.
"""

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

HEADER: Final = b"traceparent"
TRACEPARENT_LENGTH: Final = 55  # as it is kept
_FORM: Final = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<rest>-[^\n]*)?"
)
_SAMPLED: Final = 1
# Of the request that is answered, or that the writer is at; None outside of requests, and where it
# sent no valid one.
traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)
trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
# Where requests are traced: what the request's attributes are told to, an OpenTelemetry span.
span: ContextVar[Any] = ContextVar("span", default=None)


def read_traceparent(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The traceparent in a request's headers, in the form of version 00; None without a valid one.

    An invalid one is ignored, as the standard says; so are two. A later version's is read as far as
    version 00 goes. Of the flags only `sampled` is kept.
    """
    given = [value for name, value in headers if name == HEADER]
    found = _FORM.fullmatch(given[0].strip(b" \t")) if len(given) == 1 else None
    if found is None:
        return None
    version, trace, parent = found["version"], found["trace"], found["parent"]
    longer = version == b"00" and found["rest"] is not None
    if version == b"ff" or longer or not (trace.strip(b"0") and parent.strip(b"0")):
        return None
    sampled = int(found["flags"], 16) & _SAMPLED
    return f"00-{trace.decode()}-{parent.decode()}-{sampled:02x}"


def trace_of(kept: str) -> str:
    """The trace id of a traceparent, 32 hexadecimal digits."""
    return kept.split("-")[1]
