"""OpenTelemetry: what a real service sends to a collector, and what it says if it cannot."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
from sqlalchemy import Engine

from benchmarks.servers import START_TOKEN, free_port
from service.errors import StartupError
from service.identity.authentication import KEY_REFRESH_SECONDS
from service.identity.keys import Role, create_key
from service.storage.engine import transaction
from service.web import open_telemetry
from service.web.open_telemetry import OpenTelemetry
from service.web.tracing import signals_of
from tests.conftest import AS_ADMIN
from tests.service.collector import Collector, attributes, collecting
from tests.service.samples import BUDGET, Json, dataset, event, run, setup

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
EVENTS = "POST /v1/runs/{run}/events"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
END_SECONDS = 120.0  # for a process to end


@contextmanager
def serving(
    database_url: str, environment: dict[str, str], *, fails: bool = False
) -> Iterator[httpx.Client]:
    """A process of its own; at its end it was told to stop, and did."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port)],
        env=os.environ
        | {"DPLEDGER_DATABASE_URL": database_url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        | environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=AS_ADMIN) as api:
            deadline = time.monotonic() + 120
            while not _ready(api):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield api
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=END_SECONDS)
        assert process.returncode == 0, errors
        lines = [json.loads(line) for line in errors.splitlines()]
        wrong = [line for line in lines if line["level"] in ("error", "critical")]
        assert fails or not wrong, wrong
    finally:
        process.kill()
        process.communicate()


def _ready(api: httpx.Client) -> bool:
    try:
        return api.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """For what differs by no database."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def named(collector: Collector, name: str, count: int = 1) -> list[Any]:
    def seen() -> list[Any]:
        found = [span for span in collector.spans if span.name == name]
        return found if len(found) >= count else []

    found: list[Any] = collector.wait(seen)
    return found


def append(api: httpx.Client, first: int, **given: Any) -> httpx.Response:
    body: Json = {"events": [event(first, 3)]} | given
    return api.post("/v1/runs/run/events", json=body, headers=SENT)


def test_a_step_of_a_trainer_is_a_span_of_the_trainers_trace(
    database_url: str, collector: Collector
) -> None:
    with serving(database_url, {ENDPOINT: collector.address}) as api:
        setup(api, dataset_given={"budget": BUDGET})
        assert append(api, 0).status_code == 201
        (span,) = named(collector, EVENTS)
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        told = attributes(span)
        assert told["http.status_code"] == 201
        own = {name: value for name, value in told.items() if name.startswith("dpledger.")}
        assert own == {
            "dpledger.dataset": "data", "dpledger.run": "run", "dpledger.branch": "main",
            "dpledger.mode": "record", "dpledger.steps": 3, "dpledger.accepted": 3,
            "dpledger.duplicates": 0, "dpledger.sequence": 1, "dpledger.verdict": "within",
        }  # fmt: skip
        # The transaction that recorded it is below it, and says how many it was of.
        commits = named(collector, "commit")
        below = [one for one in commits if one.parent_span_id == span.span_id]
        assert {(one.trace_id, attributes(one)["dpledger.requests"]) for one in below} == {
            (span.trace_id, 1)
        }
        # A retry, and what is refused, say so.
        assert append(api, 0).status_code == 200
        assert append(api, 9).status_code == 409
        again, refused = named(collector, EVENTS, 3)[1:]
        assert attributes(again)["dpledger.duplicates"] == 3
        assert attributes(refused)["dpledger.problem"] == "out-of-sequence"
        assert (attributes(refused)["dpledger.steps"], attributes(refused)["dpledger.dataset"]) == (
            3, "data",
        )  # fmt: skip
    resource = attributes(collector.traces[0].resource)
    assert resource["service.name"] == "dpledger"
    assert resource["service.version"]


def test_questions_to_the_database_are_spans_below_the_request(
    database_url: str, collector: Collector
) -> None:
    environment = {ENDPOINT: collector.address, "OTEL_SERVICE_NAME": "ledger-of-the-lab"}
    with serving(database_url, environment) as api:
        setup(api)
        api.get("/v1/runs/run", headers=SENT).raise_for_status()
        (span,) = named(collector, "GET /v1/runs/{run}")
        below = collector.wait(
            lambda: [
                one
                for one in collector.spans
                if one.trace_id == span.trace_id and one.name.startswith("SELECT")
            ]
        )
    assert {attributes(one)["db.system"] for one in below} <= {"sqlite", "postgresql"}
    # A question that no request asked, of threads that look again and again, is not sent.
    roots = [one.name for one in collector.spans if not one.parent_span_id]
    assert [name for name in roots if name.startswith(("SELECT", "connect"))] == []
    assert attributes(collector.traces[0].resource)["service.name"] == "ledger-of-the-lab"


def test_nothing_that_is_sent_holds_a_secret(
    database_url: str, engine: Engine, collector: Collector
) -> None:
    environment = {
        ENDPOINT: collector.address,
        "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SERVER_REQUEST": ".*",
        "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SERVER_RESPONSE": ".*",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
    }
    writer = "a-writer-that-opens-branches"
    with serving(database_url, environment) as api:
        setup(api)
        api.get("/sign-in", params={"token": START_TOKEN})
        with transaction(engine) as connection:
            key = create_key(connection, name="ann", scope=Role.TRAINER)
        time.sleep(KEY_REFRESH_SECONDS)
        api.headers["authorization"] = f"Bearer {key}"
        api.get("/v1/runs", headers={"cookie": "dpledger=a-cookie-of-a-session"})
        lines = json.dumps(event(0, 1)).encode()
        api.post(
            "/v1/runs/run/events",
            params={"writer": writer},
            content=lines,
            headers={"content-type": "application/x-ndjson"},
        )
        named(collector, EVENTS)
        collector.wait(lambda: collector.metrics)
    whole = b"".join(body for _, body in collector.bodies)
    assert b"/v1/runs/{run}/events" in whole
    for secret in (START_TOKEN, key, writer, "a-cookie-of-a-session"):
        assert secret.encode() not in whole


def durations(collector: Collector) -> list[dict[str, Any]]:
    """By what requests were counted when their durations were sent last."""
    sent = [one for one in collector.metrics if one.name == "http.server.duration"]
    return [attributes(point) for point in sent[-1].histogram.data_points] if sent else []


def test_requests_are_counted_by_route_and_never_by_what_is_sent(
    file_url: str, collector: Collector
) -> None:
    environment = {ENDPOINT: collector.address, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    with serving(file_url, environment) as api:
        setup(api)
        for number in range(20):
            host = {"host": f"host-{number}.example.org"}
            api.get(f"/v1/datasets/data-{number}", headers=host)
            api.get(f"/nothing-{number}", headers=host)
        append(api, 0)
        routes = {"/v1/runs/{run}/events", "/v1/datasets/{dataset}", "/v1/datasets"}
        collector.wait(lambda: routes <= {one.get("http.target") for one in durations(collector)})
    points = durations(collector)
    assert len(points) <= 8
    assert not [value for point in points for value in point.values() if "example" in str(value)]


def test_requests_that_are_committed_together_are_linked(
    file_url: str, collector: Collector
) -> None:
    count, steps = 16, 5

    async def together(base_url: httpx.URL) -> None:
        async with httpx.AsyncClient(base_url=base_url, headers=AS_ADMIN, timeout=60) as api:

            async def one(number: int) -> None:
                trace = {"traceparent": f"00-{number + 1:032x}-{PARENT}-01"}
                for step in range(steps):
                    body: Json = {"events": [event(step, 1)]}
                    path = f"/v1/runs/run{number}/events"
                    (await api.post(path, json=body, headers=trace)).raise_for_status()

            await asyncio.gather(*map(one, range(count)))

    with serving(file_url, {ENDPOINT: collector.address}) as api:
        api.post("/v1/datasets", json=dataset()).raise_for_status()
        for number in range(count):
            api.post("/v1/runs", json=run(f"run{number}")).raise_for_status()
        asyncio.run(together(api.base_url))
        spans = {span.span_id: span for span in named(collector, EVENTS, count * steps)}
    commits = [
        one for one in collector.spans if one.name == "commit" and one.parent_span_id in spans
    ]
    # What the first transaction did not know the price of, another one recorded.
    assert sum(attributes(one)["dpledger.requests"] for one in commits) >= count * steps
    assert max(len(one.links) for one in commits) > 0
    for commit in commits:
        assert len(commit.links) == attributes(commit)["dpledger.requests"] - 1
        for link in commit.links:
            assert commit.span_id in [back.span_id for back in spans[link.span_id].links]
    assert {int(span.trace_id.hex(), 16) for span in spans.values()} == set(range(1, count + 1))


def test_a_request_that_the_instrumentor_could_not_read_is_answered_as_ever(
    file_url: str, collector: Collector
) -> None:
    with serving(file_url, {ENDPOINT: collector.address}) as api:
        setup(api)
        odd: list[tuple[bytes, bytes]] = [
            (b"authorization", AS_ADMIN["Authorization"].encode()), (b"traceparent", b"\xff\\x"),
            (b"tracestate", b"\xff\\x"), (b"baggage", b"\xff\\x"), (b"user-agent", b"\xff\\x"),
        ]  # fmt: skip
        assert api.get("/v1/runs/run?a=%FF", headers=odd).status_code == 200
        assert api.get("/v1/runs/run", headers=odd).status_code == 200
        assert api.get("/" + "x" * 9000).status_code == 404
        (lost,) = named(collector, "GET")
    assert len(attributes(lost)["http.target"]) == 256


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_a_collector_that_is_away_delays_neither_requests_nor_the_end(
    file_url: str, hangs: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if not hangs:
            listener.close()
        with serving(file_url, {ENDPOINT: f"http://127.0.0.1:{port}"}, fails=True) as api:
            setup(api)
            assert append(api, 0).status_code == 201


def test_the_end_waits_for_what_is_sent_no_longer_than_its_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_telemetry, "STOP_SECONDS", 0.1)
    answers = threading.Event()
    telemetry = object.__new__(OpenTelemetry)
    telemetry._traces = telemetry._metrics = SimpleNamespace(shutdown=lambda: answers.wait(60))  # type: ignore[assignment]
    try:
        telemetry.stop()  # the collector does not answer before this returns
    finally:
        answers.set()
    assert "telemetry was not sent" in caplog.text


def test_a_service_that_cannot_send_what_is_asked_for_does_not_start(file_url: str) -> None:
    without = "import sys; sys.modules['opentelemetry.exporter'] = None; "
    command = "from service.cli.main import main; sys.argv = ['dpledger', 'serve', '--port', '0']; "
    for code, environment, said in (
        (without, {}, "pip install 'dpledger[telemetry]'"),
        ("import sys; ", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf alone"),
    ):
        told = {"DPLEDGER_DATABASE_URL": file_url, ENDPOINT: "http://127.0.0.1:9"}
        result = subprocess.run(
            [sys.executable, "-c", code + command + "main()"],
            env=os.environ | told | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 2, result.stderr
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


def test_without_an_endpoint_no_part_of_the_extra_is_loaded(database_url: str) -> None:
    code = (
        "import sys\n"
        "PARTS = tuple('opentelemetry.' + one for one in ('sdk', 'exporter', 'instrumentation'))\n"
        "from service.app import create_app\n"
        "from service.settings import Settings\n"
        "create_app(Settings())\n"
        "print([name for name in sys.modules if name.startswith(PARTS)])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"DPLEDGER_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert result.stdout == "[]\n"


BOTH = {"TRACES", "METRICS"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, set()),
        ({ENDPOINT: ""}, set()),
        ({ENDPOINT: "http://c:4318"}, BOTH),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, set()),
        ({ENDPOINT: "http://c:4318", "OTEL_METRICS_EXPORTER": "none"}, {"TRACES"}),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, {"METRICS"}),
        ({ENDPOINT: "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, BOTH),
        ({"OTEL_TRACES_EXPORTER": "console"}, set()),
    ],
)
def test_the_standard_variables_say_what_is_sent(
    environment: dict[str, str], found: set[str]
) -> None:
    assert signals_of(environment) == found


@pytest.mark.parametrize(
    "given",
    [{"OTEL_TRACES_EXPORTER": "console"}, {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}],
)
def test_what_cannot_be_sent_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(StartupError, match="OTEL_"):
        signals_of({ENDPOINT: "http://c:4318"} | given)


def test_a_transaction_that_fails_says_its_kind_and_not_its_words(
    engine: Engine, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.address)
    traced = OpenTelemetry(engine, frozenset({"TRACES"}))
    try:
        with pytest.raises(ValueError, match="private"), traced.committing([None]):
            raise ValueError("private words")
    finally:
        traced.stop()
        SQLAlchemyInstrumentor().uninstrument()
    (span,) = named(collector, "commit")
    assert (span.status.message, len(span.events)) == ("ValueError", 0)
