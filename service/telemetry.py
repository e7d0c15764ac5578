"""Count what this process does, and write its log as lines of JSON.

Labels come from short lists: the templates of paths, never paths; slugs of problems; never the name
of a run or of a key. A count costs microseconds.
"""

import json
import logging
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import Metric

from service import trace_context

PROBLEM: Final = "dpledger.problem"  # of a connection's scope: the slug of its refusal
KEY: Final = "dpledger.key"  # the same: the name of the key, or issuer#subject of the person
OTHER: Final = "other"  # an unknown path or method
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})
# Seconds: an append takes about a millisecond, an expensive question up to some seconds.
_LATENCIES: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_COMMITS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
_CREATED: Final = "_created"  # when a series began; it is not used, and doubles the output
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
# Attributes every record has; whatever else it carries was given by the caller.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message"}


class Measures:
    """The counters of one process. They begin with it, and end with it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self._latency = Histogram(
            "dpledger_http_request_duration_seconds",
            "From a request's head to the head of its answer.",
            ("route", "method", "status"),
            buckets=_LATENCIES,
            registry=self.registry,
        )
        self._refusals = Counter(
            "dpledger_refusals",
            "Answers that were problem documents, by the slug of their type.",
            ("problem",),
            registry=self.registry,
        )
        self._requests = Counter(
            "dpledger_writer_requests",
            "Requests that the writer has answered.",
            ("outcome",),
            registry=self.registry,
        )
        self._steps = Counter(
            "dpledger_steps",
            "Steps that trainers sent: recorded, or known already.",
            ("outcome",),
            registry=self.registry,
        )
        self._batch = Histogram(
            "dpledger_writer_batch_requests",
            "Requests that were committed together.",
            buckets=_BATCHES,
            registry=self.registry,
        )
        self._commit = Histogram(
            "dpledger_writer_commit_duration_seconds",
            "From the beginning of a transaction of the writer to the end of its commit.",
            buckets=_COMMITS,
            registry=self.registry,
        )
        self._by_request: dict[tuple[str, str, int], Histogram] = {}
        self._committed, self._refused = (
            self._requests.labels(outcome) for outcome in ("committed", "refused")
        )
        self._recorded, self._known = (
            self._steps.labels(outcome) for outcome in ("recorded", "duplicate")
        )

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer, by the template of its path and the class of its status."""
        key = (route, method if method in _METHODS else OTHER, status // 100)
        found = self._by_request.get(key)
        if found is None:
            found = self._by_request[key] = self._latency.labels(key[0], key[1], f"{key[2]}xx")
        found.observe(seconds)

    def refused(self, slug: str) -> None:
        """Count a problem document."""
        self._refusals.labels(slug).inc()

    def wrote(self, *, committed: int, refused: int, seconds: float) -> None:
        """Count a transaction of the writer."""
        self._batch.observe(committed + refused)
        self._commit.observe(seconds)
        self._committed.inc(committed)
        self._refused.inc(refused)

    def recorded(self, *, accepted: int, duplicates: int) -> None:
        """Count the steps of an append."""
        self._recorded.inc(accepted)
        self._known.inc(duplicates)

    def expect(self, slugs: Iterable[str]) -> None:
        """Begin at zero, so that the first refusal of a kind is seen to be one."""
        for slug in slugs:
            self._refusals.labels(slug)

    def families(self) -> Iterable[Metric]:
        """What was counted."""
        for family in self.registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith(_CREATED)]
            yield family


class JsonFormatter(logging.Formatter):
    """A log record as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; exceptions are folded into it."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (current := request_id.get()) is not None:
            line["request_id"] = current
        if (trace := trace_context.trace_id.get()) is not None:
            line["trace_id"] = trace
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure() -> None:
    """Send every log line to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = name != "uvicorn.access"  # requests are logged by our middleware
