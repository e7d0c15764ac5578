"""Hostile requests: each is refused with its cause, echoes nothing and writes nothing."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.storage.engine import connect
from tests.conftest import AS_ADMIN, BACKENDS, clear
from tests.service.dumps import dump
from tests.service.hostile import MARK, NUMBER, Hostile, all_bodies
from tests.service.hostile_requests import all_requests
from tests.service.samples import append, event, setup

REQUESTS = [*all_bodies(), *all_requests()]
Target = tuple[httpx.Client, Engine, Any]


@pytest.fixture(scope="module", params=BACKENDS)
def target(
    request: pytest.FixtureRequest, backend_urls: dict[str, str], addresses: dict[str, str]
) -> Iterator[Target]:
    """A service with ten recorded steps, shared by all requests: none of them may change it."""
    url = backend_urls[request.param]
    clear(url)
    engine = connect(url)
    with httpx.Client(base_url=addresses[request.param], timeout=60, headers=AS_ADMIN) as api:
        setup(api, delta=1e-5)
        assert append(api, event(0, 10)).status_code == 201
        yield api, engine, dump(engine)
    engine.dispose()


def sent(api: httpx.Client, hostile: Hostile) -> httpx.Response:
    content = hostile.body() if callable(hostile.body) else hostile.body
    path = httpx.URL(api.base_url).copy_with(raw_path=hostile.path.encode())
    return api.request(hostile.method, path, content=content, headers=hostile.headers)


@pytest.mark.parametrize("hostile", [pytest.param(one, id=one.name) for one in REQUESTS])
def test_a_hostile_request_is_refused_with_its_cause_and_changes_nothing(
    target: Target, hostile: Hostile
) -> None:
    api, engine, before = target
    answer = sent(api, hostile)
    assert answer.status_code == hostile.status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == f"/problems/{hostile.slug}"
    assert (problem["status"], bool(problem["title"])) == (hostile.status, True)
    assert hostile.cause in problem["detail"]
    assert len(answer.content) < 10_000
    assert answer.headers["x-request-id"]
    assert MARK not in answer.text
    assert NUMBER not in answer.text
    assert dump(engine) == before


def test_the_hostile_requests_are_many_and_different() -> None:
    assert len(REQUESTS) >= 100
    assert len({request.name for request in REQUESTS}) == len(REQUESTS)
