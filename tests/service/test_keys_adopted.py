"""Keys from before there were logs: their log begins with them, and they go on as they were."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
from sqlalchemy import Engine, select

from service.identity.keys import Role, create_key, digest_of, revoke_key, rotate_key
from service.ledger.log.adoption import ADOPTED
from service.storage import migrations
from service.storage.engine import snapshot, transaction
from service.storage.tables import acts
from service.transparency.verification.ledger import verify
from tests.service.dumps import dump
from tests.service.test_keys import bearer, key
from tests.service.test_migrations import rebuilt

__all__ = ["rebuilt"]  # a fixture
Serve = Callable[..., AbstractContextManager[str]]
BEFORE_LOGS = "0005"


def test_keys_from_before_logs_are_in_the_log_and_work_as_they_did(
    rebuilt: Engine,
    serve: Serve,
) -> None:
    admin, gone = key(rebuilt, Role.ADMIN, "officer"), key(rebuilt, Role.TRAINER, "gone")
    with transaction(rebuilt) as connection:
        revoke_key(connection, "gone")
    migrations.downgrade(rebuilt, BEFORE_LOGS)
    migrations.upgrade(rebuilt)
    with snapshot(rebuilt) as connection:
        found = connection.execute(select(acts).order_by(acts.c.id)).all()
        assert verify(connection).total == 0
    assert [(act.kind, act.by, act.dataset_id, act.position) for act in found] == [
        ("key_created", ADOPTED, None, 0),
        ("key_created", ADOPTED, None, 1),
        ("key_revoked", ADOPTED, None, 2),
    ]
    terms = dict.fromkeys(("body_bytes_max", "datasets", "expires_at", "requests_per_second"))
    assert [json.loads(act.content) for act in found] == [
        {"name": "officer", "scope": "admin", "digest": digest_of(admin), **terms},
        {"name": "gone", "scope": "trainer", "digest": digest_of(gone), **terms},
        {"name": "gone"},
    ]
    with serve() as address, httpx.Client(base_url=address) as api:
        assert api.get("/v1/acts", headers=bearer(admin)).status_code == 200
        assert api.get("/v1/runs", headers=bearer(gone)).status_code == 401
    # What is done with them from now on continues that log.
    with transaction(rebuilt) as connection:
        rotate_key(connection, "officer")
        create_key(connection, name="new", scope=Role.VIEWER)
    with snapshot(rebuilt) as connection:
        assert verify(connection).total == 0


def test_keys_are_adopted_once(engine: Engine) -> None:
    key(engine, Role.ADMIN, "officer")
    before = dump(engine)
    migrations.upgrade(engine)
    assert dump(engine) == before
