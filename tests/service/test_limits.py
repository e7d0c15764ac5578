"""Rates and sizes that a key is held to; and what an unknown key can make the service do."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
from dpledger_client.transport import Transport
from sqlalchemy import Engine

from service.errors import TooManyRequestsError
from service.identity.authentication import KEY_REFRESH_SECONDS
from service.identity.keys import Role, Terms, create_key, rotate_key
from service.identity.rate_limit import Bucket
from service.storage.engine import transaction
from service.storage.tables import api_keys
from tests.service.dumps import dump
from tests.service.samples import append, dataset, event, run, setup
from tests.service.test_keys import bearer
from tests.service.test_scopes import SEEN, calls

Serve = Callable[..., AbstractContextManager[str]]


class Clock:
    """A time that only the test moves."""

    def __init__(self) -> None:
        self.present = 1000.0

    def __call__(self) -> float:
        return self.present


def taken(bucket: Bucket, tries: int) -> int:
    got = 0
    for _ in range(tries):
        try:
            bucket.take()
        except TooManyRequestsError:
            continue
        got += 1
    return got


@pytest.mark.parametrize(
    ("rate", "at_once"), [(0.1, 1), (1.0, 1), (1.5, 1), (5.0, 5), (100.0, 100)]
)
def test_a_second_s_worth_is_had_at_once_and_one_request_at_least(
    rate: float, at_once: int
) -> None:
    bucket = Bucket(rate, clock=Clock())
    assert taken(bucket, 1000) == at_once


def test_in_the_long_run_a_key_has_its_rate_and_saves_no_more_than_a_second() -> None:
    clock = Clock()
    bucket = Bucket(8.0, clock=clock)
    assert taken(bucket, 100) == 8
    got = 0
    for _ in range(16 * 60):
        clock.present += 1 / 16
        got += taken(bucket, 3)
    assert got == 8 * 60
    clock.present += 3600
    assert taken(bucket, 100) == 8


def test_what_is_refused_takes_nothing_and_says_when_to_come_back() -> None:
    clock = Clock()
    bucket = Bucket(0.25, clock=clock)
    bucket.take()
    for waited in (0.0, 0.5, 2.0, 3.5):
        clock.present = 1000.0 + waited
        with pytest.raises(TooManyRequestsError) as refused:
            bucket.take()
        seconds = refused.value.retry_after_seconds
        assert 4.0 - waited <= seconds < 5.0 - waited
        assert seconds >= 1
    clock.present = 1004.0
    bucket.take()


def make(engine: Engine, name: str, scope: Role = Role.TRAINER, **terms: Any) -> str:
    with transaction(engine) as connection:
        return create_key(connection, name=name, scope=scope, terms=Terms(**terms))


@contextmanager
def calling(address: str, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, headers=bearer(key), timeout=30) as api:
        yield api


def test_a_key_beyond_its_rate_is_told_when_to_come_back_and_no_other_is(
    engine: Engine, serve: Serve
) -> None:
    slow, free = make(engine, "slow", requests_per_second=0.01), make(engine, "free", Role.ADMIN)
    with serve() as address, calling(address, slow) as api, calling(address, free) as other:
        setup(other)
        assert append(api, event(0, 1)).status_code == 201
        before = dump(engine)
        for refused in (
            append(api, event(1, 1)),
            api.get("/v1/runs"),
            api.post("/v1/runs", json={}),
        ):
            assert refused.status_code == 429
            assert refused.json()["type"] == "/problems/too-many-requests"
            seconds = int(refused.headers["retry-after"])
            assert 50 <= seconds == refused.json()["retry_after_seconds"] <= 100
        assert dump(engine) == before
        assert [other.get("/v1/runs").status_code for _ in range(20)] == [200] * 20
        assert api.get("/healthz").status_code == 200


def test_a_key_without_a_rate_has_that_of_the_settings_and_one_with_its_own_has_that(
    engine: Engine, serve: Serve
) -> None:
    usual, own = make(engine, "usual"), make(engine, "own", requests_per_second=1000.0)
    with serve(requests_per_second=0.01) as address:
        with calling(address, usual) as api:
            assert [api.get("/v1/runs").status_code for _ in range(3)] == [200, 429, 429]
        with calling(address, own) as api:
            assert [api.get("/v1/runs").status_code for _ in range(20)] == [200] * 20


def test_the_rate_outlives_the_reading_of_the_keys_and_is_one_for_both_secrets(
    engine: Engine, serve: Serve
) -> None:
    old = make(engine, "rotated", requests_per_second=0.01)
    with serve() as address, calling(address, old) as api:
        assert api.get("/v1/runs").status_code == 200
        with transaction(engine) as connection:
            new = rotate_key(connection, "rotated")
        # The new secret is not known before the keys are read anew.
        while (status := api.get("/v1/runs", headers=bearer(new)).status_code) == 401:
            pass
        assert status == 429
        assert api.get("/v1/runs").status_code == 429


def test_an_exhausted_budget_is_never_a_matter_of_waiting(engine: Engine, serve: Serve) -> None:
    key = make(engine, "one", Role.ADMIN, requests_per_second=1000.0)
    with serve() as address, calling(address, key) as api:
        setup(api, dataset_given={"budget": {"epsilon": 0.1, "delta": 1e-5}})
        refused = append(api, event(0, 10**6), mode="charge")
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/budget-exhausted")
        assert "retry-after" not in refused.headers


def test_the_client_waits_as_long_as_it_is_told(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = make(engine, "admin", Role.ADMIN)
    slow = make(engine, "slow", requests_per_second=0.02)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        with transaction(engine) as connection:  # instead of the wait
            connection.execute(api_keys.update().values(requests_per_second=1000.0))
        time.sleep(KEY_REFRESH_SECONDS)
        assert httpx.get(f"{address}/v1/runs", headers=bearer(admin)).status_code == 200

    monkeypatch.setattr("dpledger_client.transport.sleep", sleep)
    with serve() as address:
        with calling(address, admin) as api:
            setup(api)
        client = Transport(address, slow, timeout_seconds=30, retries=3)
        found = [client.get("/v1/runs/run")["name"] for _ in range(2)]
        client.close()
    assert found == ["run", "run"]
    assert len(waited) == 1
    assert waited[0] >= 25.0


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_key_s_own_size_is_refused_and_another_key_may_send_it(
    engine: Engine, serve: Serve, declared: bool
) -> None:
    small = make(engine, "small", body_bytes_max=2000)
    usual, free = make(engine, "usual"), make(engine, "free", Role.ADMIN, body_bytes_max=10**6)
    events = json.dumps({"events": [event(number, 1) for number in range(40)]}).encode()
    named = json.dumps(run("other", labels={"a": "x" * 3000})).encode()
    assert 2000 < len(named) < 5000 < len(events)

    def statuses(api: httpx.Client) -> list[int]:
        headers = {"content-type": "application/json"}
        answers = [
            api.post(path, content=body if declared else iter([body]), headers=headers)
            for path, body in (("/v1/runs/run/events", events), ("/v1/runs", named))
        ]
        for answer in answers:
            assert answer.status_code != 413 or answer.json()["type"] == "/problems/body-too-large"
        return [answer.status_code for answer in answers]

    with serve(key_body_bytes_max=5000) as address:
        with calling(address, free) as api:
            setup(api)
        with calling(address, small) as api:
            assert statuses(api) == [413, 413]
            assert api.post("/v1/runs", json=run("little")).status_code == 201
        with calling(address, usual) as api:
            assert statuses(api) == [413, 422]  # read, and the label is too long
        with calling(address, free) as api:
            assert statuses(api) == [201, 422]


def test_no_key_of_its_own_size_may_send_more_than_the_service_takes(
    engine: Engine, serve: Serve
) -> None:
    large = make(engine, "large", Role.ADMIN, body_bytes_max=10**6)
    with serve(body_bytes_max=2000) as address, calling(address, large) as api:
        assert api.post("/v1/datasets", json=dataset(privacy_unit="x" * 3000)).status_code == 413


def test_no_body_is_read_before_the_key_is_known(engine: Engine, serve: Serve) -> None:
    make(engine, "known")
    with serve() as address:
        port = int(address.rpartition(":")[2])
        for call in calls():
            if call.method == "get":
                continue
            head = (
                f"{call.method.upper()} {call.path(SEEN)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                "Authorization: Bearer dpl_unknown\r\nContent-Type: application/json\r\n"
                "Content-Length: 100000\r\n\r\n"
            )
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(head.encode())  # and nothing of the body
                assert connection.recv(65536).startswith(b"HTTP/1.1 401 "), call


def test_an_unknown_key_is_told_nothing_of_what_it_sent(engine: Engine, serve: Serve) -> None:
    make(engine, "known")
    before = dump(engine)
    sent = ((b"{", "application/json"), (b"x", "text/plain"), (b"x" * 10**7, ""))
    with serve() as address, calling(address, "dpl_unknown") as api:
        for call in calls():
            for body, kind in sent if call.method != "get" else ():
                answer = api.request(
                    call.method, call.path(SEEN), content=body, headers={"content-type": kind}
                )
                assert answer.status_code == 401, call
    assert dump(engine) == before
