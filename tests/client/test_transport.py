import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client

from benchmarks.servers import free_port
from tests.client.fake_service import (
    FakeService,
    answering,
    busy,
    lost_reply,
    problem,
    unreachable,
)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_busy_service_is_asked_again(
    service: FakeService, client: Client, waits: list[float], status: int
) -> None:
    service.faults.extend([answering(httpx.Response(status, text="<html>"))] * 3)
    assert client.guarantee("run")["epsilon"] == 2.0
    assert len(service.requests) == 4
    assert len(waits) == 3


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.DecodingError],
)
def test_a_failed_connection_is_tried_again(
    service: FakeService, client: Client, error: type[httpx.TransportError]
) -> None:
    def fail(answer: object) -> httpx.Response:
        raise error("no")

    service.faults.append(fail)
    assert client.guarantee("run")["epsilon"] == 2.0
    assert len(service.requests) == 2


def test_retries_end(service: FakeService, client: Client, waits: list[float]) -> None:
    service.faults.extend([unreachable] * 10)
    with pytest.raises(dp.Unavailable, match="ConnectError refused") as raised:
        client.guarantee("run")
    assert raised.value.status == 0
    assert len(service.requests) == 4
    assert len(waits) == 3


def test_who_cannot_connect_is_told_the_address_and_what_to_look_at() -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retries=0) as client:
        address = str(client).partition("'")[2].partition("'")[0]
        with pytest.raises(dp.Unavailable) as raised:
            client.guarantee("run")
    said = str(raised.value)
    assert said.startswith(f"{address} did not answer: ConnectError ")
    assert said.endswith("Is `dpledger serve` running there? DPLEDGER_URL names another address.")


def test_a_connection_that_breaks_off_names_the_address_and_no_remedy(
    service: FakeService, client: Client
) -> None:
    def fail(answer: object) -> httpx.Response:
        raise httpx.ReadError("cut")

    service.faults.extend([fail] * 10)
    with pytest.raises(dp.Unavailable) as raised:
        client.guarantee("run")
    assert str(raised.value) == "http://127.0.0.1:8000 did not answer: ReadError cut"


def test_the_last_busy_answer_is_the_error(service: FakeService, client: Client) -> None:
    service.faults.extend([busy] * 10)
    with pytest.raises(dp.Unavailable, match="Title of unavailable: why") as raised:
        client.guarantee("run")
    assert raised.value.status == 503


def test_a_call_may_ask_for_fewer_retries(service: FakeService, client: Client) -> None:
    service.faults.extend([unreachable] * 10)
    for retries in (0, 1):
        before = len(service.requests)
        with pytest.raises(dp.Unavailable):
            client._transport.get("/v1/runs/run", retries=retries)
        with pytest.raises(dp.Unavailable):
            client._transport.post("/v1/runs/run", {}, retries=retries)
        assert len(service.requests) - before == 2 * (retries + 1)


def test_without_retries_there_is_one_request(service: FakeService) -> None:
    service.faults.append(busy)
    with (
        Client(transport=httpx.MockTransport(service), retries=0) as client,
        pytest.raises(dp.Unavailable),
    ):
        client.guarantee("run")
    assert len(service.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 422])
def test_other_answers_are_final(service: FakeService, client: Client, status: int) -> None:
    service.faults.append(answering(problem("other", status)))
    with pytest.raises(dp.DPLedgerError, match="Title of other: why"):
        client.guarantee("run")
    assert len(service.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 599])
def test_what_may_be_answered_later_is_asked_again(
    service: FakeService, client: Client, status: int
) -> None:
    service.faults.extend([answering(problem("other", status))] * 2)
    client.guarantee("run")
    assert len(service.requests) == 3
    service.faults.extend([answering(problem("other", status))] * 4)
    with pytest.raises(dp.Unavailable):
        client.guarantee("run")


def test_waits_grow_and_are_bounded(service: FakeService, waits: list[float]) -> None:
    service.faults.extend([busy] * 40)
    with Client(transport=httpx.MockTransport(service), retries=40) as client:
        client.guarantee("run")
    assert all(0 <= wait <= min(10, 0.5 * 2**n) for n, wait in enumerate(waits))
    assert max(waits) > 1
    assert len(set(waits)) == 40


def test_waits_leave_the_trainers_random_numbers_alone(
    service: FakeService, client: Client
) -> None:
    service.faults.extend([busy] * 3)
    before = random.getstate()
    client.guarantee("run")
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("7", 7, 7.5),
        ("999999", 60, 60.5),
        (format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True), 60, 60.5),
        (format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True), 0, 0.5),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0, 0.5),
        ("soon", 0, 0.5),
        ("-3", 0, 0.5),
    ],
    ids=["seconds", "too long", "tomorrow", "yesterday", "long ago", "a word", "negative"],
)
def test_retry_after_is_waited_for(
    service: FakeService, client: Client, waits: list[float], text: str, low: float, high: float
) -> None:
    service.faults.append(answering(httpx.Response(503, headers={"Retry-After": text})))
    client.guarantee("run")
    assert low <= waits[0] <= high


def test_a_client_that_was_closed_sends_nothing(service: FakeService) -> None:
    client = Client(transport=httpx.MockTransport(service))
    client.close()
    with pytest.raises(dp.DPLedgerError, match="client was closed"):
        client.guarantee("run")
    assert service.requests == []


def test_an_answer_that_is_not_an_object_is_an_error(service: FakeService, client: Client) -> None:
    for text in ("<html>", "[]", ""):
        service.faults.append(answering(httpx.Response(200, text=text)))
        with pytest.raises(dp.DPLedgerError, match="not a JSON object"):
            client.guarantee("run")
    service.faults.append(answering(httpx.Response(302, headers={"Location": "/login"})))
    with pytest.raises(dp.DPLedgerError, match="Found"):
        client.guarantee("run")


def test_a_request_whose_answer_was_lost_is_the_same_request(
    service: FakeService, client: Client
) -> None:
    service.faults.extend([busy, lost_reply, lost_reply])
    client.start_run("run", "letters", dataset_size=1000)
    bodies = service.bodies("/v1/runs")
    assert len(bodies) == 4
    assert bodies[1:] == bodies[:-1]
    assert len(bodies[0]["writer"]) == 32


class Ports(ThreadingHTTPServer):
    """Answers each request, and keeps the port that it came from."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.seen: list[int] = []


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    server: Ports

    def do_GET(self) -> None:
        self.server.seen.append(self.client_address[1])
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def ports() -> Iterator[Ports]:
    with Ports() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def in_a_fork(act: Callable[[], object]) -> None:
    """Do something in a process that is forked, and wait for its end."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_does_not_use_the_connections_of_its_parent(ports: Ports) -> None:
    with Client(f"http://127.0.0.1:{ports.server_port}", "key") as client:
        transport = client._transport.of_dataset("a")

        def ask() -> None:
            client.guarantee("run")
            transport.get("/v1/runs/run")

        ask()
        in_a_fork(ask)
        ask()
    ours, forks = ports.seen[0], ports.seen[2]
    assert ports.seen == [ours, ours, forks, forks, ours, ours]
    assert ours != forks


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_client_that_was_closed_stays_so_in_a_fork(ports: Ports) -> None:
    client = Client(f"http://127.0.0.1:{ports.server_port}", "key")
    client.close()

    def ask() -> None:
        with pytest.raises(dp.DPLedgerError, match="The client was closed"):
            client.guarantee("run")

    in_a_fork(ask)
    assert ports.seen == []
