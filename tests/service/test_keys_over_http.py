"""Keys over HTTP: created, listed with their last use, rotated and revoked, each of it an act."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import Engine, select, update

from service.clock import now, stamp
from service.errors import InvalidRequestError
from service.identity import key_administration, keys
from service.identity.key_administration import KeyRevocation
from service.identity.keys import KeyUses, Role, create_key, list_keys, terms_of
from service.storage.engine import snapshot, transaction
from service.storage.tables import api_keys, key_uses
from tests.conftest import AS_ADMIN
from tests.service.samples import Json
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]
TRAINER: Json = {"name": "cluster", "scope": "trainer", "datasets": ["letters", "digits"]}


@pytest.fixture
def officer(engine: Engine, serve: Serve) -> Iterator[httpx.Client]:
    with transaction(engine) as connection:
        key = create_key(connection, name="officer", scope=Role.ADMIN)
    with serve() as address, httpx.Client(base_url=address, headers=bearer(key)) as api:
        yield api


def status(api: httpx.Client, key: str) -> int:
    return api.get("/v1/datasets", headers=bearer(key)).status_code


def settles(api: httpx.Client, key: str, expected: int) -> bool:
    """Whether a key is answered so once the process has read the keys again."""
    until = time.monotonic() + 60
    while status(api, key) != expected and time.monotonic() < until:
        time.sleep(0.05)
    return status(api, key) == expected


def test_a_key_is_created_on_terms_and_its_secret_is_told_once(
    officer: httpx.Client, engine: Engine
) -> None:
    asked = TRAINER | {"expires_at": "2999-01-31", "requests_per_second": 5.5}
    answer = officer.post("/v1/keys", json=asked)
    assert answer.status_code == 201, answer.text
    created = answer.json()
    secret = created.pop("secret")
    assert settles(officer, secret, 200)
    with snapshot(engine) as connection:
        terms = terms_of(list_keys(connection)[-1])
    assert (terms.datasets, terms.requests_per_second) == (frozenset(TRAINER["datasets"]), 5.5)
    listed = officer.get("/v1/keys").json()["keys"]
    assert [one["name"] for one in listed] == ["officer", "cluster"]
    assert secret not in officer.get("/v1/keys").text
    assert listed[1] | {"last_used_at": None} == created
    assert created["expires_at"] == "2999-01-31T00:00:00.000+00:00"
    assert (created["state"], created["datasets"]) == ("active", ["digits", "letters"])
    act = officer.get("/v1/acts", params={"kind": "key_created"}).json()["acts"][-1]
    assert (act["by"], act["content"]["name"]) == ("officer", "cluster")


@pytest.mark.parametrize(
    ("change", "location"),
    [
        ({"name": "Cluster"}, "body.name"), ({"name": "command-line"}, "body.name"),
        ({"scope": "chief"}, "body.scope"), ({"scope": "admin"}, "body.datasets"),
        ({"datasets": []}, "body.datasets"), ({"datasets": ["A"]}, "body.datasets[0]"),
        ({"expires_at": "tomorrow"}, "body.expires_at"),
        ({"expires_at": "2001-01-01"}, "body.expires_at"),
        ({"requests_per_second": 0}, "body.requests_per_second"),
        ({"body_bytes_max": 3}, "body.body_bytes_max"), ({"other": 1}, "body.other"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_its_place_and_nothing_is_stored(
    officer: httpx.Client, change: Json, location: str
) -> None:
    answer = officer.post("/v1/keys", json=TRAINER | change)
    assert answer.status_code == 422
    assert [one["location"] for one in answer.json()["errors"]] == [location]
    assert len(officer.get("/v1/keys").json()["keys"]) == 1


def test_a_name_is_used_once(officer: httpx.Client) -> None:
    assert officer.post("/v1/keys", json=TRAINER).status_code == 201
    again = officer.post("/v1/keys", json=TRAINER)
    assert (again.status_code, again.json()["type"]) == (409, "/problems/conflict")


def test_a_limited_key_makes_no_key(officer: httpx.Client) -> None:
    secret = officer.post("/v1/keys", json=TRAINER).json()["secret"]
    assert settles(officer, secret, 200)
    for path, body in (
        ("/v1/keys", TRAINER | {"name": "wider", "datasets": None}),
        ("/v1/keys/officer:rotate", {}),
        ("/v1/keys/cluster:revoke", {"reason": "x"}),
    ):
        assert officer.post(path, json=body, headers=bearer(secret)).status_code == 403
    assert officer.get("/v1/keys", headers=bearer(secret)).status_code == 403


def test_the_first_key_is_an_admins(serve: Serve) -> None:
    with serve() as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        refused = api.post("/v1/keys", json=TRAINER)
        assert refused.status_code == 422
        assert "first key" in refused.json()["detail"]
        first = api.post("/v1/keys", json={"name": "officer", "scope": "admin"}).json()
        assert settles(api, first["secret"], 200)
        after = bearer(first["secret"])
        (act,) = api.get("/v1/acts", headers=after).json()["acts"]
        assert act["by"] == "start-token"


def test_a_rotated_key_has_two_secrets_until_the_grace_has_passed(officer: httpx.Client) -> None:
    old = officer.post("/v1/keys", json=TRAINER).json()
    answer = officer.post("/v1/keys/cluster:rotate", json={"prefix": old["prefix"]})
    new = answer.json()
    assert answer.status_code == 200
    assert new["previous_until"] > stamp(now() + timedelta(minutes=59))
    assert settles(officer, new["secret"], 200)
    assert status(officer, old["secret"]) == 200
    # The same request sent again would end the secret that was just told.
    again = officer.post("/v1/keys/cluster:rotate", json={"prefix": old["prefix"]})
    assert (again.status_code, again.json()["type"]) == (409, "/problems/conflict")
    assert officer.post("/v1/keys/cluster:rotate", json={"grace_seconds": 0}).status_code == 200
    assert settles(officer, new["secret"], 401)
    past = officer.post("/v1/keys/cluster:rotate", json={"expires_at": "2001-01-01"})
    assert past.json()["errors"][0]["location"] == "body.expires_at"
    assert officer.post("/v1/keys/none:rotate", json={}).status_code == 404


def test_a_key_is_revoked_for_a_reason_that_the_log_keeps(officer: httpx.Client) -> None:
    secret = officer.post("/v1/keys", json=TRAINER).json()["secret"]
    assert settles(officer, secret, 200)
    assert officer.post("/v1/keys/cluster:revoke", json={}).status_code == 422
    answer = officer.post("/v1/keys/cluster:revoke", json={"reason": "It leaked."})
    assert (answer.status_code, answer.json()["state"]) == (200, "revoked")
    assert settles(officer, secret, 401)
    act = officer.get("/v1/acts", params={"kind": "key_revoked"}).json()["acts"][-1]
    assert (act["by"], act["content"]) == ("officer", {"name": "cluster", "reason": "It leaked."})


def test_the_last_admin_key_is_revoked_only_when_its_name_confirms_it(
    officer: httpx.Client, engine: Engine
) -> None:
    def revoke(name: str, **more: str) -> httpx.Response:
        return officer.post(f"/v1/keys/{name}:revoke", json={"reason": "x"} | more)

    for name in ("second", "expired"):
        assert officer.post("/v1/keys", json={"name": name, "scope": "admin"}).status_code == 201
    with transaction(engine) as connection:  # which leaves two in force
        past = now() - timedelta(seconds=1)
        expired = update(api_keys).where(api_keys.c.name == "expired")
        connection.execute(expired.values(expires_at=past))
    assert revoke("second").status_code == 200
    for more in ({}, {"confirm_name": "second"}):
        refused = revoke("officer", **more)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["location"] == "body.confirm_name"
    assert revoke("expired").status_code == 200
    assert revoke("officer", confirm_name="officer").status_code == 200


def test_two_admins_who_revoke_each_other_at_once_leave_one(engine: Engine) -> None:
    with transaction(engine) as connection:
        for name in ("first", "second"):
            create_key(connection, name=name, scope=Role.ADMIN)
    ready, refused = threading.Barrier(2), []

    def revoke(name: str) -> None:
        ready.wait()
        try:
            with transaction(engine) as connection:
                asked = KeyRevocation(reason="x")
                key_administration.withdraw_key(connection, name, asked, by="x")
        except InvalidRequestError:
            refused.append(name)

    threads = [threading.Thread(target=revoke, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1


def used(engine: Engine) -> dict[str, object]:
    with snapshot(engine) as connection:
        return {row.name: row.used_at for row in connection.execute(select(key_uses))}


def test_the_last_use_is_listed_at_once_and_stored_when_the_service_ends(
    engine: Engine, serve: Serve
) -> None:
    with transaction(engine) as connection:
        key = create_key(connection, name="officer", scope=Role.ADMIN)
        create_key(connection, name="idle", scope=Role.VIEWER)
    before = now()
    with serve(new=True) as address, httpx.Client(base_url=address, headers=bearer(key)) as api:
        for _ in range(20):
            found = api.get("/v1/keys").json()["keys"]
        assert [one["name"] for one in found if one["last_used_at"]] == ["officer"]
        assert found[0]["last_used_at"] >= stamp(before)
        assert used(engine) == {}  # no request writes it
    assert set(used(engine)) == {"officer"}


def test_uses_are_written_once_a_minute_and_never_go_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [now()]
    monkeypatch.setattr(keys, "now", lambda: clock[0])
    here, elsewhere = KeyUses(engine), KeyUses(engine)
    elsewhere.note("cluster")  # before the other, and stored after it
    clock[0] += timedelta(seconds=10)
    for name in ("cluster", "start-token"):
        here.note(name)
    here.store()
    first = used(engine)
    assert set(first) == {"cluster"}
    elsewhere.store()
    assert used(engine) == first
    with snapshot(engine) as connection:
        assert elsewhere.latest(connection)["cluster"] == clock[0]
    assert keys.USES_SECONDS == 60


def test_what_the_database_does_not_take_is_kept_for_the_next_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = KeyUses(engine)
    uses.note("cluster")
    with monkeypatch.context() as broken:

        def refuse(*_given: object) -> None:
            raise InvalidRequestError("x", "y")

        broken.setattr(keys, "_store_uses", refuse)
        uses.store()
    assert used(engine) == {}
    uses.store()
    assert set(used(engine)) == {"cluster"}
