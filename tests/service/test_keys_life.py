"""The life of a key: created on terms, expired, given another secret, revoked; all of it logged."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select

from service.clock import now
from service.errors import ConflictError, InvalidRequestError, NotFoundError
from service.identity import authentication
from service.identity.authentication import KEY_REFRESH_SECONDS
from service.identity.keys import (
    FREE,
    GRACE_SECONDS_MAX,
    KEY_DATASETS_MAX,
    RESERVED,
    Role,
    Terms,
    create_key,
    digest_of,
    list_keys,
    revoke_key,
    rotate_key,
    terms_of,
)
from service.ledger.log.merkle import Frontier, leaf_hash, tree_root
from service.schemas.event_codec import canonical
from service.storage.engine import snapshot, transaction
from service.storage.tables import acts, api_keys, datasets, installation
from tests.service.dumps import dump
from tests.service.samples import Json, dataset
from tests.service.sse import until
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]


def make(engine: Engine, name: str = "one", scope: Role = Role.ADMIN, **terms: Any) -> str:
    with transaction(engine) as connection:
        return create_key(connection, name=name, scope=scope, terms=Terms(**terms))


def status(address: str, key: str) -> int:
    return httpx.get(f"{address}/v1/datasets", headers=bearer(key)).status_code


def change(engine: Engine, **values: Any) -> None:
    with transaction(engine) as connection:
        connection.execute(api_keys.update().values(**values))


def soon_refused(address: str, key: str) -> None:
    until(lambda: status(address, key) == 401)


def test_a_key_stops_at_its_time_though_nobody_reads_the_keys_anew(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(engine, "first")
    with serve() as address:
        expires_at = now() + timedelta(hours=1)
        key = make(engine, expires_at=expires_at)
        until(lambda: status(address, key) == 200)
        # From here on the ring is never too old; the clock alone says that it is over.
        monkeypatch.setattr(authentication, "KEY_REFRESH_SECONDS", 1e9)
        for early, expected in ((0.001, 200), (0.0, 401)):
            moment = expires_at.timestamp() - early
            clock = SimpleNamespace(monotonic=time.monotonic, time=lambda moment=moment: moment)
            monkeypatch.setattr(authentication, "time", clock)
            assert status(address, key) == expected


def test_terms_that_cannot_be_are_refused_and_leave_nothing(engine: Engine) -> None:
    wrong: list[tuple[Role, dict[str, Any], str]] = [
        (Role.ADMIN, {"datasets": frozenset({"letters"})}, "dataset"),
        (Role.VIEWER, {"datasets": frozenset[str]()}, "dataset"),
        (Role.VIEWER, {"datasets": frozenset({"Letters"})}, "dataset"),
        (Role.TRAINER, {"datasets": frozenset(map(str, range(KEY_DATASETS_MAX + 1)))}, "dataset"),
        (Role.TRAINER, {"expires_at": now()}, "expires"),
        *[
            (Role.TRAINER, {"requests_per_second": rate}, "requests_per_second")
            for rate in (0.0, -1.0, 0.0009, 1e7, float("nan"), float("inf"))
        ],
        *[(Role.TRAINER, {"body_bytes_max": size}, "body_bytes_max") for size in (0, 1023, 2**32)],
    ]
    before = dump(engine)
    for scope, terms, location in wrong:
        with pytest.raises(InvalidRequestError, match=rf"^{location}: "):
            make(engine, scope=scope, **terms)
    for name in ("Upper", "", "x" * 64, *RESERVED):
        with pytest.raises(InvalidRequestError, match=r"^name: "):
            make(engine, name)
    assert dump(engine) == before


def test_a_key_is_found_by_all_of_its_digest(engine: Engine, serve: Serve) -> None:
    key = make(engine)
    with serve() as address:
        assert status(address, key) == 200
        change(engine, digest=digest_of(key)[:-1] + ("0" if digest_of(key)[-1] != "0" else "1"))
        soon_refused(address, key)


def test_both_secrets_work_until_the_grace_is_over(engine: Engine, serve: Serve) -> None:
    old = make(engine, datasets=frozenset({"letters"}), scope=Role.VIEWER)
    with serve() as address:
        assert status(address, old) == 200
        with transaction(engine) as connection:
            new = rotate_key(connection, "one", grace_seconds=3600)
        assert new != old
        time.sleep(KEY_REFRESH_SECONDS)
        assert [status(address, key) for key in (old, new)] == [200, 200]
        # The new one is the same key: it reaches no more than the old one did.
        hidden = httpx.get(f"{address}/v1/datasets/digits", headers=bearer(new))
        assert hidden.status_code == 404
        change(engine, previous_until=now())
        soon_refused(address, old)
        assert status(address, new) == 200


def test_without_a_grace_the_old_secret_stops_and_the_one_before_it_always_does(
    engine: Engine, serve: Serve
) -> None:
    secrets = [make(engine)]
    with serve() as address:
        assert status(address, secrets[0]) == 200
        rotations = ((600, [200, 200]), (600, [401, 200, 200]), (0, [401, 401, 401, 200]))
        for grace_seconds, working in rotations:
            with transaction(engine) as connection:
                secrets.append(rotate_key(connection, "one", grace_seconds=grace_seconds))
            time.sleep(KEY_REFRESH_SECONDS)
            assert [status(address, key) for key in secrets] == working


def test_revoking_ends_every_secret(engine: Engine, serve: Serve) -> None:
    old = make(engine)
    with transaction(engine) as connection:
        new = rotate_key(connection, "one")
    with serve() as address:
        assert [status(address, key) for key in (old, new)] == [200, 200]
        with transaction(engine) as connection:
            revoke_key(connection, "one")
        soon_refused(address, old)
        assert status(address, new) == 401


def test_a_grace_never_outlives_the_key(engine: Engine, serve: Serve) -> None:
    old = make(engine)
    with transaction(engine) as connection:
        new = rotate_key(connection, "one", grace_seconds=3600)
    with serve() as address:
        assert [status(address, key) for key in (old, new)] == [200, 200]
        change(engine, expires_at=now())
        soon_refused(address, old)
        assert status(address, new) == 401


def test_what_is_over_is_not_rotated_and_a_new_time_may_be_given_before(engine: Engine) -> None:
    make(engine, expires_at=now() + timedelta(days=1))
    later = now() + timedelta(days=90)
    with transaction(engine) as connection:
        rotate_key(connection, "one")
        kept = terms_of(list_keys(connection)[0]).expires_at
        assert kept is not None
        assert kept < later - timedelta(days=80)
        rotate_key(connection, "one", expires_at=later)
        assert terms_of(list_keys(connection)[0]).expires_at == later
    change(engine, expires_at=now())
    before = dump(engine)
    refused: list[tuple[type[Exception], dict[str, Any]]] = [
        (ConflictError, {}),
        (InvalidRequestError, {"expires_at": now()}),
        (InvalidRequestError, {"grace_seconds": -1}),
        (InvalidRequestError, {"grace_seconds": GRACE_SECONDS_MAX + 1}),
    ]
    for error, given in refused:
        with pytest.raises(error), transaction(engine) as connection:
            rotate_key(connection, "one", **given)
    with pytest.raises(NotFoundError), transaction(engine) as connection:
        rotate_key(connection, "two")
    assert dump(engine) == before
    change(engine, expires_at=None, revoked_at=now())
    with pytest.raises(ConflictError), transaction(engine) as connection:
        rotate_key(connection, "one")


def test_what_happens_to_keys_is_in_the_log_and_none_of_it_is_a_secret(engine: Engine) -> None:
    first = make(engine, "one", Role.TRAINER, datasets=frozenset({"b", "a"}), body_bytes_max=2000)
    with transaction(engine) as connection:
        second = rotate_key(connection, "one", grace_seconds=60, by="officer")
        revoke_key(connection, "one", by="officer")
        revoke_key(connection, "one", by="officer")  # it was already
        found = connection.execute(select(acts).order_by(acts.c.id)).all()
    contents = [json.loads(act.content) for act in found]
    assert [(act.kind, act.by) for act in found] == [
        ("key_created", "command-line"),
        ("key_rotated", "officer"),
        ("key_revoked", "officer"),
    ]
    assert {content["name"] for content in contents} == {"one"}
    assert contents[0]["datasets"] == ["a", "b"]
    assert (contents[0]["scope"], contents[0]["body_bytes_max"]) == ("trainer", 2000)
    assert contents[0]["digest"] == contents[1]["previous_digest"] == digest_of(first)
    assert contents[1]["digest"] == digest_of(second)
    stored = repr(dump(engine))
    assert first[12:] not in stored
    assert second[12:] not in stored


def test_a_key_that_is_refused_leaves_no_act(engine: Engine) -> None:
    make(engine)
    before = dump(engine)
    with pytest.raises(ConflictError):
        make(engine)
    assert dump(engine) == before


def test_the_log_over_http_is_what_its_leaves_hash(engine: Engine, serve: Serve) -> None:
    admin = make(engine, "officer")
    for number in range(4):
        make(engine, f"trainer-{number}", Role.TRAINER)
    with serve() as address, httpx.Client(base_url=address, headers=bearer(admin)) as api:
        assert api.post("/v1/datasets", json=dataset("data")).status_code == 201
        listed = pages(api, "/v1/acts")
        assert [act["content"]["name"] for act in listed[:2]] == ["officer", "trainer-0"]
        assert len(listed) == 5
        of_dataset = pages(api, "/v1/datasets/data/acts")
        assert (of_dataset[0]["kind"], of_dataset[0]["by"]) == ("dataset", "officer")
        assert api.get("/v1/datasets/unknown/acts").status_code == 404
    for table, name, found in ((installation, None, listed), (datasets, "data", of_dataset)):
        assert [act["position"] for act in found] == list(range(len(found)))
        assert {act["dataset"] for act in found} == {name}
        with snapshot(engine) as connection:
            row = connection.execute(select(table.c.log_size, table.c.log_frontier)).one()
        hashed = [{k: v for k, v in act.items() if k != "traceparent"} for act in found]
        leaves = [leaf_hash(canonical(act).encode()) for act in hashed]
        assert tree_root(leaves) == Frontier.from_bytes(row.log_size, row.log_frontier).root()


def pages(api: httpx.Client, path: str) -> list[Json]:
    """A list, two at a time."""
    listed: list[Json] = []
    query: dict[str, Any] = {"page_size": 2}
    while True:
        page = api.get(path, params=query).json()
        assert 1 <= len(page["acts"]) <= 2
        listed += page["acts"]
        if page["next_page_token"] is None:
            return listed
        query["page_token"] = page["next_page_token"]


def test_the_first_key_from_a_file_is_in_the_log(
    engine: Engine, serve: Serve, tmp_path: Any
) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 32, encoding="utf-8")
    with serve(admin_key_file=file) as address:
        (act,) = httpx.get(f"{address}/v1/acts", headers=bearer("k" * 32)).json()["acts"]
    assert (act["kind"], act["by"]) == ("key_created", "admin-key-file")
    assert act["content"]["name"] == "first-admin"
    assert datetime.fromisoformat(act["acted_at"]).tzinfo is not None
    assert FREE.record().items() <= act["content"].items()
    assert dump(engine)["acts"]
