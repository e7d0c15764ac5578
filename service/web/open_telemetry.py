"""Traces and metrics of OpenTelemetry, by its own instrumentors: of ASGI and of SQLAlchemy.

The instrumentors are shown a request without its query, its secrets and most of its headers: a
start token, the code of a sign-in and the `writer` of a branch stand in queries, and a header that
is not ASCII makes them fail. What is exported is sent by threads of their own.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
from opentelemetry.metrics import MeterProvider as AnyMeterProvider
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NoOpTracerProvider,
    Span,
    SpanKind,
    StatusCode,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace import TracerProvider as AnyTracerProvider
from sqlalchemy import Engine
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import accounting
from service import trace_context
from service.telemetry import PROBLEM
from service.web.middleware import TRACEPARENT, read_traceparent

PATH_LENGTH_MAX: Final = 256  # characters of a path that are told
STOP_SECONDS: Final = 3.0  # to send the last of it
HEADER_LENGTH_MAX: Final = 512  # bytes of a header
_LOGGER: Final = logging.getLogger("dpledger.telemetry")
_ROUTINE: Final = frozenset({"/healthz", "/readyz", "/metrics"})  # asked for all the time
_SHOWN: Final = frozenset({b"content-length", b"user-agent"})
_SECRET_HEADERS: Final = ["authorization", "cookie", "set-cookie"]
_WHOLE: Final = "dpledger.scope"  # of the scope that is shown: the whole one
_FAILED: Final = "dpledger.failed"  # the same: what the application raised
_NAME: Final = "dpledger"
_UNNAMED: Final = "unknown_service"  # how the SDK calls what the environment does not name


class OpenTelemetry:
    """What traces one application and its database, and counts its requests."""

    def __init__(self, engine: Engine, signals: frozenset[str]) -> None:
        """Begin to send; where to, the environment says (OTEL_EXPORTER_OTLP_ENDPOINT).

        Args:
            engine: of the database.
            signals: which of TRACES and METRICS are sent.
        """
        resource = _resource()
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        readers = []
        if "TRACES" in signals:
            self._traces.add_span_processor(_SpansOfRequests(OTLPSpanExporter()))
        if "METRICS" in signals:
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
        self._metrics = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        given: tuple[AnyTracerProvider, AnyMeterProvider] = (
            self._traces if "TRACES" in signals else NoOpTracerProvider(),
            self._metrics if readers else NoOpMeterProvider(),
        )
        self._tracer = given[0].get_tracer(_NAME, accounting.__version__)
        self._providers: dict[str, Any] = {"tracer_provider": given[0], "meter_provider": given[1]}
        # It is tested with this SQLAlchemy, which is newer than the last that its package names.
        SQLAlchemyInstrumentor().instrument(engine=engine, skip_dep_check=True, **self._providers)

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, each of whose requests is a span."""
        traced = OpenTelemetryMiddleware(
            _Whole(app),
            default_span_details=lambda scope: (scope["method"], {}),  # the route is known later
            http_capture_headers_sanitize_fields=_SECRET_HEADERS,
            exclude_spans=["receive", "send"],
            **self._providers,
        )
        return _Shown(app, traced)

    @contextmanager
    def committing(self, spans: Sequence[Any]) -> Iterator[None]:
        """A span for a transaction of the writer.

        It is part of the trace of the first request, and linked with those of the others, both
        ways, for a span has one parent.

        Args:
            spans: of the requests that are committed together; None of those without one.
        """
        first, *others = [one for one in spans if one is not None] or [None]
        span = self._tracer.start_span(
            "commit",
            context=None if first is None else set_span_in_context(first),
            links=[Link(one.get_span_context()) for one in others],
            attributes={"dpledger.requests": len(spans)},
        )
        for one in others:
            one.add_link(span.get_span_context())
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            with suppress(Exception):  # what is committed is answered, whatever becomes of its span
                span.end()

    def stop(self) -> None:
        """Send what was not sent yet, for STOP_SECONDS at most: a collector may be away."""
        ends = time.monotonic() + STOP_SECONDS
        senders = [
            threading.Thread(target=one.shutdown, name="dpledger-telemetry", daemon=True)
            for one in (self._traces, self._metrics)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(max(0.0, ends - time.monotonic()))
        if any(sender.is_alive() for sender in senders):
            _LOGGER.warning("telemetry was not sent: the collector does not answer")


class _SpansOfRequests(BatchSpanProcessor):
    """Leaves out questions to the database that no request asked, of threads that look often."""

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span that has ended, until it is sent."""
        if span.parent is not None or span.kind is not SpanKind.CLIENT:
            super().on_end(span)


class _Shown:
    """ASGI: gives the instrumentor what it may see of a request."""

    def __init__(self, app: ASGIApp, traced: Any) -> None:
        self._app, self._traced = app, traced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["path"] in _ROUTINE:
            await self._app(scope, receive, send)
            return
        shown = {
            **scope,
            "path": scope["path"][:PATH_LENGTH_MAX],
            "query_string": b"",
            "headers": _shown_headers(scope["headers"]),
            _WHOLE: scope,
        }
        await self._traced(shown, receive, send)
        if _FAILED in shown:
            raise shown[_FAILED]


class _Whole:
    """ASGI: gives the application the whole request, and the span what became of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, shown: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        scope, span = shown[_WHOLE], get_current_span()
        context = span.get_span_context()
        if context.is_valid:
            trace_context.trace_id.set(f"{context.trace_id:032x}")
            trace_context.span.set(span)

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                _describe(span, scope)
                shown["route"] = scope.get("route")  # by which the instrumentor counts
            await send(message)

        try:
            await self._app(scope, receive, answered)
        except Exception as error:  # told by its kind alone: its words may hold anything
            span.set_status(StatusCode.ERROR, type(error).__name__)
            shown[_FAILED] = error


def _describe(span: Span, scope: Scope) -> None:
    """Name a span by its route, and say which part of the ledger it is about."""
    if not span.is_recording():
        return
    if route := getattr(scope.get("route"), "path_format", None):
        span.update_name(f"{scope['method']} {route}")
        span.set_attribute("http.route", route)
    for noun in ("dataset", "run"):
        if name := scope.get("path_params", {}).get(noun):
            span.set_attribute(f"dpledger.{noun}", name)
    if slug := scope.get(PROBLEM):
        span.set_attribute("dpledger.problem", slug)


def _shown_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that the instrumentor reads; a traceparent only if it is valid."""
    shown = [
        (name, value)
        for name, value in headers
        if name in _SHOWN and value.isascii() and len(value) <= HEADER_LENGTH_MAX
    ]
    if sent := read_traceparent(headers):
        shown.append((TRACEPARENT, sent.encode()))
    return shown


def _resource() -> Resource:
    """Which service this is: as the environment says, else by its own name."""
    found = Resource.create()
    if str(found.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
        found = found.merge(Resource({SERVICE_NAME: _NAME}))
    return Resource({SERVICE_VERSION: accounting.__version__}).merge(found)
