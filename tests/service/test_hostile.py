"""Hostile requests: each is refused with its cause, echoes nothing and writes nothing."""

import re
from collections import defaultdict
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
BY_PLACE: dict[str, list[Hostile]] = defaultdict(list)
for one in REQUESTS:
    BY_PLACE[f"{one.method} {one.path.partition('?')[0]}"].append(one)
ROOTED = re.compile(r"(body|query|path|header|line \d+)(?![^.\[])")  # where in a request
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


def faults(answer: httpx.Response, hostile: Hostile) -> list[str]:
    """What is wrong with the answer to a hostile request."""
    if answer.headers["content-type"] != "application/problem+json":
        return ["is no problem document"]
    problem, text = answer.json(), answer.text
    right = {
        "status": answer.status_code == hostile.status == problem["status"],
        "type": problem["type"] == f"/problems/{hostile.slug}",
        "title": bool(problem["title"]),
        "cause": hostile.cause in problem["detail"],
        "places": all(ROOTED.match(one["location"]) for one in problem.get("errors", ())),
        "size": len(answer.content) < 10_000,
        "request id": bool(answer.headers.get("x-request-id")),
        "no echo": MARK not in text and NUMBER not in text,
    }
    return [name for name, holds in right.items() if not holds]


@pytest.mark.parametrize("place", sorted(BY_PLACE))
def test_hostile_requests_are_refused_with_their_cause_and_change_nothing(
    target: Target, place: str
) -> None:
    api, engine, before = target
    found = {}
    for hostile in BY_PLACE[place]:
        answer = sent(api, hostile)
        if wrong := faults(answer, hostile):
            found[hostile.name] = (wrong, answer.status_code, answer.text[:500])
        assert dump(engine) == before, hostile.name
    assert found == {}


def test_the_hostile_requests_are_many_and_different() -> None:
    assert len(REQUESTS) >= 100
    assert len({request.name for request in REQUESTS}) == len(REQUESTS)
