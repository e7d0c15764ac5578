"""A collector of OpenTelemetry: takes what a service sends by OTLP over HTTP."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SECONDS_MAX = 120.0


def attributes(given: Any) -> dict[str, Any]:
    """The attributes of a span, a resource or a data point."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in given.attributes}


@dataclass
class Collector:
    """What was sent."""

    address: str = ""
    bodies: list[tuple[str, bytes]] = field(default_factory=list)  # path and content

    @property
    def traces(self) -> list[Any]:
        """Spans of a resource."""
        return [
            one
            for path, body in list(self.bodies)
            if path == "/v1/traces"
            for one in ExportTraceServiceRequest.FromString(body).resource_spans
        ]

    @property
    def spans(self) -> list[Span]:
        """Every span."""
        return [span for one in self.traces for part in one.scope_spans for span in part.spans]

    @property
    def metrics(self) -> list[Metric]:
        """Every metric, as often as it was sent."""
        return [
            metric
            for path, body in list(self.bodies)
            if path == "/v1/metrics"
            for one in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for part in one.scope_metrics
            for metric in part.metrics
        ]

    def wait(self, seen: Callable[[], Any]) -> Any:
        """What is seen as soon as it is there."""
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := seen()):
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.05)
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of this machine."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.bodies.append((self.path, body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
