"""Webhooks: signed, only to the settings' addresses, until each has taken every incident."""

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, func, insert, select

from service import deliveries, webhooks
from service.catalog import find_dataset
from service.clock import now
from service.database import transaction
from service.deliveries import Wants
from service.errors import StartupError, UnavailableError
from service.incidents import Kind
from service.settings import Settings
from service.tables import deliveries as rows
from service.tables import incidents
from service.webhooks import Courier, Dispatcher, signature, webhooks_of
from tests.conftest import free_port, running
from tests.service.samples import append, event, setup
from tests.service.test_incidents import happen
from tests.service.test_streams import until

PHRASE = "a secret of more than thirty-two characters"
ROOT = Path(__file__).parents[2]


@dataclass
class Receiver:
    """Somebody who takes webhooks, or does not."""

    url: str = ""
    answers: list[int] = field(default_factory=list)  # statuses; 200 once they are used up
    sent: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    delay_seconds: float = 0.0

    @property
    def sequences(self) -> list[int]:
        return [json.loads(body)["sequence"] for _, body in self.sent]

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.sent]


@contextmanager
def receiving(*answers: int, delay_seconds: float = 0.0, port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(answers=list(answers), delay_seconds=delay_seconds)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.sent.append((headers, body))
            time.sleep(receiver.delay_seconds)
            status = receiver.answers.pop(0) if receiver.answers else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", receiver.url)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?a=b"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(f"{PHRASE}\n", encoding="utf-8")
    return file


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(webhooks, "PAUSE_SECONDS_MAX", 0.05)
    monkeypatch.setattr(deliveries, "BACKOFF_SECONDS", 0.05)


@contextmanager
def sending(engine: Engine, secret_file: Path, *urls: str, **given: object) -> Iterator[Dispatcher]:
    settings = Settings(webhooks=urls, webhook_secret_file=secret_file, **given)  # type: ignore[arg-type]
    dispatcher = Dispatcher(engine, webhooks_of(settings))
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        dispatcher.stop()


def test_what_is_sent_is_the_incident_signed(
    api: httpx.Client, engine: Engine, secret_file: Path
) -> None:
    setup(api)
    with receiving() as receiver, sending(engine, secret_file, receiver.url) as dispatcher:
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


def test_the_signature_is_that_of_the_standard_webhooks(tmp_path: Path) -> None:
    # Computed by `openssl dgst -sha256 -mac HMAC -binary | base64` over the signed text.
    file = tmp_path / "encoded"
    file.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr", encoding="utf-8")
    settings = Settings(webhooks=("https://example.org",), webhook_secret_file=file)
    key = webhooks_of(settings).key
    assert key == base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr")
    found = signature(key, "msg_1", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,H5qvpSFHKoe4qm+iYFTTIEtD+z7sWI4Yn2cm4CPNDTU="


def test_a_refused_delivery_is_made_again_under_the_same_id(
    api: httpx.Client, engine: Engine, secret_file: Path
) -> None:
    setup(api)
    refusals = (500, 404, 302, 503)
    with receiving(*refusals) as receiver, sending(engine, secret_file, receiver.url) as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.delivered == 1)
    assert len(receiver.sent) == 5  # the redirect was an attempt, and was not followed
    assert len(set(receiver.ids)) == 1
    assert len({body for _, body in receiver.sent}) == 1
    assert dispatcher.failed == 4


def test_a_refused_incident_does_not_keep_the_others_back(
    api: httpx.Client, engine: Engine, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "BACKOFF_SECONDS", 3600.0)
    setup(api)
    with receiving(500) as receiver, sending(engine, secret_file, receiver.url) as dispatcher:
        happen(engine, 1, 2, 3)
        until(lambda: dispatcher.delivered == 2)
        assert receiver.sequences == [1, 2, 3]
        assert dispatcher.waiting() == 1


def test_the_pause_between_attempts_doubles_to_its_limit_and_is_spread(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "BACKOFF_SECONDS", 5.0)
    setup(api)
    happen(engine, 1)
    wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
    pauses: dict[int, list[float]] = {}
    with transaction(engine) as connection:
        incident = deliveries.due(connection, wants, moment)
        assert incident is not None
        assert deliveries.claim(connection, incident.id, "t", moment) == 1
        for attempts in (1, 2, 3, 11, 10_000):
            for _ in range(20):
                assert deliveries.postpone(connection, incident, "t", attempts, moment)
                found = connection.scalar(select(rows.c.next_attempt_at))
                assert found is not None
                pause = found.replace(tzinfo=None) - moment.replace(tzinfo=None)
                pauses.setdefault(attempts, []).append(pause.total_seconds())
    for attempts, whole in ((1, 5), (2, 10), (3, 20), (11, 3600), (10_000, 3600)):
        assert whole / 2 <= min(pauses[attempts]) < max(pauses[attempts]) <= whole


def test_an_incident_is_given_up_after_days(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    happen(engine, 1)
    wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
    late = moment + deliveries.GIVE_UP + timedelta(seconds=1)
    with transaction(engine) as connection:
        incident = deliveries.due(connection, wants, moment)
        assert incident is not None
        assert deliveries.due(connection, wants, late) is None  # nor is it begun that late
        assert deliveries.claim(connection, incident.id, "t", moment) == 1
        before = late - timedelta(seconds=2)
        assert not deliveries.postpone(connection, incident, "t", 30, before)
        assert deliveries.due(connection, wants, before) is None
        assert deliveries.waiting(connection, wants, moment) == 0


def test_two_dispatchers_send_each_incident_once(
    api: httpx.Client, engine: Engine, secret_file: Path
) -> None:
    setup(api)
    with (
        receiving(delay_seconds=0.005) as receiver,
        sending(engine, secret_file, receiver.url) as one,
        sending(engine, secret_file, receiver.url) as two,
    ):
        for number in range(40):
            happen(engine, number)
        until(lambda: one.delivered + two.delivered == 40)
        time.sleep(0.2)
    assert sorted(receiver.sequences) == list(range(40))
    assert len(set(receiver.ids)) == 40


def test_a_claim_is_won_once_and_again_only_after_its_lease(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    happen(engine, 1)
    wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
    later = moment + deliveries.LEASE + timedelta(seconds=1)
    with transaction(engine) as connection:
        incident = deliveries.due(connection, wants, moment)
        assert incident is not None
        found = [deliveries.claim(connection, incident.id, "t", moment) for _ in range(2)]
        assert found == [1, None]
        assert deliveries.claim(connection, incident.id, "other", moment) == 1
        assert deliveries.due(connection, wants, moment) is None
        assert deliveries.due(connection, wants, later) is not None
        assert deliveries.claim(connection, incident.id, "t", later) == 2
        deliveries.take(connection, incident.id, "t", later)
        # A slower process that failed, or that comes later, does not undo that.
        deliveries.postpone(connection, incident, "t", 1, later)
        assert deliveries.claim(connection, incident.id, "t", later + timedelta(days=1)) is None
        assert deliveries.due(connection, wants, later + timedelta(days=1)) is None


def test_a_process_killed_before_it_could_say_that_it_sent_leaves_the_rest_to_others(
    api: httpx.Client,
    engine: Engine,
    database_url: str,
    secret_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup(api)
    program = textwrap.dedent("""
        import os, sys, time
        from pathlib import Path
        from service import deliveries, webhooks
        from service.database import connect
        from service.settings import Settings
        deliveries.take = lambda *given: os._exit(9)
        given = Settings(webhooks=(sys.argv[2],), webhook_secret_file=Path(sys.argv[3]))
        webhooks.Dispatcher(connect(sys.argv[1]), webhooks.webhooks_of(given)).start()
        time.sleep(60)
    """)
    happen(engine, 1)
    monkeypatch.setattr(deliveries, "LEASE", timedelta(seconds=0.1))
    with receiving() as receiver:
        command = [sys.executable, "-c", program, database_url, receiver.url, str(secret_file)]
        killed = subprocess.run(command, cwd=ROOT, timeout=60, check=False)
        assert killed.returncode == 9
        assert len(receiver.sent) == 1
        with transaction(engine) as connection:  # as after the lease
            connection.execute(rows.update().values(next_attempt_at=now()))
        with sending(engine, secret_file, receiver.url) as dispatcher:
            until(lambda: dispatcher.delivered == 1)
    assert len(receiver.sent) == 2
    assert len(set(receiver.ids)) == 1


def test_a_dead_address_delays_neither_another_nor_an_append(
    api: httpx.Client, engine: Engine, database_url: str, secret_file: Path
) -> None:
    """It takes connections and never answers; no transaction is open meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as dead, receiving() as receiver:
        hole = f"http://127.0.0.1:{dead.getsockname()[1]}/"
        settings = Settings(
            database_url=database_url,
            webhooks=(hole, receiver.url),
            webhook_secret_file=secret_file,
        )
        with running(settings) as address, httpx.Client(base_url=address) as other:
            setup(other)
            happen(engine, 1, 2)
            until(lambda: len(receiver.sent) == 2)
            waited, _ = dead.accept()
            with waited:
                started = time.monotonic()
                for number in range(20):
                    assert append(other, event(number, 1)).status_code == 201
                assert time.monotonic() - started < webhooks.TIMEOUT_SECONDS
    assert receiver.sequences == [1, 2]


def test_an_address_that_takes_nothing_costs_its_timeout_and_is_asked_again(
    api: httpx.Client, engine: Engine, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 0.1)
    setup(api)
    port = free_port()
    with sending(engine, secret_file, f"http://127.0.0.1:{port}/hook") as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.failed >= 1)  # nobody listens
        with receiving(delay_seconds=0.3, port=port) as receiver:
            until(lambda: len(receiver.sent) >= 2)  # somebody does, who is too slow
            receiver.delay_seconds = 0
            until(lambda: dispatcher.delivered == 1)
    assert len(set(receiver.ids)) == 1


def test_a_new_address_is_not_told_of_what_is_long_past(
    api: httpx.Client, engine: Engine, secret_file: Path
) -> None:
    setup(api)
    _happened(engine, hours_ago=2, sequence=1)
    with receiving() as receiver:
        with sending(engine, secret_file, receiver.url) as dispatcher:
            happen(engine, 2)
            until(lambda: dispatcher.delivered == 1)
            assert receiver.sequences == [2]
        # It is known from then on: what happens while nothing runs is sent later.
        _happened(engine, hours_ago=2, sequence=3)
        with sending(engine, secret_file, receiver.url) as dispatcher:
            until(lambda: dispatcher.delivered == 1)
            time.sleep(0.1)
        assert receiver.sequences == [2, 3]


def test_where_nothing_is_long_past_everything_is_told(
    api: httpx.Client, engine: Engine, secret_file: Path
) -> None:
    setup(api)
    happen(engine, 1)
    with receiving() as receiver:
        for count in (1, 2):
            with sending(engine, secret_file, receiver.url):
                until(lambda count=count: len(receiver.sent) == count)  # type: ignore[misc]
            _happened(engine, hours_ago=2, sequence=2)
        time.sleep(0.1)
        assert receiver.sequences == [1, 2]


def _happened(engine: Engine, *, hours_ago: float, sequence: int) -> None:
    with transaction(engine) as connection:
        row = {
            "dataset_id": find_dataset(connection, "data").id,
            "kind": Kind.OVERDRAFT.value,
            "sequence": sequence,
            "detail": "{}",
            "occurred_at": now() - timedelta(hours=hours_ago),
        }
        connection.execute(insert(incidents).values(row))


def test_only_the_kinds_that_are_asked_for_are_sent(
    api: httpx.Client, engine: Engine, secret_file: Path
) -> None:
    setup(api)
    with (
        receiving() as receiver,
        sending(engine, secret_file, receiver.url, webhook_kinds=("overdraft",)) as dispatcher,
    ):
        happen(engine, 1)  # a refusal
        _happened(engine, hours_ago=0, sequence=2)
        until(lambda: dispatcher.delivered == 1)
        time.sleep(0.1)
        assert dispatcher.waiting() == 0
    assert receiver.sequences == [2]


def test_what_is_long_over_is_not_searched_again_and_nothing_waiting_is_passed_over(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    for hours, sequence in ((80, 1), (30, 2), (29, 3), (0.5, 4)):
        _happened(engine, hours_ago=hours, sequence=sequence)
    with transaction(engine) as connection:
        first, second, third, _ = connection.scalars(select(incidents.c.id)).all()
        wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
        assert deliveries.settled(connection, wants, moment) == first  # too old to be sent
        deliveries.claim(connection, third, "t", moment)
        deliveries.take(connection, third, "t", moment)
        assert deliveries.settled(connection, wants, moment) == first
        deliveries.claim(connection, second, "t", moment)
        assert deliveries.settled(connection, wants, moment) == first  # leased, not taken
        deliveries.take(connection, second, "t", moment)
        assert deliveries.settled(connection, wants, moment) == third  # the last is recent
        far = moment + timedelta(days=4)
        newest = connection.scalar(select(func.max(incidents.c.id)))
        assert deliveries.settled(connection, wants, far) == newest
    nothing = Wants(target="t", kinds=tuple(Kind), after=newest or 0)
    with transaction(engine) as connection:
        assert deliveries.settled(connection, nothing, far) == newest


def test_a_courier_looks_now_and_then_for_what_is_over(
    api: httpx.Client, engine: Engine, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "SETTLE_SECONDS", 0.0)
    setup(api)
    looked: list[Wants] = []
    whole = deliveries.due
    monkeypatch.setattr(
        deliveries, "due", lambda *given: (looked.append(given[1]), whole(*given))[1]
    )
    with receiving() as receiver, sending(engine, secret_file, receiver.url) as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.delivered == 1)
        with transaction(engine) as connection:
            only = connection.scalar(select(incidents.c.id))
        monkeypatch.setattr(deliveries, "RECENT", timedelta(0))
        until(lambda: looked[-1].after == only)
        happen(engine, 2)
        until(lambda: dispatcher.delivered == 2)
    assert receiver.sequences == [1, 2]


def test_a_courier_outlives_a_database_that_does_not_answer_and_a_defect(
    api: httpx.Client, engine: Engine, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    whole, faults = Courier._claim, [UnavailableError("locked"), ZeroDivisionError()]

    def failing(courier: Courier) -> object:
        if faults:
            raise faults.pop()
        return whole(courier)

    monkeypatch.setattr(Courier, "_claim", failing)
    with receiving() as receiver, sending(engine, secret_file, receiver.url) as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.delivered == 1)
    assert faults == []


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://example.org/hook", "https"),
        ("ftp://127.0.0.1/", "https"),
        ("http://127.0.0.1.example.org/", "https"),
        ("http://localhost.example.org/", "https"),
        ("http://[::2]/", "https"),
        ("https://user:word@example.org/", "no password"),
        ("https://user@example.org/", "no password"),
        ("https:///hook", "no host"),
        ("example.org/hook", "no host"),
        ("https://example.org:port/", "not a URL"),
        ("https://[::1/", "not a URL"),
        ("https://example.org/#part", "fragment"),
        ("https://example.org/a\r\nb", "printable"),
        ("https://ex\u00e4mple.org/", "printable"),
        ("https://example.org/ b", "printable"),
    ],
)
def test_an_address_that_is_not_fit_keeps_the_service_from_starting(
    secret_file: Path, address: str, words: str
) -> None:
    settings = Settings(webhooks=(address,), webhook_secret_file=secret_file)
    with pytest.raises(StartupError, match=words) as refusal:
        webhooks_of(settings)
    assert address not in str(refusal.value)


@pytest.mark.parametrize(
    "address", ["http://localhost:1/", "http://[::1]:1/x", "http://127.9.9.9", "https://e.org?a=b"]
)
def test_an_address_that_is_fit_is_taken(secret_file: Path, address: str) -> None:
    settings = Settings(webhooks=(address, address), webhook_secret_file=secret_file)
    found = webhooks_of(settings)
    assert [target.geturl() for target in found.targets] == [address]
    assert found.kinds == frozenset(Kind)


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("x" * 31, "32 characters"),
        ("  " + "x" * 31 + "\n", "32 characters"),
        ("whsec_" + "*" * 40, "base64"),
        ("whsec_" + "A" * 28, "24 bytes"),
    ],
)
def test_a_weak_secret_keeps_the_service_from_starting(
    tmp_path: Path, secret: str, words: str
) -> None:
    file = tmp_path / "weak"
    file.write_text(secret, encoding="utf-8")
    settings = Settings(webhooks=("https://example.org",), webhook_secret_file=file)
    with pytest.raises(StartupError, match=words) as refusal:
        webhooks_of(settings)
    assert secret.strip() not in str(refusal.value)


def test_an_address_needs_a_secret_and_known_kinds_and_few_others(
    tmp_path: Path, secret_file: Path
) -> None:
    with pytest.raises(StartupError, match="webhook_secret_file"):
        webhooks_of(Settings(webhooks=("https://example.org",)))
    absent = tmp_path / "absent"
    with pytest.raises(StartupError, match="webhook_secret_file"):
        webhooks_of(Settings(webhooks=("https://example.org",), webhook_secret_file=absent))
    with pytest.raises(StartupError, match="unheard"):
        webhooks_of(Settings(webhook_kinds=("overdraft", "unheard-of")))
    many = tuple(f"https://example.org/{number}" for number in range(webhooks.TARGETS_MAX + 1))
    with pytest.raises(StartupError, match="16"):
        webhooks_of(Settings(webhooks=many, webhook_secret_file=secret_file))
    assert webhooks_of(Settings()).targets == ()


def test_the_environment_names_several_things_in_one_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPLEDGER_WEBHOOKS", "https://a.example  https://b.example")
    monkeypatch.setenv("DPLEDGER_WEBHOOK_KINDS", "overdraft, threshold")
    monkeypatch.setenv("DPLEDGER_BUDGET_THRESHOLDS", "0.25,1")
    settings = Settings()
    assert settings.webhooks == ("https://a.example", "https://b.example")
    assert settings.webhook_kinds == ("overdraft", "threshold")
    assert settings.budget_thresholds == (0.25, 1.0)


@pytest.mark.parametrize("given", ["0", "1.01", "-0.5", "nan", "half"])
def test_a_threshold_is_a_fraction(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("DPLEDGER_BUDGET_THRESHOLDS", given)
    with pytest.raises(ValueError, match="budget_thresholds"):
        Settings()


def test_no_proxy_of_the_environment_is_asked(
    api: httpx.Client, engine: Engine, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    setup(api)
    with receiving() as receiver, sending(engine, secret_file, receiver.url) as dispatcher:
        happen(engine, 1)
        until(lambda: dispatcher.delivered == 1)
    assert dispatcher.failed == 0
