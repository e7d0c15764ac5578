"""Webhooks: signed, only to the settings' addresses, until each has taken every incident."""

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, Engine, Row, select

from benchmarks.servers import free_port
from service.clock import now
from service.errors import UnavailableError
from service.operations import webhook_queue, webhooks
from service.operations.webhook_queue import Wants
from service.operations.webhooks import WebhookSender
from service.settings import Settings
from service.storage.engine import transaction
from service.storage.tables import deliveries as rows
from service.storage.tables import incidents
from tests.conftest import AS_ADMIN, running
from tests.service.receiver import PHRASE, happened, receiving, secret_in, sending
from tests.service.samples import append, event, setup
from tests.service.sse import until
from tests.service.test_incidents import happen

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(webhooks, "PAUSE_SECONDS_MAX", 0.05)
    monkeypatch.setattr(webhook_queue, "BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 45.0)


def test_what_is_sent_is_the_incident_signed(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    setup(api)
    with receiving() as receiver, sending(engine, tmp_path, receiver.url) as dispatcher:
        happen(engine, 3, scope="dataset:data", limit=3.0)
        until(lambda: dispatcher.delivered == 1)
        time.sleep(0.2)
    ((headers, body),) = receiver.sent  # once
    (listed,) = api.get("/v1/datasets/data/incidents").json()["incidents"]
    assert json.loads(body) == listed
    assert headers["webhook-id"] == listed["id"]
    assert headers["content-type"] == "application/json"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(PHRASE.encode(), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert PHRASE.encode() not in body + repr(headers).encode()
    assert (dispatcher.failed, dispatcher.waiting()) == (0, 0)


def test_a_refused_delivery_is_made_again_under_the_same_id(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    setup(api)
    refusals = (500, 404, 302, 503)
    with receiving(*refusals) as receiver, sending(engine, tmp_path, receiver.url) as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.delivered == 1)
    assert len(receiver.sent) == 5  # the redirect was an attempt, and was not followed
    assert len(set(receiver.ids)) == 1
    assert len({body for _, body in receiver.sent}) == 1
    assert dispatcher.failed == 4


def test_a_refused_incident_does_not_keep_the_others_back(
    api: httpx.Client, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_queue, "BACKOFF_SECONDS", 3600.0)
    setup(api)
    with receiving(500) as receiver, sending(engine, tmp_path, receiver.url) as dispatcher:
        happen(engine, 1, 2, 3)
        until(lambda: dispatcher.delivered == 2)
        assert receiver.sequences == [1, 2, 3]
        assert dispatcher.waiting() == 1


def test_two_dispatchers_send_each_incident_once(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    setup(api)
    with (
        receiving(delay_seconds=0.005) as receiver,
        sending(engine, tmp_path, receiver.url) as one,
        sending(engine, tmp_path, receiver.url) as two,
    ):
        for number in range(40):
            happen(engine, number)
        until(lambda: one.delivered + two.delivered == 40)
        time.sleep(0.2)
    assert sorted(receiver.sequences) == list(range(40))
    assert len(set(receiver.ids)) == 40


def test_a_process_killed_before_it_could_say_that_it_sent_leaves_the_rest_to_others(
    api: httpx.Client,
    engine: Engine,
    database_url: str,
    tmp_path: Path,
) -> None:
    setup(api)
    program = textwrap.dedent("""
        import os, sys, time
        from pathlib import Path
        from service.operations import webhook_queue, webhooks
        from service.storage.engine import connect
        from service.settings import Settings
        webhook_queue.record_delivery = lambda *given: os._exit(9)
        given = Settings(webhooks=(sys.argv[2],), webhook_secret_file=Path(sys.argv[3]))
        webhooks.Dispatcher(connect(sys.argv[1]), webhooks.webhooks_of(given)).start()
        time.sleep(60)
    """)
    happen(engine, 1)
    with receiving() as receiver:
        command = [
            sys.executable,
            "-c",
            program,
            database_url,
            receiver.url,
            str(secret_in(tmp_path)),
        ]
        killed = subprocess.run(command, cwd=ROOT, timeout=120, check=False)
        assert killed.returncode == 9
        assert len(receiver.sent) == 1
        with transaction(engine) as connection:  # as after the lease
            connection.execute(rows.update().values(next_attempt_at=now()))
        with sending(engine, tmp_path, receiver.url) as dispatcher:
            until(lambda: dispatcher.delivered == 1)
    assert len(receiver.sent) == 2
    assert len(set(receiver.ids)) == 1


def waits(connection: socket.socket) -> bool:
    """Whether the other side has sent something and neither closed nor ended the connection."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        while connection.recv(65536):
            pass
        return False
    return True


def test_a_dead_address_delays_neither_another_nor_an_append(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and never answers; no transaction is open meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as dead, receiving() as receiver:
        hole = f"http://127.0.0.1:{dead.getsockname()[1]}/"
        settings = Settings(
            database_url=database_url,
            webhooks=(hole, receiver.url),
            webhook_secret_file=secret_in(tmp_path),
        )
        with (
            running(settings) as address,
            httpx.Client(base_url=address, headers=AS_ADMIN) as other,
        ):
            setup(other)
            happen(engine, 1, 2)
            until(lambda: len(receiver.sent) == 2)
            waited, _ = dead.accept()
            with waited:
                for number in range(20):
                    assert append(other, event(number, 1)).status_code == 201
                # It waits for the address still; what follows is given up soon.
                assert waits(waited)
                monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 0.5)
    assert receiver.sequences == [1, 2]


def test_an_address_that_takes_nothing_costs_its_timeout_and_is_asked_again(
    api: httpx.Client, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 0.1)
    setup(api)
    port = free_port()
    with sending(engine, tmp_path, f"http://127.0.0.1:{port}/hook") as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.failed >= 1)  # nobody listens
        with receiving(delay_seconds=0.3, port=port) as receiver:
            until(lambda: len(receiver.sent) >= 2)  # somebody does, who is too slow
            receiver.delay_seconds = 0
            until(lambda: dispatcher.delivered == 1)
    assert len(set(receiver.ids)) == 1


def test_a_new_address_is_not_told_of_what_is_long_past(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    setup(api)
    happened(engine, hours_ago=2, sequence=1)
    with receiving() as receiver:
        with sending(engine, tmp_path, receiver.url) as dispatcher:
            happen(engine, 2)
            until(lambda: dispatcher.delivered == 1)
            assert receiver.sequences == [2]
        # It is known from then on: what happens while nothing runs is sent later.
        happened(engine, hours_ago=2, sequence=3)
        with sending(engine, tmp_path, receiver.url) as dispatcher:
            until(lambda: dispatcher.delivered == 1)
            time.sleep(0.1)
        assert receiver.sequences == [2, 3]


def test_where_nothing_is_long_past_everything_is_told(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    setup(api)
    happen(engine, 1)
    with receiving() as receiver:
        for count in (1, 2):
            with sending(engine, tmp_path, receiver.url):
                until(lambda count=count: len(receiver.sent) == count)  # type: ignore[misc]
            happened(engine, hours_ago=2, sequence=2)
        time.sleep(0.1)
        assert receiver.sequences == [1, 2]


def test_only_the_kinds_that_are_asked_for_are_sent(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    setup(api)
    with (
        receiving() as receiver,
        sending(engine, tmp_path, receiver.url, webhook_kinds=("overdraft",)) as dispatcher,
    ):
        happen(engine, 1)  # a refusal
        happened(engine, hours_ago=0, sequence=2)
        until(lambda: dispatcher.delivered == 1)
        time.sleep(0.1)
        assert dispatcher.waiting() == 0
    assert receiver.sequences == [2]


def test_a_courier_looks_now_and_then_for_what_is_over(
    api: httpx.Client, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "SETTLE_SECONDS", 0.0)
    setup(api)
    looked: list[Wants] = []
    whole = webhook_queue.due

    def noted(connection: Connection, wants: Wants, moment: datetime) -> Row[Any] | None:
        looked.append(wants)
        return whole(connection, wants, moment)

    monkeypatch.setattr(webhook_queue, "due", noted)
    with receiving() as receiver, sending(engine, tmp_path, receiver.url) as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.delivered == 1)
        with transaction(engine) as connection:
            only = connection.scalar(select(incidents.c.id))
        monkeypatch.setattr(webhook_queue, "RECENT", timedelta(0))
        until(lambda: looked[-1].after == only)
        happen(engine, 2)
        until(lambda: dispatcher.delivered == 2)
    assert receiver.sequences == [1, 2]


def test_a_courier_outlives_a_database_that_does_not_answer_and_a_defect(
    api: httpx.Client,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup(api)
    whole, faults = WebhookSender._claim, [UnavailableError("locked"), ZeroDivisionError()]

    def failing(courier: WebhookSender) -> object:
        if faults:
            raise faults.pop()
        return whole(courier)

    monkeypatch.setattr(WebhookSender, "_claim", failing)
    with receiving() as receiver, sending(engine, tmp_path, receiver.url) as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.delivered == 1)
    assert faults == []
    defects = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert defects == [ZeroDivisionError]


def test_what_does_not_speak_tls_gets_nothing_of_what_is_sent_over_it(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    setup(api)
    with receiving() as receiver:
        secure = receiver.url.replace("http:", "https:")
        with sending(engine, tmp_path, secure) as dispatcher:
            happen(engine, 1)
            until(lambda: dispatcher.failed >= 1)
    assert receiver.sent == []
    assert dispatcher.delivered == 0


def test_no_proxy_of_the_environment_is_asked(
    api: httpx.Client, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    setup(api)
    with receiving() as receiver, sending(engine, tmp_path, receiver.url) as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.delivered == 1)
    assert dispatcher.failed == 0
