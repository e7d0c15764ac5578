"""The trace that a request belongs to: the header `traceparent` (W3C Trace Context, level 1).

It is kept beside what the request records, so that a reader finds the trace of an entry. It is not
part of a leaf, because it is a pointer and not a fact. Requests that differ only in it are equal.
"""

from contextvars import ContextVar
from typing import Any, Final

TRACEPARENT_LENGTH: Final = 55  # as it is kept
# Of the request that is answered, or that the writer is at; None outside of requests, and where it
# sent no valid one.
traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)
trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
# Where requests are traced: what the request's attributes are told to, an OpenTelemetry span.
span: ContextVar[Any] = ContextVar("span", default=None)


def trace_of(kept: str) -> str:
    """The trace id of a traceparent, 32 hexadecimal digits."""
    return kept.split("-")[1]
