"""Keys that are limited to named datasets: lists, streams, families, and what is remembered."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event

from service.errors import NotFoundError
from service.identity import access
from service.identity.access import Reach
from service.identity.keys import Role, Terms, create_key, revoke_key
from service.storage.engine import transaction
from tests.service.samples import Json, append, dataset, run
from tests.service.samples import event as step
from tests.service.sse import until, watching
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]
NAMES = [f"{kind}-{number}" for number in range(3) for kind in ("letters", "zebras")]


class Keys:
    """An admin and two trainers, each of every second dataset and of one that is not there yet."""

    def __init__(self, engine: Engine, address: str) -> None:
        with transaction(engine) as connection:
            self.secrets = {"admin": create_key(connection, name="admin", scope=Role.ADMIN)}
            for kind in ("letters", "zebras"):
                limit = frozenset(name for name in (*NAMES, f"{kind}-9") if name.startswith(kind))
                self.secrets[kind] = create_key(
                    connection, name=kind, scope=Role.TRAINER, terms=Terms(datasets=limit)
                )
        self.address = address

    def api(self, key: str) -> httpx.Client:
        return httpx.Client(base_url=self.address, headers=bearer(self.secrets[key]), timeout=30)


@pytest.fixture
def keys(engine: Engine, serve: Serve) -> Iterator[Keys]:
    with serve() as address:
        yield Keys(engine, address)


@pytest.fixture
def admin(keys: Keys) -> Iterator[httpx.Client]:
    with keys.api("admin") as api:
        until(lambda: api.get("/v1/runs").status_code == 200)
        for name in NAMES:
            assert api.post("/v1/datasets", json=dataset(name)).status_code == 201
            assert api.post("/v1/runs", json=run(f"{name}-run", dataset=name)).status_code == 201
        yield api


def listed(api: httpx.Client, noun: str, **query: Any) -> list[str]:
    """Names, two a page."""
    names: list[str] = []
    query |= {"page_size": 2}
    while True:
        answer = api.get(f"/v1/{noun}", params=query)
        assert answer.status_code == 200, answer.text
        page: Json = answer.json()
        assert len(page[noun]) == 2 or page["next_page_token"] is None
        names += [one["name"] for one in page[noun]]
        if page["next_page_token"] is None:
            return names
        query["page_token"] = page["next_page_token"]


def test_lists_hold_what_a_key_reaches_and_full_pages_of_it(
    keys: Keys, admin: httpx.Client
) -> None:
    assert listed(admin, "datasets") == NAMES
    for kind in ("letters", "zebras"):
        mine = [name for name in NAMES if name.startswith(kind)]
        with keys.api(kind) as api:
            assert listed(api, "datasets") == mine
            assert listed(api, "runs") == [f"{name}-run" for name in mine]
            assert listed(api, "runs", state="active") == [f"{name}-run" for name in mine]
            assert listed(api, "runs", dataset=mine[0]) == [f"{mine[0]}-run"]
            (other,) = {"letters", "zebras"} - {kind}
            hidden = api.get("/v1/runs", params={"dataset": f"{other}-0"})
            unused = admin.get("/v1/runs", params={"dataset": "unused"})
            assert (hidden.status_code, hidden.json()) == (404, unused.json())


def test_a_dataset_may_be_named_before_it_is_there(keys: Keys, admin: httpx.Client) -> None:
    with keys.api("letters") as api:
        assert api.get("/v1/datasets/letters-9").status_code == 404
        assert admin.post("/v1/datasets", json=dataset("letters-9")).status_code == 201
        assert api.get("/v1/datasets/letters-9").status_code == 200
        assert api.post("/v1/runs", json=run(dataset="letters-9")).status_code == 201
        assert append(api, step(0, 1)).status_code == 201
        with keys.api("zebras") as other:
            assert append(other, step(1, 1)).status_code == 404


@pytest.mark.usefixtures("admin")
def test_a_run_that_was_not_there_is_reached_once_it_is(keys: Keys) -> None:
    with keys.api("letters") as api, keys.api("zebras") as other:
        assert [append(one, step(0, 1)).status_code for one in (api, other)] == [404, 404]
        assert api.post("/v1/runs", json=run(dataset="letters-0")).status_code == 201
        assert [append(one, step(0, 1)).status_code for one in (api, other)] == [201, 404]


@pytest.mark.usefixtures("admin")
def test_streams_of_a_limited_key_end_when_it_is_revoked(engine: Engine, keys: Keys) -> None:
    with keys.api("letters") as api:
        assert api.get("/v1/datasets/zebras-0/stream").status_code == 404
        assert api.get("/v1/runs/zebras-0-run/stream").status_code == 404
        with watching(api, "/v1/runs/letters-0-run/stream") as stream:
            assert next(stream).event == "state"
            with transaction(engine) as connection:
                revoke_key(connection, "letters")
            assert list(stream) == []  # it has an end


def test_the_family_of_a_dataset_is_named_where_it_decides_and_not_reached(
    keys: Keys, admin: httpx.Client
) -> None:
    budget = {"epsilon": 0.5, "delta": 1e-5}
    admin.post("/v1/datasets", json=dataset("zebras-9", budget=budget))
    made = dataset("letters-9", parents=["zebras-9"], rows_per_parent_record="at_most_one")
    assert admin.post("/v1/datasets", json=made).status_code == 201
    with keys.api("letters") as api:
        assert api.post("/v1/runs", json=run(dataset="letters-9")).status_code == 201
        assert api.get("/v1/datasets/letters-9").json()["parents"] == ["zebras-9"]
        refused = append(api, step(0, 10**6), mode="charge")
        assert refused.json()["failing_scopes"][0]["scope"] == "dataset:zebras-9"
        assert api.get("/v1/datasets/zebras-9").status_code == 404


def statements(engine: Engine, work: Callable[[], object]) -> int:
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    event.listen(engine, "before_cursor_execute", note)
    work()
    event.remove(engine, "before_cursor_execute", note)
    return count


@pytest.mark.usefixtures("admin")
def test_what_is_reached_is_looked_up_once_and_what_is_not_every_time(engine: Engine) -> None:
    found, limit = Reach(engine), frozenset({"letters-0"})

    def ask(name: str, key: str = "letters") -> None:
        for noun, named in found.unknown(key, limit, {"run": name}):
            found.require(key, limit, noun, named)

    def refused(name: str) -> None:
        with pytest.raises(NotFoundError, match="no such run"):
            ask(name)

    assert statements(engine, lambda: ask("letters-0-run")) >= 1
    assert statements(engine, lambda: ask("letters-0-run")) == 0
    assert statements(engine, lambda: ask("letters-0-run", "another")) >= 1
    for name in ("zebras-0-run", "unused"):
        for _ in range(2):
            assert statements(engine, lambda name=name: refused(name)) >= 1  # type: ignore[misc]


@pytest.mark.usefixtures("admin")
def test_what_is_remembered_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REMEMBERED_MAX", 2)
    found, limit = Reach(engine), frozenset(NAMES)
    for name in NAMES:
        found.require("key", limit, "run", f"{name}-run")
        assert len(found._found) <= 2
        assert not found.unknown("key", limit, {"run": f"{name}-run"})


def test_a_noun_that_nobody_has_spoken_of_is_not_reached(engine: Engine) -> None:
    found, limit = Reach(engine), frozenset({"letters"})
    assert found.unknown("key", limit, {}) == []
    assert found.unknown("key", limit, {"bound": "gaussian-renyi"}) == []
    assert found.unknown("key", limit, {"dataset": "letters", "size": "3"}) == []
    for names in ({"checkpoint": "3"}, {"bound": "x", "checkpoint": "3"}, {"dataset": "digits"}):
        with pytest.raises(NotFoundError):
            found.unknown("key", limit, names)


@pytest.mark.usefixtures("admin")
def test_what_cannot_be_a_name_is_refused_as_for_everybody(keys: Keys) -> None:
    for key in ("admin", "letters"):
        with keys.api(key) as api:
            for name in ("%00", "Letters-0-run", "x" * 64, "%E2%82%AC"):
                nouns = ("runs", "datasets", "reservations")
                answers = [api.get(f"/v1/{noun}/{name}") for noun in nouns]
                answers.append(append(api, step(0, 1), run=name))
                assert [answer.status_code for answer in answers] == [422] * 4, (key, name)
