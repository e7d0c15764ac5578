"""Who only reads does not hold up who appends: rates, shares, and answers that are told again."""

import asyncio
import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import Engine

from service.errors import LedgerError, TooManyRequestsError, UnavailableError
from service.identity import authentication
from service.identity.authentication import VIEWER_BURST_SECONDS
from service.identity.keys import Role, Terms, create_key
from service.identity.rate_limit import BURST_SECONDS, Pace
from service.ledger import views
from service.operations import overview
from service.operations.event_feed import Feed, Subscriber
from service.operations.feed_messages import Topic
from service.operations.overview import Boards
from service.settings import Settings
from service.storage import versioned_cache
from service.storage.engine import transaction
from service.storage.tables import datasets
from service.web import problems, server
from service.web.api.metrics import Expositions
from service.web.problems import HELD_BACK_SECONDS, HELD_BACK_SECONDS_MAX, hold_back
from tests.service.office import key_of_each
from tests.service.samples import append, dataset, event, run, setup
from tests.service.test_keys import bearer
from tests.service.test_limits import Clock

Serve = Callable[..., AbstractContextManager[str]]


def make(engine: Engine, name: str, scope: Role = Role.VIEWER, **terms: Any) -> str:
    with transaction(engine) as connection:
        return create_key(connection, name=name, scope=scope, terms=Terms(**terms))


def statuses(address: str, key: str, count: int) -> list[int]:
    with httpx.Client(base_url=address, headers=bearer(key), timeout=30) as api:
        return [api.get("/v1/datasets").status_code for _ in range(count)]


def test_a_viewer_has_a_rate_without_being_given_one_and_others_have_none(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many at once as at a hundred times the rate, and no other for a hundred seconds.
    monkeypatch.setattr(authentication, "VIEWER_BURST_SECONDS", 100 * VIEWER_BURST_SECONDS)
    keys = key_of_each(engine)
    usual, own = make(engine, "usual"), make(engine, "own", requests_per_second=1000.0)
    with serve(viewer_requests_per_second=0.01) as address:
        assert statuses(address, keys[Role.VIEWER], 4) == [200, 200, 200, 429]
        for key in (*(keys[scope] for scope in Role if scope is not Role.VIEWER), own):
            assert statuses(address, key, 6) == [200] * 6
    with serve(viewer_requests_per_second=1.0, requests_per_second=0.01) as address:
        assert statuses(address, usual, 2) == [200, 429]  # as all keys have it


GUIDES: Final = Path(__file__).parents[2] / "docs"
WORDS: Final = {1.0: "one second's worth", 3.0: "three seconds' worth"}


def test_every_guide_says_what_a_viewers_key_saves_up() -> None:
    rate = Settings.model_fields["viewer_requests_per_second"].default
    for guide in ("guide/keys.md", "guide/deploy.md", "problems/too-many-requests.md"):
        assert WORDS[VIEWER_BURST_SECONDS] in (GUIDES / guide).read_text(encoding="utf-8"), guide
    limits = (GUIDES / "guide" / "hostile_input.md").read_text(encoding="utf-8")
    assert f"{rate:.0f} a second, {rate * VIEWER_BURST_SECONDS:.0f} at once" in limits
    keys = (GUIDES / "guide" / "keys.md").read_text(encoding="utf-8")
    assert WORDS[BURST_SECONDS] in keys  # of every other key


def test_a_refusal_for_haste_comes_slowly_and_work_is_not_held_back(
    engine: Engine, serve: Serve
) -> None:
    slow = make(engine, "slow", Role.TRAINER, requests_per_second=0.01)
    with serve() as address:
        assert statuses(address, slow, 1) == [200]
        for method, path in (("GET", "/v1/runs"), ("POST", "/v1/runs/x/events")):
            started = time.monotonic()
            refused = httpx.request(method, address + path, headers=bearer(slow), timeout=30)
            assert refused.status_code == 429
            assert time.monotonic() - started >= HELD_BACK_SECONDS * 0.45


def test_the_document_of_the_routes_is_made_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    dumps = json.dumps

    def counted(*given: Any, **named: Any) -> str:
        made.append(1)
        return dumps(*given, **named)

    monkeypatch.setattr("service.web.openapi.json.dumps", counted)
    with serve(new=True) as address:
        first = httpx.get(f"{address}/v1/openapi.json", timeout=60)
        assert first.json()["openapi"].startswith("3.")
        assert first.headers["content-type"] == "application/json"
        count = len(made)
        assert httpx.get(f"{address}/v1/openapi.json", timeout=60).content == first.content
        assert len(made) == count


def test_only_haste_is_held_back_and_a_crowd_is_refused_at_a_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class State:
        refusals = Pace(1000.0, clock=Clock())

    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def held(error: Exception, count: int = 1) -> list[float]:
        waits.clear()
        for _ in range(count):
            asyncio.run(hold_back(State, error))  # type: ignore[arg-type]
        return waits

    monkeypatch.setattr(problems, "asyncio", SimpleNamespace(sleep=sleep))
    assert held(UnavailableError("x")) == []
    (alone,) = held(TooManyRequestsError(1))
    assert HELD_BACK_SECONDS * 0.5 <= alone <= HELD_BACK_SECONDS * 1.5
    # Two seconds' worth has been saved up.
    assert max(held(TooManyRequestsError(1), 3100)) == pytest.approx(1.1)
    State.refusals = Pace(1.0, clock=Clock())
    assert max(held(TooManyRequestsError(1), 100)) == HELD_BACK_SECONDS_MAX


def taken(feed: Feed, key: str, stack: ExitStack) -> int:
    """How many streams a key gets that opens as many as it may."""
    for count in range(1000):
        one = Subscriber(topic=Topic(dataset_id=1), key=key, allowed=lambda: True)
        try:
            stack.enter_context(feed.seat(one))
        except LedgerError:
            return count
    raise AssertionError("There was no end.")


def test_no_keys_take_all_streams_from_another(engine: Engine) -> None:
    async def shares() -> list[int]:
        feed = Feed(engine, lambda: None, streams_max=400)
        with ExitStack() as stack:
            found = [taken(feed, key, stack) for key in "abcdef"]
        feed.close()
        return found

    assert asyncio.run(shares()) == [200, 100, 50, 25, 13, 6]


def test_a_list_of_datasets_says_of_each_what_it_says_itself(api: httpx.Client) -> None:
    budget = {"epsilon": 3.0, "delta": 1e-5}
    setup(api, dataset_given={"budget": budget})
    api.post("/v1/datasets", json=dataset("bare"))
    shuffled = {"kind": "shuffle", "steps_per_pass": 10, "batch_size": 100}
    for name in ("left", "right"):
        body = dataset(name, parents=["data"], rows_per_parent_record="at_most_one", budget=budget)
        assert api.post("/v1/datasets", json=body).status_code == 201
        api.post("/v1/runs", json=run(f"run-{name}", dataset=name))
    append(api, event(0, 5))
    append(api, event(0, 7), run="run-left")
    append(api, event(0, 20, sampling=shuffled), run="run-right")
    lease = {"name": "lease", "event": event(5, 10), "ttl_seconds": 600}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    wrong = {**event(0, 1), "mechanism": {"kind": "gaussian", "noise_multiplier": 0.9}}
    api.post("/v1/runs/run-left/corrections", json={**wrong, "reason": "x"})
    listed = api.get("/v1/datasets", params={"page_size": 1000}).json()["datasets"]
    assert listed == [api.get(f"/v1/datasets/{one['name']}").json() for one in listed]
    assert [one["name"] for one in listed] == ["data", "bare", "left", "right"]
    assert [one["parents"] for one in listed] == [[], [], ["data"], ["data"]]
    assert listed[0]["reserved"] > 0 < listed[3]["runs"]


def test_metrics_are_told_again_for_a_second_to_who_sees_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.web.api.metrics.TOLD_SECONDS", 1.0)
    asked: list[str] = []

    async def told() -> list[bytes]:
        expositions = Expositions()

        async def ask(limit: frozenset[str] | None, name: str) -> bytes:
            async def work() -> bytes:
                asked.append(name)
                await asyncio.sleep(0.01)
                return name.encode()

            return await expositions.text(limit, work)

        one, other = frozenset({"a"}), frozenset({"b"})
        first = await asyncio.gather(ask(None, "1"), ask(None, "2"), ask(one, "3"), ask(other, "4"))
        await asyncio.sleep(1.0)
        return [*first, await ask(None, "5"), await ask(one, "6")]

    assert asyncio.run(told()) == [b"1", b"1", b"3", b"4", b"5", b"6"]
    assert asked == ["1", "3", "4", "5", "6"]


def test_an_overview_is_told_again_for_a_second_to_who_sees_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "SEEN_SECONDS", 1.0)
    clock = Clock()
    monkeypatch.setattr(versioned_cache, "time", SimpleNamespace(monotonic=clock))
    looks: list[frozenset[str] | None] = []

    def look(_boards: Boards, _connection: object, limit: frozenset[str] | None) -> object:
        looks.append(limit)
        return object()

    monkeypatch.setattr(Boards, "look", look)
    boards, one = Boards(), frozenset({"a"})
    with engine.connect() as connection:
        first = boards.seen(connection, None)
        assert boards.seen(connection, None) is first
        mine = boards.seen(connection, one)
        assert mine is not first
        clock.present += 1.0
        assert boards.seen(connection, None) is not first
    assert looks == [None, one, None]


@pytest.fixture
def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def sent(port: int, path: str, body: bytes | Iterator[bytes], key: str) -> tuple[int, bytes, Any]:
    """The answer to a client that sends the whole body before it reads."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        chunked = not isinstance(body, bytes)
        connection.request("POST", path, body, headers, encode_chunked=chunked)
        answer = connection.getresponse()
        text = answer.read()
        connection.request("GET", "/healthz")  # the connection goes on
        return answer.status, text, connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/v1/plan", "/v1/runs/run/events", "/v1/runs"])
def test_who_sends_too_much_before_it_reads_is_told_so(
    engine: Engine, serve: Serve, path: str
) -> None:
    key = make(engine, "key", Role.ADMIN)
    body = b" " * 5_000_000
    with serve() as address:
        port = int(address.rpartition(":")[2])
        for given in (body, iter([body[:4_000_000], body[4_000_000:]])):
            status, text, after = sent(port, path, given, key)
            assert (status, after) == (413, 200)
            assert b"body-too-large" in text
        status, text, after = sent(port, path, body, "unknown")
        assert (status, after) == (401, 200)
        assert b"unauthorized" in text


def test_what_is_read_of_a_refused_body_is_bounded(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DISCARDED_BYTES_MAX", 1_000_000)
    key = make(engine, "key", Role.ADMIN)
    with serve() as address, pytest.raises((ConnectionError, http.client.BadStatusLine)):
        sent(int(address.rpartition(":")[2]), "/v1/plan", b" " * 30_000_000, key)


def test_datasets_without_steps_are_listed_without_being_folded_one_by_one(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = {"epsilon": 3.0, "delta": 1e-5}
    names = [f"empty-{number}" for number in range(5)]
    for name in names:
        assert api.post("/v1/datasets", json=dataset(name, budget=budget)).status_code == 201
    body = dataset("above", budget=budget)
    assert api.post("/v1/datasets", json=body).status_code == 201
    body = dataset("below", parents=["above"], rows_per_parent_record="at_most_one", budget=budget)
    assert api.post("/v1/datasets", json=body).status_code == 201
    api.post("/v1/runs", json=run("run", dataset="below"))
    append(api, event(0, 5))
    folded: list[str] = []
    whole = views.budget_of_dataset

    def noted(connection: Any, row: Any) -> Any:
        folded.append(row.name)
        return whole(connection, row)

    monkeypatch.setattr("service.operations.budget_summaries.budget_of_dataset", noted)
    listed = api.get("/v1/datasets").json()["datasets"]
    assert listed == [api.get(f"/v1/datasets/{one['name']}").json() for one in listed]
    assert [one["spent"] > 0 for one in listed] == [False] * 5 + [True] * 2
    assert folded == []


def test_sums_that_were_not_stored_are_folded_and_not_taken_for_none(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": {"epsilon": 3.0, "delta": 1e-5}})
    append(api, event(0, 5))
    told = api.get("/v1/datasets/data").json()
    with transaction(engine) as connection:
        connection.execute(datasets.update().values(totals=None, totals_version=None))
    assert api.get("/v1/datasets").json()["datasets"] == [told]
    assert told["spent"] > 0
