"""Open mode: everybody on this machine is an admin, and nobody elsewhere is anybody."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
import pytest
from sqlalchemy import Engine

from service.api_keys import Scope
from service.auth import FORWARDED
from tests.service.dumps import dump
from tests.service.samples import append, dataset, event, setup
from tests.service.test_keys import bearer, key

Serve = Callable[..., AbstractContextManager[str]]
ELSEWHERE = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:1"},  # another service on this machine
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example"},
    *({name: "192.0.2.1"} for name in sorted(FORWARDED)),
]


def test_nothing_that_may_come_from_elsewhere_is_answered_or_written(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    before = dump(engine)
    for headers in ELSEWHERE:
        for answer in (
            api.post("/v1/datasets", json=dataset("theirs"), headers=headers),
            api.post("/v1/runs/run/events", json={"events": [event(0, 1)]}, headers=headers),
            api.get("/v1/runs/run/certificate", headers=headers),  # writes, though it is a GET
            api.get("/v1/runs/run", headers=headers),
            api.get("/v1/runs/run/stream", headers=headers),
        ):
            told = (answer.status_code, answer.json()["type"])
            assert told == (421, "/problems/host-not-allowed"), headers
    assert dump(engine) == before


def test_two_origins_are_no_own_one(api: httpx.Client) -> None:
    own = f"http://{api.base_url.netloc.decode()}"
    headers = [("origin", own), ("origin", "https://evil.example")]
    assert api.get("/v1/runs", headers=headers).status_code == 421


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_a_page_of_the_service_itself_is_answered(api: httpx.Client, site: str) -> None:
    setup(api)
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{api.base_url.port}"
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": site}
        assert api.get("/v1/runs/run", headers=headers).status_code == 200
        api.headers.update(headers)
        assert append(api, event(0, 1)).status_code in (200, 201)


def test_with_a_key_it_is_the_key_that_says_who_asks(engine: Engine, serve: Serve) -> None:
    secret = key(engine, Scope.ADMIN)
    with serve() as address, httpx.Client(base_url=address) as api:
        for headers in ELSEWHERE:
            answer = api.get("/v1/runs", headers=headers | bearer(secret))
            assert answer.status_code == 200, headers
            assert api.get("/v1/runs", headers=headers).status_code == 401
